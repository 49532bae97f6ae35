"""A request to pause: SIGUSR1, SIGTERM, SIGINT or the file `.pause`, in any number, are one request.

    pause.install()                      first line of a trainer, before any other import
    request = pause.Request(folder)      folder: artifacts/<name>
    request.asked()                      poll at every step, inside evaluation, between stages
    request.at_once()                    `.pause` holds the word `now`: cut an evaluation short
    request.obeyed()                     the state is durable: take the file away, exit 75

The handler only sets a flag. Signals that were blocked at the start (a launcher blocks them so that none is lost
while the interpreter starts) are let in by `install`. Standard library only.

Not here: what is saved (snapshot.py), what the exit codes mean (contract.py).
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Sequence

SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
FILE = ".pause"
_signalled = False


def install(signals: Sequence[signal.Signals] = SIGNALS) -> None:
    """Take the signals as a request from now on, and let in those that wait blocked."""
    for number in signals:
        signal.signal(number, _note)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)


def _note(number: int, frame: object) -> None:
    global _signalled
    _signalled = True


class Request:
    """Whether a pause was asked for, by signal or by the file in `folder`."""

    def __init__(self, folder: os.PathLike[str] | str) -> None:
        self._file = os.path.join(os.fspath(folder), FILE)

    def asked(self) -> bool:
        """True from the first signal on, or while the file is there."""
        return _signalled or os.path.exists(self._file)

    def at_once(self) -> bool:
        """True when the file says `now`: half the grace is gone, an evaluation is to be cut short."""
        try:
            with open(self._file, "rb") as file:
                return file.read(16).strip() == b"now"
        except OSError:
            return False

    def obeyed(self) -> None:
        """Take the file away, so that the resumed run does not pause again. Call it when the state is durable."""
        with contextlib.suppress(OSError):
            os.unlink(self._file)
