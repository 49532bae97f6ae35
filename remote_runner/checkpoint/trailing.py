"""Write a file of tensors and prove it while it is written.

    this thread      hash, write a block ................... header last, fsync
    second thread      read it back, hash, look for NaN, a few blocks behind

Not here: names, rotation and what a failure means (snapshot.py, rotate.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from remote_runner.checkpoint import finite, header, rotate
from remote_runner.checkpoint.header import SnapshotCorrupt
from remote_runner.checkpoint.tensors import Tensor, bytes_of

BLOCK_BYTES = 4 << 20


def write(
    temp: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any], volatile: Mapping[str, Any]
) -> Tuple[str, int, List[str]]:
    """Write `temp` as a snapshot of format 1, read it back, and sync it.

    Returns: its root, its size in bytes, and the names of tensors that hold NaN or an infinity.

    Raises:
        OSError: names `temp`, which may be there, unfinished.
        SnapshotCorrupt: what was read back is not what was written.
    """
    entries = header.layout({name: (t.dtype, t.shape) for name, t in tensors.items()})
    blank = header.metadata_of(state, volatile, entries, {e.name: "0" * 64 for e in entries})
    start = len(header.encode(entries, blank))  # digests have one length, so the room is known before they are
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temp)
    fd = os.open(temp, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        trailer = _Trailer(temp, entries, start)
        try:
            os.lseek(fd, start, os.SEEK_SET)
            digests = {}
            for e in entries:
                data, sha = bytes_of(tensors[e.name]), hashlib.sha256()
                if len(data) != e.end - e.begin:
                    raise ValueError(f"{e.name}: {len(data)} bytes given for {e.dtype} {list(e.shape)}")
                for at in range(0, len(data), BLOCK_BYTES):
                    block = data[at : at + BLOCK_BYTES]
                    sha.update(block)
                    _write_all(fd, block)
                    trailer.written(start + e.begin + at + len(block))
                digests[e.name] = sha.hexdigest()
        except BaseException:
            trailer.stop()
            raise
        metadata = header.metadata_of(state, volatile, entries, digests)
        text = header.encode(entries, metadata)
        os.lseek(fd, 0, os.SEEK_SET)
        _write_all(fd, memoryview(text))
        read_back = trailer.finish()
        if read_back != digests or os.pread(fd, len(text) + 1, 0)[: len(text)] != text:
            raise SnapshotCorrupt(f"{temp}: what was read back is not what was written")
        rotate.sync_file(fd)
        return metadata["root"], start + (entries[-1].end if entries else 0), trailer.bad
    except OSError as wrong:
        raise OSError(wrong.errno, wrong.strerror, str(temp)) from wrong
    finally:
        os.close(fd)


class _Trailer:
    """The second thread: reads back what was written, a little behind, and proves it."""

    def __init__(self, path: Path, entries: Sequence[header.Entry], start: int) -> None:
        self._path, self._entries, self._start = path, entries, start
        self._end = start
        self._stopped = False
        self._news = threading.Condition()
        self._digests: Dict[str, str] = {}
        self._error: Optional[BaseException] = None
        self.bad: List[str] = []
        self._thread = threading.Thread(target=self._run, name="snapshot-read-back")
        self._thread.start()

    def written(self, end: int) -> None:
        with self._news:
            self._end = end
            self._news.notify()

    def stop(self) -> None:
        with self._news:
            self._stopped = True
            self._news.notify()
        self._thread.join()

    def finish(self) -> Dict[str, str]:
        """Wait for it. Returns the digest of each tensor as read back. Raises what its thread met."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._digests

    def _run(self) -> None:
        try:
            with open(self._path, "rb", buffering=0) as file:
                file.seek(self._start)
                block = memoryview(bytearray(BLOCK_BYTES))
                for e in self._entries:
                    self._prove(file, e, block)
                    if self._stopped:
                        return
        except BaseException as wrong:  # noqa: BLE001 - handed to the writing thread by finish()
            self._error = wrong

    def _reached(self, end: int) -> bool:
        with self._news:
            self._news.wait_for(lambda: self._stopped or self._end >= end)
            return not self._stopped

    def _prove(self, file: Any, e: header.Entry, block: memoryview) -> None:
        sha = hashlib.sha256()
        for at in range(e.begin, e.end, BLOCK_BYTES):
            part = block[: min(BLOCK_BYTES, e.end - at)]
            if not self._reached(self._start + at + len(part)):
                return
            header.fill(file, part, e.name)
            sha.update(part)
            if finite.count(e.dtype, part) != (0, 0) and e.name not in self.bad:
                self.bad.append(e.name)
        self._digests[e.name] = sha.hexdigest()


def _write_all(fd: int, block: memoryview) -> None:
    while block:
        block = block[os.write(fd, block) :]
