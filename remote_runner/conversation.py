"""Messages with a program on the pod, whatever carries its bytes; none of their shapes is believed unchecked.

    marker line with our nonce  ->  messages (pod/wire.py), requests answered in their order

Not here: what starts the program (agent.py, transfer/channels.py), what carries its bytes (ssh.py, openssh.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Protocol, Self

from remote_runner.errors import NotStarted, RunnerError, Unverified
from remote_runner.pod import wire
from remote_runner.program import LinkLost

SILENCE_S = 45.0  # the pod says something every few seconds while it works
_CHATTER_BYTES = 1 << 20


class Program(Protocol):
    """A running program's streams."""

    def write(self, data: bytes) -> None:
        """Send all of it, or raise LinkLost."""

    def write_file(self, fd: int, offset: int, length: int) -> int:
        """Send a piece of a file, or raise LinkLost; how much of it there was."""

    def read(self, timeout_s: float, certain: int = 0) -> bytes:
        """Some bytes, none at the end; LinkLost when nothing came in time.

        Args:
            certain: bytes that are on their way: a whole block of them may be waited for.
        """

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
        code: what is sent where it says first that it needs it: code that it has already does not travel.
    """

    def __init__(self, program: Program, where: str, nonce: str, code: bytes = b"") -> None:
        self.where = where
        self._program = program
        self._decoder = wire.Decoder(wire.MAX_ANSWER_BYTES)
        self._skip_to_marker(wire.marker(nonce), wire.need(nonce), code)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._program.close()

    def _skip_to_marker(self, mark: bytes, need: bytes, code: bytes) -> None:
        """Drop what a login shell printed; the marker carries our own nonce."""
        seen = bytearray()
        while mark not in seen:
            if code and need in seen:
                self._program.write(code)
                code = b""
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

    def send_file(self, header: dict[str, Any], fd: int, offset: int, length: int) -> bool:
        """A message with a piece of a file; whether the file had all of it. Where not, nothing more can be sent."""
        self._program.write(wire.head(header, length))
        return self._program.write_file(fd, offset, length) == length

    def receive(self, timeout_s: float = SILENCE_S) -> wire.Message:
        """The next message that is no sign of life.

        Raises:
            LinkLost: silence, or the program is gone.
            RunnerError: it does not keep the protocol.
        """
        header = self._head(timeout_s)
        return header, self._rest(timeout_s)

    def stream(self, most: int, what: str, sink: Callable[[memoryview], None]) -> dict[str, Any]:
        """Hand on the pieces of a file as they come; the answer that follows them, whatever it says.

        Args:
            most: the bytes that there can be.
            what: for messages.

        Raises:
            LinkLost, RunnerError: as `receive`.
            Unverified: more came than there can be, or what is damaged.
        """
        while True:
            header = self._head(SILENCE_S)
            if "data" not in header:
                self._rest(SILENCE_S)
                return header
            for block in self._pieces(header, what):
                most -= len(block)
                if most < 0:
                    raise Unverified(f"{what}: the pod sends more than could be", fix="do not trust this pod")
                sink(block)

    def _pieces(self, header: dict[str, Any], what: str) -> Iterator[memoryview]:
        if header.get("z") is not None:
            yield memoryview(piece((header, self._rest(SILENCE_S)), f"{what} from {self.where}"))
            return
        while self._decoder.left_bytes:
            block = self._decoder.piece()
            if block:
                yield block
            else:
                self._more(SILENCE_S, self._decoder.left_bytes)

    def _head(self, timeout_s: float) -> dict[str, Any]:
        give_up = time.monotonic() + timeout_s
        while True:
            try:
                header = self._decoder.begin()
            except wire.WireError as e:
                raise Unverified(f"{self.where} sent what is no message: {e}", fix="do not trust this pod") from e
            if header is None:
                self._more(max(0.1, give_up - time.monotonic()))
            elif header.get("busy"):
                self._rest(timeout_s)
                give_up = time.monotonic() + timeout_s
            else:
                return header

    def _rest(self, timeout_s: float) -> bytes:
        give_up = time.monotonic() + timeout_s
        while (payload := self._decoder.rest()) is None:
            self._more(max(0.1, give_up - time.monotonic()))
        return payload

    def _more(self, timeout_s: float, certain: int = 0) -> None:
        block = self._program.read(timeout_s, certain)
        if not block:
            said = printable(self._program.stderr().decode("utf-8", "replace").strip()[-500:])
            raise LinkLost(f"{self.where}: the program there ended" + (f": {said}" if said else ""))
        self._decoder.feed(block)

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

    def tell(self, op: str, **fields: Any) -> None:
        """A request that nobody waits for: it is not answered, whatever becomes of it."""
        self.send({"op": op, "untold": True, **fields})

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
