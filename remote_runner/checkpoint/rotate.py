"""Make a finished file the newest snapshot, and keep the one before it. Standard library only.

    temp  --fsync-->  latest --link--> .previous.tmp --rename--> previous;  temp --rename--> latest;  fsync folder

At every point between two of these calls, latest or previous is a whole snapshot. Only a latest that this process
wrote or verified, and that nobody touched since, becomes previous; a bad one is put aside as `*.corrupt-<time>`.

Not here: the bytes of a snapshot (snapshot.py).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from pathlib import Path
from typing import Callable, Dict, Tuple

from remote_runner.checkpoint import header

_NO_LINK = {
    errno.EPERM,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
    errno.ENOSYS,
    errno.EMLINK,
    errno.EXDEV,
    errno.EACCES,
}
_proven: Dict[str, Tuple[int, ...]] = {}  # path -> identity of the file this process wrote or verified


def latest_of(folder: Path, stage: str) -> Path:
    """Where the newest snapshot of a stage lies."""
    return folder / f"{stage}-training.safetensors"


def previous_of(latest: Path) -> Path:
    """Where the one before `latest` lies."""
    return latest.with_name(latest.name.replace("-training.", "-training.previous."))


def temp_of(latest: Path) -> Path:
    """Where the next one is written."""
    return latest.with_name(latest.name + ".tmp")


def trust(path: Path) -> None:
    """Note that the file, as it is now, was written or verified by this process."""
    _proven[str(path.absolute())] = _identity(path)


def set_aside(path: Path, say: Callable[[str], None], why: str) -> Path:
    """Rename a bad snapshot to `*.corrupt-<time>`, as evidence, and say so."""
    aside = path.with_name(f"{path.name}.corrupt-{time.strftime('%Y%m%d-%H%M%S')}")
    path.replace(aside)
    say(f"{path} is not a whole snapshot and is now {aside.name}: {why}")
    return aside


def publish(temp: Path, latest: Path, say: Callable[[str], None]) -> Path:
    """Make a written, verified and synced snapshot the newest one.

    Returns: `latest`, durable. What stood there is now `<stage>-training.previous.safetensors`.

    Raises: OSError: the folder refused; latest and previous are both whole, or latest is missing and previous is it.

    rename(2) is atomic but lasts only once its folder is synced (fsync(2), NOTES).
    """
    link = latest.with_name(latest.name.replace("-training.safetensors", "-training.previous.tmp"))
    _unlink(link)
    if os.path.lexists(latest) and _is_good(latest, say):
        _keep(latest, previous_of(latest), link)
    os.replace(temp, latest)
    trust(latest)
    sync_folder(latest.parent)
    return latest


def sync_file(fd: int) -> None:
    """Bytes to the disk itself; macOS needs its own call for that (fsync(2) there)."""
    if hasattr(fcntl, "F_FULLFSYNC"):
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
            return
        except OSError:  # a file system without it
            pass
    os.fsync(fd)


def begin_write_back(fd: int, at: int, length: int) -> None:
    """Have the kernel begin to write these bytes to the disk now, so that the sync at the end finds little left.

    Linux starts write-back for POSIX_FADV_DONTNEED and drops only pages that are clean (mm/fadvise.c).
    """
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, at, length, os.POSIX_FADV_DONTNEED)


def sync_folder(folder: Path) -> None:
    """Make the renames in a folder last."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_with(path: Path, data: bytes) -> None:
    """Replace a small file whole: temp in its folder, write, fsync, rename, fsync of the folder."""
    temp = path.with_name(path.name + ".tmp")
    try:
        with temp.open("wb") as file:
            file.write(data)
            file.flush()
            sync_file(file.fileno())
        os.replace(temp, path)
    except BaseException:
        _unlink(temp)
        raise
    sync_folder(path.parent)


def _is_good(latest: Path, say: Callable[[str], None]) -> bool:
    if _proven.get(str(latest.absolute())) == _identity(latest):
        return True
    try:
        header.verify_digests(latest)
        return True
    except (header.SnapshotCorrupt, OSError) as wrong:
        set_aside(latest, say, str(wrong))
        return False


def _keep(latest: Path, previous: Path, link: Path) -> None:
    try:
        if os.path.samestat(os.lstat(latest), os.lstat(previous)):
            return  # an earlier publish came as far as here
    except FileNotFoundError:
        pass
    try:
        os.link(latest, link)
    except OSError as wrong:
        if wrong.errno not in _NO_LINK:
            raise
        os.replace(latest, previous)
        return
    os.replace(link, previous)
    trust(latest)  # the link changed its ctime


def _identity(path: Path) -> Tuple[int, ...]:
    s = os.lstat(path)
    return (s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_mode)


def _unlink(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
