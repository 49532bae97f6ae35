"""Backups at the interval, beside the following: one at a time, and one more at the end.

Not here: how one is made (backup.py).
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

from remote_runner import backup
from remote_runner.agent import Agent, Denied
from remote_runner.backup import Backup
from remote_runner.durations import clock_s, show
from remote_runner.errors import BackupFailed, NotStarted, RunnerError, Unverified
from remote_runner.link import Link
from remote_runner.onpod import OnPod
from remote_runner.program import LinkLost
from remote_runner.vault import Place

AGAIN_S = 60.0  # after a failure, where the interval is longer
LAST_ONE_S = 600.0
CLOSE_S = 15.0
LOOK_EVERY_S = 0.2
WAKE_S = 5.0
MOST_LINES = 10  # of skips at once; after a long sleep they are only counted


class Regular:
    """Backups by the clock, in a thread of their own: nothing that the following waits for delays one.

    One that is due while another is under way is skipped; each skip and each failure is one line. While the link is
    lost a due one waits for it.
    """

    def __init__(
        self,
        place: Place,
        spool: Path,
        outputs: list[str],
        attempt: str,
        every_s: float,
        tell: Callable[[str], None],
        began_s: float | None = None,
    ) -> None:
        """`began_s`: since when, by durations.clock_s, there is something to lose; default: now."""
        self.place, self.every_s = place, every_s
        self._spool, self._outputs, self._attempt, self._tell = spool, outputs, attempt, tell
        self._due_s = (clock_s() if began_s is None else began_s) + every_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._beside: Agent | None = None  # whose connection that one shares
        self._agent: Agent | None = None  # kept from one to the next: a new one costs as much as a small backup
        self.last: Backup | None = None
        self.made = 0

    def begin(self, link: Link) -> None:
        """Start, once; the interval counts from when this was made."""
        if self._thread is None and math.isfinite(self.every_s):
            self._thread = threading.Thread(target=self._run, args=(link,), name="backup", daemon=True)
            self._thread.start()

    def _run(self, link: Link) -> None:
        self._connect(link)  # ahead of time: it takes as long as a small backup
        while not self._stop.is_set():
            began_s = clock_s()
            if began_s < self._due_s:
                self._stop.wait(
                    min(self._due_s - began_s, WAKE_S)
                )  # a longer wait stands still in this machine's sleep
                continue
            if link.current is None:
                self._stop.wait(LOOK_EVERY_S)
                continue
            worked = self._try(link)
            now_s = clock_s()
            # what fell due before this one began was missed asleep or without a link; one makes up for all of them
            self._due_s = max(self._due_s, began_s) + self.every_s
            self._skip(now_s)
            if not worked:
                self._due_s = min(self._due_s, now_s + AGAIN_S)
        self._let_go()

    def _connect(self, link: Link) -> None:
        with contextlib.suppress(LinkLost, RunnerError, OSError):  # when one is due, it tells
            self._ready(link)

    def _ready(self, link: Link) -> Agent:
        if self._agent is None or self._beside is not link.current:
            self._let_go()
            self._beside = link.current
            self._agent = link.second()
        return self._agent

    def _try(self, link: Link) -> bool:
        began_s = time.monotonic()
        try:
            made = self._one(self._ready(link), began_s)
        except LinkLost:
            self._let_go()
            if not self._stop.is_set():
                self._tell(f"a backup broke off with the link, the next follows when it is back; {self.standing()}")
                self._stop.wait(LOOK_EVERY_S)  # whoever follows will notice too, and close it
            return False
        except (OSError, RunnerError, Denied) as e:
            self._let_go()  # it may be out of step
            if not self._stop.is_set():
                self._tell(f"backup failed: {e}; {self.standing()}")
            return False
        first = self.last is None
        self._count(made)
        self._tell(f"backup {made.id}: {made.files} files, {made.new_bytes / 1e6:.2f} MB new, safe in the store")
        if first and made.took_s > self.every_s:
            self._tell(
                f"the way to the store does not keep up: one backup took {show(made.took_s)}, one is due every "
                f"{show(self.every_s)}; let the pod push by itself (backup = {{ push = true }}) "
                "or choose a longer interval"
            )
        return True

    def _let_go(self) -> None:
        if self._agent is not None:
            self._agent.close()
            self._agent = None

    def _skip(self, now_s: float) -> None:
        skipped = 0
        while self._due_s <= now_s:
            self._due_s += self.every_s
            skipped += 1
            if skipped <= MOST_LINES:
                self._tell("backup skipped: the one before is still under way")
        if skipped > MOST_LINES:
            self._tell(f"{skipped} backups skipped in all")

    def _one(self, agent: Agent, began_s: float | None = None) -> Backup:
        source = OnPod(agent, self._outputs, self.place.name)
        return backup.make(source, self.place, self._spool, self._attempt, self.last, began_s)

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
        self._stop.set()
        if self._thread is not None:
            self._thread.join(LAST_ONE_S)
            if self._thread.is_alive():
                raise BackupFailed(
                    f"the backup under way did not end within {LAST_ONE_S:.0f} s; {self.standing()}",
                    fix="look at the store; the pod still has its files",
                )
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
        """Let the one under way end: what it leaves half done in the store would hold up others for a minute."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)
        self.place.store.close()
