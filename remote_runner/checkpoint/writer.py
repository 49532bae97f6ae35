"""Snapshots on a background thread: one save in flight, nothing dropped, no error lost.

    with Writer(folder) as writer:
        writer.submit(snapshot)      waits for the save before it, then returns at once
        writer.flush()               the last one is durable, or raises

Not here: how one snapshot is written (snapshot.py).
"""

from __future__ import annotations

import errno
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Optional, Type, Union

from remote_runner.checkpoint import contract, snapshot
from remote_runner.checkpoint.snapshot import NonFinite, Saved, Say, Snapshot, SnapshotCorrupt

WORTH_A_LINE_S = 0.01


class CannotSave(RuntimeError):
    """Snapshots can't be written: too many failures in a row, or the last one of all failed. Exit 74."""


class Writer:
    """Saves snapshots into one folder. Opened and closed with `with`; not for use from several threads."""

    def __init__(self, folder: Union[str, Path], *, say: Say = contract.say, give_up_after: int = 3) -> None:
        self._folder, self._say, self._give_up_after = Path(folder), say, give_up_after
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="snapshot-writer")
        self._pool.submit(int).result()  # to start a thread takes milliseconds: now, not between two steps
        self._in_flight: Optional["Future[None]"] = None
        self._error: Optional[Exception] = None
        self._failed_in_a_row = 0
        self.saved: Optional[Saved] = None  # the last one that is durable
        self.waited_s = 0.0  # how long the training stood still for a save, in all
        self.longest_save_s = 0.0

    def submit(self, content: Snapshot) -> None:
        """Begin to save; the tensors are taken by reference and must not change until the next call returns.

        Raises:
            CannotSave: as many saves in a row failed as are allowed.
            NonFinite: the snapshot before this one was not finite.
        """
        self._wait(content.step)
        if self._error is not None and self._failed_in_a_row >= self._give_up_after:
            raise CannotSave(f"{self._failed_in_a_row} saves in a row failed, the last: {self._error}")
        self._in_flight = self._pool.submit(self._save, content)

    def settle(self, step: int) -> None:
        """Wait for the save in flight; what it was given may change from now on. Raises NonFinite as `submit`."""
        self._wait(step)

    def flush(self) -> Optional[Saved]:
        """Wait until the last snapshot is durable. Raises CannotSave when it is not, NonFinite as `submit`."""
        self._wait(None)
        if self._error is not None:
            raise CannotSave(f"the last save failed: {self._error}")
        return self.saved

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        wrong: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self._pool.shutdown()

    def _wait(self, step: Optional[int]) -> None:
        if self._in_flight is None:
            return
        begun = time.monotonic()
        self._in_flight.result()
        self._in_flight = None
        waited = time.monotonic() - begun
        self.waited_s += waited
        if step is not None and waited >= WORTH_A_LINE_S:
            self._say(f"waited {waited:.3f} s at step {step} for the save before it, {self.waited_s:.3f} s in all")
        if isinstance(self._error, NonFinite):
            raise self._error

    def _save(self, content: Snapshot) -> None:
        try:
            self.saved = snapshot.save(self._folder, content, self._say)
            self.longest_save_s = max(self.longest_save_s, self.saved.seconds)
            self._error, self._failed_in_a_row = None, 0
        except Exception as wrong:  # noqa: BLE001 - surfaces at the next submit or flush
            self._error = wrong
            self._failed_in_a_row += 1
            if not isinstance(wrong, NonFinite):
                self._say(f"save of {content.stage} step {content.step} failed: {_in_words(wrong, content)}")


def _in_words(wrong: Exception, content: Snapshot) -> str:
    text = "the older snapshots stand as they were"
    if isinstance(wrong, OSError) and wrong.errno in (errno.ENOSPC, errno.EDQUOT) and wrong.filename:
        disk = os.statvfs(os.path.dirname(wrong.filename) or ".")
        need = sum(getattr(t.data, "nbytes", 0) for t in content.tensors.values())
        free = disk.f_bavail * disk.f_frsize
        return f"{wrong.filename}: {wrong.strerror} ({need:,} bytes needed, {free:,} free); {text}"
    if isinstance(wrong, (OSError, SnapshotCorrupt)):
        return f"{wrong}; {text}"
    return f"{type(wrong).__name__}: {wrong}; {text}"
