"""The supervisor's keeper: a tiny process above it, so that nothing goes on unbounded when it is killed.

    keeper (subreaper, holds the lock)  ->  supervisor (subreaper, holds the lock)  ->  workload

Whatever the supervisor leaves behind falls to the keeper, which ends it. Where the job has restarts left a
successor takes over, with the deadline that was armed; else the keeper writes the exit record that the
supervisor could not write. Killed itself, it costs that net: the supervisor goes on and says so. Both at once
and the workload's leader dies with its parent.

Not here: the pod's own end after the run (ends.py).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional

from remote_runner.pod import durable, files, layout, pausing, procs, tree, workload
from remote_runner.pod.status import Status

_FORWARDED = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(root: str, lock_fd: int) -> int:
    """Keep a supervisor for the job that lies in the root, to the job's end."""
    tree.become_subreaper()
    job = files.read_json(root, layout.JOB)
    secrets = sys.stdin.buffer.read()  # in our memory alone, for a successor too
    while True:
        code = _supervise(root, lock_fd, job["zipapp"], secrets)
        status = files.read_json(root, layout.status(job["name"])) or {}
        if status.get("attempt") == job["attempt"] and status.get("exit"):
            break
        tree.kill(_leader(status), os.getpid())
        tree.reap()
        if status.get("attempt") != job["attempt"]:
            return 1  # it never came up; supervisor.log says why, and nothing was started
        if not _may_succeed(root, job, status):
            _conclude(root, job, status, code)
            break
    os.close(lock_fd)
    from remote_runner.pod import ends  # brings the HTTP client: not to be carried through the whole run

    status = files.read_json(root, layout.status(job["name"]))
    if ends.wanted(job, status["exit"]["cause"]) != "keep":
        # another name in the process list: this is no job any more, and does not stand in a new one's way
        os.execv(sys.executable, [sys.executable, job["zipapp"], "end", root])
    return 0


def _leader(status: Dict[str, Any]) -> Optional[int]:
    """Whose group is to be ended; not that of a stranger who got a dead leader's pid meanwhile."""
    pid = status.get("pid")
    # without a subreaper (Darwin) the group is all we have of those whom a dead leader left
    return pid if procs.DARWIN or procs.alive(pid, status.get("pid_start")) else None


def _supervise(root: str, lock_fd: int, zipapp: str, secrets: bytes) -> int:
    """Run one supervisor; its end as a process gives it, minus the number of a signal."""
    child: Optional[subprocess.Popen[bytes]] = None
    early: List[int] = []

    def forward(number: int, _frame: Any) -> None:
        if child is None:
            early.append(number)
        else:
            tree.send(child.pid, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    child = subprocess.Popen(
        [sys.executable, zipapp, "supervise", root],
        stdin=subprocess.PIPE,
        pass_fds=(lock_fd,),  # killed alone, we must not free the lock of a job that goes on
    )
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError), child.stdin as f:
        f.write(secrets)
    for missed in early:
        tree.send(child.pid, missed)
    return child.wait()


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
