"""One job per root: a kernel lock that ends with its holder, and a lease that says who that is.

The lock is an flock on `.remote-run/lock`, taken before anything is uploaded and handed on, as an open
descriptor, from the process that serves the controller to the supervisor. A dead holder holds nothing.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import signal
import time
from typing import Any, Dict, Optional

from remote_runner.pod import files, layout, procs

ANSWER_S = 5  # a network volume may never answer an flock
LEASE_WITHIN_S = 2.0


class Held(Exception):
    """Another process holds the lock; the lease tells whose it is."""


class _NoAnswer(Exception):
    pass


def _flock(path: str) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def too_late(_signum: int, _frame: Any) -> None:
        raise _NoAnswer

    before = signal.signal(signal.SIGALRM, too_late)
    signal.alarm(ANSWER_S)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(fd)
        raise
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return fd


def acquire(root: str) -> int:
    """Take the root's lock at once or not at all.

    Returns:
        The descriptor that holds it; it closes on exec unless made inheritable.

    Raises:
        Held: somebody else has it.
    """
    fallback = "/dev/shm/remote-run-" + hashlib.sha256(os.path.realpath(root).encode()).hexdigest()[:32]
    for path in (os.path.join(root, layout.OWN, "lock"), fallback):
        try:
            return _flock(path)
        except BlockingIOError:
            raise Held from None
        except _NoAnswer:
            continue
        except OSError as e:
            if e.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
                raise
    raise OSError(errno.ENOLCK, f"no lock to be had in {root} or in /dev/shm")


def write_lease(root: str, lease: Dict[str, Any], holder_pid: int) -> None:
    """Say whose the lock is; only its holder may."""
    holder = {"pid": holder_pid, "start": procs.start_ticks(holder_pid)}
    files.replace_json(root, layout.LEASE, {**lease, "holder": holder})


def holder(root: str) -> Optional[Dict[str, Any]]:
    """Whose the held lock is.

    A lease whose holder is dead is the last one's: the new holder is about to write its own, so it is waited for.
    """
    lease = None
    for _ in range(int(LEASE_WITHIN_S / 0.05)):
        lease = files.read_json(root, layout.LEASE)
        if isinstance(lease, dict):
            who = lease.get("holder") or {}
            if procs.alive(who.get("pid"), who.get("start")):
                return lease
        time.sleep(0.05)
    return lease if isinstance(lease, dict) else None
