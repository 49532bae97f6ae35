"""A pause under way: who is signalled, how often, and until when.

The file `.pause` is written first, then whoever catches the signal gets it once a second until the workload
ends; with a grace, half of it gone, the file says `now`, and at its end the tree is killed (supervise.py).
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any, Dict, Optional

from remote_runner.pod import files, layout, tree

NAG_S = 1.0
STUBBORN_S = 2.0  # a program without anything to save, and without a handler, is ended after that


class Pause:
    """One request to pause, from its first cause to the end of the workload.

    Args:
        grace_s: how long it may take; None: until the deadline.
    """

    def __init__(self, root: str, job: Dict[str, Any], cause: str, now_s: float, grace_s: Optional[float]) -> None:
        self._root, self._job = root, job
        self.cause = cause
        self.since_s = now_s
        if grace_s is not None and job["pause"] == "none":
            grace_s = 0.0  # it can't be asked, so there is nothing to wait for
        self.grace_s, self.until_s = grace_s, None if grace_s is None else now_s + grace_s
        self._nagged_s = float("-inf")
        self._said_now = False
        if self._contract:
            write_file(root, job, "")

    @property
    def _contract(self) -> bool:
        return bool(self._job["pause"] == "contract")

    def bound(self, now_s: float, grace_s: float) -> None:
        """A stop after a pause: limited from now on."""
        self.since_s, self.grace_s, self.until_s = now_s, grace_s, now_s + grace_s

    def nag(self, kind: str, leader: int, now_s: float, age_s: float) -> None:
        """Ask again, each second: a wrapper may have swallowed the first, a trainer may still be starting.

        Args:
            kind: "setup", "command" or "then"; the first and last have nothing to save.
            age_s: since the program was started.
        """
        if now_s - self._nagged_s < NAG_S:
            return
        self._nagged_s = now_s
        asked = False
        name = "SIGUSR1" if self._contract else self._job["pause"]
        if kind == "setup":
            tree.send(leader, signal.SIGTERM)
        elif name != "none":
            number = getattr(signal, name)
            for pid in tree.receivers(leader, number, age_s):
                tree.send(pid, number)
                asked = True
        if kind == "then" and not asked and now_s - self.since_s > STUBBORN_S:
            tree.send(leader, signal.SIGTERM)
        if self._contract and self.grace_s and not self._said_now and now_s - self.since_s > self.grace_s / 2:
            self._said_now = True
            write_file(self._root, self._job, "now")


def write_file(root: str, job: Dict[str, Any], word: str) -> None:
    """Ask by the contract's file."""
    path = layout.pause_file(job["outputs"])
    with contextlib.suppress(OSError):
        files.replace(root, path, lambda fd: files.write_all(fd, word.encode()), durable=False)


def remove_file(root: str, job: Dict[str, Any]) -> None:
    """Take the request away, so that the resumed run does not pause again."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(root, layout.pause_file(job["outputs"])))
