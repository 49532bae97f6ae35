"""The supervisor's keeper: a tiny process above it, so that nothing goes on unbounded when it is killed.

    keeper (subreaper, holds the lock)  ->  supervisor (subreaper, holds the lock)  ->  workload

Whatever the supervisor leaves behind falls to the keeper, which ends it. Where the job has restarts left a
successor takes over, with the deadline that was armed; else the keeper writes the exit record that the
supervisor could not write. Killed itself, it costs that net: the supervisor goes on and says so. Both at once
and the workload's leader dies with its parent.

It imports next to nothing until the supervisor has ended: it lies in memory through the whole run.

Not here: what becomes of the job then (succession.py), the pod's own end after the run (ends.py).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import Any, List, Optional

from remote_runner.pod import tree

_FORWARDED = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(root: str, lock_fd: int) -> int:
    """Keep a supervisor for the job that lies in the root, to the job's end."""
    tree.become_subreaper()
    secrets = sys.stdin.buffer.read()  # in our memory alone, for a successor too
    while True:
        code = _supervise(root, secrets)
        tree.kill(None, os.getpid())  # before anything else, which might fail
        tree.reap()
        from remote_runner.pod import succession

        what = succession.after(root, code)
        if what != succession.AGAIN:
            break
    os.close(lock_fd)
    if what == succession.NEVER:
        return 1  # supervisor.log says why, and nothing was started
    from remote_runner.pod import ends, files, layout

    job = files.read_json(root, layout.JOB)
    status = files.read_json(root, layout.status(job["name"]))
    if ends.wanted(job, status["exit"]["cause"]) != "keep":
        # another name in the process list: this is no job any more, and does not stand in a new one's way
        os.execv(sys.executable, [sys.executable, job["zipapp"], "end", root])
    return 0


def _supervise(root: str, secrets: bytes) -> int:
    """Run one supervisor; its end as a process gives it, minus the number of a signal."""
    child: Optional[int] = None
    early: List[int] = []

    def forward(number: int, _frame: Any) -> None:
        if child is None:
            early.append(number)
        else:
            tree.send(child, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    told, tell = os.pipe()
    # it inherits the lock too: killed alone, we must not free the lock of a job that goes on
    child = os.posix_spawn(
        sys.executable,
        [sys.executable, "-S", sys.argv[0], "supervise", root],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, told, 0)],
    )
    os.close(told)
    with contextlib.suppress(BrokenPipeError), os.fdopen(tell, "wb") as f:
        f.write(secrets)
    for missed in early:
        tree.send(child, missed)
    _pid, status = os.waitpid(child, 0)
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
