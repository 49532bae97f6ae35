"""The ways to a run are cut: a terminal closed, a user logged out, the SSH server killed. The run goes on each time."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import terminals
from pods import NAMESPACED, SSHD, TestPod, wait_for
from projects import Project

SNAPSHOT = "artifacts/toy/toy-training.safetensors"
LONG = {"steps": 100_000, "step_s": 0.05}


def status(root: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((root / "runs/toy-status.json").read_text())
    return found


def goes_on(root: Path) -> None:
    beat = status(root)["beat_unix_s"]
    wait_for(lambda: status(root)["beat_unix_s"] != beat, "another beat", 15)
    assert status(root)["state"] == "running"


@pytest.mark.parametrize("how", ["close", "log_out"])
def test_a_terminal_that_goes_takes_the_controller_alone(project: Project, pod: TestPod, how: str) -> None:
    with terminals.opened(project.root) as terminal:
        terminal.type(shlex.join(project.on(pod, project.config(**LONG))))
        wait_for((pod.root / SNAPSHOT).exists, "the first snapshot")
        wait_for((pod.root / ".remote-run/follower.json").exists, "a follower")
        getattr(terminal, how)()
    wait_for(lambda: not (pod.root / ".remote-run/follower.json").exists(), "the controller is gone", 20)
    goes_on(pod.root)
    again = project.start(project.at("attach", pod, "toy"))
    wait_for((pod.root / ".remote-run/follower.json").exists, "the follower", 20)
    assert project.run(project.at("pause", pod, "toy")).returncode == 0
    out, _ = again.communicate(timeout=60)
    assert again.returncode == 75, out


@pytest.mark.skipif(not NAMESPACED, reason="needs root: a pid namespace is the pod")
def test_the_server_killed_and_started_again(project: Project, make_pod: Callable[..., TestPod]) -> None:
    """Not its sessions alone: the listener too, so that for a while nothing answers; then it comes back."""
    pod = make_pod(before='"$@" & while :; do sleep 1000; done')  # the pod's first process is not its server
    config = project.config(steps=150, step_s=0.1)
    controller = project.start(project.on(pod, config))
    wait_for((pod.root / SNAPSHOT).exists, "the first snapshot")
    wait_for((pod.root / ".remote-run/follower.json").exists, "the follower")
    inside = ["nsenter", "-t", str(pod.pids()[0]), "-p", "-m"]
    for pid, argv in pod.commands().items():
        if Path(argv[0]).name.startswith("sshd"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not pod.listens(), "nothing answers")
    goes_on(pod.root)
    server = subprocess.Popen([*inside, SSHD, "-D", "-e", "-f", str(pod.folder / "sshd_config")], stderr=sys.stdout)
    try:
        out, _ = controller.communicate(timeout=120)
        assert controller.returncode == 0, out
        assert "lost contact" in out
        assert "in contact with" in out
        assert (pod.root / "runs/toy-train.log").read_text().count("segment") == 1
    finally:
        server.kill()
        server.wait()
