"""A connection that comes back: one pod, one program on it, replaced by new ones when the link is lost.

A lost link never hurts the job, so reading and following are simply done again. What is not idempotent
(hold, launch) does not go through here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any, TypeVar

import tenacity

from remote_runner import ssh
from remote_runner.agent import Agent
from remote_runner.errors import NotStarted, OutOfContact, PreflightFailed
from remote_runner.program import LinkLost
from remote_runner.ssh import Endpoint

T = TypeVar("T")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
HELD_S = 5.0


class Link:
    """The way to one root on one pod.

    Args:
        agent: a program that already runs there, taken over.
        tell: says to the user that contact was lost, and is back.
    """

    def __init__(
        self, endpoint: Endpoint, root: PurePosixPath, tell: Callable[[str], None], agent: Agent | None = None
    ) -> None:
        self.endpoint, self.root = endpoint, root
        self._tell, self._agent = tell, agent

    def close(self) -> None:
        if self._agent is not None:
            self._agent.pod.close()
            self._agent = None

    def agent(self) -> Agent:
        """A live program, over a new connection where there is none.

        Raises:
            PreflightFailed, NotStarted, LinkLost: no connection to be had now.
        """
        if self._agent is None:
            pod = ssh.connect(self.endpoint)
            try:
                self._agent = Agent(pod, self.root)
            except BaseException:
                pod.close()
                raise
        return self._agent

    def second(self) -> Agent:
        """One more program over the same connection, for work beside the first; the caller closes it.

        Raises:
            LinkLost: there is no connection just now. It is not for work beside to make one.
        """
        first = self._agent
        if first is None:
            raise LinkLost(f"{self.endpoint}: no contact just now")
        return Agent(first.pod, self.root)

    @property
    def current(self) -> Agent | None:
        """The program that answers now; another one after the link came back; None while it is lost."""
        return self._agent

    def use(self, action: Callable[[Agent], T], give_up_at: Callable[[float], float]) -> T:
        """Do something with a live program; again, with growing pauses, while the link is lost.

        Args:
            action: may be repeated from its start at any point.
            give_up_at: when to stop trying, by when contact was lost; local times, seconds since the epoch.

        Raises:
            OutOfContact: the time is over, or the machine there is another one now.
        """
        lost_since: float | None = None
        lost_at, well_since = time.time(), 0.0  # for patience: a link that breaks again at once was never back

        def once() -> T:
            nonlocal lost_since, well_since
            well_since = float("inf")
            agent = self.agent()
            well_since = time.time()
            if lost_since is not None:
                self._tell(f"in contact with {self.endpoint} again after {time.time() - lost_since:.0f} s")
                lost_since = None
            return action(agent)

        def failed(state: Any) -> None:
            nonlocal lost_since
            self.close()
            if lost_since is None:
                lost_since = time.time()
                self._tell(f"lost contact: {state.outcome.exception()}; the run goes on there, trying again")

        def over(_state: Any) -> bool:
            nonlocal lost_at
            now = time.time()
            if now - well_since > HELD_S:
                lost_at = now
            return now > give_up_at(lost_at)

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_passing),
            wait=tenacity.wait_exponential_jitter(multiplier=FIRST_PAUSE_S, max=LONGEST_PAUSE_S, jitter=1.0),
            stop=over,
            before_sleep=failed,
            reraise=True,
        )
        try:
            return retrying(once)
        except (LinkLost, PreflightFailed, NotStarted) as e:
            self.close()
            fix = (
                e.fix if isinstance(e, PreflightFailed) and not e.passing else "come back later with: remote-run attach"
            )
            raise OutOfContact(
                f"no contact with {self.endpoint}: {e}; the run may go on there and cost money", fix=fix
            ) from e


def _passing(error: BaseException) -> bool:
    if isinstance(error, PreflightFailed):
        return error.passing
    return isinstance(error, (LinkLost, NotStarted))
