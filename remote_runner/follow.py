"""Watch a run from here: progress, its log, and the backups at the interval, until it ends.

The connection may be lost and come back; the log goes on from the byte it had.

Not here: what is shown (view.py), what happens after the end (controller.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from remote_runner import ssh
from remote_runner.agent import Agent, Denied, field, printable
from remote_runner.errors import RunnerError
from remote_runner.link import Link
from remote_runner.regular import Regular
from remote_runner.view import View

GRACE_S = 15 * 60.0  # after the deadline; then a pod that does not answer is given up


@dataclass
class Running:
    """A run that was started, as far as the controller knows it."""

    name: str
    max_s: float
    deadline_local_unix_s: float  # by this machine's clock
    status: dict[str, Any]
    give_up_after_s: float | None = None

    def give_up_at(self) -> Callable[[], float]:
        """When to stop looking for a lost pod, counted from now where the user set a time."""
        if self.give_up_after_s is not None:
            fixed = time.time() + self.give_up_after_s
            return lambda: fixed
        return lambda: self.deadline_local_unix_s + GRACE_S


def until_end(link: Link, run: Running, view: View, backups: Regular | None) -> dict[str, Any]:
    """Follow to the end.

    Returns:
        The last status; without an `exit` in it the supervisor died before it could write one.

    Raises:
        OutOfContact: the pod did not answer until the deadline and a while after.
        KeyboardInterrupt: the user detached; the run goes on.
    """
    offset = 0

    def watch(agent: Agent) -> dict[str, Any]:
        nonlocal offset
        agent.send({"op": "follow", "name": run.name, "offset": offset, "who": ssh.local_user()})
        while True:
            header, part = agent.receive()
            if header.get("follow") is not True:
                if header.get("ok") is not True:
                    raise RunnerError(f"following {run.name} failed: {Denied(header)}", fix="try: remote-run attach")
                return header
            offset += len(part)
            status = header.get("status")
            if isinstance(status, dict):
                run.status = status
                view.status(status)
            if part:
                view.log(printable(part.decode("utf-8", "replace")))
            if backups is not None and not (isinstance(status, dict) and status.get("exit")):
                backups.tick(link)

    while True:
        seen = link.use(watch, run.give_up_at())
        if seen.get("ended"):
            run.status = field(seen, "status", dict)
            view.status(run.status)
            return run.status
