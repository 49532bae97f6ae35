"""Snapshots of format 1: a trainer's full state in one file, saved whole or not at all, and proven when read.

The API, for any framework (tensors are numpy arrays or buffers; needs numpy, never mlx or torch):

    s = Snapshot(tensors={"model.w": tensor(array)}, state={…}, volatile={…})
                                     state: the fields of header.STATE_FIELDS, "best" and "lineage" beside them
    save(folder, s)                  write, read back, fsync, rotate; returns Saved (root, sizes, seconds)
    load(path)                       a Snapshot, every byte proven; its arrays are the caller's own
    load_newest(folder, stage)       Found(path, snapshot) or None: latest, then previous; the first that verifies
    verify(path)                     digests and finiteness, constant memory
    save_weights(path, tensors, …)   a weights file whose bytes depend on its content alone
    writer.Writer(folder)            the same save on a background thread, one in flight (writer.py)

Tensors are taken by reference: whoever hands them over leaves their bytes alone until the save is done.

    writing thread   hash, write ........ header last, fsync, rotate
    reading thread     read back, hash, look for NaN, a few blocks behind

Not here: the header's bytes (header.py), the order of renames (rotate.py), signals (pause.py).
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from remote_runner.checkpoint import contract, finite, header, rotate
from remote_runner.checkpoint.header import SnapshotCorrupt

__all__ = [
    "Found",
    "NonFinite",
    "Saved",
    "Snapshot",
    "SnapshotCorrupt",
    "Tensor",
    "load",
    "load_newest",
    "save",
]
BLOCK_BYTES = 4 << 20
NUMPY = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16, "F16": np.float16,
    "U32": np.uint32, "I32": np.int32, "F32": np.float32, "U64": np.uint64, "I64": np.int64,
    "F64": np.float64, "C64": np.complex64, "BF16": np.uint16,
}  # fmt: skip
_NAMES = {np.dtype(kind): name for name, kind in NUMPY.items() if name != "BF16"}
Say = Callable[[str], None]


class NonFinite(ValueError):
    """The state holds NaN or an infinity; it replaced nothing and lies in `evidence`."""

    def __init__(self, tensors: Sequence[str], evidence: Path) -> None:
        super().__init__(f"not finite: {', '.join(tensors)}; kept as evidence in {evidence}")
        self.tensors, self.evidence = list(tensors), evidence


class Tensor(NamedTuple):
    """A tensor to save: safetensors dtype, shape, and its bytes as a numpy array or buffer, little-endian."""

    dtype: str
    shape: Tuple[int, ...]
    data: Any


class Saved(NamedTuple):
    """A durable snapshot."""

    path: Path
    root: str
    size_bytes: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A trainer's full state."""

    tensors: Mapping[str, Tensor]
    state: Mapping[str, Any]
    volatile: Mapping[str, Any]
    root: str = ""

    @property
    def stage(self) -> str:
        return str(self.state["stage"])

    @property
    def step(self) -> int:
        return int(self.state["step"])


class Found(NamedTuple):
    """What `load_newest` chose."""

    path: Path
    snapshot: Snapshot


def tensor(array: np.ndarray[Any, Any], dtype: str = "") -> Tensor:
    """A numpy array as a Tensor, not copied. `dtype` names what numpy can't (BF16 in uint16, 8-bit floats)."""
    return Tensor(dtype or _NAMES[array.dtype.newbyteorder("=")], tuple(array.shape), array)


def save(folder: Union[str, Path], snapshot: Snapshot, say: Say = contract.say) -> Saved:
    """Write `<stage>-training.safetensors` into `folder`, keep the one before as previous.

    Args:
        folder: `artifacts/<name>`, which exists.
        snapshot: its tensors must not change before this returns.

    Raises:
        OSError: the disk refused (ENOSPC, say). Both older files are whole, the temp is gone.
        SnapshotCorrupt: what was read back is not what was written; likewise.
        NonFinite: a tensor holds NaN or an infinity; what was written is now `*.nonfinite.safetensors`.
    """
    begun = time.monotonic()
    latest = rotate.latest_of(Path(folder), snapshot.stage)
    temp = rotate.temp_of(latest)
    try:
        root, size_bytes, bad = _write(temp, snapshot)
        if bad:
            evidence = _evidence_of(latest)
            os.replace(temp, evidence)
            raise NonFinite(bad, evidence)
        rotate.publish(temp, latest, say)
    except BaseException:
        _unlink(temp)
        raise
    return Saved(latest, root, size_bytes, time.monotonic() - begun)


def load(path: Union[str, Path]) -> Snapshot:
    """Read a whole snapshot and prove every byte of it.

    Returns: tensors as numpy arrays of their own (BF16 as uint16, 8-bit floats as uint8).

    Raises:
        SnapshotCorrupt, OSError.
    """
    fd = header.open_regular(path)
    try:
        head, about = header.verify_header(path, fd)
        tensors = _read_tensors(path, fd, head, about["sha256"])
        return Snapshot(tensors, about["state"], about["volatile"], about["root"])
    finally:
        os.close(fd)


