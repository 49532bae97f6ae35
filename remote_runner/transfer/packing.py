"""How files are grouped for their way: small ones into packs, and which of them are worth compressing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from remote_runner.transfer.progress import Meter

PACK_FILES, PACK_BYTES, PACK_NAMES_BYTES = 256, 1 << 20, 48 << 10
SQUEEZE_RTT_S, SQUEEZE_BYTES_S, _MEASURED_S = 0.06, 30e6, 2.0
_DENSE = (".safetensors", ".pt", ".pth", ".npz", ".gz", ".zip", ".zst", ".png", ".jpg")  # never compressed

One = TypeVar("One")


def packs(files: Iterable[One], facts: Callable[[One], tuple[str, int, bool]]) -> Iterator[list[One]]:
    """Small files in packs, each of one kind: what compresses apart from what does not.

    Args:
        facts: path, size and whatever else only the like may share a pack in.
    """
    kinds: dict[tuple[bool, bool], list[One]] = {}
    for one in files:
        path, _, other = facts(one)
        kinds.setdefault((not path.endswith(_DENSE), other), []).append(one)
    for _, same in sorted(kinds.items(), key=lambda kind: kind[0]):
        pack: list[One] = []
        size = names = 0
        for one in same:
            path, more, _ = facts(one)
            if pack and (len(pack) >= PACK_FILES or size + more > PACK_BYTES or names > PACK_NAMES_BYTES):
                yield pack
                pack, size, names = [], 0, 0
            pack.append(one)
            size += more
            names += 4 * len(path)
        yield pack


def compressed(path: str, rtt_s: float, meter: Meter) -> bool:
    """Whether it pays to compress a file on its way: text, on a link that is long or turned out to be slow."""
    if path.endswith(_DENSE):
        return False
    moving_s = meter.moving_s
    return rtt_s >= SQUEEZE_RTT_S or (moving_s > _MEASURED_S and meter.moved_bytes < moving_s * SQUEEZE_BYTES_S)
