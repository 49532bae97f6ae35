"""Fetched files get their names here, and their digests are remembered.

Not here: how they come (fetch.py), what is compared (compare.py).
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import Self

from remote_runner.errors import Unverified
from remote_runner.pod import digests, files
from remote_runner.transfer.items import Fetched


class Placing:
    """Gives fetched files their names below a root; nothing is followed out of it.

    Each folder is walked to once, and the names in it are durable when the `with` block is left, however it is left.

    Args:
        known: takes the digests of what was placed, so that the next comparison reads nothing.
    """

    def __init__(self, root: Path, known: digests.Digests | None = None) -> None:
        self._root, self._known = root, known
        self._folders = files.Folders(str(root), create=True, most=64)  # open at once: some systems allow 256 in all
        self._named: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, value: BaseException | None, _trace: object) -> None:
        try:
            with self._folders, contextlib.suppress(OSError) if value else contextlib.nullcontext():
                for folder in sorted(self._named):
                    os.fsync(self._folders.of(f"{folder}/any" if folder else "any")[0])
        finally:
            if self._known is not None:
                self._known.save()

    def place(self, one: Fetched) -> None:
        """Give a file its name.

        Raises:
            Unverified: a link stands where a folder should, or a folder where the file should.
        """
        try:
            folder, name = self._folders.of(one.path)
            os.replace(one.temp, name, dst_dir_fd=folder)
            if self._known is not None:
                info = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if (info.st_size, info.st_mtime_ns) == (one.size, one.mtime_ns):
                    self._known.put(one.path, digests.stamp_of(info), one.sha256, time.time_ns(), ours=True)
        except OSError as e:
            where = f"{self._root}/{one.path}"
            if e.errno == errno.EISDIR:
                raise Unverified(
                    f"{where}: a folder stands where the pod has a file", fix="move the folder away"
                ) from None
            if e.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            raise Unverified(
                f"{where}: a link or a file stands where a folder should, nothing is written through it",
                fix="replace the link by a folder",
            ) from None
        self._named.add(one.path.rpartition("/")[0])
        if one.temp.suffix == ".part":
            one.temp.with_suffix(".ranges").unlink(missing_ok=True)
