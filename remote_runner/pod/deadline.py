"""When a run must be over on the pod by itself.

Elapsed time comes from a clock that no one can set and that goes on through a suspend, so a step of the wall
clock changes nothing but what is shown. The wall clock takes over for a supervisor that finds itself after a
reboot, and then never gives back time that a beat had already counted.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Callable, Dict, NamedTuple

from remote_runner.pod import procs

MIN_RESERVE_S = 5.0
STEP_S = 1.0  # the wall clock moved by more against the steady one: somebody set it


def _steady() -> float:
    """Seconds since boot, suspended ones too."""
    # On Darwin CLOCK_MONOTONIC counts sleep, time.monotonic() does not; on Linux it is the other clock.
    clock = time.CLOCK_MONOTONIC if sys.platform == "darwin" else getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


class Clocks(NamedTuple):
    """The times a deadline is made of; tests bring their own."""

    steady: Callable[[], float]
    unix: Callable[[], float]
    boot_id: Callable[[], str]


REAL = Clocks(_steady, time.time, lambda: str(procs.boot()["id"]))


class Deadline(NamedTuple):
    """`max_s` seconds from the moment it was armed."""

    max_s: float
    armed_steady_s: float
    armed_unix_s: float
    boot_id: str
    clocks: Clocks = REAL

    def left_s(self) -> float:
        return self.max_s - (self.clocks.steady() - self.armed_steady_s)

    def at_unix_s(self) -> float:
        """When it is, by the wall clock as it goes now."""
        return self.clocks.unix() + self.left_s()

    def reserve_s(self, longest_save_s: float) -> float:
        """How long before the deadline the pause is sent.

        1.5 times the longest save seen, at least 5 s, at most the larger of 5 s and 5 % of the time, never
        more than half of it.
        """
        wanted = max(MIN_RESERVE_S, 1.5 * longest_save_s)
        return min(wanted, max(MIN_RESERVE_S, 0.05 * self.max_s), self.max_s / 2)

    def fields(self) -> Dict[str, Any]:
        """What a successor needs to keep it (`restore`)."""
        return {
            "max_s": self.max_s,
            "armed_steady_s": self.armed_steady_s,
            "armed_unix_s": self.armed_unix_s,
            "boot_id": self.boot_id,
            "elapsed_s": round(self.max_s - self.left_s(), 3),
        }


def arm(max_s: float, clocks: Clocks = REAL) -> Deadline:
    return Deadline(max_s, clocks.steady(), clocks.unix(), clocks.boot_id(), clocks)


def restore(fields: Dict[str, Any], clocks: Clocks = REAL) -> Deadline:
    """The same deadline in another process, from what `fields` gave.

    Raises:
        KeyError, TypeError, ValueError: they are not that.
    """
    max_s, armed_unix_s = float(fields["max_s"]), float(fields["armed_unix_s"])
    if fields["boot_id"] == clocks.boot_id():
        return Deadline(max_s, float(fields["armed_steady_s"]), armed_unix_s, str(fields["boot_id"]), clocks)
    elapsed_s = max(float(fields["elapsed_s"]), clocks.unix() - armed_unix_s)
    return Deadline(max_s, clocks.steady() - elapsed_s, armed_unix_s, clocks.boot_id(), clocks)
