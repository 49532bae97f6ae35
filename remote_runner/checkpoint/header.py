"""The header of a snapshot: read it, write it, prove it. Standard library only, and nothing in it is trusted.

    8 bytes   length of the header, little-endian
    header    {"__metadata__":{…},"name":{"data_offsets":[b,e],"dtype":"F32","shape":[…]},…}   padded with spaces
    data      the tensors' bytes, in the order of their names, without gaps

A snapshot of format 1 has one possible header for its content: `encode` makes it, `verify_digests` makes it again
and compares. Other people's safetensors files are read as far as the structure goes (`read`).

Not here: how a file comes to be (snapshot.py), which of two files is resumed (snapshot.py), non-finite numbers
(finite.py). Source of the container: safetensors, README, "Format".
"""

from __future__ import annotations

import json
import os
import stat
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

FORMAT = "remote-run-snapshot/1"
WEIGHTS_FORMAT = "remote-run-weights/1"
LIMIT_BYTES = 32 << 20  # a header beyond this is refused unread; 100,000 tensors need about half of it
BLOCK_BYTES = 1 << 20  # stays in a core's cache between reading, hashing and looking
HASHERS = 2  # SHA-256 is the slow part; more threads would take more from a training beside them
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
STATE_FIELDS = {
    "schema": int, "stage": str, "stage_index": int, "step": int, "epoch": int, "cursor": int, "order_sha256": str,
    "seed": int, "keys": dict, "evaluation_due": bool, "target_steps": int, "fingerprint": str,
}  # fmt: skip


class SnapshotCorrupt(ValueError):
    """The bytes are not a whole file of the format they claim, or not the bytes that were written."""


class Entry(NamedTuple):
    """One tensor: its name, safetensors dtype, shape, and place counted from the first data byte."""

    name: str
    dtype: str
    shape: Tuple[int, ...]
    begin: int
    end: int


Look = Callable[[Entry, int, memoryview], None]


class Header(NamedTuple):
    """A header whose structure is sound. `entries` are in the order of their bytes."""

    metadata: Dict[str, str]
    entries: List[Entry]
    data_start: int
    size_bytes: int
    raw: bytes


def canonical(value: object) -> bytes:
    """The one JSON text of a value: keys sorted, no blanks, UTF-8 unescaped.

    Raises:
        ValueError: NaN, an infinity, or text that is not valid Unicode.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def size_of(dtype: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor. Raises SnapshotCorrupt for an unknown dtype or a size that is no whole number of bytes."""
    if dtype not in BITS:
        raise SnapshotCorrupt(f"unknown dtype {dtype!r}")
    bits = BITS[dtype]
    for length in shape:
        bits *= length
    if bits % 8:
        raise SnapshotCorrupt(f"{dtype} {list(shape)} is no whole number of bytes")
    return bits // 8


def layout(tensors: Mapping[str, Tuple[str, Sequence[int]]]) -> List[Entry]:
    """Place tensors (name -> dtype, shape) one after the other, by the UTF-8 bytes of their names."""
    entries, begin = [], 0
    for name in sorted(tensors, key=str.encode):
        dtype, shape = tensors[name]
        end = begin + size_of(dtype, shape)
        entries.append(Entry(name, dtype, tuple(shape), begin, end))
        begin = end
    return entries


def encode(entries: Sequence[Entry], metadata: Mapping[str, str]) -> bytes:
    """The canonical header, with its length in front and padded to a multiple of 8."""
    parts = [b'"__metadata__":' + canonical(dict(metadata))]
    for e in sorted(entries, key=lambda e: e.name.encode()):
        body = {"dtype": e.dtype, "shape": list(e.shape), "data_offsets": [e.begin, e.end]}
        parts.append(canonical(e.name) + b":" + canonical(body))
    text = b"{" + b",".join(parts) + b"}"
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def roots(
    state: Mapping[str, Any],
    volatile: Mapping[str, Any],
    entries: Sequence[Entry],
    digests: Mapping[str, str],
) -> Tuple[str, str]:
    """The two names of a snapshot's content: `root` (what training made) and `root_all` (with `volatile`)."""
    import hashlib  # late: 4 MB of libcrypto, and headers are read by programs that only watch

    rows = [[e.name, e.dtype, list(e.shape), digests[e.name]] for e in sorted(entries, key=lambda e: e.name.encode())]
    body = {"state": dict(state), "tensors": rows}
    root = hashlib.sha256(canonical(body)).hexdigest()
    return root, hashlib.sha256(canonical({**body, "volatile": dict(volatile)})).hexdigest()


