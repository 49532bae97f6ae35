"""Fetched files get their names here, and both ends remember their digests.

Not here: how they come (fetch.py), what is compared (compare.py).
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import Self

from remote_runner.agent import Agent
from remote_runner.errors import RunnerError, Unverified
from remote_runner.pod import digests, files
from remote_runner.program import LinkLost
from remote_runner.transfer.items import Fetched

TELL_AT_ONCE = 20_000


class Placing:
    """Gives fetched files their names below a root; nothing is followed out of it.

    Each folder is walked to once, and the names in it are durable when the `with` block is left, however it is left.

    Args:
        known: takes the digests of what was placed, so that the next comparison reads nothing.
    """

    def __init__(self, root: Path, known: digests.Digests | None = None) -> None:
        self._root, self._known = root, known
        self._there: list[tuple[str, str, tuple[int, ...]]] = []  # what the pod may remember
        self._folders = files.Folders(str(root), create=True)
        self._named: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._folders:
            for folder in sorted(self._named):
                os.fsync(self._folders.of(f"{folder}/any" if folder else "any")[0])

    def place(self, one: Fetched) -> None:
        """Give a file its name.

        Raises:
            Unverified: a link stands where a folder should.
        """
        try:
            folder, name = self._folders.of(one.path)
            os.replace(one.temp, name, dst_dir_fd=folder)
            if self._known is not None:
                self._remember(self._known, one, os.stat(name, dir_fd=folder, follow_symlinks=False))
        except OSError as e:
            if e.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            where = f"{self._root}/{one.path}"
            raise Unverified(
                f"{where}: a link or a file stands where a folder should, nothing is written through it",
                fix="replace the link by a folder",
            ) from None
        self._named.add(one.path.rpartition("/")[0])
        if one.temp.suffix == ".part":
            one.temp.with_suffix(".ranges").unlink(missing_ok=True)

    def _remember(self, known: digests.Digests, one: Fetched, info: os.stat_result) -> None:
        if (info.st_size, info.st_mtime_ns) == (one.size, one.mtime_ns):
            known.put(one.path, digests.stamp_of(info), one.sha256, time.time_ns(), ours=True)
        if one.stamp:  # nothing had written to it for a while when the pod read it
            self._there.append((one.path, one.sha256, one.stamp))

    def tell(self, agent: Agent) -> None:
        """Write the digests down here, and let the pod remember its own: a comparison asks it for them."""
        if self._known is not None:
            self._known.save()
        now_ns = time.time_ns()
        with contextlib.suppress(LinkLost, RunnerError):  # a memory, no more
            for at in range(0, len(self._there), TELL_AT_ONCE):
                some = self._there[at : at + TELL_AT_ONCE]
                agent.tell("remember", files=[[path, sha256, *stamp, now_ns, True] for path, sha256, stamp in some])
