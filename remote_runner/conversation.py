"""Messages with a program on the pod, whatever carries its bytes; none of their shapes is believed unchecked.

    marker line with our nonce  ->  messages (pod/wire.py), requests answered in their order

Not here: what starts the program (agent.py, transfer/channels.py), what carries its bytes (ssh.py, openssh.py).
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Protocol, Self

from remote_runner.errors import NotStarted, RunnerError, Unverified
from remote_runner.pod import wire
from remote_runner.ssh import LinkLost

SILENCE_S = 45.0  # the pod says something every few seconds while it works
_CHATTER_BYTES = 1 << 20


class Program(Protocol):
    """A running program's streams."""

    def write(self, data: bytes) -> None:
        """Send all of it, or raise LinkLost."""

    def read(self, timeout_s: float) -> bytes:
        """Some bytes, none at the end; LinkLost when nothing came in time."""

    def ready(self) -> bool:
        """Whether something can be read at once."""

    def stderr(self) -> bytes:
        """The end of what it said there."""

    def close(self) -> None:
        """End it."""


class Denied(Exception):
    """The program on the pod understood the request and did not grant it."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts
        self.reason = printable(str(facts.get("reason", "unknown")))[:100]
        super().__init__(printable(str(facts.get("detail") or self.reason))[:2000])


class Conversation:
    """One running program on the pod, asked and answered in order.

    Args:
        where: the pod, for messages.
        nonce: what its marker line carries.
        hello: what it says first, once the marker was seen.
    """

    def __init__(self, program: Program, where: str, nonce: str) -> None:
        self.where = where
        self._program = program
        self._decoder = wire.Decoder(wire.MAX_ANSWER_BYTES)
        self._skip_to_marker(wire.marker(nonce))
        self.hello = self.receive()[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._program.close()

    def _skip_to_marker(self, mark: bytes) -> None:
        """Drop what a login shell printed; the marker carries our own nonce."""
        seen = bytearray()
        while mark not in seen:
            block = self._program.read(SILENCE_S)
            if not block:
                said = self._program.stderr().decode("utf-8", "replace").strip()
                raise NotStarted(
                    f"the program on {self.where} did not start: {printable(said) or 'no output'}",
                    fix="look whether python3 works there: ssh to the pod and run python3 -V",
                )
            seen += block
            if len(seen) > _CHATTER_BYTES:
                line = printable(seen[:200].decode("utf-8", "replace"))
                raise NotStarted(
                    f"{self.where}: a start-up file of the login shell prints without end: {line!r}",
                    fix="make ~/.bashrc and the like silent for non-interactive shells",
                )
        self._decoder.feed(bytes(seen[seen.index(mark) + len(mark) :]))

    def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        self._program.write(wire.encode(header, payload))

    def receive(self, timeout_s: float = SILENCE_S) -> wire.Message:
        """The next message that is no sign of life.

        Raises:
            LinkLost: silence, or the program is gone.
            RunnerError: it does not keep the protocol.
        """
        give_up = time.monotonic() + timeout_s
        while True:
            try:
                message = self._decoder.next()
            except wire.WireError as e:
                raise Unverified(f"{self.where} sent what is no message: {e}", fix="do not trust this pod") from e
            if message is None:
                block = self._program.read(max(0.1, give_up - time.monotonic()))
                if not block:
                    said = printable(self._program.stderr().decode("utf-8", "replace").strip()[-500:])
                    raise LinkLost(f"{self.where}: the program there ended" + (f": {said}" if said else ""))
                self._decoder.feed(block)
            elif message[0].get("busy"):
                give_up = time.monotonic() + timeout_s
            else:
                return message

    def waiting(self) -> bool:
        """Whether an answer can be read without waiting for the network."""
        return self._program.ready()

    def answer(self, timeout_s: float = SILENCE_S) -> dict[str, Any]:
        """The next answer.

        Raises:
            Denied: it says no.
        """
        header, _ = self.receive(timeout_s)
        if header.get("ok") is not True:
            raise Denied(header)
        return header

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """One request and its answer."""
        self.send({"op": op, **fields})
        return self.answer()


def piece(message: wire.Message, where: str) -> bytes:
    """The bytes of a file in a message.

    Raises:
        Unverified: they are not what the message announces.
    """
    try:
        return wire.unpack(message)
    except wire.WireError as e:
        raise Unverified(f"{where}: {e}", fix="do not trust this pod") from None


def field(answer: dict[str, Any], name: str, kind: type[Any]) -> Any:
    """A field of an answer, of the right type.

    Raises:
        RunnerError: missing or of another type; the pod does not keep the protocol.
    """
    value = answer.get(name)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise RunnerError(f"the pod's answer has no usable {name!r}: {str(value)[:80]!r}", fix="do not trust this pod")
    return value


def printable(text: str) -> str:
    """Text from the pod without what a terminal would obey."""
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)
