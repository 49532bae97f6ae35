"""What a user sees of a run while it goes on: on stderr, a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from remote_runner.agent import printable
from remote_runner.durations import show

LINE_EVERY_S = 15.0


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

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def tell(self, text: str) -> None:
        """One line of talk, with the local time."""
        line = f"{time.strftime('%H:%M:%S')} {printable(text)}"
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False)
        else:
            print(line, file=sys.stderr, flush=True)

    def log(self, text: str) -> None:
        if self._verbose:
            for line in text.splitlines():
                self.tell(f"| {line}")

    def status(self, status: dict[str, Any]) -> None:
        """Take in a new status of the run."""
        state = str(status.get("state"))
        if state != self._last_state:
            self._last_state = state
            self.tell(f"{state}{self._why(status)}")
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
        text = [f"{stage} step {step}" + (f"/{total}" if isinstance(total, int) else "")]
        if isinstance(loss, (int, float)):
            text.append(f"loss {loss:.4g}")
        if rate:
            text.append(f"{rate:.1f} steps/s")
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
