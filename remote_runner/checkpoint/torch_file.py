"""Write the bytes of one checkpoint file, read back and durable before anything is named after it.

    writer     CRC, header, data of each member in turn; the disk is set to work at once
    reader     trails it: reads back, compares with memory
    hasher     SHA-256 of the same bytes in memory: of the file too, where the reader found them equal

Two cores are busy for as long as one takes for SHA-256 alone.

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

import torch

from remote_runner.checkpoint import rotate, torch_zip
from remote_runner.checkpoint.tensors import same
from remote_runner.checkpoint.torch_zip import CheckpointCorrupt, Member

CHUNK_BYTES = 1 << 20  # stays in the cache between reading, comparing and hashing
_DISK_EVERY_BYTES = 8 << 20
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


def _chunks(records: List[Record]) -> Iterator[memoryview]:
    for piece in _pieces(records):
        for start in range(0, piece.nbytes, CHUNK_BYTES):
            yield piece[start : start + CHUNK_BYTES]


def write_verified(temp: Path, records: List[Record]) -> str:
    """Write the members to a new file, read it back against memory, and make it durable.

    Returns:
        The file's hex SHA-256: of the bytes in memory, with which those read back were equal.

    Raises:
        CheckpointCorrupt: the file does not hold what was written.
        OSError: the disk refused (ENOSPC, say). The temp is the caller's to remove.
    """
    descriptor = os.open(str(temp), os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o644)
    try:
        hasher = _Follower(_hash)
        behind = [_Follower(lambda: _read_back(temp, descriptor)), hasher]
        written = begun = 0
        try:
            for chunk in _chunks(records):
                _write_all(descriptor, chunk)
                for follower in behind:
                    follower.follow(chunk)
                written += chunk.nbytes
                if written - begun >= _DISK_EVERY_BYTES:
                    rotate.begin_write_back(descriptor, begun, written - begun)
                    begun = written
        finally:
            for follower in behind:
                follower.finish()
        rotate.sync_file(descriptor)
        for follower in behind:
            follower.raise_error()
        return str(hasher.result)
    finally:
        os.close(descriptor)


class _Follower:
    """A thread that is fed the chunks already written, through a generator that takes them one by one."""

    def __init__(self, job: Callable[[], Any]) -> None:
        self._chunks: queue.SimpleQueue[Optional[memoryview]] = queue.SimpleQueue()
        self._job = job()
        self.result: Any = None
        self._error: Optional[BaseException] = None
        next(self._job)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def follow(self, chunk: memoryview) -> None:
        """Hand over the next chunk."""
        self._chunks.put(chunk)

    def finish(self) -> None:
        """Say that no more comes, and wait for its result."""
        self._chunks.put(None)
        self._thread.join()

    def raise_error(self) -> None:
        """Raise what the thread met."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while True:
                self._job.send(self._chunks.get())
        except StopIteration as end:
            self.result = end.value
        except BaseException as error:  # noqa: BLE001  raise_error() raises it in the writer's thread
            self._error = error


def _read_back(path: Path, descriptor: int) -> Any:
    buffer, position = memoryview(bytearray(CHUNK_BYTES)), 0
    while True:
        written = yield
        if written is None:
            return
        view = buffer[: written.nbytes]
        _read_exactly(path, descriptor, view, position)
        if not same(view, written):
            raise CheckpointCorrupt(f"{path}: other bytes were read back than written, near byte {position}")
        position += view.nbytes


def _hash() -> Any:
    digest = hashlib.sha256()
    while True:
        written = yield
        if written is None:
            return digest.hexdigest()
        digest.update(written)


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
