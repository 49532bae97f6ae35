"""A run's status as a few lines for people, with the one command to type next."""

from __future__ import annotations

import time
from typing import Any

from remote_runner.agent import printable
from remote_runner.durations import show
from remote_runner.pod.status import utc
from remote_runner.pod.talk import EPOCH


def describe(seen: dict[str, Any], where: str = "TARGET") -> str:
    """What the pod's answer to `state` says.

    Args:
        seen: `status` of the supervisor, `fate`, `now_unix_s` by the pod's clock.
        where: target and login as one types them.
    """
    status = seen.get("status") or {}
    now = float(seen.get("now_unix_s") or time.time())
    name = status.get("name")
    fate = seen.get("fate")
    # the status of a run whose supervisor was killed says still what it was doing then
    state = status.get("state") if fate in ("running", "ended") else f"LOST while {status.get('state')}"
    lines = [f"{name}: {state}, attempt {status.get('attempt')}, segment {status.get('segment')}"]
    lines += _progress(status, now)
    if fate == "running":
        lines += _running(status, now)
        lines.append(f"  follow it: remote-run attach {where} {name}")
    elif fate == "ended":
        lines += _ended(status)
        lines.append(f"  bring it home: remote-run attach {where} {name}")
    else:
        lines.append(_gone(seen, now))
        lines.append(f"  bring home what it left: remote-run attach {where} {name}; then go on with --resume")
    return printable("\n".join(lines))


def _progress(status: dict[str, Any], now: float) -> list[str]:
    row = status.get("progress") or {}
    if not row:
        return []
    total = f"/{row['target_steps']}" if row.get("target_steps") else ""
    loss = f", loss {row['loss']:.4g}" if isinstance(row.get("loss"), (int, float)) else ""
    ago = show(now - float(row.get("t") or now))
    unit = EPOCH if row.get("stage") == EPOCH else f"{row.get('stage') or ''} step".lstrip()
    return [f"  {unit} {row.get('step')}{total}{loss}, {ago} ago"]


def _running(status: dict[str, Any], now: float) -> list[str]:
    supervisor, deadline = status.get("supervisor") or {}, status.get("deadline") or {}
    at, pause = float(deadline.get("unix_s") or now), float(deadline.get("pause_unix_s") or now)
    why = f", by {deadline['limit']}" if deadline.get("limit") else ""
    lines = [
        f"  supervisor pid {supervisor.get('pid')}, workload pid {status.get('pid')}",
        f"  pause {utc(pause)} (in {show(pause - now)}), deadline {deadline.get('at')} (in {show(at - now)}{why})",
    ]
    if status.get("memory_mb"):
        lines.append(f"  memory {status['memory_mb']:.0f} MB, disk {status.get('disk_free_mb')} MB free")
    if status.get("warning"):
        lines.append(f"  warning: {status['warning']}")
    return lines


def _ended(status: dict[str, Any]) -> list[str]:
    ended = status.get("exit") or {}
    lines = [f"  ended: {ended.get('cause')} ({ended.get('evidence') or 'exit code ' + str(ended.get('code'))})"]
    if isinstance(end := status.get("pod_end"), dict):
        costs = f", {end['costs_usd_a_day']} USD a day" if end.get("costs_usd_a_day") else ""
        lines.append(f"  the pod: {end.get('action')} {end.get('state') or ''} {end.get('why') or ''}{costs}".rstrip())
    return lines


def _gone(seen: dict[str, Any], now: float) -> str:
    if seen.get("fate") == "restarted":
        since = seen.get("since_unix_s")
        when = f" {show(now - float(since))} ago" if isinstance(since, (int, float)) else ""
        return f"  the pod's container was restarted{when}; the run ended with it and is not started again by itself"
    return "  its supervisor is gone and left no exit record: it was killed; nothing of the run goes on"
