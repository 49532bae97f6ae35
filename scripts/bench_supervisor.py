#!/usr/bin/env python3
"""What the supervisor costs while it watches: CPU time and memory, its keeper included.

    scripts/bench_supervisor.py [--seconds 60] [--processes 10]

A workload of that many processes sleeps; the CPU time is the supervisor's and the keeper's own, from /proc, and the
memory their resident set at the end. Goal: under 0.5 % of one core and 40 MB together.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from supervised import box


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int, key: str) -> float:
    rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(float(row.split()[1]) for row in rows if row.startswith(key + ":")) / 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--processes", type=int, default=10)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, box(Path(folder) / "root") as here:
        script = f"for i in $(seq {given.processes - 1}); do sleep 10000 & done; echo up; wait"
        here.start("sh", "-c", script, memory_limit_mb=100_000, max_s=given.seconds + 300)
        here.wait_for_log("up")
        time.sleep(3)  # its start is not what is measured
        pids = {word: here.pid(word) for word in ("supervise", "keep")}
        before, began = {word: cpu_s(pid) for word, pid in pids.items()}, time.monotonic()
        time.sleep(given.seconds)
        passed = time.monotonic() - began
        used = {word: cpu_s(pid) - before[word] for word, pid in pids.items()}
        found = {
            "seconds": round(passed, 1),
            "processes": given.processes,
            "cpu_percent": {word: round(100 * seconds / passed, 3) for word, seconds in used.items()},
            "rss_mb": {word: round(memory_mb(pid, "Rss"), 1) for word, pid in pids.items()},
            "pss_mb": {word: round(memory_mb(pid, "Pss"), 1) for word, pid in pids.items()},
        }
    print(json.dumps(found, indent=1))
    cpu, memory = sum(found["cpu_percent"].values()), sum(found["rss_mb"].values())  # type: ignore[attr-defined]
    print(f"together: {cpu:.2f} % of one core (goal 0.5), {memory:.0f} MB resident (goal 40)")
    return 0 if cpu < 0.5 and memory < 40 else 1


if __name__ == "__main__":
    raise SystemExit(main())
