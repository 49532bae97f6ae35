"""How far a transfer is: bytes, files, rate and time left, told through one callback."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

EVERY_S = 0.2


@dataclass(frozen=True, kw_only=True)
class State:
    """A transfer at one moment."""

    moved_bytes: int  # over the link, in this transfer
    total_bytes: int  # all that has to move
    files: int
    total_files: int
    rate_bytes_s: float  # over the whole transfer
    left_s: float | None  # None while nothing has moved


Progress = Callable[[State], None]


def silent(_: State) -> None:
    """Tell nobody."""


class Meter:
    """Counts from several threads; tells at most five times a second, and at the end."""

    def __init__(self, total_bytes: int, total_files: int, tell: Progress) -> None:
        self.total_bytes, self.total_files, self._tell = total_bytes, total_files, tell
        self.moved_bytes = self.files = 0
        self._lock = threading.Lock()
        self._began = self._told = time.monotonic()
        self._first: float | None = None

    def moved(self, size_bytes: int) -> None:
        with self._lock:
            if self._first is None:
                self._first = time.monotonic()
            self.moved_bytes += size_bytes

    def spared(self, size_bytes: int) -> None:
        """Bytes that need not move after all: they are there from before."""
        with self._lock:
            self.total_bytes -= size_bytes

    def done(self, files: int = 1) -> None:
        with self._lock:
            self.files += files

    @property
    def moving_s(self) -> float:
        """Since the first byte: how fast the link is, connecting aside."""
        return time.monotonic() - self._first if self._first is not None else 0.0

    @property
    def elapsed_s(self) -> float:
        return max(1e-6, time.monotonic() - self._began)

    @property
    def rate_bytes_s(self) -> float:
        return self.moved_bytes / self.elapsed_s

    def tell(self, last: bool = False) -> None:
        """To be called by the one thread that may talk to the user."""
        now = time.monotonic()
        if not last and now - self._told < EVERY_S:
            return
        self._told = now
        left = max(0, self.total_bytes - self.moved_bytes)
        self._tell(
            State(
                moved_bytes=self.moved_bytes,
                total_bytes=max(self.total_bytes, self.moved_bytes),
                files=self.files,
                total_files=self.total_files,
                rate_bytes_s=self.rate_bytes_s,
                left_s=left / self.rate_bytes_s if self.moved_bytes else None,
            )
        )
