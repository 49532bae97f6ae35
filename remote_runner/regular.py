"""Backups at the interval, beside the following: one at a time, and one more at the end.

Not here: how one is made (backup.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from remote_runner import backup
from remote_runner.agent import Agent, Denied
from remote_runner.backup import Backup
from remote_runner.durations import show
from remote_runner.errors import BackupFailed, NotStarted, RunnerError, Unverified
from remote_runner.link import Link
from remote_runner.onpod import OnPod
from remote_runner.ssh import LinkLost
from remote_runner.vault import Place

AGAIN_S = 60.0  # after a failure, where the interval is longer
LAST_ONE_S = 600.0


class Regular:
    """A due backup is skipped while another is under way; each skip and each failure is one line."""

    def __init__(
        self,
        place: Place,
        spool: Path,
        outputs: list[str],
        attempt: str,
        every_s: float,
        tell: Callable[[str], None],
    ) -> None:
        self.place, self.every_s = place, every_s
        self._spool, self._outputs, self._attempt, self._tell = spool, outputs, attempt, tell
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="backup")
        self._under_way: Future[Backup] | None = None
        self._due_s = time.monotonic() + every_s
        self.last: Backup | None = None
        self.made = 0

    def tick(self, link: Link) -> None:
        """Start one when it is due; take in the result of one that is done."""
        if self._under_way is not None and self._under_way.done():
            self._take(self._under_way)
            self._under_way = None
        if time.monotonic() < self._due_s:
            return
        self._due_s = time.monotonic() + self.every_s
        if self._under_way is not None:
            self._tell("backup skipped: the one before is still under way")
            return
        self._under_way = self._pool.submit(self._make, link)

    def _make(self, link: Link) -> Backup:
        with link.second() as agent:
            return self._one(agent)

    def _one(self, agent: Agent) -> Backup:
        source = OnPod(agent, self._outputs, self.place.name)
        return backup.make(source, self.place, self._spool, self._attempt, self.last)

    def _take(self, done: Future[Backup]) -> None:
        try:
            made = done.result()
        except (OSError, LinkLost, RunnerError, Denied) as e:
            self._due_s = min(self._due_s, time.monotonic() + AGAIN_S)
            wait_s = max(0.0, self._due_s - time.monotonic())
            self._tell(f"backup failed: {e}; {self.standing()}; the next is due in {wait_s:.0f} s")
            return
        first = self.last is None
        self._count(made)
        self._tell(f"backup {made.id}: {made.files} files, {made.new_bytes / 1e6:.2f} MB new, safe in the store")
        if first and made.took_s > self.every_s:
            self._tell(
                f"the way to the store does not keep up: one backup took {show(made.took_s)}, one is due every "
                f"{show(self.every_s)}; "
                "let the pod push by itself (backup = { push = true }) or choose a longer interval"
            )

    def _count(self, made: Backup) -> None:
        self.last, self.made = made, self.made + 1

    def standing(self) -> str:
        """What would be left if the pod vanished now."""
        if self.last is None:
            return "no backup yet"
        age = show(time.time() - self.last.unix_s)
        return f"the last good one has step {self.last.step} of {self.last.stage}, {age} old"

    def finish(self, agent: Agent) -> Backup:
        """Wait for the one under way, then make the last.

        Raises:
            BackupFailed: it did not get into the store.
            LinkLost: to be done again over a new connection.
        """
        if (future := self._under_way) is not None:
            self._under_way = None
            try:
                future.exception(timeout=LAST_ONE_S)
                self._take(future)
            except TimeoutError:
                raise BackupFailed(
                    f"the backup under way did not end within {LAST_ONE_S:.0f} s; {self.standing()}",
                    fix="look at the store; the pod still has its files",
                ) from None
        try:
            self._count(self._one(agent))
        except (OSError, Denied, NotStarted, Unverified) as e:
            raise BackupFailed(
                f"the last backup failed: {e}; {self.standing()}", fix="look at the store; the pod still has its files"
            ) from e
        assert self.last is not None
        self._tell(f"last backup {self.last.id}: {self.last.files} files, {self.last.new_bytes / 1e6:.2f} MB new")
        return self.last

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.place.store.close()
