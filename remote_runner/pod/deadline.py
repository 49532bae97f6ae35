"""When a run must be over on the pod by itself.

Elapsed time comes from a clock that no one can set and that goes on through a suspend; the wall clock only
shows the deadline to people, and takes over where a supervisor was restarted after a reboot.
"""

from __future__ import annotations

import time
from typing import Callable, NamedTuple

MIN_RESERVE_S = 5.0


def steady() -> float:
    """Seconds since boot, suspended ones too where the system counts them."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.clock_gettime(clock) if clock is not None else time.monotonic()


class Deadline(NamedTuple):
    """`max_s` seconds from the moment it was armed."""

    max_s: float
    armed_steady_s: float
    armed_unix_s: float

    def left_s(self, now: Callable[[], float] = steady) -> float:
        return self.max_s - (now() - self.armed_steady_s)

    @property
    def at_unix_s(self) -> float:
        return self.armed_unix_s + self.max_s

    def reserve_s(self, longest_save_s: float) -> float:
        """How long before the deadline the pause is sent.

        1.5 times the longest save seen, at least 5 s, at most the larger of 5 s and 5 % of the time, never
        more than half of it.
        """
        wanted = max(MIN_RESERVE_S, 1.5 * longest_save_s)
        return min(wanted, max(MIN_RESERVE_S, 0.05 * self.max_s), self.max_s / 2)


def arm(max_s: float) -> Deadline:
    return Deadline(max_s, steady(), time.time())
