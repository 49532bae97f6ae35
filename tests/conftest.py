"""Fixtures: a real pod, a small project, and the command line as a user runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import pods
from projects import Project
from s3server import KEYS, S3Server

from remote_runner.stores import open_store
from remote_runner.vault import Place

# A shell that runs the tests in the background has SIGINT ignored, nohup SIGHUP; what they start would inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[pods.TestPod]:
    """A real OpenSSH server on 127.0.0.1 with throw-away keys and an empty disk."""
    with pods.running(tmp_path / "pod") as here:
        yield here


@pytest.fixture
def make_pod(tmp_path: Path) -> Iterator[Callable[..., pods.TestPod]]:
    """Further pods, with options of their own."""
    made: list[pods.TestPod] = []

    def make(name: str = "other", **given: object) -> pods.TestPod:
        made.append(pods.TestPod(tmp_path / name, **given))  # type: ignore[arg-type]
        return made[-1].start()

    yield make
    for one in made:
        one.lose()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project of a shell-sized trainer that keeps the workload contract, and a home folder of its own."""
    home = tmp_path / "user-home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return Project.create(tmp_path / "project")


@pytest.fixture
def sudoku(project: Project) -> Project:
    """A project with the MLX trainer in it."""
    project.add_sudoku()
    return project


@pytest.fixture(scope="session", autouse=True)
def _no_stray_agent() -> None:
    os.environ.pop("SSH_AUTH_SOCK", None)
    subprocess.run(["git", "--version"], check=True, capture_output=True)


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One object store for the tests of a process that only read and write; who kills or freezes one makes his own."""
    server = S3Server(tmp_path_factory.mktemp("s3")).start()
    yield server
    server.stop()


@pytest.fixture
def s3_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where a run lies, for tests that back it up from this disk."""
    (tmp_path / "pod/runs").mkdir(parents=True)
    return tmp_path / "pod"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(store=open_store("kept", tmp_path), project="project", name="run", keep=1000)


@pytest.fixture
def s3_place(s3: S3Server, s3_keys: None, tmp_path: Path) -> Place:
    return Place(store=open_store(s3.url(tmp_path.name), tmp_path), project="project", name="run", keep=1000)
