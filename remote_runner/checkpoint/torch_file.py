"""Write the bytes of one checkpoint file, read back and durable before anything is named after it.

    writer   CRC, header, data of each member in turn
    reader     trails it: reads back, compares with memory, SHA-256
    flusher    starts the disk early; a last fsync when all is written

Not here: what is saved (torch_state.py), the archive's layout (torch_zip.py), its name (torch_publish.py).
"""

from __future__ import annotations

import hashlib
import os
import pickle
import queue
import threading
import zlib
from pathlib import Path
from typing import Any, Callable, Iterator, List, Optional, Tuple

import numpy
import torch

from remote_runner.checkpoint import rotate, torch_zip
from remote_runner.checkpoint.torch_zip import CheckpointCorrupt, Member

CHUNK_BYTES = 1 << 20  # stays in the cache between reading, comparing and hashing
_FLUSH_EVERY_BYTES = 128 << 20
Record = Tuple[str, memoryview]


class _Records:
    """Stands in for torch's zip writer and only collects what it is given."""

    def __init__(self) -> None:
        self.records: List[Record] = []

    def write_record(self, name: str, data: Any, size_bytes: int) -> None:
        """Keep one record; `data` is bytes, text or a storage."""
        if isinstance(data, str):
            data = data.encode()
        if not isinstance(data, bytes):
            data = torch.empty(0, dtype=torch.uint8).set_(data).numpy()
        self.records.append((name, memoryview(data).cast("B") if size_bytes else memoryview(b"")))


def records_of(tree: Any) -> List[Record]:
    """Return the members of a `.pt` file that holds a tree of host tensors, by reference."""
    made = _Records()
    # torch's own pickling of tensors, into our own archive. Private, but with this signature since torch 2.1;
    # tests/unit/test_torch_file.py fails when that ends.
    save: Any = torch.serialization._save
    save(tree, made, pickle, 2, False)
    # without .format_version and .storage_alignment: they promise torch's own layout
    return [record for record in made.records if not record[0].startswith(".")] + [("version", memoryview(b"3\n"))]


def _pieces(records: List[Record]) -> Iterator[memoryview]:
    """Yield the file's bytes in order; a member's CRC is made just before its header."""
    placed: List[Tuple[Member, int]] = []
    offset = 0
    for name, data in records:
        member = Member(f"{torch_zip.ARCHIVE}/{name}", data.nbytes, zlib.crc32(data))
        header = torch_zip.local_header(member, offset)
        placed.append((member, offset))
        offset += len(header) + data.nbytes
        yield memoryview(header)
        yield data
    yield memoryview(torch_zip.directory(placed, offset))


def write_verified(temp: Path, records: List[Record]) -> str:
    """Write the members to a new file, read it back against memory, and make it durable.

    Returns:
        The hex SHA-256 of what was read back.

    Raises:
        CheckpointCorrupt: the file does not hold what was written.
        OSError: the disk refused (ENOSPC, say). The temp is the caller's to remove.
    """
    descriptor = os.open(str(temp), os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o644)
    try:
        reader = _Follower(lambda: _read_back(temp, descriptor))
        flusher = _Follower(lambda: _flush(descriptor))
        try:
            for piece in _pieces(records):
                for start in range(0, piece.nbytes, CHUNK_BYTES):
                    chunk = piece[start : start + CHUNK_BYTES]
                    _write_all(descriptor, chunk)
                    reader.follow(chunk)
                    flusher.follow(chunk)
        finally:
            flusher.finish()
            digest = reader.finish()
        rotate.sync_file(descriptor)
        reader.raise_error()
        flusher.raise_error()
        return str(digest)
    finally:
        os.close(descriptor)


class _Follower:
    """A thread that is fed the chunks already written, through a generator that takes them one by one."""

    def __init__(self, job: Callable[[], Any]) -> None:
        self._chunks: queue.SimpleQueue[Optional[memoryview]] = queue.SimpleQueue()
        self._job, self._result = job(), None  # type: Any, Any
        self._error: Optional[BaseException] = None
        next(self._job)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def follow(self, chunk: memoryview) -> None:
        """Hand over the next chunk."""
        self._chunks.put(chunk)

    def finish(self) -> Any:
        """Say that no more comes, wait, and return the job's result."""
        self._chunks.put(None)
        self._thread.join()
        return self._result

    def raise_error(self) -> None:
        """Raise what the thread met."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while True:
                self._job.send(self._chunks.get())
        except StopIteration as end:
            self._result = end.value
        except BaseException as error:  # noqa: BLE001  raise_error() raises it in the writer's thread
            self._error = error


def _read_back(path: Path, descriptor: int) -> Any:
    buffer, digest, position = memoryview(bytearray(CHUNK_BYTES)), hashlib.sha256(), 0
    while True:
        written = yield
        if written is None:
            return digest.hexdigest()
        view = buffer[: written.nbytes]
        _read_exactly(path, descriptor, view, position)
        if not _same(view, written):
            raise CheckpointCorrupt(f"{path}: other bytes were read back than written, near byte {position}")
        digest.update(view)
        position += view.nbytes


def _flush(descriptor: int) -> Any:
    waiting = 0
    while True:
        written = yield
        if written is None:
            return
        waiting += written.nbytes
        if waiting >= _FLUSH_EVERY_BYTES:
            os.fsync(descriptor)
            waiting = 0


def _write_all(descriptor: int, chunk: memoryview) -> None:
    while chunk.nbytes:
        chunk = chunk[os.write(descriptor, chunk) :]


def _read_exactly(path: Path, descriptor: int, view: memoryview, position: int) -> None:
    done = 0
    while done < view.nbytes:
        count = os.preadv(descriptor, [view[done:]], position + done)
        if count == 0:
            raise CheckpointCorrupt(f"{path}: ends at byte {position + done}, before what was written")
        done += count


def _same(a: memoryview, b: memoryview) -> bool:
    kind = numpy.uint64 if a.nbytes % 8 == 0 else numpy.uint8  # eight at a time take half as long
    return bool(numpy.array_equal(numpy.frombuffer(a, kind), numpy.frombuffer(b, kind)))
