"""How much of our GPUs others use while a workload runs: a sample now and then, from the driver's own tool.

A sample counts only when the tool shows a process of ours: in a container it may show nobody, and then nobody can
tell whose work the GPU does. Without the tool, or without one sample that counts, nothing is said.

Not here: who uses the GPUs before a start (trainers.py).
"""

from __future__ import annotations

import os
import subprocess
from typing import Any, Callable, Dict, List, Optional, Set

FIRST_S, EVERY_S = 30.0, 300.0  # of GPU and processor a sample takes a moment
WITHIN_S = 60.0


class Contention:
    """The samples of one attempt; the tool runs beside us and is never waited for."""

    def __init__(self, began_s: float) -> None:
        self._tool = _tool()
        self._due_s = began_s + FIRST_S
        self._asked: Optional["subprocess.Popen[bytes]"] = None
        self._asked_s = 0.0
        self._samples, self._sum, self._most, self._memory = 0, 0.0, 0.0, 0.0

    def look(self, now_s: float, ours: Callable[[], Set[int]]) -> Optional[Dict[str, Any]]:
        """Begin a sample when one is due, take one that is there.

        Args:
            ours: pids of the workload's tree, as they are now.

        Returns:
            What all samples together say, when another one came; else None.
        """
        if self._asked is not None:
            return self._take(now_s, ours)
        if self._tool and now_s >= self._due_s:
            self._due_s = self._asked_s = now_s
            self._due_s += EVERY_S
            try:
                self._asked = subprocess.Popen(
                    [self._tool, "pmon", "-c", "1", "-s", "um"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
            except OSError:
                self._tool = ""
        return None

    def _take(self, now_s: float, ours: Callable[[], Set[int]]) -> Optional[Dict[str, Any]]:
        assert self._asked is not None
        if self._asked.poll() is None:
            if now_s - self._asked_s > WITHIN_S:
                self._asked.kill()
                self._tool = ""  # a driver that hangs is not asked again
            return None
        assert self._asked.stdout is not None
        with self._asked.stdout as f:
            os.set_blocking(f.fileno(), False)  # somebody may hold the other end still
            text = (f.read(1 << 16) or b"").decode("utf-8", "replace")
        self._asked = None
        others = others_use(text, ours())
        if others is None:
            return None
        self._samples += 1
        self._sum += others["percent"]
        self._most = max(self._most, others["percent"])
        self._memory = max(self._memory, others["memory_mb"])
        return {
            "samples": self._samples,
            "others_percent_mean": round(self._sum / self._samples, 1),
            "others_percent_most": self._most,
            "others_memory_mb_most": self._memory,
        }


def _tool() -> str:
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    paths = [os.path.join(folder, "nvidia-smi") for folder in folders]
    return next((p for p in paths if os.access(p, os.X_OK)), "")


def others_use(text: str, ours: Set[int]) -> Optional[Dict[str, float]]:
    """What `nvidia-smi pmon` says of others on the GPUs where we are; None where it does not show us.

    Returns:
        `percent` of the busiest of these GPUs' time, `memory_mb` on all of them.
    """
    names: List[str] = []
    rows: List[Dict[str, str]] = []
    for line in text.splitlines():
        words = line.split()
        if words[:2] == ["#", "gpu"]:
            names = words[1:]
        elif names and words and words[0].isdigit():
            rows.append(dict(zip(names, words)))
    here = {row["gpu"] for row in rows if row.get("pid", "-").isdigit() and int(row["pid"]) in ours}
    if not here:
        return None
    percent = dict.fromkeys(here, 0.0)
    memory_mb = 0.0
    for row in rows:
        if row["gpu"] in here and row.get("pid", "-").isdigit() and int(row["pid"]) not in ours:
            percent[row["gpu"]] += _number(row.get("sm"))
            memory_mb += _number(row.get("fb"))
    return {"percent": max(percent.values()), "memory_mb": memory_mb}


def _number(word: Optional[str]) -> float:
    return float(word) if word and word.replace(".", "", 1).isdigit() else 0.0  # "-": the driver does not say
