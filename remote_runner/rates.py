"""What a transfer will take, said before it begins: bytes, time and cost.

.remote-run/rate.json    bytes a second of the last transfers that were large enough to tell: up, down
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from remote_runner.durations import show
from remote_runner.pod import files, layout

ANNOUNCE_BYTES = 1_000_000_000
ASSUMED_BYTES_S = 50e6
_RATES = layout.OWN + "/rate.json"
_TELLING_BYTES = 1_000_000


def measured(root: Path, way: str) -> float | None:
    """Bytes a second of the last transfer that way (`up`, `down`); None where there was none."""
    found = files.read_json(str(root), _RATES)
    rate = found.get(way) if isinstance(found, dict) else None
    return float(rate) if isinstance(rate, (int, float)) and rate > 0 else None


def remember(root: Path, way: str, size_bytes: int, took_s: float) -> None:
    """Keep how fast it went; a disk that refuses costs the memory alone."""
    if size_bytes < _TELLING_BYTES or took_s <= 0:
        return
    found = files.read_json(str(root), _RATES)
    with contextlib.suppress(OSError):
        files.replace_json(str(root), _RATES, {**(found if isinstance(found, dict) else {}), way: size_bytes / took_s})


def forecast(size_bytes: int, rate_bytes_s: float | None, price_usd_h: float | None) -> str:
    """Time and cost of a transfer, as far as they are known; a price of 0 means that no pod waits for it."""
    rate = rate_bytes_s or ASSUMED_BYTES_S
    took_s = size_bytes / rate
    how = "as the last one" if rate_bytes_s else "a guess: none was measured yet"
    cost = (
        "the pod's price is not known" if price_usd_h is None else f"{took_s / 3600 * price_usd_h:.2f} USD of pod time"
    )
    return f"about {show(took_s)} at {rate / 1e6:.1f} MB/s ({how}), {cost}"


def announce(
    root: Path, way: str, size_bytes: int, count: int, price_usd_h: float | None, tell: Callable[[str], None]
) -> None:
    """Say what a large transfer will take."""
    if size_bytes > ANNOUNCE_BYTES:
        tell(f"{count} files, {size_bytes / 1e9:.1f} GB are to come {_WAYS[way]}: "
             f"{forecast(size_bytes, measured(root, way), price_usd_h)}")  # fmt: skip


_WAYS = {"up": "to the pod", "down": "here"}
