"""A shell of a user's on a terminal of its own, which can be closed like a window or logged out of."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import threading
from collections.abc import Iterator
from pathlib import Path


class Terminal:
    """Keys go in by `type`; what stands on the screen is in `text`."""

    def __init__(self, cwd: Path) -> None:
        self.pid, self.screen = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], {**os.environ, "PS1": "$ "})
        self.text = ""
        self.gone = False
        self._closed = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while not self._closed.is_set():
                if select.select([self.screen], [], [], 0.1)[0]:
                    self.text += os.read(self.screen, 4096).decode("utf-8", "replace")

    def type(self, line: str) -> None:
        os.write(self.screen, f"{line}\n".encode())

    def close(self) -> None:
        """The window is gone: the kernel hangs up on everything in it."""
        self._let_go()
        self._wait()

    def log_out(self) -> None:
        """The login ends while something still runs in it: its shell hangs up on its jobs."""
        os.kill(self.pid, signal.SIGHUP)
        self._wait()
        self._let_go()

    def end(self) -> None:
        if not self.gone:
            os.kill(self.pid, signal.SIGKILL)
            self._wait()
            self._let_go()

    def _wait(self) -> None:
        os.waitpid(self.pid, 0)
        self.gone = True

    def _let_go(self) -> None:
        self._closed.set()
        self._reader.join()
        os.close(self.screen)


@contextlib.contextmanager
def opened(cwd: Path) -> Iterator[Terminal]:
    made = Terminal(cwd)
    try:
        yield made
    finally:
        made.end()
