"""A workload's process tree: who in it is asked to pause, and the end of all of it.

The pause goes to the leader alone, since a signal to the group kills compilers and data workers. A leader
without a handler for it is a wrapper (`bash run.sh`, `env`, `nice`, torchrun) or a trainer that is still
starting: the nearest descendants that have one get it instead, and nobody is signalled who would die of it.

Not here: when that is (pausing.py, supervise.py).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from typing import List, Optional, Set

from remote_runner.pod import procs

BLIND_S = 2.0  # without /proc: how long a fresh process is left alone


def receivers(leader: int, number: int, age_s: float) -> List[int]:
    """Who is to get the pause signal: the leader, else the nearest descendants that catch it.

    Args:
        age_s: since the leader was started; counts only where nothing tells who catches what.
    """
    found: List[int] = []
    todo = [leader]
    while todo:
        pid = todo.pop(0)
        caught = procs.catches(pid, number)
        if caught is None:
            return [leader] if age_s >= BLIND_S else []
        if caught:
            found.append(pid)  # what it started is its own business
        else:
            todo += procs.own_children(pid)
    return found


def send(pid: int, number: int) -> None:
    """Signal a process that may be gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def kill(leader: Optional[int], above: int) -> Set[int]:
    """SIGKILL a group and every descendant of `above`, until none is left.

    Returns:
        Who is still there after two seconds (a process the kernel does not let go).
    """
    if leader is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)
    left: Set[int] = set()
    for _ in range(100):
        left = procs.children(above)
        if not left:
            break
        for pid in left:
            send(pid, signal.SIGKILL)
        time.sleep(0.02)
    return left


def reap(but: Optional[int] = None) -> None:
    """Take the ends of orphans that became our children; `but` is left to whoever waits for it."""
    for pid in procs.own_children(os.getpid()):
        if pid != but:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def become_subreaper() -> None:
    """Orphans of the workload become our children (Linux), so that none is lost from sight."""
    _prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def die_with_parent() -> None:
    """Be killed when the parent dies (Linux)."""
    _prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _prctl(option: int, value: int) -> None:
    if sys.platform != "linux":
        return
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
