"""What the tool does with one piece of work, as a process of its own: for scripts/bench_transfer.py, which measures it.

    python scripts/bench_transfer_ours.py '{"host": ..., "way": "down", ...}'

It loads what the tool loads for it and nothing of the benchmark.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import time
from pathlib import Path, PurePosixPath
from typing import Any

from remote_runner import ssh, transfer
from remote_runner.agent import Agent
from remote_runner.hostkeys import Policy
from remote_runner.pod import digests
from remote_runner.transfer import Progress, State
from remote_runner.transfer.channels import streams_for

OUTPUT = "artifacts/bench"


def ours(spec: dict[str, Any]) -> dict[str, float]:
    """Connect, compare, move, prove, place; what it took of memory, and with `warm` the seconds since all are there."""

    def stop_at(state: State) -> None:
        if spec["stop_at"] and state.moved_bytes >= spec["stop_at"]:
            os._exit(9)

    where = ssh.Endpoint(
        host=spec["host"],
        port=spec["port"],
        user="root",
        policy=Policy(own_file=Path(spec["known_hosts"])),
        identities=[Path(spec["key"])],
        identities_only=True,
    )
    here, there = Path(spec["here"]), PurePosixPath(spec["there"])
    found: dict[str, float] = {}
    with (
        transfer.Channels.ahead(where, there) as channels,
        ssh.connect(where, measured=channels.expect) as connection,
        Agent(connection, there) as agent,
    ):
        if spec["warm"]:
            _warm(channels, agent)
        began_s = time.monotonic()
        (_up if spec["way"] == "up" else _down)(agent, channels, here, stop_at)
        if spec["warm"]:
            found["seconds"] = time.monotonic() - began_s
    return {**found, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def _warm(channels: transfer.Channels, agent: Agent) -> None:
    channels.meet(agent)
    for channel in [channels.take() for _ in range(streams_for(channels.rtt_s))]:
        channels.give_back(channel)


def _up(agent: Agent, channels: transfer.Channels, here: Path, progress: Progress) -> None:
    known = digests.Digests(str(here))
    paths = [p.relative_to(here).as_posix() for p in sorted((here / OUTPUT).iterdir())]
    began_ns = time.time_ns()
    items = [transfer.item(here, p, known=known, hashed=False) for p in paths]
    sent = transfer.send(agent, items, progress, channels=channels)
    transfer.remember_sent(here, known, sent, began_ns)


def _down(agent: Agent, channels: transfer.Channels, here: Path, progress: Progress) -> None:
    known = digests.Digests(str(here))
    found, _, _ = transfer.listing(agent, [OUTPUT], [])
    wanted = transfer.compare(agent, here, found, known).wanted
    limits, incoming = {p: found[p]["size"] for p in wanted}, here / ".remote-run" / "incoming"
    with transfer.Placing(here, known) as placing:
        for one in transfer.fetch(agent, wanted, incoming, limits, progress, here=here, facts=found, channels=channels):
            placing.place(one)


if __name__ == "__main__":
    print(json.dumps(ours(json.loads(sys.argv[1]))))
    gc.freeze()  # as the command line does
