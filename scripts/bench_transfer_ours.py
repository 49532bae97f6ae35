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
from remote_runner.transfer import State

OUTPUT = "artifacts/bench"


def ours(spec: dict[str, Any]) -> dict[str, float]:
    """Connect, compare, move, prove, place; what it took of memory."""

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
    here = Path(spec["here"])
    there = PurePosixPath(spec["there"])
    with (
        transfer.Channels.ahead(where, there) as channels,
        ssh.connect(where, measured=channels.expect) as connection,
        Agent(connection, there) as agent,
    ):
        known = digests.Digests(str(here))
        if spec["way"] == "up":
            paths = [p.relative_to(here).as_posix() for p in sorted((here / OUTPUT).iterdir())]
            began_ns = time.time_ns()
            items = [transfer.item(here, p, known=known, hashed=False) for p in paths]
            sent = transfer.send(agent, items, stop_at, channels=channels)
            transfer.remember_sent(here, known, sent, began_ns)
        else:
            found, _, _ = transfer.listing(agent, [OUTPUT], [])
            difference = transfer.compare(agent, here, found, known)
            limits = {p: found[p]["size"] for p in difference.wanted}
            incoming = here / ".remote-run" / "incoming"
            with transfer.Placing(here, known) as placing:
                for one in transfer.fetch(
                    agent, difference.wanted, incoming, limits, stop_at, here=here, facts=found, channels=channels
                ):
                    placing.place(one)
            placing.tell(agent)
    return {"peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


if __name__ == "__main__":
    print(json.dumps(ours(json.loads(sys.argv[1]))))
    gc.freeze()  # as the command line does
