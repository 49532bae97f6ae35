"""What goes wrong with a store or a disk: clear words, the right exit code, and nothing lost; then it works again."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pods import TestPod
from projects import Project
from s3server import Gate, S3Server

from remote_runner import vault
from remote_runner.stores import open_store
from remote_runner.vault import Place

LATEST = "artifacts/toy/toy-training.safetensors"
BYTES = 3_000_000
AWAY_S = float(os.environ.get("REMOTE_RUN_STORE_AWAY_S", "6"))


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3_keys: None) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def gate(s3: S3Server) -> Iterator[Gate]:
    made = Gate(s3)
    yield made
    made.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.getuid() != 0:
        pytest.skip("mounting a small disk needs root")
    (tmp_path / "small").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", tmp_path / "small"], check=True)
    yield tmp_path / "small"
    subprocess.run(["umount", "-l", tmp_path / "small"], check=True)


def trained(project: Project, pod: TestPod) -> None:
    """A run that is over, with a snapshot of 3 MB on the pod."""
    done = project.run(project.on(pod, project.config(size=BYTES // 4, steps=5)))
    assert done.returncode == 0, done.stderr


def refused(project: Project, argv: list[str], *words: str) -> None:
    """8 and one message with its fix, no secret, no traceback."""
    done = project.run(argv)
    assert done.returncode == 8, done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
    for never in ("SECRET-", "Traceback", "Signature="):
        assert never not in done.stderr


def whole(place: Place) -> int:
    """How many backups there are; each is whole."""
    found = vault.manifests(place)
    assert not any(vault.damaged(place, m) for m in found)
    return len(found)


def place_of(url: str, project: Project) -> Place:
    return Place(store=open_store(url, project.root), project="project", name="toy", keep=100)


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (400, "ExpiredToken", "its credentials are expired or wrong; renew them"),
        (403, "RequestTimeTooSkewed", "the clock of this machine is wrong by more than the store allows; set it"),
        (507, "InsufficientStorage", "507"),
    ],
)
def test_a_store_that_refuses(
    project: Project, pod: TestPod, s3: S3Server, gate: Gate, tmp_path: Path, status: int, code: str, words: str
) -> None:
    trained(project, pod)
    place = place_of(s3.url(tmp_path.name), project)
    argv = project.at("backup", pod, "toy", "--to", s3.url(tmp_path.name, gate.endpoint))
    assert project.run(argv).returncode == 0
    gate.error = (status, code)
    began_s = time.monotonic()
    refused(project, argv, words)
    assert time.monotonic() - began_s < 20, "what will not pass is not waited for"
    # the same at a start: nothing is sent, and the pod is not even asked
    done = project.run(project.on(pod, project.config("other"), "--backup-to", s3.url("x", gate.endpoint)))
    assert done.returncode == 2
    assert "can't be written" in done.stderr
    assert words in done.stderr
    gate.error = None
    assert project.run(argv).returncode == 0
    assert whole(place) == 2


def test_a_store_that_answers_503_for_a_while_is_waited_for(
    project: Project, pod: TestPod, s3: S3Server, gate: Gate, tmp_path: Path
) -> None:
    """Two minutes are its patience (stores/steady.py); here some seconds stand for the one, unless it is asked for."""
    trained(project, pod)
    gate.error = (503, "SlowDown")
    timer = threading.Timer(AWAY_S, lambda: setattr(gate, "error", None))
    timer.start()
    done = project.run(project.at("backup", pod, "toy", "--to", s3.url(tmp_path.name, gate.endpoint)))
    timer.join()
    assert done.returncode == 0, done.stderr
    assert whole(place_of(s3.url(tmp_path.name), project)) == 1


def test_a_full_store(project: Project, pod: TestPod, small_disk: Path) -> None:
    trained(project, pod)
    argv = project.at("backup", pod, "toy", "--to", small_disk / "kept")
    refused(project, argv, f"no space left in the store {small_disk}/kept", "needs 3.00 MB", "MB are free")
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    assert project.run(argv).returncode == 0
    assert whole(place_of(str(small_disk / "kept"), project)) == 1


def test_a_full_disk_here(project: Project, pod: TestPod, small_disk: Path, tmp_path: Path) -> None:
    trained(project, pod)
    place = place_of(str(tmp_path / "kept"), project)
    argv = project.at("backup", pod, "toy", "--to", tmp_path / "kept")
    incoming = project.root / ".remote-run/incoming"
    shutil.rmtree(incoming, ignore_errors=True)
    incoming.symlink_to(small_disk)
    refused(project, argv, "the disk here is full", "a backup needs", "MB are free")
    assert whole(place) == 0
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    assert project.run(argv).returncode == 0
    assert whole(place) == 1
