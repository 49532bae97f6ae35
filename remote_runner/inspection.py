"""What a file of tensors says of itself, and in what two of them differ. No framework, no tensor kept in memory.

Not here: whether a file is good (verify.py), the format (checkpoint/header.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from remote_runner import numpy_files
from remote_runner.checkpoint import header, lineage
from remote_runner.errors import Unverified, UsageFault

MOST_NAMES = 5
FIX = "fetch it again, or restore it from a backup (remote-run restore)"


def inspect(path: Path) -> dict[str, Any]:
    """What the header tells: of a snapshot all of `header.describe`, of another safetensors file its tensors.

    Of NumPy's own files the arrays. Of other kinds what they are, by their name and first bytes.

    Raises:
        Unverified: it is damaged, or says it is a snapshot and is not.
    """
    if path.suffix in numpy_files.SUFFIXES:
        try:
            arrays = {a.name: [a.dtype, list(a.shape)] for a in numpy_files.arrays(path, count=False)}
        except numpy_files.Damaged as wrong:
            raise Unverified(f"{path}: {wrong}", fix=FIX) from None
        size = path.stat().st_size
        return {"path": str(path), "kind": "NumPy arrays", "size_bytes": size, "metadata": {}, "tensors": arrays}
    if path.suffix != ".safetensors" and (kind := _other_kind(path)):
        raise UsageFault(f"{path}: {kind}", fix="remote-run verify looks into PyTorch files, in a process of its own")
    head = _read(path)
    if head.metadata.get("format") != header.FORMAT:
        tensors = {e.name: [e.dtype, list(e.shape)] for e in head.entries}
        about = {"size_bytes": head.size_bytes, "metadata": head.metadata, "tensors": tensors}
        return {"path": str(path), "kind": "safetensors", **about}
    try:
        return {"path": str(path), **header.describe(path)}
    except header.SnapshotCorrupt as wrong:
        raise Unverified(str(wrong), fix=FIX) from None


def _other_kind(path: Path) -> str:
    """What a file most likely is, from its first bytes; empty where it may be safetensors."""
    with path.open("rb") as f:
        begins = f.read(8)
    if begins[:2] == b"PK":
        return "a zip archive, as PyTorch's checkpoints are; what is in it is a pickle, and is not opened here"
    if begins[:1] == b"\x80":
        return "a pickle, as PyTorch's old checkpoints are; it is not opened here"
    return "no file of tensors: JSON or other text" if begins[:1] in (b"{", b"[") else ""


def text(told: Mapping[str, Any]) -> str:
    """`inspect` for people."""
    if "state" not in told:
        lines = [f"{told['path']}: {told['kind']}, {len(told['tensors'])} tensors, {told['size_bytes']:,} bytes"]
        lines += [f"  {key}: {_short(value)}" for key, value in told["metadata"].items()]
        return "\n".join([*lines, *(f"  {n} {dtype} {shape}" for n, (dtype, shape) in told["tensors"].items())])
    state, volatile = told["state"], told["volatile"]
    best = state["best"]
    lines = [
        f"{told['path']}: snapshot, {told['tensors']} tensors, {told['size_bytes']:,} bytes",
        f"  stage {told['stage']} ({told['stage_index']}), step {told['step']} of {told['target_steps']}",
        f"  epoch {state['epoch']}, cursor {state['cursor']}, seed {state['seed']}",
        f"  best {best['metric']:.6g} at step {best['step']}" if best else "  no evaluation yet",
        f"  root {told['root']}",
        f"  fingerprint {told['fingerprint']}",
        f"  lineage {lineage.text(told['lineage']) or 'from step 0 of this run'}",
    ]
    rest = {k: v for k, v in volatile.items() if k not in ("config", "identity")}
    return "\n".join([*lines, *(f"  {key} {_short(value)}" for key, value in rest.items() if value not in (None, []))])


def diff(one: Path, other: Path) -> dict[str, Any]:
    """In what two files differ; A's digests against B's, and the numbers of the first tensor that differs.

    Returns: equal (same roots, or same tensors where a file has no root), state (key -> [A, B]), only_in_a, only_in_b,
        tensors (names that differ, in order), first (name, how many values differ, the largest difference).

    Raises:
        Unverified: one of them is not whole.
    """
    (about_a, digests_a), (about_b, digests_b) = _proven(one), _proven(other)
    state_a, state_b = about_a.get("state", {}), about_b.get("state", {})
    keys = [key for key in {**state_a, **state_b} if state_a.get(key) != state_b.get(key)]
    both = [name for name in digests_a if name in digests_b]
    differ = sorted((name for name in both if digests_a[name] != digests_b[name]), key=str.encode)
    only = [sorted(set(x) - set(y), key=str.encode) for x, y in ((digests_a, digests_b), (digests_b, digests_a))]
    return {
        "equal": not keys and not differ and not only[0] and not only[1],
        "a": str(one),
        "b": str(other),
        "state": {key: [state_a.get(key), state_b.get(key)] for key in keys},
        "only_in_a": only[0],
        "only_in_b": only[1],
        "tensors": differ,
        "first": _difference(one, other, differ[0]) if differ else None,
    }


def diff_text(found: Mapping[str, Any]) -> str:
    """`diff` for people."""
    if found["equal"]:
        return "equal: same state, same tensors"
    lines = [f"state.{key}: {_short(a)} -> {_short(b)}" for key, (a, b) in found["state"].items()]
    for side in ("a", "b"):
        if names := found[f"only_in_{side}"]:
            lines.append(f"only in {found[side]}: {_some(names)}")
    if found["tensors"]:
        first = found["first"]
        lines.append(f"{len(found['tensors'])} tensors differ, first {first['name']}: {first['text']}")
        lines.append(f"  {_some(found['tensors'])}")
    return "\n".join(lines)


def _proven(path: Path) -> tuple[dict[str, Any], dict[str, tuple[Any, ...]]]:
    """What a file tells, and (dtype, shape, digest) of each tensor, computed from its bytes."""
    head = _read(path)
    try:
        about = header.verify_digests(path) if head.metadata.get("format") == header.FORMAT else {}
        if about:
            return about, {e.name: (e.dtype, e.shape, about["sha256"][e.name]) for e in head.entries}
        with path.open("rb") as file:
            found = header.digest_tensors(file.fileno(), head)
    except header.SnapshotCorrupt as wrong:
        raise Unverified(str(wrong), fix=FIX) from None
    return about, {e.name: (e.dtype, e.shape, digest) for e, digest in found}


def _difference(one: Path, other: Path, name: str) -> dict[str, Any]:
    """How far the tensor `name` is apart, block by block."""
    import numpy as np

    (head_a, e_a), (head_b, e_b) = _entry(one, name), _entry(other, name)
    told: dict[str, Any] = {"name": name, "a": [e_a.dtype, list(e_a.shape)], "b": [e_b.dtype, list(e_b.shape)]}
    if (e_a.dtype, e_a.shape) != (e_b.dtype, e_b.shape):
        return {**told, "text": f"{e_a.dtype} {list(e_a.shape)} against {e_b.dtype} {list(e_b.shape)}"}
    count, largest, size = 0, 0.0, e_a.end - e_a.begin
    with one.open("rb") as file_a, other.open("rb") as file_b:
        file_a.seek(head_a.data_start + e_a.begin)
        file_b.seek(head_b.data_start + e_b.begin)
        for at in range(0, size, header.BLOCK_BYTES):
            length = min(header.BLOCK_BYTES, size - at)
            a, b = (_numbers(file.read(length), e_a.dtype) for file in (file_a, file_b))
            count += int((a != b).sum())
            largest = max(largest, float(np.abs(a - b).max()))
    values = size * 8 // header.BITS[e_a.dtype]
    return {
        **told,
        "differ": count,
        "of": values,
        "largest": largest,
        "text": f"{count} of {values} values, by at most {largest:.6g}",
    }


def _numbers(raw: bytes, dtype: str) -> Any:
    """Values of a block as float64 (complex128 for C64), so that they can be subtracted; 8-bit floats as their bits."""
    import numpy as np

    from remote_runner.checkpoint.tensors import NUMPY

    if dtype == "BF16":
        return (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return np.frombuffer(raw, NUMPY.get(dtype, np.uint8)).astype(np.complex128 if dtype == "C64" else np.float64)


def _entry(path: Path, name: str) -> tuple[header.Header, header.Entry]:
    head = _read(path)
    return head, next(e for e in head.entries if e.name == name)


def _read(path: Path) -> header.Header:
    try:
        return header.read(path)
    except header.SnapshotCorrupt as wrong:
        raise Unverified(str(wrong), fix=FIX) from None


def _short(value: Any) -> str:
    written = str(value)
    return written if len(written) <= 160 else written[:157] + "…"


def _some(names: list[str]) -> str:
    return ", ".join(names[:MOST_NAMES]) + (f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else "")
