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

Not here: how a file is written and proven (trailing.py), the header's bytes (header.py), the order of renames
(rotate.py), signals (pause.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from remote_runner.checkpoint import contract, finite, header, rotate, trailing
from remote_runner.checkpoint.header import SnapshotCorrupt
from remote_runner.checkpoint.tensors import NUMPY, Tensor, bytes_of, tensor

__all__ = [  # handed on so that a trainer needs one import
    "NUMPY",
    "SnapshotCorrupt",
    "Tensor",
    "tensor",
]
Say = Callable[[str], None]


class NonFinite(ValueError):
    """The state holds NaN or an infinity; it replaced nothing and lies in `evidence`."""

    def __init__(self, tensors: Sequence[str], evidence: Path) -> None:
        super().__init__(f"not finite: {', '.join(tensors)}; kept as evidence in {evidence}")
        self.tensors, self.evidence = list(tensors), evidence


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
        root, size_bytes, bad = trailing.write(temp, snapshot.tensors, snapshot.state, snapshot.volatile)
        if bad:
            evidence = _evidence_of(latest)
            os.replace(temp, evidence)
            raise NonFinite(bad, evidence)
        rotate.publish(temp, latest, say)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temp)
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
        except (SnapshotCorrupt, OSError) as wrong:  # a disk that can't read it any more, say
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
        trailing.write(temp, snapshot.tensors, snapshot.state, snapshot.volatile)
        os.replace(temp, evidence)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temp)
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

    def look(entry: header.Entry, at: int, block: memoryview) -> None:
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
    parts = [bytes(bytes_of(tensors[e.name])) for e in entries]
    digests = {e.name: hashlib.sha256(part).hexdigest() for e, part in zip(entries, parts)}
    metadata = {**about, "format": header.WEIGHTS_FORMAT, "sha256": header.canonical(digests).decode()}
    rotate.replace_with(path, header.encode(entries, metadata) + b"".join(parts))


def _evidence_of(latest: Path) -> Path:
    return latest.with_name(latest.name.replace("-training.", "-training.nonfinite."))


def _read_tensors(
    path: Union[str, Path], fd: int, head: header.Header, digests: Mapping[str, str]
) -> Dict[str, Tensor]:
    def read(e: header.Entry) -> Tensor:
        data, sha = np.empty(e.end - e.begin, dtype=np.uint8), hashlib.sha256()
        for at in range(0, len(data), header.BLOCK_BYTES):
            block = data.data[at : at + header.BLOCK_BYTES]
            header.read_at(fd, block, head.data_start + e.begin + at, e.name)
            if e.name in digests:
                sha.update(block)
        if e.name in digests and sha.hexdigest() != digests[e.name]:
            raise SnapshotCorrupt(f"{path}: the bytes of {e.name} are not those that were saved")
        kind = NUMPY.get(e.dtype)
        return Tensor(e.dtype, e.shape, data if kind is None else data.view(kind).reshape(e.shape))

    with ThreadPoolExecutor(header.HASHERS) as pool:
        return dict(zip((e.name for e in head.entries), pool.map(read, head.entries)))
