"""Write a file of tensors and prove it while it is written.

    this thread      write tensor 0, 1, 2, 3, … ................ header last, fsync
    two others         read back 0, 1, 2, … behind it: the same bytes as in memory? finite? their SHA-256

The digest in the header is that of the bytes as they came back, and those were equal to the ones in memory.

Not here: names, rotation and what a failure means (snapshot.py, rotate.py).
"""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from remote_runner.checkpoint import finite, header, rotate
from remote_runner.checkpoint.header import SnapshotCorrupt
from remote_runner.checkpoint.tensors import Tensor, bytes_of, same


class Proof(NamedTuple):
    """What came back from the disk."""

    sha256: str
    finite: bool


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
        os.lseek(fd, start, os.SEEK_SET)
        proofs = _write_and_prove(fd, start, entries, tensors)
        metadata = header.metadata_of(state, volatile, entries, {name: p.sha256 for name, p in proofs.items()})
        text = header.encode(entries, metadata)
        os.lseek(fd, 0, os.SEEK_SET)
        _write_all(fd, memoryview(text))
        if os.pread(fd, len(text), 0) != text:
            raise SnapshotCorrupt(f"{temp}: the header read back is not the one that was written")
        rotate.sync_file(fd)
        bad = [name for name, proof in proofs.items() if not proof.finite]
        return metadata["root"], start + (entries[-1].end if entries else 0), bad
    except OSError as wrong:
        raise OSError(wrong.errno, wrong.strerror, str(temp)) from wrong
    except SnapshotCorrupt as wrong:
        raise SnapshotCorrupt(f"{temp}: {wrong}") from None
    finally:
        os.close(fd)


def _write_and_prove(
    fd: int, start: int, entries: Sequence[header.Entry], tensors: Mapping[str, Tensor]
) -> Dict[str, Proof]:
    proofs: Dict[str, "Future[Proof]"] = {}
    with ThreadPoolExecutor(header.HASHERS, thread_name_prefix="snapshot-prover") as pool:
        try:
            for e in entries:
                data = bytes_of(tensors[e.name])
                if len(data) != e.end - e.begin:
                    raise ValueError(f"{e.name}: {len(data)} bytes given for {e.dtype} {list(e.shape)}")
                _write_all(fd, data)
                rotate.begin_write_back(fd, start + e.begin, len(data))
                proofs[e.name] = pool.submit(_prove, fd, start, e, tensors[e.name])
            return {name: proof.result() for name, proof in proofs.items()}
        except BaseException:
            for proof in proofs.values():
                proof.cancel()
            raise


def _prove(fd: int, start: int, e: header.Entry, t: Tensor) -> Proof:
    """Read one tensor back. Raises SnapshotCorrupt where a byte is not the one in memory."""
    given, good = bytes_of(t), True

    def look(_: header.Entry, at: int, block: memoryview) -> None:
        nonlocal good
        if not same(block, given[at : at + len(block)]):
            raise SnapshotCorrupt(f"{e.name}: what was read back is not what was written")
        good = good and finite.count(e.dtype, block) == (0, 0)

    return Proof(header.digest_tensor(fd, start, e, look), good)


def _write_all(fd: int, block: memoryview) -> None:
    while block:
        block = block[os.write(fd, block) :]
