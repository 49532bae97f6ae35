"""What becomes of a job whose supervisor has ended: over, taken over by a successor, or ended by its keeper.

Not here: who waits for that (keep.py).
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict, Optional

from remote_runner.pod import durable, files, layout, pausing, preserve, procs, tree, workload
from remote_runner.pod.status import Status

OVER, AGAIN, NEVER = "over", "again", "never"


def after(root: str, code: int) -> str:
    """Settle what a supervisor left.

    Args:
        code: how it ended, minus the number of a signal.

    Returns:
        OVER: there is an exit record. AGAIN: start a successor. NEVER: it never came up, nothing was started.
    """
    job = files.read_json(root, layout.JOB)
    status = files.read_json(root, layout.status(job["name"])) or {}
    if status.get("attempt") != job["attempt"]:
        return NEVER
    if status.get("exit"):
        return OVER
    tree.kill(_leader(status), os.getpid())
    tree.reap()
    if _may_succeed(root, job, status):
        Status(root, **status).event("preserved", **preserve.before_recovery(root, job))
        return AGAIN
    _conclude(root, job, status, code)
    return OVER


def _leader(status: Dict[str, Any]) -> Optional[int]:
    """Whose group is to be ended; not that of a stranger who got a dead leader's pid meanwhile."""
    pid = status.get("pid")
    # without a subreaper (Darwin) the group is all we have of those whom a dead leader left
    return pid if procs.DARWIN or procs.alive(pid, status.get("pid_start")) else None


def _may_succeed(root: str, job: Dict[str, Any], status: Dict[str, Any]) -> bool:
    """The same rule as for a workload that crashed: as often as allowed, and only from a step further on."""
    used = int(status.get("restarts") or 0)
    if status.get("pause") or status.get("state") == "setup" or used >= int(job.get("restarts") or 0):
        return False
    reached = durable.newest_verified(root, job["outputs"], job.get("snapshots") or [])
    before = status.get("began_at")
    if reached is None or (before is not None and list(reached) <= list(before)):
        return False
    status["restarts"] = used + 1
    files.replace_json(root, layout.status(job["name"]), status)
    return True


def _conclude(root: str, job: Dict[str, Any], last: Dict[str, Any], code: int) -> None:
    how = workload.signal_name(-code) if code < 0 else f"exit code {code}"
    evidence = f"the supervisor (pid {last['supervisor']['pid']}) ended by {how}; its keeper ended the workload"
    ended = workload.ended("supervisor-lost", evidence)
    ended["ended_unix_s"] = time.time()
    pausing.remove_file(root, job)
    status = Status(root, **last)
    status.event("ended", **ended)
    status.conclude(state="ended", exit=ended, pid=None)
