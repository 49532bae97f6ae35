"""The controller's end of the program on the pod: start it, ask it, believe none of its shapes unchecked.

    exec python3 - reads the zipapp from stdin into <root>/.remote-run/<hash>.pyz
           -> exec python3 <hash>.pyz serve ROOT NONCE  -> a marker line -> messages (pod/wire.py)

Not here: how bytes of files travel (transfer.py).
"""

from __future__ import annotations

import secrets
import shlex
import time
from pathlib import PurePosixPath
from types import TracebackType
from typing import Any, Self

from remote_runner import zipapp
from remote_runner.errors import NotStarted, RunnerError, Unverified
from remote_runner.pod import wire
from remote_runner.ssh import LinkLost, Pod

SILENCE_S = 45.0  # the pod says something every few seconds while it works
_PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3", "/opt/conda/bin/python3", "/venv/main/bin/python3")
NO_PYTHON = 127

_LOADER = """
import os,sys
root,name,size,nonce=sys.argv[1:]
own=os.path.join(root,'.remote-run')
os.makedirs(own,0o755,exist_ok=True)
data=b''
while len(data)<int(size):
    block=os.read(0,int(size)-len(data))
    if not block: sys.exit(1)
    data+=block
path=os.path.join(own,name)
if not os.path.exists(path):
    temp='%s.%d.tmp'%(path,os.getpid())
    with open(temp,'wb') as f:
        f.write(data); f.flush(); os.fsync(f.fileno())
    os.replace(temp,path)
os.execv(sys.executable,[sys.executable,path,'serve',root,nonce])
"""


class Denied(Exception):
    """The program on the pod understood the request and did not grant it."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts
        self.reason = str(facts.get("reason", "unknown"))
        super().__init__(str(facts.get("detail") or self.reason))


def python_command(code: str, *args: str) -> str:
    """A command that runs `code` in the first python3 there is; exit 127 and one line where there is none.

    It is one POSIX word list for `sh`, whatever the login shell is.
    """
    tail = shlex.join(["-c", code, *args])
    tries = " ".join(shlex.quote(p) for p in ("python3", *_PYTHONS))
    script = (
        f'for p in {tries}; do p=$(command -v "$p") && [ -x "$p" ] && exec "$p" {tail}; done; '
        f"echo no python3 >&2; exit {NO_PYTHON}"
    )
    return f"exec sh -c {shlex.quote(script)}"


class Agent:
    """One running program on the pod, asked and answered in order."""

    def __init__(self, pod: Pod, root: PurePosixPath) -> None:
        self.pod, self.root = pod, root
        app, nonce = zipapp.build(), secrets.token_hex(16)
        arguments = (str(root), app.name, str(len(app.content)), nonce)
        self._program = pod.open(python_command(_LOADER, *arguments))
        self._decoder = wire.Decoder()
        self._program.write(app.content)
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
                    f"the program on {self.pod.endpoint} did not start: {printable(said) or 'no output'}",
                    fix="look whether python3 works there: ssh to the pod and run python3 -V",
                )
            seen += block
            if len(seen) > 1 << 20:
                line = printable(seen[:200].decode("utf-8", "replace"))
                raise NotStarted(
                    f"{self.pod.endpoint}: a start-up file of the login shell prints without end: {line!r}",
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
                raise Unverified(
                    f"{self.pod.endpoint} sent what is no message: {e}", fix="do not trust this pod"
                ) from e
            if message is None:
                block = self._program.read(max(0.1, give_up - time.monotonic()))
                if not block:
                    said = printable(self._program.stderr().decode("utf-8", "replace").strip()[-500:])
                    raise LinkLost(f"{self.pod.endpoint}: the program there ended" + (f": {said}" if said else ""))
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


def field(answer: dict[str, Any], name: str, kind: type[Any]) -> Any:
    """A field of an answer, of the right type.

    Raises:
        RunnerError: missing or of another type; the pod does not keep the protocol.
    """
    value = answer.get(name)
    if not isinstance(value, kind):
        raise RunnerError(f"the pod's answer has no usable {name!r}: {str(value)[:80]!r}", fix="do not trust this pod")
    return value


def printable(text: str) -> str:
    """Text from the pod without what a terminal would obey."""
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)
