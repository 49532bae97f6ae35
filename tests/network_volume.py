"""A folder seen through FUSE that refuses link(2) and flock(2), as volumes of some providers do.

python tests/network_volume.py BACKING MOUNTPOINT      in the foreground, until it is unmounted or killed
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import mfusepy


class Volume(mfusepy.Operations):  # type: ignore[misc]
    """Everything goes to the backing folder, but for what is refused."""

    use_ns = True

    def __init__(self, backing: str) -> None:
        self._backing = backing

    def _at(self, path: str) -> str:
        return self._backing + path

    # --- refused

    def link(self, target: str, source: str) -> int:
        raise mfusepy.FuseOSError(errno.EPERM)

    def flock(self, path: str, fh: int, op: int) -> int:
        raise mfusepy.FuseOSError(errno.ENOLCK)

    # --- passed on

    def access(self, path: str, amode: int) -> int:
        if not os.access(self._at(path), amode):
            raise mfusepy.FuseOSError(errno.EACCES)
        return 0

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        info = os.fstat(fh) if fh is not None else os.lstat(self._at(path))
        names = ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid", "st_ino", "st_blocks")
        times = {f"st_{t}time": getattr(info, f"st_{t}time_ns") for t in "amc"}
        return {**{name: getattr(info, name) for name in names}, **times}

    def readdir(self, path: str, fh: int) -> Iterable[str]:
        return [".", "..", *os.listdir(self._at(path))]

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self._at(path))
        names = ("bavail", "bfree", "blocks", "bsize", "favail", "ffree", "files", "frsize", "namemax")
        return {f"f_{name}": getattr(found, f"f_{name}") for name in names}

    def mkdir(self, path: str, mode: int) -> int:
        os.mkdir(self._at(path), mode)
        return 0

    def rmdir(self, path: str) -> int:
        os.rmdir(self._at(path))
        return 0

    def unlink(self, path: str) -> int:
        os.unlink(self._at(path))
        return 0

    def rename(self, old: str, new: str) -> int:
        os.rename(self._at(old), self._at(new))
        return 0

    def symlink(self, target: str, source: str) -> int:
        os.symlink(source, self._at(target))
        return 0

    def readlink(self, path: str) -> str:
        return os.readlink(self._at(path))

    def chmod(self, path: str, mode: int) -> int:
        os.chmod(self._at(path), mode)
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:
        os.chown(self._at(path), uid, gid, follow_symlinks=False)
        return 0

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        os.utime(self._at(path), ns=times, follow_symlinks=False)
        return 0

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        os.truncate(fh if fh is not None else self._at(path), length)
        return 0

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        return os.open(self._at(path), os.O_RDWR | os.O_CREAT, mode)

    def open(self, path: str, flags: int) -> int:
        return os.open(self._at(path), flags & ~os.O_APPEND)  # the kernel gives the offset

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return os.pwrite(fh, data, offset)

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        os.fsync(fh)
        return 0

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0


if __name__ == "__main__":
    backing, point = (str(Path(p).absolute()) for p in sys.argv[1:])
    mfusepy.FUSE(Volume(backing), point, foreground=True, nothreads=True, allow_other=True, fsname="volume:/x")
