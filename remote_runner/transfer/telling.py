"""Digests that the pod may remember, told to it while bytes flow: the next comparison reads nothing there.

Not here: what is remembered here (placing.py, compare.py), what the pod does with them (pod/digests.py).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence

from remote_runner.agent import Agent
from remote_runner.conversation import Conversation, Denied
from remote_runner.errors import RunnerError
from remote_runner.program import LinkLost

AT_ONCE = 500  # files: what a connection takes without a wait, even where it has carried little yet


class Telling:
    """Collects them from all threads; `unit` for the agent while there is work, `rest` when it is done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: list[list[object]] = []

    def add(self, path: str, sha256: str, stamp: Sequence[int]) -> None:
        """One file, as the pod read or wrote it: nothing else had written to it for a while."""
        with self._lock:
            self._rows.append([path, sha256, *stamp, time.time_ns(), True])

    def unit(self) -> Told | None:
        """The next request, where enough has come together."""
        with self._lock:
            if len(self._rows) < AT_ONCE:
                return None
            some, self._rows = self._rows[:AT_ONCE], self._rows[AT_ONCE:]
        return Told(some)

    def rest(self, agent: Agent) -> None:
        """Tell what is left; it is a memory, so nobody waits for an answer."""
        with contextlib.suppress(LinkLost, RunnerError):
            for at in range(0, max(1, len(self._rows)), AT_ONCE):
                agent.tell("remember", files=self._rows[at : at + AT_ONCE], more=at + AT_ONCE < len(self._rows))
        self._rows.clear()


class Told:
    """Some of them, in one request."""

    size_bytes = 0

    def __init__(self, rows: list[list[object]]) -> None:
        self._rows = rows

    def send(self, channel: Conversation) -> None:
        channel.send({"op": "remember", "files": self._rows, "more": True})

    def receive(self, channel: Conversation) -> None:
        with contextlib.suppress(Denied):
            channel.answer()
