"""A run's files on this machine's own disk, as a source of backups: what a pod that pushes by itself reads.

Not here: what is done with them (backup.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remote_runner.pod import files, foreign, layout


@dataclass(frozen=True, kw_only=True)
class Copied:
    """One version of a file, whole, under a temporary name."""

    path: str
    temp: Path
    size: int
    sha256: str
    mode: int


@dataclass(frozen=True)
class OnDisk:
    """See `backup.Source`."""

    root: Path
    outputs: list[str]
    name: str

    def listing(self) -> tuple[dict[str, dict[str, Any]], list[str]]:
        found = layout.listing(str(self.root), self.outputs, [self.name])
        return {e["path"]: e for e in found["files"]}, found["folders"]

    def digests(self, paths: list[str]) -> dict[str, str]:
        found = {}
        for path in paths:
            with contextlib.suppress(OSError):
                found[path] = files.digest(str(self.root), path)
        return found

    def foreign(self) -> dict[str, dict[str, Any]]:
        told = foreign.of_job(str(self.root))
        return {path: head for path, head, _why in foreign.heads(str(self.root), self.outputs, *told) if head}

    def bring(self, paths: list[str], into: Path, limits: dict[str, int]) -> Iterator[Copied]:
        for number, path in enumerate(paths):
            try:
                fd = files.open_read(str(self.root), path)
            except OSError:
                continue  # rotated away since it was listed
            with os.fdopen(fd, "rb") as source:
                yield _copy(source.fileno(), path, into / f"{number}.part")


def _copy(fd: int, path: str, temp: Path) -> Copied:
    """One version of a file, up to the size that it has now."""
    info, found = os.fstat(fd), hashlib.sha256()
    left = info.st_size
    with temp.open("wb") as f:
        while left and (block := os.read(fd, min(left, files.BLOCK_BYTES))):
            found.update(block)
            f.write(block)
            left -= len(block)
    return Copied(
        path=path,
        temp=temp,
        size=info.st_size - left,
        sha256=found.hexdigest(),
        mode=info.st_mode & 0o777,
    )
