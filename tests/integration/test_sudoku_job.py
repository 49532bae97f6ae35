"""The main job with the real MLX trainer on a real sshd: however it is interrupted, it ends like one never touched."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from pods import TestPod, wait_for
from projects import Project, tiny

from remote_runner.checkpoint import header

STEPS = 60
GENERATOR = {"steps": STEPS}


def roots(folder: Path) -> dict[str, str]:
    """The root of each stage's last snapshot."""
    found = (header.describe(p) for p in folder.glob("*-training.safetensors"))
    return {str(head["stage"]): str(head["root"]) for head in found}


def run_straight(sudoku: Project, pod: TestPod) -> dict[str, str]:
    config = sudoku.root / "configs/sudoku-straight.json"
    config.write_text(tiny("sudoku-straight", generator=GENERATOR))
    done = sudoku.run(sudoku.on(pod, "configs/sudoku-straight.json"), timeout_s=200)
    assert done.returncode == 0, done.stderr + done.stdout
    return roots(sudoku.root / "artifacts/sudoku-straight")


def generator_step(pod: TestPod, name: str) -> int:
    path = pod.root / f"artifacts/{name}/generator-training.safetensors"
    return int(header.describe(path)["step"]) if path.exists() else 0


@pytest.mark.parametrize(("how", "code"), [(signal.SIGKILL, 1), (signal.SIGUSR1, 75)])
def test_killed_or_paused_in_the_generator_then_resumed(
    sudoku: Project, pod: TestPod, how: signal.Signals, code: int
) -> None:
    expected = run_straight(sudoku, pod)
    config = sudoku.root / "configs/sudoku-cut.json"
    config.write_text(tiny("sudoku-cut", generator=GENERATOR))
    controller = sudoku.start(sudoku.on(pod, "configs/sudoku-cut.json"))
    wait_for(lambda: 0 < generator_step(pod, "sudoku-cut") < STEPS, "the generator stage is under way")
    os.kill(pod.trainers()[0], how)
    out, _ = controller.communicate(timeout=60)
    assert controller.returncode == code, out
    assert header.describe(sudoku.root / "artifacts/sudoku-cut/generator-training.safetensors")["step"] < STEPS
    done = sudoku.run(sudoku.on(pod, "configs/sudoku-cut.json", "--resume"), timeout_s=200)
    assert done.returncode == 0, done.stderr + done.stdout
    assert set(expected) == {"codec", "generator"}
    assert roots(sudoku.root / "artifacts/sudoku-cut") == expected
    weights = [sudoku.root / f"artifacts/sudoku-{n}/generator.safetensors" for n in ("cut", "straight")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_the_controller_is_killed_and_the_deadline_fires_on_the_pod(sudoku: Project, pod: TestPod) -> None:
    config = sudoku.root / "configs/sudoku-long.json"
    config.write_text(tiny("sudoku-long", generator={"steps": 100_000}))
    argv = sudoku.on(pod, "configs/sudoku-long.json", "--max-hours", 0.005)
    controller = sudoku.start(argv)
    wait_for(lambda: generator_step(pod, "sudoku-long") > 0, "the generator stage is under way")
    controller.kill()
    controller.communicate()
    status = pod.root / "runs/sudoku-long-status.json"
    wait_for(lambda: json.loads(status.read_text())["exit"], "the pod ends it by itself", 40)
    done = sudoku.run(sudoku.at("attach", pod, "sudoku-long"))
    assert done.returncode == 75, done.stderr
    report = sudoku.report("sudoku-long")
    assert report["cause"] == "deadline"
    assert "full training state saved" in "\n".join(report["log_tail"])  # type: ignore[arg-type]
    here, there = (r / "artifacts/sudoku-long/generator-training.safetensors" for r in (sudoku.root, pod.root))
    assert header.verify_digests(here)["root"] == header.describe(there)["root"]
