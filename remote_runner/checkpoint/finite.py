"""Non-finite numbers in a tensor's bytes, by safetensors dtype, in one block of memory at a time. Needs numpy.

Types numpy does not know (BF16, the 8-bit floats) are judged by their bits. Integers can't be non-finite.

Source of the 8-bit formats: Micikevicius et al. 2022, arXiv:2209.05433 (E4M3 has NaN but no infinity); the FNUZ
forms and E8M0: ONNX and OCP MX specifications (one NaN each, no infinity).
"""

from __future__ import annotations

from typing import Tuple, Union

import numpy as np

Block = Union[bytes, bytearray, memoryview]
_FLOATS = {"F16": np.float16, "F32": np.float32, "F64": np.float64, "C64": np.float32}


def count(dtype: str, block: Block) -> Tuple[int, int]:
    """How many NaN and how many infinities stand in `block`, whole elements of `dtype`, little-endian."""
    if dtype in ("F32", "F64", "C64"):
        values = np.frombuffer(block, dtype=_FLOATS[dtype])
        # min and max carry a NaN or an infinity along, at the speed of memory; counting is for the rare case.
        if not values.size or (np.isfinite(values.min()) and np.isfinite(values.max())):
            return 0, 0
        nans = int(np.isnan(values).sum())
        return nans, int((~np.isfinite(values)).sum()) - nans
    if dtype in ("F16", "BF16"):
        infinity = 0x7C00 if dtype == "F16" else 0x7F80
        size = np.frombuffer(block, dtype=np.uint16) & 0x7FFF
        return int((size > infinity).sum()), int((size == infinity).sum())
    bits = np.frombuffer(block, dtype=np.uint8)
    if dtype == "F8_E4M3":
        return int(((bits & 0x7F) == 0x7F).sum()), 0
    if dtype == "F8_E5M2":
        return int(((bits & 0x7F) > 0x7C).sum()), int(((bits & 0x7F) == 0x7C).sum())
    if dtype in ("F8_E4M3FNUZ", "F8_E5M2FNUZ"):
        return int((bits == 0x80).sum()), 0
    if dtype == "F8_E8M0":
        return int((bits == 0xFF).sum()), 0
    return 0, 0
