"""NumPy's own files, `.npy` and `.npz`: what is in them, whether they are whole, and how many NaN each array holds.

Read in blocks, array by array; an array of Python objects is a pickle and is not opened.

Not here: the verdict on a file (verify.py).
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.lib import format as npy

from remote_runner.checkpoint import finite

SUFFIXES = frozenset({".npy", ".npz"})
_BLOCK_BYTES = 8 << 20
_NAMES = {"<f2": "F16", "<f4": "F32", "<f8": "F64", "<c8": "C64", "<c16": "F64"}


class Damaged(ValueError):
    """The file is not what its name says; the message says why."""


class Array(NamedTuple):
    """One array of a file."""

    name: str  # empty in a .npy
    dtype: str
    shape: tuple[int, ...]
    nans: int = 0
    infinities: int = 0


def arrays(path: Path, *, count: bool) -> Iterator[Array]:
    """All arrays of a file.

    Args:
        count: read their values too, which proves the archive's CRCs; else only what their headers say.

    Raises:
        Damaged, OSError: it can't be read.
    """
    try:
        if path.suffix == ".npy":
            with path.open("rb") as f:
                yield _array("", f, count)
            return
        with ExitStack() as opened:
            packed = opened.enter_context(zipfile.ZipFile(path))
            for member in packed.infolist():
                with packed.open(member) as f:
                    yield _array(member.filename.removesuffix(".npy"), f, count)
    except (ValueError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as e:
        raise Damaged(str(e) or type(e).__name__) from None


def _array(name: str, f: IO[bytes], count: bool) -> Array:
    version = npy.read_magic(f)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _order, dtype = read(f)
    found = Array(name, str(dtype), tuple(shape))
    if dtype.hasobject:
        return found._replace(dtype="Python objects, not opened")
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if not count:
        return found
    known, nans, infinities, left = _NAMES.get(dtype.str), 0, 0, size
    while left:
        block = f.read(min(left, _BLOCK_BYTES - _BLOCK_BYTES % dtype.itemsize))
        if not block or len(block) % dtype.itemsize:
            left -= len(block)
            raise ValueError(f"{name or 'the array'} is cut off: {left} of {size} bytes are missing")
        left -= len(block)
        if known:
            more = finite.count(known, block)
            nans, infinities = nans + more[0], infinities + more[1]
    if f.read(1):  # at the end an archive's CRC is compared
        raise ValueError(f"{name or 'the array'} goes on after the {size} bytes of its shape")
    return found._replace(nans=nans, infinities=infinities)
