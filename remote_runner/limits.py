"""How long an attempt may run: the tightest of hours, hours over all attempts, and money.

    --max-hours 12      --max-total-hours 40      --max-cost 5 --price 0.40

All three become one number of seconds, armed on the pod as its deadline. They bound the training; what the pod
costs after it is `--on-success` and `--on-failure`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from remote_runner.durations import show
from remote_runner.errors import UsageFault


def tightest(
    max_s: float,
    *,
    max_total_s: float | None = None,
    used_s: float = 0.0,
    max_cost: float | None = None,
    price: float | None = None,
) -> tuple[float, str]:
    """Seconds that this attempt may take, and the option that says so.

    Args:
        used_s: what earlier attempts of the run took.
        max_cost: USD for this attempt. price: USD an hour.

    Raises:
        UsageFault: a cost without a price, or nothing is left of the total.
    """
    found = [(max_s, f"--max-hours {max_s / 3600:g}")]
    if max_cost is not None:
        if price is None:
            raise UsageFault("--max-cost needs the pod's price", fix="say what it costs an hour: --price 0.40")
        found.append((max_cost / price * 3600, f"--max-cost {max_cost:g} at {price:g} an hour"))
    if max_total_s is not None:
        left_s = max_total_s - used_s
        if left_s <= 0:
            raise UsageFault(
                f"earlier attempts have used {show(used_s)} of --max-total-hours {max_total_s / 3600:g}",
                fix="allow more with --max-total-hours, or leave it out",
            )
        found.append((left_s, f"--max-total-hours {max_total_s / 3600:g}, {show(used_s)} used"))
    return min(found)


def used_s(record: dict[str, Any], now: Callable[[], float] = time.time) -> float:
    """What the attempts in a run's record took; one whose end nobody saw counts with all that it could have taken."""
    total = 0.0
    attempts = [a for a in record.get("attempts") or [] if isinstance(a, dict) and "started_unix_s" in a]
    for one, after in zip(attempts, [*attempts[1:], None], strict=False):
        began, most = float(one["started_unix_s"]), float(one.get("max_s") or 0)
        ended = (one.get("ended") or {}).get("unix_s")
        until = float(ended or (after or {}).get("started_unix_s") or now())
        total += max(0.0, min(most, until - began))
    return total