def metadata_of(
    state: Mapping[str, Any],
    volatile: Mapping[str, Any],
    entries: Sequence[Entry],
    digests: Mapping[str, str],
) -> Dict[str, str]:
    """The `__metadata__` of a snapshot of format 1."""
    root, root_all = roots(state, volatile, entries, digests)
    return {
        "format": FORMAT,
        "stage": state["stage"],
        "state": canonical(dict(state)).decode(),
        "volatile": canonical(dict(volatile)).decode(),
        "sha256": canonical(dict(digests)).decode(),
        "root": root,
        "root_all": root_all,
    }


def open_regular(path: os.PathLike[str] | str) -> int:
    """Open a file to read it; never blocks on a FIFO. Raises SnapshotCorrupt unless it is a regular file."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise SnapshotCorrupt(f"{os.fspath(path)}: not a regular file")


def read(path: os.PathLike[str] | str, fd: Optional[int] = None) -> Header:
    """Read and check the structure of any safetensors file; no tensor data is read.

    Raises:
        SnapshotCorrupt: names the file and what is wrong: too short, not JSON, a doubled name, overlap, a hole,
            a shape that does not fit its bytes, bytes after the last tensor.
        OSError: the file can't be read.
    """
    own = open_regular(path) if fd is None else fd
    try:
        size = os.fstat(own).st_size
        start = os.pread(own, 8, 0)
        length = int.from_bytes(start, "little")
        if len(start) < 8:
            raise SnapshotCorrupt(f"{size} bytes are too few for a safetensors file")
        if length > min(LIMIT_BYTES, size - 8):
            raise SnapshotCorrupt(
                f"its first 8 bytes announce a header of {length} bytes, the file has {size} and the limit is "
                f"{LIMIT_BYTES}: cut off, or not a safetensors file (it begins {os.pread(own, 24, 0)!r})"
            )
        text = os.pread(own, length, 8)
        return _parse(start + text, size)
    except SnapshotCorrupt as wrong:
        raise SnapshotCorrupt(f"{os.fspath(path)}: {wrong}") from None
    finally:
        if fd is None:
            os.close(own)


def describe(path: os.PathLike[str] | str) -> Dict[str, Any]:
    """What a snapshot of format 1 says of itself, from its header alone; the tensors' bytes are not read.

    Returns:
        stage, stage_index, step, target_steps, root, root_all, fingerprint, lineage, attempt, state, volatile,
        sha256 (by tensor), tensors (how many), size_bytes. The header is proven: canonical, roots recomputed.

    Raises:
        SnapshotCorrupt: anything else than a snapshot of format 1.
        OSError: the file can't be read.
    """
    return _described(path, read(path))


def verify_header(path: os.PathLike[str] | str, fd: int) -> Tuple[Header, Dict[str, Any]]:
    """`read` and `describe` in one, of an open file: for whoever goes on to read the tensors."""
    header = read(path, fd)
    return header, _described(path, header)


def verify_digests(path: os.PathLike[str] | str, look: Optional[Look] = None) -> Dict[str, Any]:
    """Prove a snapshot of format 1 wholly: structure, header, root, root_all and every tensor's SHA-256.

    Args:
        path: the file; read once, in blocks of `BLOCK_BYTES`.
        look: sees each block of each tensor on the way, with its place in the tensor, from two threads
            (finite.py looks for NaN). Blocks are whole elements.

    Returns: what `describe` returns.

    Raises:
        SnapshotCorrupt: names the file and the tensor.
    """
    fd = open_regular(path)
    try:
        header, found = verify_header(path, fd)
        for entry, digest in digest_tensors(fd, header, look):
            if digest != found["sha256"][entry.name]:
                raise SnapshotCorrupt(f"{os.fspath(path)}: the bytes of {entry.name} are not those that were saved")
        return found
    finally:
        os.close(fd)


def digests_in(header: Header) -> Dict[str, str]:
    """The `sha256` table of a file that carries one, whoever wrote it; empty otherwise. Raises SnapshotCorrupt."""
    if header.metadata.get("format") not in (FORMAT, WEIGHTS_FORMAT):
        return {}
    digests = _object(header.metadata, "sha256")
    if {e.name for e in header.entries} != set(digests) or not all(isinstance(d, str) for d in digests.values()):
        raise SnapshotCorrupt("its sha256 table does not name the tensors of the file")
    return digests


def digest_tensors(fd: int, header: Header, look: Optional[Look] = None) -> List[Tuple[Entry, str]]:
    """SHA-256 of every tensor's bytes, two tensors at a time, with a block of memory for each of the two."""
    from concurrent.futures import ThreadPoolExecutor  # takes longer to load than a header to read

    with ThreadPoolExecutor(HASHERS) as pool:
        digests = pool.map(lambda e: digest_tensor(fd, header.data_start, e, look), header.entries)
        return list(zip(header.entries, digests))


