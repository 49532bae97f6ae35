"""A tensor on its way to a file or out of one: safetensors dtype, shape, bytes. Needs numpy alone.

Not here: files (snapshot.py), MLX's and torch's own arrays (each trainer hands over numpy views).
"""

from __future__ import annotations

from typing import Any, NamedTuple, Tuple

import numpy as np

NUMPY = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16, "F16": np.float16,
    "U32": np.uint32, "I32": np.int32, "F32": np.float32, "U64": np.uint64, "I64": np.int64,
    "F64": np.float64, "C64": np.complex64, "BF16": np.uint16,
}  # fmt: skip
_NAMES = {np.dtype(kind): name for name, kind in NUMPY.items() if name != "BF16"}


class Tensor(NamedTuple):
    """A tensor to save: safetensors dtype, shape, and its bytes as a numpy array or buffer, little-endian."""

    dtype: str
    shape: Tuple[int, ...]
    data: Any


def tensor(array: np.ndarray[Any, Any], dtype: str = "") -> Tensor:
    """A numpy array as a Tensor, not copied. `dtype` names what numpy can't (BF16 in uint16, 8-bit floats)."""
    return Tensor(dtype or _NAMES[array.dtype.newbyteorder("=")], tuple(array.shape), array)


def bytes_of(t: Tensor) -> memoryview:
    """The bytes as they go into a file; a copy only where they do not lie in row order."""
    data = t.data
    if isinstance(data, np.ndarray):
        data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    return memoryview(data).cast("B")


def same(a: memoryview, b: memoryview) -> bool:
    """Whether two blocks of one length hold the same bytes; eight at a time, where they are so many, take less."""
    kind = np.uint64 if a.nbytes % 8 == 0 else np.uint8
    return bool(np.array_equal(np.frombuffer(a, kind), np.frombuffer(b, kind)))
