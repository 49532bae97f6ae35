"""H19: the controller's disk fills, or Ctrl-C is pressed, in the middle of a download; the next one finishes it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import transfer_peers as peers
from pods import TestPod, wait_for
from projects import Project

from remote_runner import transfer

LARGE = "artifacts/toy/toy-training.safetensors"
PARAMETERS = 3_000_000  # a snapshot of 12 MB


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.getuid() != 0:
        pytest.skip("needs root for a small tmpfs")
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_is_told_with_its_numbers_and_a_larger_one_gets_the_rest(
    project: Project, pod: TestPod, small_disk: Path
) -> None:
    made = project.run(project.on(pod, project.config(size=PARAMETERS, steps=5)))
    assert made.returncode == 0, made.stderr
    there = peers.tree(pod.root / "artifacts")
    other = Project.create(small_disk / "project")
    done = other.run(other.at("download", pod, "toy"))
    assert done.returncode not in (0, 70), done.stderr
    assert re.search(r"\d.* MB are to come.*, \d.* MB are free", done.stderr)
    assert str(other.root) in done.stderr
    assert not (other.root / LARGE).exists()
    assert peers.tree(pod.root / "artifacts") == there
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    done = other.run(other.at("download", pod, "toy"))
    assert done.returncode == 0, done.stderr
    assert peers.tree(other.root / "artifacts") == there
    (other.root / LARGE).write_bytes(bytes((other.root / LARGE).stat().st_size))  # the right size, the wrong content
    done = other.run(other.at("download", pod, "toy"))
    assert done.returncode == 0, done.stderr
    assert peers.tree(other.root / "artifacts") == there


def test_a_disk_that_fills_meanwhile_leaves_nothing_under_a_final_name(pod: TestPod, small_disk: Path) -> None:
    peers.fill(pod.root / "artifacts/toy", large_mb=10)
    with peers.agent_on(pod, small_disk) as agent:
        found, _, _ = transfer.listing(agent, ["artifacts/toy"], ["toy"])
        limits = {path: entry["size"] for path, entry in found.items()}
        with pytest.raises(OSError, match="No space left"), transfer.Placing(small_disk) as placing:
            for one in transfer.fetch(agent, [LARGE], small_disk / "incoming", limits):
                placing.place(one)
        assert not (small_disk / LARGE).exists()
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    with peers.agent_on(pod, small_disk) as agent, transfer.Placing(small_disk) as placing:
        for one in transfer.fetch(agent, [LARGE], small_disk / "incoming", limits):
            placing.place(one)
    assert (small_disk / LARGE).read_bytes() == (pod.root / LARGE).read_bytes()


def test_ctrl_c_in_the_middle_and_again(project: Project, pod: TestPod) -> None:
    made = project.run(project.on(pod, project.config(steps=5)))
    assert made.returncode == 0, made.stderr
    large = pod.root / "artifacts/toy/extra.bin"
    large.write_bytes(os.urandom(1 << 20) * 300)
    there = peers.tree(pod.root / "artifacts")
    incoming = project.root / ".remote-run/incoming/toy"
    for presses in (1, 2):
        controller = project.start(project.at("download", pod, "toy"))
        wait_for(lambda: any(p.stat().st_blocks > 1000 for p in incoming.glob("*.part")), "bytes arrive")
        for _ in range(presses):
            controller.send_signal(signal.SIGINT)
        out, _ = controller.communicate(timeout=20)
        assert controller.returncode not in (0, 1, 70), out
        assert "Traceback" not in out
        assert not (project.root / "artifacts/toy/extra.bin").exists()
    done = project.run(project.at("download", pod, "toy"))
    assert done.returncode == 0, done.stderr
    assert peers.tree(project.root / "artifacts") == there
