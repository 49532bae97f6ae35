"""A large file on its way here: a part on disk, a journal of proven ranges, and its digest as it grows.

    incoming/<id>.part     the file's size, with holes        incoming/<id>.ranges     [offset, length, sha256] a line

The id names path and version on the pod, so that a new process finds what an old one got. Ranges from before are
read again and must fit their digests before they count.

Not here: the same on the pod's side (pod/parts.py), which ranges are asked for (fetch.py).
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path
from typing import Any

from remote_runner.conversation import field
from remote_runner.errors import Unverified
from remote_runner.pod import files, parts
from remote_runner.transfer.items import Fetched, stamp

SYNC_EVERY_BYTES = 256 << 20  # the disk writes while the rest is on its way


class Part:
    """One file; `begin` with each version of it that the pod turns out to have.

    Args:
        limit: the most bytes that it may have become since it was listed.
        changed: notified whenever something was proven.
    """

    def __init__(self, path: str, incoming: Path, limit: int, changed: threading.Condition) -> None:
        self.path, self.limit = path, limit
        self._incoming, self._changed, self._io = incoming, changed, threading.Lock()
        self.generation = 0
        self.begun = self.gone = self.closed = False
        self.facts: dict[str, Any] = {}
        self.size = 0
        self.settled = True
        self._gaps: list[tuple[int, int]] = []  # (begin, end)
        self._proven: dict[int, tuple[int, str]] = {}  # offset -> length, sha256 where it is from an older process
        self._fd = self._journal = -1

    @property
    def version(self) -> list[int]:
        return [field(self.facts, name, int) for name in ("size", "mtime_ns", "ino")]

    @property
    def left_bytes(self) -> int:
        return sum(end - begin for begin, end in self._gaps)

    def begin(self, facts: dict[str, Any]) -> int:
        """Take up a version of the file.

        Returns:
            Bytes that are here from before.

        Raises:
            Unverified: it is larger than it may be.
            OSError: the disk refused.
        """
        size = field(facts, "size", int)
        if size < 0 or size > self.limit:
            raise Unverified(
                f"{self.path}: the pod offers {size} bytes where at most {self.limit} could be", fix="do not trust it"
            )
        with self._changed:
            self.close()
            self.facts, self.size, self.settled = facts, size, True
            self.generation += 1
            ident = hashlib.sha256(json.dumps([self.path, self.version]).encode()).hexdigest()[:32]
            self.temp = self._incoming / f"{ident}.part"
            journal = self.temp.with_suffix(".ranges")
            self._fd = os.open(self.temp, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            rows = _read(journal, size) if os.fstat(self._fd).st_size == size else []
            if not rows:
                journal.unlink(missing_ok=True)
                os.ftruncate(self._fd, 0)
            os.ftruncate(self._fd, size)
            self._journal = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
            self._proven = {offset: (length, sha256) for offset, length, sha256 in rows}
            self._gaps = gaps(rows, size)
            self.begun, self.closed = True, False
            self._changed.notify_all()
            return sum(length for length, _ in self._proven.values())

    def take(self, most: int) -> tuple[int, int] | None:
        """The next range to ask for: offset and length."""
        if not self._gaps:
            return None
        begin, end = self._gaps[0]
        length = min(most, end - begin)
        self._gaps[0] = (begin + length, end)
        if begin + length == end:
            del self._gaps[0]
        return begin, length

    def write(self, generation: int, offset: int, data: bytes) -> None:
        with self._io:  # a closed descriptor's number may be another file's a moment later
            if generation == self.generation and not self.closed:
                parts.write(self._fd, data, offset)

    def prove(self, generation: int, offset: int, length: int, sha256: str) -> None:
        """A range is whole."""
        with self._changed:
            if generation == self.generation and not self.closed:
                files.write_all(self._journal, (json.dumps([offset, length, sha256]) + "\n").encode())
                self._proven[offset] = (length, "")
                self._changed.notify_all()

    def forget(self) -> None:
        """The version that was begun is no longer to be had."""
        with self._changed:
            self.begun, self._gaps, self._proven = False, [], {}
            self.generation += 1
            self._changed.notify_all()

    def drop(self) -> None:
        """There is no such file any more."""
        with self._changed:
            self.forget()
            self.gone = True
            self.close()
            if hasattr(self, "temp"):
                self.temp.unlink(missing_ok=True)
                self.temp.with_suffix(".ranges").unlink(missing_ok=True)
            self._changed.notify_all()

    def close(self) -> None:
        with self._io:
            for fd in (self._fd, self._journal):
                if fd >= 0:
                    os.close(fd)
            self._fd = self._journal = -1
            self.closed = True

    def digest(self, stopped: threading.Event) -> Fetched | None:
        """Follow the proven prefix to the end of the file, and make it durable.

        Returns:
            None where the file is gone, or the transfer stopped.
        """
        while not stopped.is_set() and not self.gone:
            with self._changed:
                if not self.begun:
                    self._changed.wait(1.0)
                    continue
                generation, fd = self.generation, os.dup(self._fd)
            try:
                found = self._follow(generation, fd, stopped)
                if found is not None:
                    os.fsync(fd)
                    return self._finish(found)
            finally:
                os.close(fd)
        return None

    def _follow(self, generation: int, fd: int, stopped: threading.Event) -> str | None:
        whole, at, synced = hashlib.sha256(), 0, 0
        while at < self.size:
            with self._changed:
                if generation != self.generation or stopped.is_set() or self.gone:
                    return None
                if at not in self._proven:
                    self._changed.wait(1.0)
                    continue
                length, sha256 = self._proven[at]
            mark = whole.copy() if sha256 else None
            if not self._hash(fd, at, length, whole, sha256):
                assert mark is not None
                whole = mark
                with self._changed:  # an old range is not what it was: fetch it again
                    del self._proven[at]
                    self._gaps.insert(0, (at, at + length))
                    self._changed.notify_all()
                continue
            at += length
            if at - synced >= SYNC_EVERY_BYTES:
                os.fsync(fd)
                synced = at
        return whole.hexdigest()

    @staticmethod
    def _hash(fd: int, at: int, length: int, whole: Any, sha256: str) -> bool:
        own, end = hashlib.sha256(), at + length
        while at < end:
            block = os.pread(fd, min(files.BLOCK_BYTES, end - at), at)
            if not block:
                return False
            whole.update(block)
            if sha256:
                own.update(block)
            at += len(block)
        return not sha256 or own.hexdigest() == sha256

    def _finish(self, sha256: str) -> Fetched:
        with self._changed:
            self.close()  # the part and its journal stay until it is placed: it need not travel again
            self._changed.notify_all()
        return Fetched(
            path=self.path,
            temp=self.temp,
            size=self.size,
            sha256=sha256,
            mode=field(self.facts, "mode", int) & 0o777,
            mtime_ns=field(self.facts, "mtime_ns", int),
            stamp=stamp(self.facts) if self.settled else (),
        )


def gaps(rows: list[list[Any]], size: int) -> list[tuple[int, int]]:
    """What is missing of a file between its proven ranges: (begin, end), in order."""
    found, at = [], 0
    for offset, length, *_ in rows:
        if offset > at:
            found.append((at, offset))
        at = offset + length
    if at < size:
        found.append((at, size))
    return found


def _read(journal: Path, size: int) -> list[list[Any]]:
    try:
        return parts.rows(journal.read_text(encoding="ascii", errors="replace"), size)
    except OSError:
        return []
