"""What may end a run from outside: memory of the tree, room on the disk, the kernel's own kills.

Each is a look and a judgement with its figures; what follows from it is the supervisor's.
"""

from __future__ import annotations

import os
from typing import Iterable, Iterator, NamedTuple, Optional

from remote_runner.pod import files, procs

PAUSE_FLOOR_BYTES = 8 << 20
WARN_FLOOR_BYTES = 24 << 20
LARGEST_EVERY_S = 30.0


class Room(NamedTuple):
    """Free space where the outputs lie, against what one more save needs."""

    free_bytes: int
    largest_bytes: int  # the largest file of the outputs: a save writes one like it beside it

    @property
    def verdict(self) -> str:
        """ "" | "warn" | "pause". The pause is asked while its own save still fits."""
        if self.free_bytes < 1.25 * self.largest_bytes + PAUSE_FLOOR_BYTES:
            return "pause"
        return "warn" if self.free_bytes < 2.5 * self.largest_bytes + WARN_FLOOR_BYTES else ""

    def __str__(self) -> str:
        return f"{self.free_bytes / 1e6:.0f} MB free, the largest file of the run has {self.largest_bytes / 1e6:.0f} MB"


class Disk:
    """The disk under a run's outputs."""

    def __init__(self, root: str, outputs: Iterable[str]) -> None:
        self._root, self._outputs = root, list(outputs)
        self._largest, self._looked_s = 0, float("-inf")

    def room(self, now_s: float) -> Optional[Room]:
        """What is free now; None where nobody tells."""
        if now_s - self._looked_s >= LARGEST_EVERY_S:
            self._looked_s = now_s
            self._largest = self._find_largest()
        first = os.path.join(self._root, self._outputs[0])
        try:
            space = os.statvfs(first if os.path.isdir(first) else self._root)
        except OSError:
            return None
        return Room(space.f_bavail * space.f_frsize, self._largest)

    def _find_largest(self) -> int:
        """Of files that are replaced whole; one that grows needs no second copy."""
        try:
            return max(
                (
                    info.st_size
                    for output in self._outputs
                    for path, info, kind in files.walk(self._root, output)
                    if kind == "file" and info is not None and not path.endswith((".log", ".jsonl"))
                ),
                default=0,
            )
        except OSError:
            return self._largest  # something went while we looked


def tree_mb(leader: int) -> float:
    """Resident memory of a workload's tree, in 10^6 bytes."""
    return procs.resident_bytes([leader, *procs.children(leader)]) / 1e6


def _cgroup_files() -> Iterator[str]:
    """Where the kernel may count its kills for memory, the nearest first: cgroup v1, then v2."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as f:
            rows = [line.rstrip("\n").split(":", 2) for line in f]
    except OSError:
        return
    for _number, controllers, path in (row for row in rows if len(row) == 3):
        if "memory" in controllers.split(","):
            for place in (path, ""):  # in a container the mount's root is our own group
                yield os.path.normpath(f"/sys/fs/cgroup/memory/{place}") + "/memory.oom_control"
        if not controllers:
            for place in (path, ""):
                yield os.path.normpath(f"/sys/fs/cgroup/{place}") + "/memory.events"


class OomKills(NamedTuple):
    """How often the kernel has killed in our cgroup because memory ran out."""

    path: str
    times: int


def oom_kills(path: str = "") -> Optional[OomKills]:
    """The count as it stands; None where no cgroup tells (then only a guess is possible).

    Args:
        path: a file that told before; else it is looked for.
    """
    for candidate in [path] if path else _cgroup_files():
        try:
            with open(candidate, encoding="ascii", errors="replace") as f:
                for line in f:
                    key, _, value = line.partition(" ")
                    if key == "oom_kill":
                        return OomKills(candidate, int(value))
        except (OSError, ValueError):
            continue
    return None


def oom_evidence(before: Optional[OomKills]) -> str:
    """What the kernel counted since; empty when it killed nobody for memory, or nobody tells."""
    now = oom_kills(before.path) if before is not None else None
    if before is None or now is None or now.times <= before.times:
        return ""
    return f"the kernel killed for lack of memory: oom_kill {before.times} -> {now.times} in {now.path}"
