"""Sleep until a signal comes, a child ends, or a time is over; requests to pause are noted, never lost."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from typing import List

REQUESTS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SHORTEST_S = 0.02


class Waking:
    """The process's signals, from here on: each of REQUESTS is one request, SIGCHLD only wakes."""

    def __init__(self) -> None:
        self._asked: List[int] = []
        self._out, into = os.pipe()
        os.set_blocking(self._out, False)
        os.set_blocking(into, False)
        signal.set_wakeup_fd(into, warn_on_full_buffer=False)
        for number in REQUESTS:
            signal.signal(number, lambda number, _frame: self._asked.append(number))
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def asked(self) -> bool:
        """Whether a request came since the last look."""
        if not self._asked:
            return False
        self._asked.clear()
        return True

    def wait(self, until: List[float]) -> None:
        """At most to the nearest of these, seconds from now; those that are past do not count."""
        select.select([self._out], [], [], max(SHORTEST_S, min((s for s in until if s > 0), default=SHORTEST_S)))
        with contextlib.suppress(BlockingIOError):
            while os.read(self._out, 512):
                pass
