"""H15: death by a signal is named, and told from an exit code that looks like one; everything comes home."""

from __future__ import annotations

import os
import signal

import pytest
from pods import TestPod, wait_for
from projects import Project

from remote_runner.checkpoint import header


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_signal_is_named(project: Project, pod: TestPod, number: signal.Signals) -> None:
    running = project.start(project.on(pod, project.config(steps=100_000, step_s=0.05)))
    wait_for((pod.root / "artifacts/toy/toy-training.safetensors").exists, "the first snapshot")
    os.kill(next(pid for pid, argv in pod.commands().items() if "train.py" in argv), number)
    out, _ = running.communicate(timeout=60)
    assert running.returncode == 1, out
    report = project.report()
    assert (report["cause"], report["workload_signal"], report["workload_code"]) == ("killed", number, None)
    assert f"signal {number.value}" in str(report["evidence"])
    assert ("out of memory?" in str(report["evidence"])) == (number == signal.SIGKILL)
    assert header.verify_digests(project.root / "artifacts/toy/toy-training.safetensors")["step"] >= 5
    assert (project.root / "runs/toy-train.log").exists()


def test_exit_code_137_is_no_signal(project: Project, pod: TestPod) -> None:
    done = project.run(project.on(pod, project.config(fail_at=12, fail_with=137)))
    assert done.returncode == 1, done.stderr
    report = project.report()
    assert (report["cause"], report["workload_signal"], report["workload_code"]) == ("failed", None, 137)
    assert header.verify_digests(project.root / "artifacts/toy/toy-training.safetensors")["step"] == 10
    assert "about to fail" in (project.root / "runs/toy-train.log").read_text()
