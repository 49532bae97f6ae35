"""The trainer's side of the workload contract: exit codes, the log, metrics rows, a usable TMPDIR.

The words of the contract are in CONTRACT.md beside this file. Standard library only.

Not here: signals (pause.py), snapshots (snapshot.py), reading a config (config.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from typing import Any, Mapping, NoReturn, Optional

DONE = 0
NON_FINITE = 65  # state or loss became NaN or infinite; never restarted
CANNOT_SAVE = 74  # never restarted
PAUSED = 75  # the full state is saved, resume me
REFUSED = 78  # the config or the resume is refused; never restarted
TMP_NEED_BYTES = 64 << 20  # what a compiler may want


def say(line: str) -> None:
    """One line to the log, at once. A full disk under the log must not end the training."""
    with contextlib.suppress(OSError):
        print(line, flush=True)


def leave(code: int) -> NoReturn:
    """End with `code`, also where the log takes no more lines: the interpreter itself would make that 120."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        os._exit(code)
    raise SystemExit(code)


def refuse(message: str, fix: str) -> int:
    """Tell why nothing was started, in two lines on stderr. Returns the exit code for it."""
    sys.stderr.write(f"error: {message}\nfix: {fix}\n")
    return REFUSED


def segment() -> int:
    """Which uninterrupted life of the run this is, from 1; the supervisor counts them."""
    value = os.environ.get("REMOTE_RUN_SEGMENT", "")
    return int(value) if value.isdigit() and int(value) > 0 else 1


def attempt() -> Optional[str]:
    """The id of the start this life belongs to, where a supervisor gave one."""
    return os.environ.get("REMOTE_RUN_ID") or None


def append_row(folder: os.PathLike[str] | str, stage: str, step: int, measured: Mapping[str, Any]) -> None:
    """Append one row to `metrics.jsonl`, in a single write so that a kill tears at most the last line.

    A line torn by an earlier kill is closed first. A disk that refuses costs the row, not the training.
    """
    row = {"t": round(time.time(), 3), "stage": stage, "step": step, "segment": segment(), **measured}
    text = json.dumps(row, allow_nan=False) + "\n"
    path = os.path.join(os.fspath(folder), "metrics.jsonl")
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            end = os.fstat(fd).st_size
            torn = end > 0 and os.pread(fd, 1, end - 1) != b"\n"
            os.write(fd, (("\n" if torn else "") + text).encode())
        finally:
            os.close(fd)
    except OSError as wrong:
        say(f"metrics row of {stage} step {step} is lost: {path}: {wrong.strerror}")


def use_writable_tmpdir(root: os.PathLike[str] | str) -> None:
    """Point TMPDIR at `<root>/.remote-run/tmp` when the given one is not writable or nearly full.

    MLX compiles there and, where it can't, falls back to uncompiled code in silence.
    """
    given = os.environ.get("TMPDIR") or "/tmp"
    try:
        with tempfile.TemporaryFile(dir=given):
            disk = os.statvfs(given)
        if disk.f_bavail * disk.f_frsize >= TMP_NEED_BYTES:
            return
        why = f"has {disk.f_bavail * disk.f_frsize >> 20} MiB free"
    except OSError as wrong:
        why = f"can't be written ({wrong.strerror})"
    own = os.path.join(os.fspath(root), ".remote-run", "tmp")
    os.makedirs(own, exist_ok=True)
    os.environ["TMPDIR"] = own
    tempfile.tempdir = None
    say(f"TMPDIR {given} {why}: using {own}")
