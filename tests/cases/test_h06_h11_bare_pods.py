"""Pods that have next to nothing: no sftp, dash for a shell, no tools but python3; and one without even that."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pods import NAMESPACED, TestPod
from projects import Project

from remote_runner.agent import _PYTHONS

ONLY = ("python3", "mkdir", "cat", "mv", "rm", "uname")


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A folder of links to all the commands that the pod has."""
    folder = tmp_path / "bare"
    folder.mkdir()
    for name in ONLY:
        real = os.path.realpath(sys.executable) if name == "python3" else shutil.which(name)
        (folder / name).symlink_to(str(real))
    (folder / "sh").symlink_to(shutil.which("dash") or "/bin/sh")
    return folder


def test_no_sftp_is_needed(project: Project, make_pod: Callable[..., TestPod]) -> None:
    pod = make_pod(options=["Subsystem none"])
    done = project.run(project.on(pod, project.config()))
    assert done.returncode == 0, done.stderr


def test_python3_and_a_posix_shell_are_enough(project: Project, make_pod: Callable[..., TestPod], bare: Path) -> None:
    dash = 'ForceCommand /bin/dash -c "$SSH_ORIGINAL_COMMAND"'
    pod = make_pod(setenv={"PATH": str(bare)}, options=[dash])
    done = project.run(project.on(pod, project.config()))
    assert done.returncode == 0, done.stderr
    assert project.report()["cause"] == "done"


def test_without_python3_preflight_names_it_and_nothing_changed(
    project: Project, make_pod: Callable[..., TestPod], bare: Path
) -> None:
    if not NAMESPACED:
        pytest.skip("needs root to hide this machine's pythons from the pod")
    (bare / "python3").unlink()
    hidden = [p for p in _PYTHONS if Path(p).exists()]
    hide = "\n".join(f"mount --bind /dev/null {os.path.realpath(p)}" for p in hidden)
    pod = make_pod(setenv={"PATH": str(bare)}, before=hide)
    done = project.run(project.on(pod, project.config()))
    assert done.returncode == 3
    assert "no python3" in done.stderr
    assert list(pod.home.iterdir()) == [pod.home / ".bashrc"]


def test_a_guard_that_cannot_look_refuses(project: Project, make_pod: Callable[..., TestPod]) -> None:
    if not NAMESPACED:
        pytest.skip("needs root to take /proc from the pod")
    pod = make_pod(before="mount -t tmpfs none /proc")
    done = project.run(project.on(pod, project.config(), python=False))
    assert done.returncode in (3, 4), done.stderr
    assert "/proc" in done.stderr
    assert not (pod.root / "train.py").exists()
