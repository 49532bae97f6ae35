"""What the controller remembers of a run: `runs/<name>-run.json` and `runs/<name>-controller.jsonl`.

The record names the pod, the host key, the code and the options of every attempt, so that `attach`, `status`
and a later `--resume` need nothing but the run's name. It goes to the pod as a copy and never comes back.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from remote_runner.errors import Refused, UsageFault
from remote_runner.pod import files, layout
from remote_runner.pod.status import utc


def load(root: Path, name: str) -> dict[str, Any]:
    """The record, empty where there is none."""
    found = files.read_json(str(root), layout.run_file(name, "-run.json"))
    return found if isinstance(found, dict) else {}


def save(root: Path, name: str, record: dict[str, Any]) -> None:
    files.replace_json(str(root), layout.run_file(name, "-run.json"), record)


def last_attempt(record: dict[str, Any]) -> dict[str, Any]:
    attempts = record.get("attempts") or [{}]
    last = attempts[-1]
    return last if isinstance(last, dict) else {}


def price_usd_h(record: dict[str, Any]) -> float | None:
    """What the last attempt's pod costs an hour, where it was said."""
    price = last_attempt(record).get("price_usd_h")
    return float(price) if isinstance(price, (int, float)) else None


def git_state(root: Path) -> dict[str, Any]:
    """Commit and uncommitted difference of the code that is sent; empty without git."""

    def git(*args: str) -> str:
        done = subprocess.run(["git", "-C", root, *args], capture_output=True, text=True, errors="replace", check=False)
        return done.stdout if done.returncode == 0 else ""

    try:
        commit = git("rev-parse", "HEAD").strip()
        return {"commit": commit, "diff": git("diff", "HEAD")[:1_000_000]} if commit else {}
    except FileNotFoundError:
        return {}


@dataclass
class Journal:
    """The controller's own events and the seconds each phase took."""

    root: Path
    name: str
    phases: dict[str, float] = field(default_factory=dict)
    began_s: float = field(default_factory=time.monotonic)

    def event(self, what: str, **fields: Any) -> None:
        path = self.root / layout.run_file(self.name, "-controller.jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        row = {"t": round(time.time(), 3), "at": utc(time.time()), "what": what, **fields}
        with path.open("a", encoding="utf-8") as f:
            f.write(json.dumps(row, ensure_ascii=False) + "\n")

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time one step of the run's life; its seconds add up over repetitions."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + time.monotonic() - began


@contextlib.contextmanager
def only_controller(root: Path, name: str) -> Iterator[None]:
    """Hold the run's lock on this machine: two controllers here would write the same files.

    Raises:
        Refused: another one has it.
        UsageFault: the project's folder can't be written.
    """
    folder = root / layout.OWN
    try:
        folder.mkdir(exist_ok=True)
        fd = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as e:
        raise UsageFault(
            f"{folder} can't be written: {e.strerror}", fix="make room, or work in a copy of the project you may write"
        ) from None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
            raise Refused(
                f"another controller on this machine (pid {holder}) is busy with the run {name!r}",
                fix=f"wait for it, or end it: kill -INT {holder}",
            ) from None
        with contextlib.suppress(OSError):  # a full disk: the lock holds, only the holder's pid is not told
            os.ftruncate(fd, 0)
            os.pwrite(fd, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(fd)
