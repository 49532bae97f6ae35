"""Ask a PyTorch training to pause: save at the next step boundary, exit 75.

    pause = Pause("artifacts/x", signals=("TERM", "INT"))     before the process group is made
    if pause.asked():                                          once a step, on every rank
        save_checkpoint(…)
        pause.leave()

Signals only set a flag; the file `.pause` in the folder asks for the same. With several ranks a request to one is a
request to all of them, at the same step.

Not here: the flag itself (pause.py), what the exit code means (contract.py).
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn, Optional, Sequence, Union

from remote_runner.checkpoint import contract, pause
from remote_runner.checkpoint.torch_ranks import any_rank, is_writer, share_error, world_size


class Pause:
    """A request to pause, agreed on by all ranks.

    Args:
        folder: where the file `.pause` may appear; None: signals alone.
        signals: names without SIG. Leave out what a library takes for itself (NCCL may take USR1).
    """

    def __init__(
        self, folder: Optional[Union[str, Path]] = None, *, signals: Sequence[str] = ("TERM", "USR1", "INT")
    ) -> None:
        pause.install(tuple(signal.Signals[f"SIG{name}"] for name in signals))
        self._request = pause.Request(folder if folder is not None else "/nonexistent")
        self._leaving_ranks = False
        atexit.register(self._end_of_a_rank)  # the first to be registered is the last to run

    def asked(self) -> bool:
        """True, on every rank, when any rank was asked. Every rank must call it at the same step."""
        return any_rank(self._request.asked())

    def leave(self, *savers: object) -> NoReturn:
        """Say that the state is saved, and exit 75; `savers` are waited for first."""
        with share_error("a save failed on rank 0"):
            for saver in savers:
                saver.wait()  # type: ignore[attr-defined]
        if is_writer():
            self._request.obeyed()
            contract.say("paused: full training state saved")
        self._leaving_ranks = world_size() > 1
        sys.exit(contract.PAUSED)

    def _end_of_a_rank(self) -> None:
        """Past PyTorch's own teardown: gloo's aborts now and then (exit -6), which would stand where 75 should."""
        if self._leaving_ranks:
            logging.shutdown()
            with contextlib.suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(contract.PAUSED)
