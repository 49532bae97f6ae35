"""A part on disk and the journal of its ranges, which a later transfer goes on from.

    incoming/<id>.part     the file's size, with holes        incoming/<id>.ranges     [offset, length] a line

The id names path and version on the pod.

Not here: what is known of the bytes (part.py), the same on the pod's side (pod/parts.py).
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path

from remote_runner.pod import files, parts


class PartFile:
    """One version of one file; several threads may write at once.

    Raises:
        OSError: the disk refused.
    """

    def __init__(self, incoming: Path, path: str, version: list[int], size: int) -> None:
        ident = hashlib.sha256(json.dumps([path, version]).encode()).hexdigest()[:32]
        self.temp = incoming / f"{ident}.part"
        self._io, self._writers, self.closed = threading.Condition(), 0, False
        self.fd = os.open(self.temp, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            self.ranges = _read(self._names, size) if os.fstat(self.fd).st_size == size else []
            if not self.ranges:
                self._names.unlink(missing_ok=True)
                os.ftruncate(self.fd, 0)
            os.ftruncate(self.fd, size)
            self._journal = os.open(self._names, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        except BaseException:
            os.close(self.fd)
            raise

    @property
    def _names(self) -> Path:
        return self.temp.with_suffix(".ranges")

    def write(self, offset: int, data: memoryview) -> None:
        """Nothing where it is closed: a closed descriptor's number may be another file's a moment later."""
        with self._io:
            if self.closed:
                return
            self._writers += 1
        try:
            parts.write(self.fd, data, offset)
        finally:
            with self._io:
                self._writers -= 1
                self._io.notify_all()

    def note(self, offset: int, length: int) -> None:
        """Enter a range that is written."""
        files.write_all(self._journal, (json.dumps([offset, length]) + "\n").encode())

    def close(self) -> None:
        with self._io:
            if self.closed:
                return
            self.closed = True
            while self._writers:
                self._io.wait()
        os.close(self.fd)
        os.close(self._journal)

    def remove(self) -> None:
        self.close()
        self.temp.unlink(missing_ok=True)
        self._names.unlink(missing_ok=True)


def gaps(rows: list[list[int]], size: int) -> list[tuple[int, int]]:
    """What is missing of a file between its ranges: (begin, end), in order."""
    found, at = [], 0
    for offset, length in rows:
        if offset > at:
            found.append((at, offset))
        at = offset + length
    if at < size:
        found.append((at, size))
    return found


def _read(journal: Path, size: int) -> list[list[int]]:
    try:
        return parts.rows(journal.read_text(encoding="ascii", errors="replace"), size)
    except OSError:
        return []
