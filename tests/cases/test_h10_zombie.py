"""H10: a job that is dead and not yet reaped counts as ended, and the next start says that it died."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pods import NAMESPACED, TestPod, wait_for
from projects import Project

NEVER_WAITS = """
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-m", "ncm_mlx", "train", "configs/x.json"])
os.kill(child.pid, signal.SIGKILL)
state = ""
while state != "Z":
    time.sleep(0.02)
    state = open(f"/proc/{child.pid}/stat").read().rsplit(")", 1)[1].split()[0]
print(state, flush=True)
time.sleep(600)
"""


# the pod's first process, to which all orphans fall, does not wait for any of them either
REAPS_NOBODY = f"""exec {sys.executable} -c 'import subprocess, sys, time
subprocess.Popen(sys.argv[1:])
time.sleep(1e6)' "$@" """


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


@pytest.mark.skipif(not NAMESPACED, reason="needs root to enter the pod's pid namespace")
def test_zombies_do_not_hold_a_pod(project: Project, make_pod: Callable[..., TestPod]) -> None:
    pod = make_pod(before=REAPS_NOBODY)
    config = project.config(steps=100_000, step_s=0.05)
    assert project.run(project.on(pod, config, "--detach")).returncode == 0
    wait_for((pod.root / "artifacts/toy/toy-training.safetensors").exists, "the first snapshot")
    inside = ["nsenter", "-t", str(pod.pids()[0]), "-p", "-m"]
    keeps = subprocess.Popen([*inside, sys.executable, "-c", NEVER_WAITS], stdout=subprocess.PIPE)
    try:
        assert keeps.stdout is not None
        assert keeps.stdout.readline() == b"Z\n"
        waits = project.start(project.at("attach", pod, "toy"))
        wait_for((pod.root / ".remote-run/follower.json").exists, "somebody waits for the job's end")
        ours = [pid for pid, argv in pod.commands().items() if "keep" in argv or "supervise" in argv]
        for pid in ours:
            os.kill(pid, signal.SIGKILL)
        out, _ = waits.communicate(timeout=30)
        assert waits.returncode == 1, out
        assert project.report()["cause"] == "lost"
        assert {state(pid) for pid in ours} == {"Z"}
        seen = project.run(project.at("status", pod, "toy"))
        assert "supervisor is gone" in seen.stdout
        done = project.run(project.on(pod, config, "--resume", "--abandon", pod.address, "--detach"))
        assert done.returncode == 0, done.stderr
        assert "died without a final status: its supervisor was killed" in done.stderr
        assert keeps.poll() is None
        assert project.run(project.at("stop", pod, "toy")).returncode == 0
        rows = [json.loads(row) for row in (pod.root / "runs/toy-events.jsonl").open()]
        assert [row["what"] for row in rows if row["what"] == "no exit record"]
    finally:
        keeps.kill()
        keeps.wait()