def load_newest(
    folder: Union[str, Path], stage: str, *, say: Say = contract.say, repair: bool = False
) -> Optional[Found]:
    """The snapshot to resume from: latest, else previous; the name decides, the first that verifies wins.

    Args:
        repair: only the trainer, whose files these are, puts a bad one aside as `*.corrupt-<time>`.

    Returns: None when there is none, or none that verifies; `say` then told why.
    """
    latest = rotate.latest_of(Path(folder), stage)
    for path in (latest, rotate.previous_of(latest)):
        try:
            snapshot = load(path)
            if snapshot.stage != stage:
                raise SnapshotCorrupt(f"{path}: it is a snapshot of stage {snapshot.stage!r}")
        except FileNotFoundError:
            if path == latest:
                say(f"{path} is missing, looking at previous")
            continue
        except SnapshotCorrupt as wrong:
            if repair:
                rotate.set_aside(path, say, str(wrong))
            else:
                say(str(wrong))
            continue
        rotate.trust(path)
        say(f"going on from {path}, step {snapshot.step}, root {snapshot.root[:12]}: the newest that verifies")
        return Found(path, snapshot)
    return None


def keep_evidence(folder: Union[str, Path], snapshot: Snapshot) -> Path:
    """Write a state that must never be resumed as `*.nonfinite.safetensors`, for whoever looks for the cause."""
    latest = rotate.latest_of(Path(folder), snapshot.stage)
    temp, evidence = rotate.temp_of(latest), _evidence_of(latest)
    try:
        _write(temp, snapshot)
        os.replace(temp, evidence)
    except BaseException:
        _unlink(temp)
        raise
    return evidence


def read_tensors(path: Union[str, Path]) -> Dict[str, Tensor]:
    """The tensors of any safetensors file; their digests are proven where the file carries them.

    Raises:
        SnapshotCorrupt, OSError.
    """
    fd = header.open_regular(path)
    try:
        head = header.read(path, fd)
        return _read_tensors(path, fd, head, header.digests_in(head))
    finally:
        os.close(fd)


def verify(path: Union[str, Path]) -> Dict[str, Any]:
    """Prove a snapshot of format 1, and that all its numbers are finite. Returns `header.describe`'s dict.

    Raises:
        SnapshotCorrupt: names the file and the tensor.
    """
    bad: Dict[str, Tuple[int, int]] = {}

    def look(entry: header.Entry, block: memoryview) -> None:
        nans, infinities = finite.count(entry.dtype, block)
        if nans or infinities:
            old = bad.get(entry.name, (0, 0))
            bad[entry.name] = (old[0] + nans, old[1] + infinities)

    about = header.verify_digests(path, look)
    for name, (nans, infinities) in bad.items():
        raise SnapshotCorrupt(f"{path}: {name} holds {nans} NaN and {infinities} infinities")
    return about


def save_weights(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """Write inference weights, replaced whole: safetensors with digests; equal content makes equal bytes."""
    entries = header.layout({name: (t.dtype, t.shape) for name, t in tensors.items()})
    parts = [bytes(_bytes_of(tensors[e.name])) for e in entries]
    digests = {e.name: hashlib.sha256(part).hexdigest() for e, part in zip(entries, parts)}
    metadata = {**about, "format": header.WEIGHTS_FORMAT, "sha256": header.canonical(digests).decode()}
    rotate.replace_with(path, header.encode(entries, metadata) + b"".join(parts))


def _evidence_of(latest: Path) -> Path:
    return latest.with_name(latest.name.replace("-training.", "-training.nonfinite."))


def _read_tensors(
    path: Union[str, Path], fd: int, head: header.Header, digests: Mapping[str, str]
) -> Dict[str, Tensor]:
    tensors: Dict[str, Tensor] = {}
    with open(os.dup(fd), "rb", buffering=0) as file:
        file.seek(head.data_start)
        for e in head.entries:
            data = np.empty(e.end - e.begin, dtype=np.uint8)
            header.fill(file, data.data, e.name)
            if e.name in digests and hashlib.sha256(data.data).hexdigest() != digests[e.name]:
                raise SnapshotCorrupt(f"{path}: the bytes of {e.name} are not those that were saved")
            kind = NUMPY.get(e.dtype)
            tensors[e.name] = Tensor(e.dtype, e.shape, data if kind is None else data.view(kind).reshape(e.shape))
    return tensors


def _write(temp: Path, snapshot: Snapshot) -> Tuple[str, int, List[str]]:
    """Write and prove `temp`. Returns its root, its size, and the names of tensors that are not finite."""
    entries = header.layout({name: (t.dtype, t.shape) for name, t in snapshot.tensors.items()})
    blank = header.metadata_of(snapshot.state, snapshot.volatile, entries, {e.name: "0" * 64 for e in entries})
    start = len(header.encode(entries, blank))  # digests have one length, so the room is known before they are
    _unlink(temp)
    fd = os.open(temp, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        trailer = _Trailer(temp, entries, start)
        try:
            os.lseek(fd, start, os.SEEK_SET)
            digests = {}
            for e in entries:
                data, sha = _bytes_of(snapshot.tensors[e.name]), hashlib.sha256()
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
        metadata = header.metadata_of(snapshot.state, snapshot.volatile, entries, digests)
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


def _bytes_of(t: Tensor) -> memoryview:
    data = t.data
    if isinstance(data, np.ndarray):
        data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    return memoryview(data).cast("B")


def _write_all(fd: int, block: memoryview) -> None:
    while block:
        block = block[os.write(fd, block) :]


def _unlink(path: Path) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
