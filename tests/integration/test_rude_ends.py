"""Interrupts, full disks and vanished folders: each ends with the code that is true, and nothing stays locked."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from pods import NAMESPACED, TestPod, wait_for
from projects import Project


def interrupt_at(project: Project, argv: list[str], word: str) -> tuple[int, str]:
    """Start a command and send SIGINT as soon as it has said a word; its code and all it said."""
    running = project.start(argv)
    assert running.stdout is not None
    said = ""
    for line in running.stdout:
        said += line
        if word in line:
            running.send_signal(signal.SIGINT)
            break
    said += running.communicate(timeout=60)[0]
    return running.returncode, said


def test_an_interrupt_before_the_launch_is_5_and_leaves_no_lock(project: Project, pod: TestPod) -> None:
    config = project.config(steps=100_000, step_s=0.05)
    code, said = interrupt_at(project, project.on(pod, config), "free")
    assert code == 5, said
    assert "interrupted before the launch" in said
    assert not pod.trainers("train.py")
    done = project.run(project.on(pod, project.config("second", steps=5)))
    assert done.returncode == 0, done.stderr


def test_an_interrupt_after_the_launch_is_130_and_the_run_goes_on(project: Project, pod: TestPod) -> None:
    config = project.config(steps=100_000, step_s=0.05)
    code, said = interrupt_at(project, project.on(pod, config), "started: supervisor")
    assert code == 130, said
    assert "the run goes on" in said
    status = project.run(project.at("status", pod, "toy", "--json"))
    assert json.loads(status.stdout)["supervisor_lives"]
    assert project.run(project.at("stop", pod, "toy")).returncode == 0


@pytest.mark.parametrize("store", ["/proc/nothing", "/dev/null"])
def test_a_store_that_takes_nothing_is_refused_before_anything_moves(
    project: Project, pod: TestPod, store: str
) -> None:
    config = project.config()
    assert project.run(project.on(pod, config)).returncode == 0
    done = project.run(project.on(pod, config, "--fresh", "--backup-to", store))
    assert done.returncode == 2, done.stderr
    assert store in done.stderr
    assert not list((project.root / "runs").glob("*interrupted*"))


def test_a_name_that_is_too_long_is_refused(project: Project, pod: TestPod) -> None:
    done = project.run(project.on(pod, project.config(), "--name", "x" * 300))
    assert done.returncode == 2, done.stderr
    assert "300 bytes" in done.stderr


def test_a_root_that_is_deleted_while_it_runs_is_said(project: Project, pod: TestPod) -> None:
    running = project.start(project.on(pod, project.config(steps=100_000, step_s=0.05)))
    wait_for((pod.root / "artifacts/toy/toy-training.safetensors").exists, "the first snapshot")
    while pod.root.exists():  # the trainer goes on writing into it
        shutil.rmtree(pod.root, ignore_errors=True)
    out, _ = running.communicate(timeout=90)
    assert running.returncode in (1, 6, 7, 8), out
    assert "do not trust this pod" not in out
    assert "internal" not in out


def full_project(project: Project, folder: Path) -> Project:
    """The project on a small disk of its own."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "none", folder], check=True)
    shutil.copytree(project.root, folder / "project", symlinks=True)
    return Project(folder / "project")


def test_a_full_disk_here_still_gives_the_report(project: Project, pod: TestPod, tmp_path: Path) -> None:
    if not NAMESPACED:
        pytest.skip("needs root for a small tmpfs")
    small = full_project(project, tmp_path / "small")
    try:
        more = small.config("more")
        running = small.start(small.on(pod, small.config(steps=100, step_s=0.05, size=100_000), "--json"))
        wait_for((pod.root / "artifacts/toy/toy-training.safetensors").exists, "the first snapshot")
        with pytest.raises(OSError), (small.root / ".git/ballast").open("wb", buffering=0) as ballast:
            while True:
                ballast.write(bytes(4096))
        out, _ = running.communicate(timeout=120)
        assert running.returncode == 7, out
        assert '"cause": "done"' in out
        assert "internal" not in out
        again = small.run(small.on(pod, more))
        assert again.returncode in (2, 5, 7, 8), again.stderr
        assert "internal" not in again.stderr
        (small.root / ".git/ballast").unlink()
        home = small.run(small.at("attach", pod, "toy"))
        assert home.returncode == 0, home.stderr
    finally:
        subprocess.run(["umount", "-l", tmp_path / "small"], check=True)
