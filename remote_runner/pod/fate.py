"""What became of a run, from its status and from what lives now; the status itself is never repaired.

    running    its supervisor or its keeper lives    ended   there is an exit record
    restarted  the container or machine began anew   gone    both were killed, the machine was not

Not here: who writes the status (supervise.py, keep.py).
"""

from __future__ import annotations

from typing import Any, Dict

from remote_runner.pod import procs


def supervisor_lives(status: Dict[str, Any]) -> bool:
    """Whether the supervisor that wrote this status still runs."""
    who = status.get("supervisor") or {}
    return procs.alive(who.get("pid"), who.get("start"))


def keeper_lives(status: Dict[str, Any]) -> bool:
    """Whether its keeper does; after the supervisor's death it starts another or writes the exit record."""
    who = status.get("supervisor") or {}
    return procs.alive(who.get("keeper"), who.get("keeper_start"))


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
    return {"fate": "running" if supervisor_lives(status) or keeper_lives(status) else "gone"}
