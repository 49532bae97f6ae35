"""Data sets of a run: there and large enough, or fetched by the project's own command before the launch."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any, Dict

from remote_runner.pod import files, layout


def size_bytes(path: str) -> int:
    """Of a file, or of all files below a folder; -1 where there is nothing."""
    if not os.path.lexists(path):
        return -1
    if not os.path.isdir(path):
        return os.stat(path).st_size
    total = 0
    for folder, _inner, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue
    return total


def fault(path: str, min_bytes: int) -> str:
    """Why a data set can't be used; empty when it can."""
    size = size_bytes(path)
    if size < 0:
        return f"{path} is not there"
    if size < min_bytes:
        return f"{path} has {size / 1e9:.3f} GB, {min_bytes / 1e9:.3f} GB are needed"
    return ""


def provide(root: str, one: Dict[str, Any]) -> str:
    """Make sure that a data set is there.

    Returns:
        Why it is not; else empty.
    """
    path = os.path.join(root, one["path"])
    wrong = fault(path, one["min_bytes"])
    if not wrong or not one["fetch"]:
        return wrong
    print(f"[remote-run] data: {wrong}; fetching it: {one['fetch']}", flush=True)
    began = time.monotonic()
    code = subprocess.run(["sh", "-c", one["fetch"]], cwd=root, stdin=subprocess.DEVNULL).returncode
    if code:
        return f"{wrong}, and its fetch command ended with {code}"
    print(f"[remote-run] data: fetched in {time.monotonic() - began:.1f} s", flush=True)
    return fault(path, one["min_bytes"])


def main(root: str) -> int:
    job = files.read_json(root, layout.JOB)
    for one in job["data"]:
        wrong = provide(root, one)
        if wrong:
            print(f"error: data: {wrong}", file=sys.stderr)
            print("fix: put it there, or name a command that does: data = [{ path, min_gb, fetch }]", file=sys.stderr)
            return 1
    return 0
