"""What one connection's requests share: the root, the wire, the lock while it is held, and how to say no."""

from __future__ import annotations

import time
from typing import Any, Optional

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
        self._said_s = time.monotonic()

    def busy(self) -> None:
        """Say now and then that a long request is being worked on: silence would mean a dead link."""
        if time.monotonic() - self._said_s > BUSY_EVERY_S:
            self.wire.send({"busy": True})
            self._said_s = time.monotonic()
