"""A run's log as it grows, by byte offset: over a lost link nothing twice, nothing missing."""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable
from typing import Any

from remote_runner.agent import Agent, Denied, printable
from remote_runner.errors import RunnerError
from remote_runner.link import Link

GIVE_UP_S = 15 * 60.0  # without any contact


def to_end(
    agent: Agent, name: str, offset: int, show: Callable[[str], None], tell: Callable[[str], None]
) -> dict[str, Any]:
    """Show the log from `offset` on until the run ends.

    Args:
        show: gets the text, without what a terminal would obey.

    Returns:
        The pod's last look at the run.

    Raises:
        OutOfContact: no contact for a quarter of an hour.
    """
    heard_s = time.time()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character may be cut by a message's end
    link = Link(agent.pod.endpoint, agent.root, tell, agent)

    def watch(agent: Agent) -> dict[str, Any]:
        nonlocal offset, heard_s
        agent.send({"op": "follow", "name": name, "offset": offset})
        while True:
            header, part = agent.receive()
            heard_s = time.time()
            if header.get("follow") is not True:
                if header.get("ok") is not True:
                    raise RunnerError(f"reading the log of {name} failed: {Denied(header)}", fix="try again")
                return header
            offset += len(part)
            show(printable(decoder.decode(part)))

    try:
        return link.use(watch, lambda _lost: heard_s + GIVE_UP_S)
    finally:
        link.close()
