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
from typing import Any, Dict, Optional

from remote_runner.pod import files, layout

ANSWER_S = 5  # a network volume may never answer an flock


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


def holder(root: str) -> Optional[Dict[str, Any]]:
    """The lease as the last holder wrote it."""
    lease = files.read_json(root, layout.LEASE)
    return lease if isinstance(lease, dict) else None
