"""Lengths of time as people write them: `90s`, `15m`, `2h`, `1.5h`, `1d`."""

from __future__ import annotations

import math
import re
import sys
import time

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_FORM = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([smhd])\s*$")


def parse(text: str) -> float:
    """Seconds.

    Raises:
        ValueError: no number with one of the units s, m, h, d, or not above zero.
    """
    found = _FORM.match(text)
    seconds = float(found.group(1)) * _UNITS[found.group(2)] if found else math.nan
    if not 0 < seconds < math.inf:
        raise ValueError(f"{text!r} is no length of time: write 30s, 15m or 2h")
    return seconds


def clock_s() -> float:
    """Seconds of a clock that is never set and goes on while the machine sleeps."""
    if sys.platform == "darwin":
        return time.clock_gettime(time.CLOCK_MONOTONIC)  # there time.monotonic() stands still in sleep
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def show(seconds: float) -> str:
    """`0:05`, `1:02:03`, `2d 3:00:00`."""
    whole = max(0, round(seconds))
    days, rest = divmod(whole, 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    clock = f"{hours}:{minutes:02d}:{left:02d}" if whole >= 3600 else f"{minutes}:{left:02d}"
    return f"{days}d {clock}" if days else clock
