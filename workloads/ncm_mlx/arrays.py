"""Every array of a live model or optimizer, by name: out for a snapshot, back in from one.

MLX's `parameters()` skips names with a leading underscore and `trainable_parameters()` frozen ones; a state without
them is not the state. So the walk goes over the objects as they are: modules, dicts, lists and tuples.

Not here: the file (remote_runner.checkpoint.snapshot).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import mlx.core as mx
import numpy as np

from remote_runner.checkpoint import snapshot

DTYPES = {
    mx.bool_: "BOOL", mx.uint8: "U8", mx.int8: "I8", mx.uint16: "U16", mx.int16: "I16", mx.float16: "F16",
    mx.bfloat16: "BF16", mx.uint32: "U32", mx.int32: "I32", mx.float32: "F32", mx.uint64: "U64", mx.int64: "I64",
    mx.complex64: "C64",
}  # fmt: skip


class ArrayMissing(ValueError):
    """A snapshot and the live objects do not hold the same arrays."""


def walk(tree: Any, prefix: str) -> Iterator[tuple[str, Any, Any, mx.array]]:
    """Yield (name, container, key, array) for every array below `tree`, in a fixed order.

    Containers are dicts (an MLX module is one) and lists; a tuple's arrays can be read but not put back, so one that
    holds an array raises TypeError.
    """
    if isinstance(tree, dict):
        items: list[tuple[Any, Any]] = sorted(tree.items())
    elif isinstance(tree, list):
        items = list(enumerate(tree))
    elif isinstance(tree, tuple):
        if any(True for _ in walk(list(tree), prefix)):
            raise TypeError(f"{prefix} is a tuple of arrays, which can't be restored: make it a list")
        return
    else:
        return
    for key, value in items:
        name = f"{prefix}.{key}"
        if isinstance(value, mx.array):
            yield name, tree, key, value
        else:
            yield from walk(value, name)


def live(tree: Any, prefix: str) -> dict[str, mx.array]:
    """All arrays below `tree` by dotted name."""
    return {name: array for name, _, _, array in walk(tree, prefix)}


def put_back(tree: Any, prefix: str, saved: Mapping[str, snapshot.Tensor]) -> None:
    """Replace every array below `tree` by the one saved under its name.

    Raises:
        ArrayMissing: a name is missing or left over, or a shape or dtype differs; nothing was replaced.
    """
    places = list(walk(tree, prefix))
    names = {name for name, _, _, _ in places}
    given = {name for name in saved if name.startswith(prefix + ".")}
    if names != given:
        raise ArrayMissing(f"not in both: {', '.join(sorted(names ^ given))}")
    for name, _, _, array in places:
        old = saved[name]
        if (old.dtype, old.shape) != (DTYPES[array.dtype], array.shape):
            raise ArrayMissing(f"{name} is {old.dtype} {list(old.shape)} there, {array.dtype} {array.shape} here")
    for name, container, key, array in places:
        container[key] = from_tensor(saved[name], array.dtype)


def number(scalar: mx.array) -> float:
    """The value of an array that holds one real number; waits for it."""
    value = scalar.item()
    if isinstance(value, complex):
        raise TypeError("not a real number")
    return float(value)


def to_tensor(array: mx.array) -> snapshot.Tensor:
    """An evaluated array for a snapshot, by reference: MLX never writes into an array somebody holds.

    Only evaluated arrays may be looked at by another thread, so evaluate first.
    """
    bits = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
    return snapshot.Tensor(DTYPES[array.dtype], array.shape, np.array(bits, copy=False))


def from_tensor(saved: snapshot.Tensor, dtype: mx.Dtype) -> mx.array:
    """An MLX array of its own from a loaded tensor."""
    array = mx.array(saved.data)
    return array.view(mx.bfloat16) if dtype == mx.bfloat16 else array
