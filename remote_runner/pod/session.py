"""What one connection's requests share: the root, the wire, the lock while it is held, and how to say no."""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, Optional

from remote_runner.pod import wire

SILENCE_S = 120.0  # a holder that hears nothing for so long lets go
BUSY_EVERY_S = 5.0


class Refusal(Exception):
    """A request that is understood and not granted; `facts` tell why."""

    def __init__(self, reason: str, **facts: Any) -> None:
        super().__init__(reason)
        self.facts = {"reason": reason, **facts}


class Session:
    """One connection: the root, the wire, and the lock while this process holds it."""

    def __init__(self, root: str, connection: wire.Wire) -> None:
        self.root, self.wire = root, connection
        self.lock_fd: Optional[int] = None
        self.state: Dict[str, Any] = {}  # what one kind of request keeps for the next of its kind
        self._said_s = time.monotonic()

    def busy(self) -> None:
        """Say now and then that a long request is being worked on: silence would mean a dead link."""
        if time.monotonic() - self._said_s > BUSY_EVERY_S:
            self.wire.send({"busy": True})
            self._said_s = time.monotonic()


Operations = Dict[str, Callable[[Session, Dict[str, Any]], Dict[str, Any]]]


def answer(session: Session, operations: Operations, ask: Dict[str, Any]) -> Dict[str, Any]:
    """Do what is asked; whatever goes wrong with it is the answer.

    Raises:
        EOFError, BrokenPipeError: the connection is gone.
    """
    try:
        operation = operations.get(str(ask.get("op")))
        if operation is None:
            raise Refusal("unknown", detail=f"no operation {ask.get('op')!r}")
        return {"ok": True, **operation(session, ask)}
    except Refusal as e:
        return {"ok": False, **e.facts}
    except BrokenPipeError:
        raise
    except OSError as e:
        return fault(e, ask)
    except (ValueError, KeyError, TypeError) as e:
        return {"ok": False, "reason": "bad-request", "detail": f"{type(e).__name__}: {e}"}


def fault(error: OSError, ask: Dict[str, Any]) -> Dict[str, Any]:
    """What the disk said, as an answer."""
    named = error.filename if isinstance(error.filename, str) else ask.get("path", "")
    detail = f"{named}: {error.strerror or error}" if named else str(error.strerror or error)
    return {"ok": False, "reason": "os", "errno": error.errno, "detail": detail}


def loop(session: Session, operations: Operations) -> int:
    """Answer until the connection ends, or a holder of the lock hears nothing for too long."""
    while True:
        try:
            message = session.wire.receive(SILENCE_S if session.lock_fd is not None else None)
            if message is None:
                return 0
            answered = answer(session, operations, message[0])
            if not message[0].get("untold"):
                session.wire.send(answered)
        except (EOFError, BrokenPipeError, wire.WireError):
            return 0


def begun(root: str, nonce: str) -> Session:
    """Say the marker line; from here on nothing but messages reaches the controller's end of stdout."""
    out = os.dup(1)
    os.dup2(2, 1)
    view = memoryview(wire.marker(nonce))
    while view:
        view = view[os.write(out, view) :]
    return Session(root, wire.Wire(0, out))
