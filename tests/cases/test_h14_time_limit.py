"""H14: the time limit reaches a trainer behind a shell script and ends the whole tree, controller or not."""

from __future__ import annotations

import json
import sys

import pytest
from pods import TestPod, wait_for
from projects import Project

LIMIT_S = 15

TRAIN = """
import os, signal, subprocess, sys, time
from pathlib import Path
asked = []
signal.signal(signal.SIGUSR1, lambda *_: asked.append(time.time()))
for own_session in (False, True):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=own_session)
Path("artifacts/toy").mkdir(parents=True, exist_ok=True)
print("training", flush=True)
while not asked:
    time.sleep(0.01)
print("asked at", asked[0], flush=True)
Path("artifacts/toy/last.txt").write_text("the state")
print("saved", flush=True)
time.sleep(5)
sys.exit(75)
"""


@pytest.mark.parametrize("controller_stays", [True, False])
def test_the_limit_ends_the_tree(project: Project, pod: TestPod, controller_stays: bool) -> None:
    (project.root / "inner.py").write_text(TRAIN)
    (project.root / "run.sh").write_text(f"{sys.executable} inner.py\n")
    (project.root / "remote-run.toml").write_text('[runs."*"]\ncommand = ["bash", "run.sh"]\npause = "contract"\n')
    running = project.start(project.on(pod, project.config(), "--max-hours", LIMIT_S / 3600))
    log = pod.root / "runs/toy-train.log"
    wait_for(lambda: log.exists() and "training" in log.read_text(), "the trainer")
    status_file = pod.root / "runs/toy-status.json"
    shown = json.loads(status_file.read_text())["deadline"]
    if not controller_stays:
        running.kill()
        running.communicate()
    wait_for(lambda: "saved" in log.read_text(), "the pause", 30)
    asked_at = float(log.read_text().split("asked at ")[1].split()[0])
    assert abs(asked_at - shown["pause_unix_s"]) < 3
    wait_for(lambda: json.loads(status_file.read_text())["exit"], "the end", 30)
    ended = json.loads(status_file.read_text())["exit"]
    assert ended["cause"] == "deadline"
    assert ended["ended_unix_s"] < shown["unix_s"] + 2
    wait_for(lambda: not [a for a in pod.commands().values() if "inner.py" in a or "import time; time.sleep(600)" in a],
             "nothing of the tree is left", 5)  # fmt: skip
    if controller_stays:
        out, _ = running.communicate(timeout=60)
        assert running.returncode == 75, out
    else:
        done = project.run(project.at("attach", pod, "toy"))
        assert done.returncode == 75, done.stderr
    assert project.report()["cause"] == "deadline"
    assert (project.root / "artifacts/toy/last.txt").read_text() == "the state"
    assert "saved" in (project.root / "runs/toy-train.log").read_text()