def digest_tensor(fd: int, data_start: int, entry: Entry, look: Optional[Look] = None) -> str:
    """SHA-256 of one tensor's bytes, shown to `look` on the way. Raises SnapshotCorrupt when the file ends before."""
    import hashlib

    sha, size_bytes = hashlib.sha256(), entry.end - entry.begin
    block = memoryview(bytearray(min(BLOCK_BYTES, size_bytes)))
    for at in range(0, size_bytes, BLOCK_BYTES):
        part = block[: size_bytes - at]
        read_at(fd, part, data_start + entry.begin + at, entry.name)
        sha.update(part)
        if look is not None:
            look(entry, at, part)
    return sha.hexdigest()


def read_at(fd: int, part: memoryview, place: int, name: str) -> None:
    """Fill `part` from a place in a file, whatever other threads read. Raises SnapshotCorrupt when it ends before."""
    done = 0
    while done < len(part):
        if hasattr(os, "preadv"):
            got = os.preadv(fd, [part[done:]], place + done)
        else:  # before macOS 11
            raw = os.pread(fd, len(part) - done, place + done)
            got = len(raw)
            part[done : done + got] = raw
        if not got:
            raise SnapshotCorrupt(f"the file ends inside {name}")
        done += got


def _parse(raw: bytes, size_bytes: int) -> Header:
    try:
        top = json.loads(raw[8:].decode("utf-8"), object_pairs_hook=_no_twins, parse_constant=_no_constant)
    except SnapshotCorrupt:
        raise
    except (ValueError, RecursionError) as wrong:
        raise SnapshotCorrupt(f"its header is not JSON ({str(wrong)[:120]}); it begins {raw[8:32]!r}") from None
    if not isinstance(top, dict):
        raise SnapshotCorrupt("its header is not a JSON object")
    metadata = top.pop("__metadata__", None)
    metadata = {} if metadata is None else metadata  # MLX writes null for none
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise SnapshotCorrupt("its __metadata__ is not an object of strings")
    entries = sorted((_entry(name, body) for name, body in top.items()), key=lambda e: (e.begin, e.end, e.name))
    place = 0
    for e in entries:
        if e.begin != place:
            kind = "overlaps the tensor before it" if e.begin < place else "leaves a hole before it"
            raise SnapshotCorrupt(f"{e.name} begins at byte {e.begin} and {kind} (ends at {place})")
        place = e.end
    if len(raw) + place != size_bytes:
        what = "cut off" if len(raw) + place > size_bytes else "bytes after the last tensor"
        raise SnapshotCorrupt(f"its header describes {len(raw) + place} bytes, the file has {size_bytes}: {what}")
    return Header(metadata, entries, len(raw), size_bytes, raw)


