"""The supervisor's look around, once a second: memory, disk, the wall clock, the keeper, others on the GPU.

What it sees goes into the status; what must follow comes back as a demand, and is the supervisor's to carry out.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, NamedTuple, Optional

from remote_runner.pod import deadline, health, procs
from remote_runner.pod.contention import Contention
from remote_runner.pod.status import Status

LOOK_S = 1.0


class Demand(NamedTuple):
    """What a look asks for."""

    kill: bool  # else a pause
    cause: str
    evidence: str


class Vitals:
    """What is watched beside the workload's own progress.

    Args:
        shown: the deadline's fields of the status, as they are now.
    """

    def __init__(self, root: str, job: Dict[str, Any], status: Status, shown: Callable[[], Dict[str, Any]]) -> None:
        self._job, self._status, self._shown = job, status, shown
        self._disk = health.Disk(root, job["outputs"])
        self._keeper: Optional[int] = os.getppid()
        self._warned = False
        self._contention: Optional[Contention] = None

    def look(self, leader: int, now_s: float) -> Optional[Demand]:
        """Everything once.

        Args:
            now_s: steady seconds.
        """
        self._look_at_clock()
        self._look_at_keeper()
        self._look_at_gpu(leader, now_s)
        return self._look_at_memory(leader) or self._look_at_disk(now_s)

    def _look_at_memory(self, leader: int) -> Optional[Demand]:
        limit_mb = self._job.get("memory_limit_mb")
        if not limit_mb and not self._status.due():
            return None
        used_mb = health.tree_mb(leader)
        self._status.fields["memory_mb"] = round(used_mb, 1)
        if not limit_mb or used_mb <= limit_mb:
            return None
        return Demand(True, "memory", f"the tree held {used_mb:.0f} MB, the limit is {limit_mb} MB")

    def _look_at_disk(self, now_s: float) -> Optional[Demand]:
        room = self._disk.room(now_s)
        if room is None:
            return None
        self._status.fields["disk_free_mb"] = round(room.free_bytes / 1e6)
        if room.verdict and not self._warned:
            self._status.event("disk", free_bytes=room.free_bytes, largest_bytes=room.largest_bytes)
            self._status.fields["warning"] = f"the disk is about to fill: {room}"
        self._warned = bool(room.verdict)
        if not room.verdict:
            self._status.fields.pop("warning", None)
        return Demand(False, "disk", str(room)) if room.verdict == "pause" else None

    def _look_at_clock(self) -> None:
        """Show the deadline by the wall clock as it goes now, and tell when somebody set that."""
        shown, now = self._status.fields["deadline"], self._shown()
        step_s = now["unix_s"] - shown["unix_s"]
        reserve_s = now["unix_s"] - now["pause_unix_s"]
        if abs(step_s) > deadline.STEP_S:
            shown.update(now)
            self._status.update()
            self._status.event("clock stepped", by_s=round(step_s, 1), deadline=now["at"])
        elif abs(reserve_s - (shown["unix_s"] - shown["pause_unix_s"])) > 0.1:
            shown.update(pause_unix_s=shown["unix_s"] - reserve_s)  # a longer save was seen
        shown["elapsed_s"] = now["elapsed_s"]

    def _look_at_gpu(self, leader: int, now_s: float) -> None:
        if self._contention is None:
            self._contention = Contention(now_s)
        seen = self._contention.look(now_s, lambda: {leader, *procs.children(leader)})
        if seen is not None:
            self._status.fields["gpu_contention"] = seen

    def _look_at_keeper(self) -> None:
        if self._keeper is not None and os.getppid() != self._keeper:
            self._status.event("keeper gone", pid=self._keeper)
            self._keeper = None
