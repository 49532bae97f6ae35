"""A large file on its way here: which of its bytes are wanted, on their way and here, and its digest as it grows.

What is here is hashed once, in order; at each step of 4 MiB the digest must be the one that the pod has there. Where
bytes from an earlier transfer make the difference, they are fetched again; where bytes of this one do, it is over.

Not here: the part on disk (part_file.py), which ranges are asked for when (fetch.py).
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from remote_runner.conversation import field
from remote_runner.errors import Unverified
from remote_runner.pod import bulk, files
from remote_runner.transfer.items import Fetched, damaged, dress, stamp
from remote_runner.transfer.part_file import PartFile, gaps

SYNC_EVERY_BYTES = 256 << 20  # the disk writes while the rest is on its way
MARK_BYTES = 8 * bulk.STEP_BYTES  # what the pod hashes for one request


class Part:
    """One file; `begin` with each version of it that the pod turns out to have.

    Args:
        limit: the most bytes that it may have become since it was listed.
        changed: notified whenever something came.
    """

    def __init__(self, path: str, incoming: Path, limit: int, changed: threading.Condition) -> None:
        self.path, self.limit = path, limit
        self._incoming, self._changed = incoming, changed
        self.generation = 0
        self.begun = self.gone = False
        self.facts: dict[str, Any] = {}
        self.size = 0
        self.settled = True
        self._file: PartFile | None = None
        self._gaps: list[tuple[int, int]] = []  # (begin, end) of what was not asked for yet
        self._here: dict[int, int] = {}  # offset -> length of what is written
        self._old: dict[int, int] = {}  # those of them that an earlier transfer wrote
        self._prefix = 0  # here without a gap
        self._marks: dict[int, str] = {}  # end -> digest of the pod's bytes before it
        self._told = 0  # as far as the pod was asked for marks

    @property
    def version(self) -> list[int]:
        return [field(self.facts, name, int) for name in ("size", "mtime_ns", "ino")]

    @property
    def temp(self) -> Path | None:
        return self._file.temp if self._file else None

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
            self._file = PartFile(self._incoming, self.path, self.version, size)
            self._here = {row[0]: row[1] for row in self._file.ranges}
            self._old, self._marks, self._told, self._prefix = self._here.copy(), {}, 0, 0
            self._gaps = gaps(self._file.ranges, size)
            self._advance()
            self.begun = True
            self._changed.notify_all()
            return sum(self._here.values())

    def take(self, most: int) -> tuple[int, int] | None:
        """The next range to ask for: offset and length."""
        if not self._gaps:
            return None
        begin, end = self._gaps[0]
        length = min(most, end - begin)
        self._gaps[:1] = [(begin + length, end)] if begin + length < end else []
        return begin, length

    def to_tell(self) -> tuple[int, int] | None:
        """From where and up to where the pod is to be asked for marks now: as far as ranges were asked for."""
        upto = min(self.size, self._told + MARK_BYTES)
        if not self.begun or self.gone or self._told == upto or (self._gaps and self._gaps[0][0] < upto):
            return None
        begin, self._told = self._told, upto
        return begin, upto

    def learn(self, generation: int, marks: dict[int, str]) -> None:
        """Digests of the pod's bytes before some offsets."""
        with self._changed:
            if generation == self.generation:
                self._marks.update(marks)
                self._changed.notify_all()

    def file_of(self, generation: int) -> PartFile | None:
        """Where the bytes of a version go; None where they are no longer wanted."""
        with self._changed:
            return self._file if generation == self.generation else None

    def arrived(self, generation: int, offset: int, length: int) -> None:
        """A range is written."""
        with self._changed:
            if generation == self.generation and self._file and not self._file.closed:
                self._file.note(offset, length)
                self._here[offset] = length
                self._advance()
                self._changed.notify_all()

    def _advance(self) -> None:
        while self._prefix in self._here:
            self._prefix += self._here[self._prefix]

    def forget(self) -> None:
        """The version that was begun is no longer to be had."""
        with self._changed:
            self.begun, self._gaps, self._here, self._prefix = False, [], {}, 0
            self.generation += 1
            self._changed.notify_all()

    def drop(self) -> None:
        """There is no such file any more."""
        with self._changed:
            self.forget()
            self.gone = True
            if self._file:
                self._file.remove()
            self._changed.notify_all()

    def close(self) -> None:
        if self._file:
            self._file.close()

    # --- the digest -------------------------------------------------------

    def digest(self, stopped: threading.Event) -> Fetched | None:
        """Follow what is here from the beginning to the end of the file, and make it durable.

        Returns:
            None where the file is gone, or the transfer stopped.

        Raises:
            Unverified: bytes that came are not those that the pod read.
        """
        while not stopped.is_set() and not self.gone:
            with self._changed:
                if not self.begun or self._file is None:
                    self._changed.wait(1.0)
                    continue
                generation, fd = self.generation, os.dup(self._file.fd)
            try:
                found = self._follow(generation, fd, stopped)
                if found is not None:
                    dress(fd, field(self.facts, "mode", int), field(self.facts, "mtime_ns", int))
                    os.fsync(fd)
                    return self._finish(found)
            finally:
                os.close(fd)
        return None

    def _follow(self, generation: int, fd: int, stopped: threading.Event) -> str | None:
        """The digest of the whole, equal to the pod's at each step; None where this version is of no use any more."""
        whole, step, synced = hashlib.sha256(), 0, 0

        def useful() -> bool:
            return generation == self.generation and not stopped.is_set() and not self.gone

        while step < self.size:
            end, before = min(self.size, step + bulk.STEP_BYTES), whole.copy()
            if not self._hash(fd, step, end, whole, useful):
                return None
            there = self._mark(end, useful)
            if there is None:
                return None
            if whole.hexdigest() != there:
                if not self._fetch_again(step, end):
                    raise damaged(self.path, whole.hexdigest(), there)
                whole = before
                continue
            step = end
            if step - synced >= SYNC_EVERY_BYTES:
                os.fsync(fd)
                synced = step
        return whole.hexdigest()

    def _hash(self, fd: int, at: int, end: int, whole: Any, useful: Callable[[], bool]) -> bool:
        """Take a step into the digest as it arrives; whether it did."""
        while at < end:
            with self._changed:
                while useful() and self._prefix <= at:
                    self._changed.wait(1.0)
                if not useful():
                    return False
                upto = min(end, self._prefix)
            while at < upto:
                block = os.pread(fd, min(files.BLOCK_BYTES, upto - at), at)
                if not block:
                    raise OSError(f"{self.path}: its part here became shorter, at {at} of {self.size} bytes")
                whole.update(block)
                at += len(block)
        return True

    def _mark(self, end: int, useful: Callable[[], bool]) -> str | None:
        with self._changed:
            while useful() and end not in self._marks:
                self._changed.wait(1.0)
            return self._marks[end] if useful() else None

    def _fetch_again(self, begin: int, end: int) -> bool:
        """Ask once more for what an earlier transfer wrote there; whether there is any of it."""
        with self._changed:
            bad = [(o, n) for o, n in self._old.items() if o < end and o + n > begin]
            for offset, length in bad:
                del self._old[offset], self._here[offset]
                if offset < begin:
                    self._here[offset] = begin - offset
                if offset + length > end:
                    self._here[end] = self._old[end] = offset + length - end
                self._gaps.append((max(offset, begin), min(offset + length, end)))
            self._gaps.sort()
            self._prefix = 0
            self._advance()
            self._changed.notify_all()
            return bool(bad)

    def _finish(self, sha256: str) -> Fetched:
        with self._changed:
            self.close()  # the part and its journal stay until it is placed: it need not travel again
            assert self._file is not None
            temp = self._file.temp
            self._changed.notify_all()
        return Fetched(
            path=self.path,
            temp=temp,
            size=self.size,
            sha256=sha256,
            mode=field(self.facts, "mode", int) & 0o777,
            mtime_ns=field(self.facts, "mtime_ns", int),
            stamp=stamp(self.facts) if self.settled else (),
        )
