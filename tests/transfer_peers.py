"""What tests of the transfer share: an agent on a real pod, and a peer that answers as it is told to."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pods

from remote_runner import ssh, transfer
from remote_runner.agent import Agent
from remote_runner.conversation import Conversation
from remote_runner.hostkeys import Policy
from remote_runner.pod import digests, wire
from remote_runner.ssh import Endpoint
from remote_runner.target import parse

NAME, OUTPUT = "toy", "artifacts/toy"


def endpoint(pod: pods.TestPod, folder: Path, port: int | None = None) -> Endpoint:
    policy = Policy(own_file=folder / "known_hosts", accept_new=True)
    address = pod.address if port is None else pod.address.rpartition(":")[0] + f":{port}"
    return ssh.resolve(parse(address), policy, None, pod.key)


@contextlib.contextmanager
def agent_on(pod: pods.TestPod, folder: Path, port: int | None = None) -> Iterator[Agent]:
    """An agent in the pod's root."""
    pod.root.mkdir(parents=True, exist_ok=True)
    with ssh.connect(endpoint(pod, folder, port)) as connection, Agent(connection, PurePosixPath(pod.root)) as agent:
        yield agent


def fill(folder: Path, large_mb: int = 12, small: int = 40) -> dict[str, str]:
    """A run's output: one large file, small ones, a log; path -> digest."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "toy-training.safetensors").write_bytes(os.urandom(large_mb << 20))
    for number in range(small):
        (folder / f"row{number}.json").write_bytes(b'{"step": %d}\n' % number * (1 + 97 * number))
    (folder / "train.log").write_bytes(b"step 1 loss 0.5\n" * 10_000)
    return tree(folder.parents[1])


def tree(root: Path) -> dict[str, str]:
    """Digest of every file below a root, but for our own folder."""
    return {
        p.relative_to(root).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(root.rglob("*"))
        if p.is_file() and ".remote-run" not in p.parts
    }


def bring(agent: Agent, here: Path, **given: Any) -> list[transfer.Fetched]:
    """Fetch what differs and place it, as a download does; what travelled."""
    found, _folders, _others = transfer.listing(agent, [OUTPUT], [NAME])
    known = digests.Digests(str(here))
    difference = transfer.compare(agent, here, found, known)
    incoming = here / ".remote-run" / "incoming" / NAME
    arrived = []
    limits = {path: found[path]["size"] for path in difference.wanted}
    with transfer.Placing(here, known) as placing:
        for path, source in difference.linked.items():
            one = transfer.adopt(here, source, path, found[path], incoming)
            assert one is not None
            placing.place(one)
        for one in transfer.fetch(agent, difference.wanted, incoming, limits, here=here, **given):
            placing.place(one)
            arrived.append(replace(one, temp=incoming))
    return arrived


def items(root: Path, **given: Any) -> list[transfer.Item]:
    return [transfer.item(root, path, **given) for path in tree(root)]


class Peer:
    """The other end of a conversation, in this process: `answers` maps a request to the messages that follow."""

    def __init__(self, answers: Callable[[dict[str, Any]], list[wire.Message]]) -> None:
        self._answers, self._asked = answers, wire.Decoder()
        self._said = bytearray(wire.marker("nonce"))

    def conversation(self) -> Conversation:
        return Conversation(self, "hostile:22", "nonce")

    def write(self, data: bytes) -> None:
        self._asked.feed(data)
        while (message := self._asked.next()) is not None:
            for header, payload in [] if message[0].get("untold") else self._answers(message[0]):
                self._said += wire.encode(header, payload)

    def write_file(self, fd: int, offset: int, length: int) -> int:
        block = os.pread(fd, length, offset)
        self.write(block)
        return len(block)

    def read(self, timeout_s: float, certain: int = 0) -> bytes:
        assert timeout_s > 0
        data = bytes(self._said)
        self._said.clear()
        return data

    def ready(self) -> bool:
        return bool(self._said)

    def stderr(self) -> bytes:
        return b""

    def close(self) -> None:
        self._said.clear()