def _entry(name: str, body: Any) -> Entry:
    if not isinstance(body, dict) or set(body) != {"dtype", "shape", "data_offsets"}:
        raise SnapshotCorrupt(f"{name!r} is not described by dtype, shape and data_offsets")
    dtype, shape, offsets = body["dtype"], body["shape"], body["data_offsets"]
    if not isinstance(dtype, str) or not _naturals(shape, at_most=64) or not _naturals(offsets, 2) or len(offsets) != 2:
        raise SnapshotCorrupt(f"{name!r} has a dtype, shape or data_offsets of the wrong kind")
    begin, end = offsets
    need = size_of(dtype, shape)
    if end - begin != need:
        raise SnapshotCorrupt(f"{name}: {dtype} {shape} needs {need} bytes, its offsets hold {end - begin}")
    return Entry(name, dtype, tuple(shape), begin, end)


def _naturals(value: Any, at_most: int) -> bool:
    return isinstance(value, list) and len(value) <= at_most and all(type(n) is int and 0 <= n < 1 << 63 for n in value)


def _described(path: os.PathLike[str] | str, header: Header) -> Dict[str, Any]:
    try:
        return _check_format_1(header)
    except SnapshotCorrupt as wrong:
        raise SnapshotCorrupt(f"{os.fspath(path)}: {wrong}") from None


def _check_format_1(header: Header) -> Dict[str, Any]:
    said = header.metadata
    if said.get("format") != FORMAT:
        raise SnapshotCorrupt(f"format is {said.get('format')!r}, not {FORMAT!r}")
    state, volatile, digests = _object(said, "state"), _object(said, "volatile"), digests_in(header)
    for key, kind in STATE_FIELDS.items():
        if type(state.get(key)) is not kind:
            raise SnapshotCorrupt(f"state.{key} is {state.get(key)!r}, not {kind.__name__}")
    if not 0 <= state["step"] <= state["target_steps"]:
        raise SnapshotCorrupt(f"state.step {state['step']} is not within 0 to {state['target_steps']}")
    if "best" not in state or "lineage" not in state:
        raise SnapshotCorrupt("state has no best or no lineage")
    if {e.name for e in header.entries} != set(digests) or not all(isinstance(d, str) for d in digests.values()):
        raise SnapshotCorrupt("its sha256 table does not name the tensors of the file")
    try:
        again = metadata_of(state, volatile, header.entries, digests)
        same = encode(layout({e.name: (e.dtype, e.shape) for e in header.entries}), again) == header.raw
    except ValueError as wrong:  # text that is no Unicode, a number that is none
        raise SnapshotCorrupt(f"its header can't be made again: {wrong}") from None
    if (said.get("root"), said.get("root_all")) != (again["root"], again["root_all"]):
        raise SnapshotCorrupt("its root is not the root of its state and digests")
    if not same:
        raise SnapshotCorrupt("its header is not the canonical one for its content")
    return {
        **{key: state[key] for key in ("stage", "stage_index", "step", "target_steps", "fingerprint", "lineage")},
        "root": said["root"],
        "root_all": said["root_all"],
        "attempt": volatile.get("attempt"),
        "state": state,
        "volatile": volatile,
        "sha256": digests,
        "tensors": len(header.entries),
        "size_bytes": header.size_bytes,
    }


def _object(metadata: Mapping[str, str], key: str) -> Dict[str, Any]:
    try:
        value = json.loads(metadata.get(key, ""), object_pairs_hook=_no_twins, parse_constant=_no_constant)
    except (ValueError, RecursionError) as wrong:
        raise SnapshotCorrupt(f"its {key} is not JSON ({str(wrong)[:120]})") from None
    if not isinstance(value, dict):
        raise SnapshotCorrupt(f"its {key} is not a JSON object")
    return value


def _no_twins(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise SnapshotCorrupt(f"a name stands twice in its header: {next(n for n in names if names.count(n) > 1)!r}")
    return found


def _no_constant(word: str) -> Any:
    raise SnapshotCorrupt(f"{word} in its header")
