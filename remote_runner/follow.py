"""Watch a run from here: progress, its log, and the backups at the interval, until it ends.

The connection may be lost and come back; the log goes on from the byte it had.

Not here: what is shown (view.py), what happens after the end (ending.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
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
    """A run that was started: where it is, where it comes home, and what is known of it."""

    name: str
    root: Path  # the project here
    outputs: list[str]
    link: Link
    backups: Regular
    deadline_unix_s: float  # by this machine's clock
    give_up_after_s: float | None = None

    def give_up_at(self) -> Callable[[], float]:
        """When to stop looking for a lost pod, counted from now where the user set a time."""
        if self.give_up_after_s is not None:
            fixed = time.time() + self.give_up_after_s
            return lambda: fixed
        return lambda: self.deadline_unix_s + GRACE_S


def until_end(run: Running, view: View) -> dict[str, Any]:
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
                view.status(status)
            if part:
                view.log(printable(part.decode("utf-8", "replace")))
            if not (isinstance(status, dict) and status.get("exit")):
                run.backups.tick(run.link)

    while True:
        seen = run.link.use(watch, run.give_up_at())
        if seen.get("ended"):
            last: dict[str, Any] = field(seen, "status", dict)
            view.status(last)
            return last
