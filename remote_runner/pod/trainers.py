"""Which processes are trainers, and who else uses the GPU.

A trainer is recognised by its argv read as a command line, never by a substring: an editor, `grep`, an `ssh`
command line or a log viewer that has the words in it is no match.

Not here: how processes are found (procs.py), who may start one (lock.py).
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
from typing import Any, Dict, List, Sequence

from remote_runner.pod import files, layout, procs
from remote_runner.pod.procs import Process

_PYTHON = re.compile(r"python|pypy", re.IGNORECASE)
_MAPPED_PYTHON = re.compile(r"/(lib)?(python|pypy)[0-9.]*[a-z]*(\.so[0-9.]*)?$", re.MULTILINE)
_OPTIONS_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")
_SHELLS = re.compile(r"^-?(ba|da|z|k|a)?sh$")
GPU_BUSY_MB = 500  # below that a driver's own contexts


def _is_python(process: Process) -> bool:
    """By name, or by what is mapped into it: a python may be called anything."""
    names = [process.argv[0].rsplit("/", 1)[-1]]
    with contextlib.suppress(OSError), open(f"/proc/{process.pid}/comm", encoding="utf-8", errors="replace") as f:
        names.append(f.read().strip())
    with contextlib.suppress(OSError):
        names.append(os.readlink(f"/proc/{process.pid}/exe").rsplit("/", 1)[-1])
    if any(_PYTHON.search(name) for name in names):
        return True
    with contextlib.suppress(OSError), open(f"/proc/{process.pid}/maps", encoding="utf-8", errors="replace") as f:
        return bool(_MAPPED_PYTHON.search(f.read()))
    return False


def program(argv: Sequence[str], python: bool) -> List[str]:
    """What a command line runs: ["-m", module, …] or [script, …] of an interpreter, else argv itself."""
    rest = list(argv[1:])
    if python:
        while rest and rest[0].startswith("-") and rest[0] != "-":
            option = rest.pop(0)
            if option in _OPTIONS_WITH_VALUE:
                rest[:1] = []
                continue
            if option.startswith("--"):
                continue
            # options may be joined: -um module, -mmodule, -c code
            letters = option[1:]
            for i, letter in enumerate(letters):
                if letter == "m":
                    return ["-m", letters[i + 1 :], *rest] if letters[i + 1 :] else ["-m", *rest]
                if letter == "c":
                    return ["-c", *rest]
                if letter in "XW":
                    if not letters[i + 1 :]:
                        rest[:1] = []
                    break
        return rest
    if argv and _SHELLS.match(argv[0].rsplit("/", 1)[-1]):
        while rest and rest[0].startswith(("-", "+")):
            if "c" in rest.pop(0):
                return ["-c", *rest]
        return rest
    return list(argv)


def matches(process: Process, patterns: Sequence[str]) -> bool:
    """Whether a process is what one of `patterns` describes.

    A pattern is a command line after its interpreter: words in order, `|` between alternatives:
    `-m ncm_mlx train|evaluate`, `train.py`. A script is compared by its path or its last part.
    """
    for pattern in patterns:
        words = shlex.split(pattern)
        telling = words[1] if words[0] == "-m" else words[0]
        if not any(telling in arg for arg in process.argv):
            continue  # cheap: most processes end here
        runs = program(process.argv, _is_python(process))
        if len(runs) < len(words):
            continue
        first = runs[0] == words[0] or (runs[0] != "-m" and runs[0].rsplit("/", 1)[-1] == words[0])
        if first and all(have in want.split("|") for have, want in zip(runs[1:], words[1:])):
            return True
    return False


def is_supervisor(process: Process) -> bool:
    """Another job of ours: the zipapp, running `supervise` or its keeper."""
    runs = program(process.argv, True)
    ours = len(runs) > 1 and runs[0].endswith(".pyz") and "/.remote-run/" in runs[0]
    return ours and runs[1] in ("supervise", "keep")


def jobs(patterns: Sequence[str]) -> List[Dict[str, Any]]:
    """Every trainer and every supervisor of ours on this machine, but the caller itself.

    Raises:
        CannotLook: the process list can't be read.
    """
    own = {os.getpid(), os.getppid()}
    found = (p for p in procs.everyone() if p.pid not in own)
    return [{**p.describe(), **_run_of(p)} for p in found if is_supervisor(p) or matches(p, patterns)]


def _run_of(process: Process) -> Dict[str, Any]:
    """Which run a supervisor owns, and where it lies; nothing of another process."""
    if not is_supervisor(process):
        return {}
    root = program(process.argv, True)[2:3]
    job = files.read_json(root[0], layout.JOB) if root else None
    return {"run": str(job.get("name")), "root": root[0]} if isinstance(job, dict) else {}


def gpu_use() -> List[str]:
    """Who uses the GPUs, one line each: processes by pid, and memory that no visible process explains.

    In a container the driver may name no process at all; the memory in use still tells.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    found, explained_mb = [], 0
    for row in _query(tool, "--query-compute-apps=pid,process_name,used_memory"):
        with contextlib.suppress(ValueError):
            explained_mb += int(row[2])
        found.append(f"pid {row[0]} ({row[1]}) uses {row[2]} MB of GPU memory")
    for i, row in enumerate(_query(tool, "--query-gpu=memory.used,memory.total")):
        with contextlib.suppress(ValueError):
            if int(row[0]) - explained_mb > GPU_BUSY_MB:
                found.append(f"GPU {i}: {row[0]} of {row[1]} MB are in use, by processes that can't be seen from here")
    return found


def _query(tool: str, what: str) -> List[List[str]]:
    try:
        done = subprocess.run(
            [tool, what, "--format=csv,noheader,nounits"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = done.stdout.decode("utf-8", "replace").splitlines() if done.returncode == 0 else []
    return [row for row in ([cell.strip() for cell in line.split(",")] for line in lines) if len(row) > 1]
