"""Before every recovery what stands in a run's places is kept aside, on both machines, with the source's SHA-256."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
from pods import TestPod, wait_for
from projects import Project

from remote_runner.checkpoint import header
from remote_runner.pod import preserve

SNAPSHOT = "artifacts/toy/toy-training.safetensors"
STEPS = 200


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def events(project: Project, what: str) -> list[dict[str, Any]]:
    rows = [json.loads(row) for row in (project.root / "runs/toy-controller.jsonl").open()]
    return [row for row in rows if row["what"] == what]


def paused(project: Project, pod: TestPod) -> str:
    """A run of the toy trainer, paused and at home."""
    config = project.config(steps=STEPS, step_s=0.2)  # long enough to be met under any load
    process = project.start(project.on(pod, config, "--on-interrupt", "pause"))
    wait_for((pod.root / SNAPSHOT).exists, "the first snapshot")
    assert project.run(project.at("pause", pod, "toy", "--no-wait")).returncode == 0
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 75, out
    assert "resumable: --resume goes on from toy step" in out
    return project.config(steps=STEPS)  # and then the rest at once: the pace is no part of its identity


def test_the_state_that_is_gone_on_from_stays(project: Project, pod: TestPod) -> None:
    """The pod's state wins: links there and here keep it while the run goes on over it."""
    config = paused(project, pod)
    before = sha256(pod.root / SNAPSHOT)
    log = (pod.root / "runs/toy-train.log").read_bytes()
    done = project.run(project.on(pod, config, "--resume"))
    assert done.returncode == 0, done.stderr
    assert header.describe(pod.root / SNAPSHOT)["step"] == STEPS
    for root in (pod.root, project.root):
        (kept,) = (root / "artifacts").glob("toy-interrupted-*")
        assert sha256(kept / "toy-training.safetensors") == before
        (own,) = (root / "runs").glob("toy-interrupted-*")
        assert (own / "toy-train.log").read_bytes() == log  # a copy: the log itself goes on
    assert events(project, "preserved")[0]["sha256"][SNAPSHOT] == before
    assert events(project, "resuming")[0]["source_sha256"] == {SNAPSHOT: before}
    report: dict[str, Any] = project.report()
    told = report["interruption"]
    assert (told["source_sha256"], told["recovery_mode"]) == ({SNAPSHOT: before}, "full state")
    assert told["recovered_from"].startswith("pod: toy step")
    assert told["steps_lost"] == told["steps_repeated"] == 0
    assert [e["cause"] for e in events(project, "interruption")] == ["paused", "done"]


def test_it_can_be_left_out_when_asked_for(project: Project, pod: TestPod) -> None:
    config = paused(project, pod)
    done = project.run(project.on(pod, config, "--resume", "--no-preserve"))
    assert done.returncode == 0, done.stderr
    for root in (pod.root, project.root):
        assert not list(root.glob("*/toy-interrupted-*"))


@pytest.mark.parametrize("move", [False, True])
def test_no_second_one_is_written_over_the_first(tmp_path: Path, move: bool) -> None:
    """Two in one second: the later takes the next, since a copy over a link would reach the live file."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    (tmp_path / "artifacts/x").mkdir(parents=True)
    for content in ("one", "two"):
        (tmp_path / "artifacts/x").mkdir(exist_ok=True)
        (tmp_path / "artifacts/x/model.part-new").write_text(content)
        (tmp_path / "artifacts/x/model.part-new").rename(tmp_path / "artifacts/x/model")
        made = preserve.preserve(str(tmp_path), ["artifacts/x"], "x", stamp, move=move)
        assert len(made) == 1
    kept = sorted((tmp_path / "artifacts").glob("x-interrupted-*"))
    assert [(k / "model").read_text() for k in kept] == ["one", "two"]
    assert kept[0].name == f"x-interrupted-{stamp}"
