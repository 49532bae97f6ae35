"""H23: on the pod HOME is missing, read-only or full; everything of a run lies under the workspace."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from pods import TestPod
from projects import Project

needs_mounts = pytest.mark.skipif(os.getuid() != 0, reason="mounting needs root")


def below(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*")}


def test_a_home_that_does_not_exist(project: Project, make_pod: Callable[..., TestPod], tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    pod = make_pod(setenv={"HOME": "/nonexistent"})
    done = project.run(project.on(pod, project.config(), "--remote-dir", workspace / "run"))
    assert done.returncode == 0, done.stderr
    assert not Path("/nonexistent").exists()
    assert {"runs/toy-status.json", "runs/toy-train.log", ".remote-run/supervisor.log"} <= below(workspace / "run")
    assert project.run(project.command("restore", "toy", "--to", tmp_path / "back")).returncode == 0


@needs_mounts
def test_a_home_that_can_not_be_written(project: Project, make_pod: Callable[..., TestPod], tmp_path: Path) -> None:
    home, workspace = tmp_path / "read-only", tmp_path / "workspace"
    home.mkdir()
    workspace.mkdir()
    (home / "kept").write_text("as it was")
    subprocess.run(["mount", "--bind", home, home], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", home], check=True)
        pod = make_pod(setenv={"HOME": str(home)})  # its mounts are those of its start
        done = project.run(project.on(pod, project.config(), "--remote-dir", workspace / "run"))
        assert done.returncode == 0, done.stderr
        assert below(home) == {"kept"}
        refused = project.run(project.on(pod, project.config("second"), "--remote-dir", home / "run"))
        assert refused.returncode == 3
        assert f"{home} can't be written" in refused.stderr
        assert below(home) == {"kept"}
    finally:
        subprocess.run(["umount", home], check=True)


@needs_mounts
def test_a_home_that_is_full(project: Project, make_pod: Callable[..., TestPod], tmp_path: Path) -> None:
    home, workspace = tmp_path / "tiny", tmp_path / "workspace"
    home.mkdir()
    workspace.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", home], check=True)
    try:
        pod = make_pod(setenv={"HOME": str(home)})
        (home / "kept").write_bytes(bytes(12_000))
        done = project.run(project.on(pod, project.config(), "--remote-dir", workspace / "run"))
        assert done.returncode == 0, done.stderr
        assert below(home) == {"kept"}
    finally:
        subprocess.run(["umount", "-l", home], check=True)
