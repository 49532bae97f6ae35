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
