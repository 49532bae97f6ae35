#!/usr/bin/env python3
"""How long `remote-run restart` keeps a real trainer from training, beyond the save that the pause asks for.

    python scripts/bench_restart.py [--runs 3] [--round-trip-ms 0]

Each run: the MLX trainer on a pod of its own is in the middle of its generator, one file of the code is changed,
`restart` is typed. Counted is from that moment to the trainer's first new step, less the time from the request to the
saved state, as the pod's own events have it; and of that, how long until the new trainer process was there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "tests"))

import pods  # noqa: E402
import proxy  # noqa: E402
from projects import Project, tiny  # noqa: E402

NAME = "sudoku-restart"


def rows(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines() if path.exists() else []:
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def one(folder: Path, round_trip_ms: float) -> dict[str, float]:
    """Seconds of one restart."""
    project = Project.create(folder / "project")
    project.add_sudoku()
    text = tiny(NAME, codec={"steps": 4}, generator={"steps": 100_000, "width": 64}, train={"compile": True})
    (project.root / f"configs/{NAME}.json").write_text(text)
    with contextlib.ExitStack() as opened:
        pod = opened.enter_context(pods.running(folder / "pod"))
        port = opened.enter_context(proxy.delayed(pod.port, round_trip_ms / 1000)) if round_trip_ms else pod.port
        words = project.on(pod, f"configs/{NAME}.json")
        words[3] = f"{pod.address.rpartition(':')[0]}:{port}"
        started = project.run([*words, "--detach"])
        assert started.returncode == 0, started.stderr
        metrics = pod.root / f"artifacts/{NAME}/metrics.jsonl"
        pods.wait_for(lambda: any(r["stage"] == "generator" and r["step"] > 20 for r in rows(metrics)), "steps")
        script = project.root / "workloads/ncm_mlx/benchmark.py"
        script.write_text(script.read_text() + "# changed\n")
        began = time.time()
        done = project.run([*words[:3], "restart", *words[3:], "--detach"])
        assert done.returncode == 0, done.stderr
        step = pods.wait_for(lambda: [r for r in rows(metrics) if r.get("segment") == 2 and "loss" in r], "a step")
        assert isinstance(step, list)
        events = list(rows(pod.root / f"runs/{NAME}-events.jsonl"))
        asked = next(e["t"] for e in events if e["what"] == "pause asked")
        saved = next(e["t"] for e in events if e["what"] == "ended")
        there = [e["t"] for e in events if e["what"] == "started" and e.get("state") == "running"][-1]
        save_s = saved - asked
        return {"save": save_s, "process": there - began - save_s, "step": step[0]["t"] - began - save_s}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--round-trip-ms", type=float, default=0.0)
    given = parser.parse_args()
    found = []
    for _ in range(given.runs):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["HOME"] = folder
            found.append(one(Path(folder), given.round_trip_ms))
    texts = {"save": "the save itself", "process": "beyond it: the new process", "step": "beyond it: its first row"}
    for key, text in texts.items():
        seconds = [f[key] for f in found]
        middle, low, high = statistics.median(seconds), min(seconds), max(seconds)
        print(f"{text:32} {middle:6.2f} s  ({low:.2f} to {high:.2f}, {len(seconds)} runs)")


if __name__ == "__main__":
    main()
