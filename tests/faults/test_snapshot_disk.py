"""Real small disks: full during a save, gone read-only, a TMPDIR of another file system."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from snapshots import STAGE, large
from trainer_runs import Root, await_, mark

from remote_runner.checkpoint import rotate, snapshot, writer

SAVED = 3_000_000
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
pytestmark = mark


@pytest.fixture
def disk(tmp_path):
    """A function that mounts a tmpfs of some size below tmp_path."""
    mounted = []

    def mount(name: str, size: str) -> Path:
        place = tmp_path / name
        place.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], check=True)
        mounted.append(place)
        return place

    yield mount
    for place in reversed(mounted):
        subprocess.run(["umount", "-l", place], check=True)


def fill(folder: Path, leave_bytes: int) -> Path:
    """Take all room but `leave_bytes` with a ballast file."""
    free = os.statvfs(folder)
    ballast = folder / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - leave_bytes)
    return ballast


@needs_root
def test_a_disk_that_fills_during_a_save_costs_that_save_alone(disk):
    folder, said = disk("artifacts", "10m"), []
    latest = rotate.latest_of(folder, STAGE)
    with writer.Writer(folder, say=said.append) as saver:
        for step in (1, 2):
            saver.submit(large(step, SAVED))
        saver.flush()
        before = {path: path.read_bytes() for path in (latest, rotate.previous_of(latest))}
        ballast = fill(folder, SAVED // 2)
        saver.submit(large(3, SAVED))
        with pytest.raises(writer.CannotSave):
            saver.flush()
        assert {path: path.read_bytes() for path in before} == before
        assert sorted(folder.iterdir()) == sorted([*before, ballast])
        assert snapshot.load_newest(folder, STAGE).snapshot.step == 2
        assert f"{latest}.tmp: No space left on device" in said[-1] and "bytes needed" in said[-1]
        ballast.unlink()
        saver.submit(large(4, SAVED))
        saver.flush()
    assert snapshot.load_newest(folder, STAGE).snapshot.step == 4
    assert snapshot.load(rotate.previous_of(latest)).step == 2


@needs_root
def test_a_disk_gone_read_only_is_named_and_nothing_changes(disk):
    folder = disk("artifacts", "10m")
    snapshot.save(folder, large(1, SAVED))
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    with pytest.raises(OSError, match="Read-only file system"):
        snapshot.save(folder, large(2, SAVED))
    assert snapshot.load_newest(folder, STAGE).snapshot.step == 1


@needs_root
def test_a_trainer_goes_on_over_a_full_disk_and_ends_as_if_it_had_not_been(disk, tmp_path):
    whole = Root(tmp_path / "whole")
    whole.must_train()
    for attempt in range(5):
        artifacts = disk(f"cut{attempt}/artifacts", "1m")
        root = Root(tmp_path / f"cut{attempt}")
        with root.started(strike="ncm_mlx.loop:_step:6:SIGSTOP") as trainer:
            await_(lambda t=trainer: "T (stopped)" in Path(f"/proc/{t.pid()}/status").read_text(), "the stop at step 6")
            ballast = fill(artifacts, 4096)
            trainer.send(signal.SIGCONT)
            trainer.until("No space left on device")
            ballast.unlink()
            ended = trainer.ended()
        if ended.code != 74:  # on a busy machine we may be slower than its patience: then it rightly gave up
            break
    assert ended.code == 0, ended.output
    assert root.roots() == whole.roots()


@needs_root
def test_a_trainer_on_a_disk_that_stays_full_ends_with_74_and_its_last_snapshot_whole(disk, tmp_path):
    artifacts = disk("run/artifacts", "1m")
    root = Root(tmp_path / "run")
    with root.started(strike="ncm_mlx.loop:_step:6:SIGSTOP") as trainer:
        await_(lambda: "T (stopped)" in Path(f"/proc/{trainer.pid()}/status").read_text(), "the stop at step 6")
        fill(artifacts, 4096)
        trainer.send(signal.SIGCONT)
        ended = trainer.ended()
    assert ended.code == 74 and "No space left on device" in ended.output and "Traceback" not in ended.output
    assert snapshot.load_newest(root.folder, STAGE).snapshot.step == 4
    assert not list(root.folder.glob("*.tmp"))


@needs_root
@pytest.mark.parametrize("kind", ["small", "missing"])
def test_a_bad_tmpdir_is_replaced_and_temps_lie_beside_their_targets(kind, disk, tmp_path):
    tmpdir = disk("tmpdir", "1m") if kind == "small" else tmp_path / "nowhere"
    root = Root(tmp_path / "run")
    ended = root.must_train(env={"TMPDIR": str(tmpdir)})
    assert f"TMPDIR {tmpdir}" in ended.output and ".remote-run/tmp" in ended.output
    assert kind == "missing" or list(tmpdir.iterdir()) == []


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_temp_and_target_share_a_folder_and_both_are_synced(tmp_path):
    """Watched at the system call: write the temp, fsync it, link, rename, rename, fsync the folder."""
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent.parent)!r})\n"
        "from snapshots import small\nfrom remote_runner.checkpoint import snapshot\n"
        f"for step in (1, 2): snapshot.save({str(tmp_path)!r}, small(step))\n"
    )
    trace = tmp_path / "trace"
    calls = "openat,link,linkat,rename,renameat,renameat2,fsync"
    watch = ["strace", "-f", "-y", "-o", str(trace), "-e", f"trace={calls}"]
    subprocess.run([*watch, sys.executable, "-c", code], check=True)
    lines = [line for line in trace.read_text().splitlines() if str(tmp_path) in line and "O_RDONLY" not in line]
    names = [
        (re.search(r"(\w+)\(", line)[1], *(Path(p).name for p in re.findall(r'["<](/[^">]*)[">]', line)))
        for line in lines
    ]
    last = names[-6:]
    temp, latest = "codec-training.safetensors.tmp", "codec-training.safetensors"
    previous, link = "codec-training.previous.safetensors", "codec-training.previous.tmp"
    assert [name[0].removesuffix("at") for name in last] == ["open", "fsync", "link", "rename", "rename", "fsync"]
    assert [name[1:] for name in last[1:5]] == [(temp,), (latest, link), (link, previous), (temp, latest)]
    assert last[5][1] == tmp_path.name
    assert {Path(p).parent for line in lines for p in re.findall(r'["](/[^"]*)["]', line)} == {tmp_path}
