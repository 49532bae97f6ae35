"""Watch a run from here: progress, its log, and the backups at the interval, until it ends.

The connection may be lost and come back; the log goes on from the byte it had.

Not here: what is shown (view.py), what happens after the end (ending.py).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remote_runner import ssh
from remote_runner.agent import Agent, Denied, printable
from remote_runner.errors import Refused, RunnerError
from remote_runner.link import Link
from remote_runner.regular import Regular
from remote_runner.view import View

LOOK_AGAIN_S = 6.0  # a follower beats every five
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
    take_over: bool = False  # follow though another controller does
    on_interrupt: str = "detach"  # or "pause"

    def give_up_at(self, lost_unix_s: float) -> float:
        """When to stop looking for a pod that was lost then."""
        if self.give_up_after_s is not None:
            return lost_unix_s + self.give_up_after_s
        return self.deadline_unix_s + GRACE_S


def until_end(run: Running, view: View) -> dict[str, Any]:
    """Follow to the end.

    Returns:
        The pod's last word: `status`, and `fate`, which tells a killed supervisor from a restarted container where
        the status has no `exit`.

    Raises:
        OutOfContact: the pod did not answer until the deadline and a while after.
        Refused: another controller follows it, or has taken over.
        KeyboardInterrupt: the user detached; the run goes on.
    """
    offset, other, take_over = 0, "", run.take_over
    who = f"{ssh.local_user()} (pid {os.getpid()})"

    def watch(agent: Agent) -> dict[str, Any]:
        nonlocal offset, other, take_over
        ask = {"op": "follow", "name": run.name, "who": who, "take_over": take_over}
        agent.send({**ask, "offset": offset})
        while True:
            header, part = agent.receive()
            if header.get("follow") is not True:
                if header.get("reason") == "followed":
                    other = _wait_for_the_other(header, other, run.name, view)
                    agent.send({**ask, "offset": offset})
                    continue
                if header.get("ok") is not True:
                    raise RunnerError(f"following {run.name} failed: {Denied(header)}", fix="try: remote-run attach")
                return header
            take_over = False  # once: after a lost link whoever follows by then is left alone
            offset += len(part)
            status = header.get("status")
            if isinstance(status, dict):
                view.status(status)
            if part:
                view.log(printable(part.decode("utf-8", "replace")))
            if not (isinstance(status, dict) and status.get("exit")):
                run.backups.begin(run.link)

    while True:
        seen = run.link.use(watch, run.give_up_at)
        if seen.get("taken_over"):
            raise Refused(f"another controller follows {run.name} now", fix="to have it back: --take-over")
        if seen.get("ended"):
            if isinstance(seen.get("status"), dict):
                view.status(seen["status"])
            return seen


def _wait_for_the_other(header: dict[str, Any], before: str, name: str, view: View) -> str:
    """One that beats is left alone; one that has fallen silent is waited for, until the pod gives it up."""
    other, silent_s = printable(str(header.get("who"))), float(header.get("silent_s") or 0)
    if other == before and silent_s < LOOK_AGAIN_S:
        raise Refused(
            f"{name} is followed by {other}", fix="look with remote-run logs -f, or follow in its place: --take-over"
        )
    if other != before:
        view.tell(f"{other} followed {name} until {silent_s:.0f} s ago; waiting for its silence")
    time.sleep(LOOK_AGAIN_S)
    return other
