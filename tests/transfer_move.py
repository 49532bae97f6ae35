"""Move a run up or down in a process of its own, so that it can be killed: python transfer_move.py JSON.

It says `moved N` as bytes move, and ends as the command line does: 0, or the exit code of what went wrong.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path, PurePosixPath
from typing import Any

from transfer_peers import OUTPUT, bring

from remote_runner import ssh, transfer, zipapp
from remote_runner.agent import Agent
from remote_runner.conversation import Denied
from remote_runner.errors import RunnerError
from remote_runner.hostkeys import Policy
from remote_runner.program import LinkLost
from remote_runner.ssh import Endpoint
from remote_runner.transfer import State

FLIP = "\n\ndef flip(block):\n    return bytes(block[:-1]) + bytes([block[-1] ^ 1])\n"
FLIPPED_OUT = "sent = os.write(self._out, flip(os.pread(fd, min(length, 65536), offset)))"


def tell(state: State) -> None:
    print("moved", state.moved_bytes, flush=True)


def hostile(program: bytes, way: str) -> bytes:
    """The pod's data program, with a byte flipped after it was hashed."""
    import zlib

    sources = json.loads(zlib.decompress(program))
    old, new, name = {
        "down": ("sent = os.sendfile(self._out, fd, offset, length)", FLIPPED_OUT, "remote_runner.pod.wire"),
        "up": ("at = parts.write(fd, block, at)", "at = parts.write(fd, flip(block), at)", "remote_runner.pod.intake"),
    }[way]
    for source in sources:
        if source[0] == name:
            assert source[1].count(old) == 1
            source[1] = source[1].replace(old, new) + FLIP
    return zlib.compress(json.dumps(sources).encode())


def move(spec: dict[str, Any]) -> None:
    where = Endpoint(
        host=spec.get("host", "127.0.0.1"),
        port=spec["port"],
        user=spec["user"],
        policy=Policy(own_file=Path(spec["known_hosts"]), accept_new=True),
        identities=[Path(spec["key"])],
        identities_only=True,
    )
    if spec.get("flip"):
        program = hostile(zipapp.bulk_program(), spec["way"])
        zipapp.bulk_program = lambda: program  # type: ignore[assignment]
    here = Path(spec["here"])
    with ssh.connect(where) as connection, Agent(connection, PurePosixPath(spec["there"])) as agent:
        if spec["way"] == "down":
            bring(agent, here, progress=tell)
        else:
            paths = [p.relative_to(here).as_posix() for p in sorted((here / OUTPUT).iterdir())]
            transfer.send(agent, [transfer.item(here, p, hashed=False) for p in paths], tell)


def main(argument: str) -> int:
    try:
        move(json.loads(argument))
    except RunnerError as e:
        print(f"error: {e}", file=sys.stderr)
        return e.exit_code
    except LinkLost as e:
        print(f"error: lost the link: {e}", file=sys.stderr)
        return 6
    except (OSError, Denied) as e:
        print(f"error: {e}", file=sys.stderr)
        return 7
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
