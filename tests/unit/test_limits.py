"""How long an attempt may run: hours, money and what earlier attempts have used."""

from __future__ import annotations

import pytest

from remote_runner import limits
from remote_runner.errors import UsageFault

HOUR = 3600.0


def test_the_tightest_limit_wins_and_is_named() -> None:
    assert limits.tightest(12 * HOUR) == (12 * HOUR, "--max-hours 12")
    max_s, why = limits.tightest(12 * HOUR, max_cost=2, price=0.5)
    assert (max_s, why) == (4 * HOUR, "--max-cost 2 at 0.5 an hour")
    max_s, why = limits.tightest(12 * HOUR, max_total_s=10 * HOUR, used_s=9 * HOUR, max_cost=2, price=0.5)
    assert max_s == HOUR
    assert why.startswith("--max-total-hours 10, ")


def test_nothing_left_of_the_total_is_refused() -> None:
    with pytest.raises(UsageFault, match="have used"):
        limits.tightest(HOUR, max_total_s=2 * HOUR, used_s=2 * HOUR)


def test_a_cost_needs_a_price() -> None:
    with pytest.raises(UsageFault, match="price"):
        limits.tightest(HOUR, max_cost=3)


def test_what_earlier_attempts_took() -> None:
    attempts = [
        {"started_unix_s": 0.0, "max_s": 500.0, "ended": {"unix_s": 100.0}},
        {"started_unix_s": 1000.0, "max_s": 300.0},  # its end was never seen: at most its 300 s
        {"started_unix_s": 2000.0, "max_s": 300.0},  # the next began after 50
        {"started_unix_s": 2050.0, "max_s": 300.0},  # runs for all we know
    ]
    assert limits.used_s({"attempts": attempts}, lambda: 2060.0) == 100 + 300 + 50 + 10
    assert limits.used_s({}) == 0
