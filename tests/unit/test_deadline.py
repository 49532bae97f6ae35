"""The deadline's arithmetic, with clocks that tests move: steps, suspends, reboots, successors."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_runner.pod import deadline
from remote_runner.pod.deadline import Clocks


@dataclass
class Time:
    steady_s: float = 1000.0
    unix_s: float = 1.7e9
    boot: str = "one"

    def clocks(self) -> Clocks:
        return Clocks(lambda: self.steady_s, lambda: self.unix_s, lambda: self.boot)

    def goes(self, seconds: float) -> None:
        self.steady_s += seconds
        self.unix_s += seconds


SECONDS = st.floats(0, 1e6)
STEPS = st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0, 1e4)), max_size=8)


@given(max_s=st.floats(1, 1e6), steps=STEPS)
def test_no_step_of_the_wall_clock_moves_it(max_s: float, steps: list[tuple[float, float]]) -> None:
    time = Time()
    armed = deadline.arm(max_s, time.clocks())
    passed = 0.0
    for step_s, then_s in steps:
        time.unix_s += step_s
        time.goes(then_s)
        passed += then_s
        assert armed.left_s() == pytest.approx(max_s - passed, abs=1e-6)
        assert armed.at_unix_s() - time.unix_s == pytest.approx(armed.left_s(), abs=1e-3)


@given(max_s=st.floats(1, 1e6), before=SECONDS, step=st.floats(-1e6, 1e6), between=SECONDS)
def test_a_successor_in_the_same_boot_has_the_same_one(
    max_s: float, before: float, step: float, between: float
) -> None:
    time = Time()
    armed = deadline.arm(max_s, time.clocks())
    time.goes(before)
    kept = json.loads(json.dumps(armed.fields()))
    time.unix_s += step
    time.goes(between)
    assert deadline.restore(kept, time.clocks()).left_s() == armed.left_s()


@given(max_s=st.floats(1, 1e6), before=SECONDS, away=SECONDS, back=st.floats(0, 1e6))
def test_a_reboot_never_gives_time_back(max_s: float, before: float, away: float, back: float) -> None:
    """The steady clock begins anew; the wall clock may have been set back meanwhile."""
    time = Time()
    armed = deadline.arm(max_s, time.clocks())
    time.goes(before)
    kept = json.loads(json.dumps(armed.fields()))
    time.steady_s, time.boot = 5.0, "two"
    time.unix_s += away - back
    left_s = deadline.restore(kept, time.clocks()).left_s()
    assert left_s <= max_s - before + 1e-2
    if back == 0:
        assert left_s == pytest.approx(max_s - before - away, abs=1e-2)


@pytest.mark.parametrize(
    ("max_s", "save_s", "reserve_s"),
    [
        (3600, 0, 5),  # at least 5 s
        (3600, 20, 30),  # 1.5 times the longest save
        (3600, 1000, 180),  # at most 5 %
        (60, 10, 5),  # 5 % would be 3: at most 5 then
        (8, 0, 4),  # never more than half
    ],
)
def test_the_reserve(max_s: float, save_s: float, reserve_s: float) -> None:
    assert deadline.arm(max_s, Time().clocks()).reserve_s(save_s) == reserve_s
