"""What a user sees of a run while it goes on: on stderr, a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from remote_runner.agent import printable
from remote_runner.durations import show
from remote_runner.pod.prepare import SAYS
from remote_runner.pod.talk import EPOCH

LINE_EVERY_S = 15.0
SETUP_LINE_EVERY_S = 5.0
_LONGEST_LINE = 160
_SEGMENT = re.compile(r"^\[remote-run\] \S+ segment (\d+): ")


class SetUp:
    """What is told while the pod prepares itself: each step as it begins, and now and then its last line."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._rest = self._step = self._last = ""
        self._ours = False  # the log begins with the lives before
        self._began_s = self._said_s = math.inf

    def log(self, text: str, segment: object) -> None:
        """Take in more of the log, as it stands in this life of the run."""
        *lines, self._rest = (self._rest + text.replace("\r", "\n")).split("\n")
        for line in lines:
            if found := _SEGMENT.match(line):
                self._ours = found.group(1) == str(segment)
            elif line.startswith(SAYS) and self._ours:
                self._step, self._last = line.removeprefix(SAYS), ""
                self._say(f"set-up: {self._step}")
            elif line.strip() and self._ours:
                self._last = line.strip()
        self.beat()

    def beat(self) -> None:
        now_s = time.monotonic()
        self._began_s, self._said_s = min(self._began_s, now_s), min(self._said_s, now_s)
        if now_s - self._said_s >= SETUP_LINE_EVERY_S:
            self._say(f"set-up, {show(now_s - self._began_s)} so far: {self._last or self._step or 'it begins'}")

    def _say(self, text: str) -> None:
        self._said_s = time.monotonic()
        self._tell(text if len(text) <= _LONGEST_LINE else text[: _LONGEST_LINE - 1] + "…")


class View:
    """Progress and talk of one run.

    Args:
        verbose: show the workload's log as it grows.
    """

    def __init__(self, verbose: bool = False) -> None:
        self._verbose = verbose
        self._console = Console(stderr=True, highlight=False, markup=False)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._first: dict[str, tuple[float, int]] = {}  # stage -> when first seen here, at which step
        self._said_s = 0.0
        self._last_state = ""
        self._segment: object = None
        self._setup = SetUp(self.tell)

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def tell(self, text: str) -> None:
        """One line of talk, with the local time."""
        # a log is read later and elsewhere: there a time has its date and its offset
        form = "%H:%M:%S" if self._console.is_terminal else "%Y-%m-%d %H:%M:%S%z"
        line = f"{time.strftime(form)} {printable(text)}"
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False)
        else:
            print(line, file=sys.stderr, flush=True)

    def log(self, text: str) -> None:
        if self._verbose:
            for line in text.splitlines():
                self.tell(f"| {line}")
        elif self._last_state in ("starting", "setup"):
            self._setup.log(text, self._segment)

    def status(self, status: dict[str, Any]) -> None:
        """Take in a new status of the run."""
        state, self._segment = str(status.get("state")), status.get("segment")
        if state != self._last_state:
            self._last_state = state
            self.tell(f"{state}{self._why(status)}")
        if state == "setup" and not self._verbose:
            self._setup.beat()
        row = status.get("progress")
        if state in ("running", "pausing") and isinstance(row, dict):
            self._progress(row, status)

    @staticmethod
    def _why(status: dict[str, Any]) -> str:
        if status.get("state") == "running":
            return f": pid {status.get('pid')}, segment {status.get('segment')}"
        if status.get("state") == "pausing":
            return f": {(status.get('pause') or {}).get('cause')}"
        if isinstance(status.get("exit"), dict):
            return f": {status['exit'].get('cause')} {status['exit'].get('evidence') or ''}".rstrip()
        return ""

    def _progress(self, row: dict[str, Any], status: dict[str, Any]) -> None:
        step, stage = row.get("step"), str(row.get("stage", ""))
        if not isinstance(step, int):
            return
        since, at = self._first.setdefault(stage, (time.monotonic(), step))
        rate = (step - at) / max(1e-9, time.monotonic() - since) if step > at else 0.0
        total = row.get("target_steps")
        loss = row.get("loss")
        unit = EPOCH if stage == EPOCH else f"{stage} step".lstrip()
        text = [f"{unit} {step}" + (f"/{total}" if isinstance(total, int) else "")]
        if isinstance(loss, (int, float)):
            text.append(f"loss {loss:.4g}")
        if rate:
            text.append(f"{rate:.1f} steps/s" if stage != EPOCH else f"{3600 * rate:.0f} epochs/h")
            if isinstance(total, int):
                text.append(f"{show((total - step) / rate)} left")
        deadline = (status.get("deadline") or {}).get("unix_s")
        if isinstance(deadline, (int, float)):
            text.append(f"deadline in {show(deadline - float(status.get('beat_unix_s') or time.time()))}")
        self._draw(printable(", ".join(text)), step, total if isinstance(total, int) else None)

    def _draw(self, text: str, step: int, total: int | None) -> None:
        if self._console.is_terminal:
            if self._bar is None:
                self._bar = Progress(
                    BarColumn(30), TextColumn("{task.description}", markup=False), console=self._console
                )
                self._bar.start()
                self._task = self._bar.add_task("", total=total)
            if self._task is not None:
                self._bar.update(self._task, description=text, completed=step, total=total)
        elif time.monotonic() - self._said_s >= LINE_EVERY_S:
            self._said_s = time.monotonic()
            self.tell(text)
