"""What became of a run, from its status and from what lives now; the status itself is never repaired.

running    its supervisor lives                 ended      there is an exit record
restarted  the container or machine began anew  gone       the supervisor was killed, the machine was not
"""

from __future__ import annotations

from typing import Any, Dict

from remote_runner.pod import procs


def supervisor_lives(status: Dict[str, Any]) -> bool:
    """Whether the supervisor that wrote this status still runs."""
    who = status.get("supervisor") or {}
    return procs.alive(who.get("pid"), who.get("start"))


def of(status: Any) -> Dict[str, Any]:
    """`fate`, and for a restart `since_unix_s`, when the machine or container began anew."""
    if not isinstance(status, dict):
        return {"fate": "unknown"}
    if status.get("exit"):
        return {"fate": "ended"}
    boot, now = status.get("boot"), procs.boot()
    # looked at first: after a restart another process may have the supervisor's pid and even its start
    if isinstance(boot, dict) and boot != now:
        return {"fate": "restarted", "since_unix_s": procs.started_unix_s(1)}
    return {"fate": "running" if supervisor_lives(status) else "gone"}
