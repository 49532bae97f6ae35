"""H33: a backup takes longer than its interval; the store freezes, comes back, and is gone at the end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pods import TestPod, wait_for
from projects import Project
from s3server import KEYS, Gate, S3Server

from remote_runner import vault
from remote_runner.checkpoint import header
from remote_runner.stores import open_store
from remote_runner.vault import Place


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3Server]:
    server = S3Server(tmp_path).start()
    yield server
    server.stop()


@pytest.fixture
def gate(s3: S3Server) -> Iterator[Gate]:
    made = Gate(s3)
    yield made
    made.close()


def test_slow_then_frozen_then_refusing(
    project: Project, pod: TestPod, s3: S3Server, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    place = Place(store=open_store(s3.url("kept"), project.root), project="project", name="toy", keep=100)
    config = project.config(steps=100_000, step_s=0.05)
    gate.delay_s = 1.5
    controller = project.start(
        project.on(pod, config, "--backup-to", s3.url("kept", gate.endpoint), "--backup-every", "1s")
    )
    made = lambda: len(vault.manifests(place))  # noqa: E731
    wait_for(lambda: made() >= 2, "two slow backups", 90)
    gate.open.clear()
    step = json.loads((pod.root / "runs/toy-status.json").read_text())["progress"]["step"]
    wait_for(
        lambda: json.loads((pod.root / "runs/toy-status.json").read_text())["progress"]["step"] > step + 40,
        "training goes on while the store is frozen",
    )
    before = made()
    gate.delay_s = 0.0
    gate.open.set()
    wait_for(lambda: made() > before, "a backup after the freeze", 60)
    gate.error = (403, "AccessDenied")
    assert project.run(project.at("stop", pod, "toy")).returncode == 0
    out, _ = controller.communicate(timeout=90)
    assert controller.returncode == 8, out
    assert "backup skipped: the one before is still under way" in out
    assert "does not keep up" in out
    assert "the last backup failed" in out
    assert "the last good one has step" in out
    assert "SECRET-" not in out
    assert not any(vault.damaged(place, m) for m in vault.manifests(place))
    # what is home is complete all the same
    home = header.verify_digests(project.root / "artifacts/toy/toy-training.safetensors")
    assert home["root"] == header.describe(pod.root / "artifacts/toy/toy-training.safetensors")["root"]
    report = project.report()
    assert (report["cause"], report["exit_code"]) == ("paused", 8)
