"""Processes of this machine: who runs what since when, who descends from whom, how much memory they hold.

Linux reads /proc; Darwin asks `ps -axww`.

Not here: which of them are trainers (trainers.py), how a tree is paused and ended (tree.py).
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

DARWIN = sys.platform == "darwin"


class CannotLook(Exception):
    """The process list can't be read; that is never taken for "nothing runs"."""


class Process(NamedTuple):
    pid: int
    started_unix_s: float
    user: str
    argv: List[str]

    def describe(self) -> Dict[str, Any]:
        import shlex

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
    if DARWIN:
        out = _ps("-o", "state=,lstart=", "-p", str(pid))
        return None if not out.strip() or out.strip().startswith("Z") else out.strip().split(None, 1)[1]
    try:
        fields = _stat(pid)
    except (OSError, ValueError):
        return None
    return None if fields[0] in "ZX" else fields[19]


def alive(pid: Optional[int], started: Optional[str]) -> bool:
    """Whether that very process still lives (a zombie does not)."""
    return pid is not None and started is not None and start_ticks(pid) == started


def boot() -> Dict[str, Any]:
    """What tells this life of the machine or container from another: the kernel's boot, the start of PID 1."""
    found = ""
    if DARWIN:
        found = _ask("sysctl", "-n", "kern.bootsessionuuid")[1].strip()
    else:
        with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
            found = f.read().strip()
    return {"id": found, "pid1_start": start_ticks(1)}


def _boot_unix_s() -> float:
    with open("/proc/stat", encoding="ascii") as f:
        return next(float(line.split()[1]) for line in f if line.startswith("btime"))


def started_unix_s(pid: int) -> Optional[float]:
    """When a process was started; None when it is gone (or nobody tells)."""
    try:
        return _boot_unix_s() + int(_stat(pid)[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, StopIteration):
        return None


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
    if DARWIN:
        yield from _darwin()
        return
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        booted, tick = _boot_unix_s(), os.sysconf("SC_CLK_TCK")
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
            yield Process(pid, booted + int(fields[19]) / tick, _user(owner), argv)


def _ask(*command: str) -> Tuple[int, str, str]:
    """Exit code and both outputs of a program."""
    import subprocess  # late: only Darwin asks programs, and a keeper holds no more than it needs

    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def _ps(*options: str) -> str:
    return _ask("ps", *options)[1]


def _darwin() -> Iterator[Process]:
    code, out, err = _ask("ps", "-axwwo", "pid=,state=,user=,lstart=,args=")
    if code:
        raise CannotLook(f"ps failed: {err.strip()}")
    for line in out.splitlines():
        pid, state, user, *rest = line.split(None, 8)
        if state.startswith("Z") or len(rest) < 6:
            continue
        started = time.mktime(time.strptime(" ".join(rest[:5]), "%a %b %d %H:%M:%S %Y"))
        yield Process(int(pid), started, user, rest[5].split())


def own_children(pid: int) -> List[int]:
    """The direct children of a process, zombies among them."""
    if DARWIN:
        rows = [line.split() for line in _ps("-axo", "pid=,ppid=").splitlines()]
        return [int(p) for p, parent in rows if int(parent) == pid]
    if not _kernel_lists_children():
        return [child for child, parent in _parents() if parent == pid]
    found: List[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as f:
                found += map(int, f.read().split())
    except OSError:
        pass  # it ended while we looked
    return found


@functools.lru_cache(maxsize=None)
def _kernel_lists_children() -> bool:
    """Some sandboxes and older kernels have no /proc/PID/task/TID/children."""
    return os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children")


def _parents() -> Iterator[Tuple[int, int]]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                yield int(name), int(_stat(int(name))[1])


def children(pid: int) -> Set[int]:
    """All living descendants of a process, zombies left out."""
    if DARWIN:
        return _darwin_children(pid)
    found: Set[int] = set()
    todo = [pid]
    while todo:
        new = [c for c in own_children(todo.pop()) if c not in found]
        found.update(new)
        todo += new
    return {p for p in found if start_ticks(p) is not None}


def _darwin_children(pid: int) -> Set[int]:
    rows = [line.split() for line in _ps("-axo", "pid=,ppid=,state=").splitlines()]
    found: Set[int] = set()
    grew = True
    while grew:
        new = {int(p) for p, pp, s in rows if int(pp) in found | {pid} and not s.startswith("Z")} - found
        grew = bool(new)
        found |= new
    return found


def resident_bytes(pids: Sequence[int]) -> int:
    """Resident memory of these processes together; what they share is counted for each."""
    if DARWIN:
        out = _ps("-o", "rss=", "-p", ",".join(map(str, pids)))
        return sum(int(line) for line in out.split()) * 1024
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/statm", encoding="ascii") as f:
            total += int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return total


def catches(pid: int, number: int) -> Optional[bool]:
    """Whether a process has a handler for a signal; None where nothing tells (no /proc)."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as f:
            for line in f:
                if line.startswith("SigCgt:"):
                    return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    except (OSError, ValueError, IndexError):
        return None if DARWIN else False
    return None
