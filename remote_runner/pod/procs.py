"""Processes of this machine: who runs what since when, which are trainers, and the end of a whole tree.

A trainer is recognised by its argv read as a command line, never by a substring: an editor, `grep`, an `ssh`
command line or a log viewer that has the words in it is no match.

Linux reads /proc; Darwin asks `ps -axww`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set

_PYTHON = re.compile(r"python|pypy", re.IGNORECASE)
_PYTHON_OPTIONS_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")
_SHELLS = re.compile(r"^-?(ba|da|z|k|a)?sh$")


class CannotLook(Exception):
    """The process list can't be read; that is never taken for "nothing runs"."""


class Process(NamedTuple):
    pid: int
    started_unix_s: float
    user: str
    argv: List[str]

    def describe(self) -> Dict[str, Any]:
        line = shlex.join(self.argv)
        return {
            "pid": self.pid,
            "since": time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(self.started_unix_s)),
            "user": self.user,
            "command": line if len(line) <= 300 else line[:300] + "…",
        }


def _stat(pid: int) -> List[str]:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
        text = f.read()
    return text[text.rindex(")") + 2 :].split()  # from the state on; the name may hold blanks and brackets


def start_ticks(pid: int) -> Optional[str]:
    """What tells a process from a later one with its pid; None when it is gone or a zombie."""
    if sys.platform == "darwin":
        out = subprocess.run(["ps", "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, text=True).stdout
        return None if not out.strip() or out.strip().startswith("Z") else out.strip().split(None, 1)[1]
    try:
        fields = _stat(pid)
    except (OSError, ValueError):
        return None
    return None if fields[0] in "ZX" else fields[19]


def alive(pid: Optional[int], started: Optional[str]) -> bool:
    """Whether that very process still lives (a zombie does not)."""
    return pid is not None and started is not None and start_ticks(pid) == started


def _boot_unix_s() -> float:
    with open("/proc/stat", encoding="ascii") as f:
        return next(float(line.split()[1]) for line in f if line.startswith("btime"))


def _user(uid: int) -> str:
    with contextlib.suppress(ImportError, KeyError):
        import pwd

        return pwd.getpwuid(uid).pw_name
    return str(uid)


def everyone() -> Iterator[Process]:
    """All processes but kernel threads and zombies.

    Raises:
        CannotLook: no /proc, or one that hides other users' processes from us.
    """
    if sys.platform == "darwin":
        yield from _darwin()
        return
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        boot, tick = _boot_unix_s(), os.sysconf("SC_CLK_TCK")
    except (OSError, StopIteration) as e:
        raise CannotLook(f"/proc can't be read: {e}") from None
    if os.getpid() not in pids or 1 not in pids:
        raise CannotLook("/proc hides processes from this user (mounted with hidepid, or from another namespace)")
    for pid in pids:
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                argv = [os.fsdecode(a) for a in f.read().split(b"\0")[:-1]]
            fields = _stat(pid)
            owner = os.stat(f"/proc/{pid}").st_uid
        except (OSError, ValueError):
            continue  # ended while we looked
        if argv and fields[0] not in "ZX":
            yield Process(pid, boot + int(fields[19]) / tick, _user(owner), argv)


def _darwin() -> Iterator[Process]:
    out = subprocess.run(["ps", "-axwwo", "pid=,state=,user=,lstart=,args="], capture_output=True, text=True)
    if out.returncode:
        raise CannotLook(f"ps failed: {out.stderr.strip()}")
    for line in out.stdout.splitlines():
        pid, state, user, *rest = line.split(None, 8)
        if state.startswith("Z") or len(rest) < 6:
            continue
        started = time.mktime(time.strptime(" ".join(rest[:5]), "%a %b %d %H:%M:%S %Y"))
        yield Process(int(pid), started, user, rest[5].split())


def _is_python(process: Process) -> bool:
    """By name, or by what is mapped into it: a python may be called anything."""
    names = [process.argv[0].rsplit("/", 1)[-1]]
    for link in ("comm", "exe"):
        with contextlib.suppress(OSError):
            path = f"/proc/{process.pid}/{link}"
            if link == "exe":
                names.append(os.readlink(path).rsplit("/", 1)[-1])
            else:
                with open(path, encoding="utf-8", errors="replace") as f:
                    names.append(f.read().strip())
    if any(_PYTHON.search(name) for name in names):
        return True
    with contextlib.suppress(OSError), open(f"/proc/{process.pid}/maps", encoding="utf-8", errors="replace") as f:
        return "python" in f.read()
    return False


def program(argv: Sequence[str], python: bool) -> List[str]:
    """What a command line runs: ["-m", module, …] or [script, …] of an interpreter, else argv itself."""
    rest = list(argv[1:])
    if python:
        while rest and rest[0].startswith("-") and rest[0] != "-":
            option = rest.pop(0)
            if option in _PYTHON_OPTIONS_WITH_VALUE:
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
    """Another job of ours: the zipapp, running `supervise`."""
    runs = program(process.argv, True)
    return len(runs) > 1 and runs[0].endswith(".pyz") and "/.remote-run/" in runs[0] and runs[1] == "supervise"


def jobs(patterns: Sequence[str]) -> List[Dict[str, Any]]:
    """Every trainer and every supervisor of ours on this machine, but the caller itself."""
    own = {os.getpid(), os.getppid()}
    return [p.describe() for p in everyone() if p.pid not in own and (is_supervisor(p) or matches(p, patterns))]


def children(pid: int) -> Set[int]:
    """All living descendants of a process, zombies left out."""
    if sys.platform == "darwin":
        return _darwin_children(pid)
    found: Set[int] = set()
    todo = [pid]
    while todo:
        parent = todo.pop()
        try:
            for task in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{task}/children", encoding="ascii") as f:
                    todo += [c for c in map(int, f.read().split()) if c not in found]
        except OSError:
            continue
        found.update(todo)
    return {p for p in found if start_ticks(p) is not None}


def _darwin_children(pid: int) -> Set[int]:
    out = subprocess.run(["ps", "-axo", "pid=,ppid=,state="], capture_output=True, text=True).stdout
    rows = [line.split() for line in out.splitlines()]
    found: Set[int] = set()
    grew = True
    while grew:
        new = {int(p) for p, pp, s in rows if int(pp) in found | {pid} and not s.startswith("Z")} - found
        grew = bool(new)
        found |= new
    return found


def resident_bytes(pids: Sequence[int]) -> int:
    """Resident memory of these processes together."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/statm", encoding="ascii") as f:
            total += int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return total


def kill_tree(leader: int, above: int) -> None:
    """SIGKILL a group and every descendant of `above` that is left, until none is."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    for _ in range(100):
        left = children(above)
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)


def become_subreaper() -> None:
    """Orphans of the workload become our children (Linux), so that none is lost from sight."""
    _prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def die_with_parent() -> None:
    """Be killed when the parent dies (Linux)."""
    _prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _prctl(option: int, value: int) -> None:
    if sys.platform != "linux":
        return
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
