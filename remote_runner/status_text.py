"""A run's status as a few lines for people."""

from __future__ import annotations

import time
from typing import Any

from remote_runner.agent import printable
from remote_runner.durations import show


def describe(seen: dict[str, Any]) -> str:
    """What the pod's answer to `state` says.

    Args:
        seen: `status` of the supervisor, `supervisor_lives`, `now_unix_s` by the pod's clock.
    """
    status = seen.get("status") or {}
    now = float(seen.get("now_unix_s") or time.time())
    lines = [
        f"{status.get('name')}: {status.get('state')}, attempt {status.get('attempt')}, segment {status.get('segment')}"
    ]
    row = status.get("progress") or {}
    if row:
        total = f"/{row['target_steps']}" if row.get("target_steps") else ""
        loss = f", loss {row['loss']:.4g}" if isinstance(row.get("loss"), (int, float)) else ""
        lines.append(
            f"  {row.get('stage')} step {row.get('step')}{total}{loss}, {show(now - float(row.get('t') or now))} ago"
        )
    ended = status.get("exit")
    if isinstance(ended, dict):
        lines.append(
            f"  ended: {ended.get('cause')} ({ended.get('evidence') or 'exit code ' + str(ended.get('code'))})"
        )
    elif not seen.get("supervisor_lives"):
        lines.append("  its supervisor is gone and left no exit record: killed, or the pod was restarted")
    else:
        supervisor, deadline = status.get("supervisor") or {}, status.get("deadline") or {}
        left = show(float(deadline.get("unix_s") or now) - now)
        lines.append(f"  supervisor pid {supervisor.get('pid')}, workload pid {status.get('pid')}")
        lines.append(f"  deadline {deadline.get('at')} (in {left})")
    return printable("\n".join(lines))
