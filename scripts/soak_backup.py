"""Lose pods at random moments, disk and all; go on from the store each time; compare what was lost with the bound.

    scripts/soak_backup.py [--rounds 50] [--seed N] [--json]

Each round starts (or resumes) one run on a new pod, lets it train for a random while, asks what is at risk, and kills
the pod's whole process tree and removes its disk. At the end the run is finished and its root compared with that of a
run that was never touched. Pods are real sshd processes in pid namespaces of their own (tests/pods.py): needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import pods
from projects import Project

from remote_runner import risk, vault
from remote_runner.checkpoint import header
from remote_runner.stores import open_store
from remote_runner.vault import Place

EVERY_S = 2.0
LATEST = "artifacts/toy/toy-training.safetensors"


def pod_at(folder: Path, key_of: Path | None) -> pods.TestPod:
    folder.mkdir(parents=True)
    if key_of is not None:
        for name in ("id", "id.pub"):
            shutil.copy(key_of / name, folder / name)
    return pods.TestPod(folder).start()


def lose_one(
    project: Project, place: Place, folder: Path, config: str, gone: str, rng: random.Random
) -> dict[str, Any]:
    """One pod's life and death; what it lost."""
    before = {m["id"] for m in vault.manifests(place)}
    pod = pod_at(folder, None)
    resume = ["--resume", "--abandon", gone] if gone else []
    argv = project.on(pod, config, *resume, "--backup-every", f"{EVERY_S}s", "--give-up-after", "1s")
    with (folder / "controller.log").open("w") as log:
        controller = subprocess.Popen(
            argv, cwd=project.root, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
    status = pod.root / "runs/toy-status.json"

    def trains() -> bool:
        found = _json(status)
        return bool(found.get("progress")) or controller.poll() is not None

    pods.wait_for(trains, f"training on {pod.address}; see {folder}/controller.log", 120)
    began = _json(status).get("started_unix_s") or time.time()
    time.sleep(rng.uniform(0.0, 3 * EVERY_S))  # the moment is the point
    if controller.poll() is not None:
        raise SystemExit(f"the run ended by itself: {(folder / 'controller.log').read_text()[-2000:]}")
    found = _json(status)
    row = found.get("progress") or {}
    manifests = vault.manifests(place)
    two = [pod.root / LATEST, pod.root / LATEST.replace(".safetensors", ".previous.safetensors")]
    times = [p.stat().st_mtime for p in two if p.exists()]
    seen = {"status": found, "now_unix_s": time.time()}
    told = risk.measure(manifests, seen, EVERY_S, times[0] - times[1] if len(times) == 2 else None, time.time())
    pod.lose()
    killed = time.time()
    shutil.rmtree(pod.home)
    controller.wait(120)
    after = vault.manifests(place)
    mine = sorted((m for m in after if m["id"] not in before), key=lambda m: float(m["unix_s"]))
    last = max((float(m["unix_s"]) for m in after), default=0.0)
    damaged = [d for m in after for d in vault.damaged(place, m)]
    return {
        "address": f"127.0.0.1:{pod.port}",
        "exit_code": controller.returncode,
        "step": row.get("step"),
        "durable_step": after[-1]["newest"]["step"] if after and after[-1]["newest"] else 0,
        "lost_s": round(killed - max(last, began), 3),
        "bound_s": round(told.bound_s, 3) if told.bound_s is not None else None,
        "began_s": round(killed - began, 3),
        "copies": [[round(killed - float(m["unix_s"]), 3), m["took_s"]] for m in mine],
        "damaged": damaged,
    }


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def soak(rounds: int, seed: int, work: Path) -> dict[str, Any]:
    rng = random.Random(seed)
    os.environ["HOME"] = str(work)
    project = Project.create(work / "project")
    place = Place(store=open_store("backups", project.root), project="project", name="toy", keep=100)
    # long enough to outlive every round: some 5 intervals of training each
    values = {"steps": 300 * rounds, "log_every": 5, "size": 4096}
    straight = pod_at(work / "straight", None)
    done = project.run(project.on(straight, project.config("straight", **values)), timeout_s=3600)
    straight.lose()
    if done.returncode:
        raise SystemExit(done.stderr)
    expected = header.describe(project.root / LATEST.replace("toy/", "straight/"))["root"]
    config, gone, lives = project.config(step_s=0.04, **values), "", []
    for number in range(rounds):
        lives.append(lose_one(project, place, work / f"pod-{number}", config, gone, rng))
        gone = lives[-1]["address"]
        print(f"{number + 1}/{rounds}: {lives[-1]}", file=sys.stderr, flush=True)
    project.config(step_s=0, **values)
    last = pod_at(work / "last", None)
    try:
        done = project.run(project.on(last, config, "--resume", "--abandon", gone), timeout_s=3600)
    finally:
        last.lose()
    root = header.describe(project.root / LATEST)["root"] if done.returncode == 0 else done.stderr[-2000:]
    beyond = [one for one in lives if one["bound_s"] is not None and one["lost_s"] > one["bound_s"]]
    return {
        "rounds": rounds,
        "seed": seed,
        "same_root": root == expected,
        "beyond_the_bound": beyond,
        "damaged": [d for one in lives for d in one["damaged"]],
        "lost_s": sorted(one["lost_s"] for one in lives),
        "ended": done.returncode,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-backup-") as folder:
        found = soak(given.rounds, given.seed, Path(folder))
    print(json.dumps(found, indent=1))
    return 0 if found["same_root"] and not found["beyond_the_bound"] and not found["damaged"] else 1


if __name__ == "__main__":
    sys.exit(main())
