"""A checkpoint's file after a kill: always a whole old or a whole new one, with its digest beside it.

The saves run in forked processes with torch already imported, so that a hundred kills take seconds.
"""

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch

from remote_runner.checkpoint import torch as ckpt
from remote_runner.checkpoint.torch_publish import digest_of, digests_beside, previous_of

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["torch", "torch._dynamo", "remote_runner.checkpoint.torch"])
KILLS = 100
CALLS = ("open", "write", "preadv", "fsync", "link", "replace", "unlink")


def training(width=8):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Linear(width, width)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, width)).sum().backward()
    optimizer.step()
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 10)


def save(folder, step, parts=None, saver=ckpt.save_checkpoint):
    saver(folder / "x.pt", *(parts or training()), step, {"width": 8}, best=step == 2)


def save_and_die(folder, call):
    """Save step 3 and die as a lost pod does: at one system call, without cleanup. Exits 0 when there were fewer."""
    parts, calls = training(), [0]

    def or_die(real):
        def struck(*arguments, **options):
            calls[0] += 1
            if calls[0] - 1 == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return struck

    for name in CALLS:
        setattr(os, name, or_die(getattr(os, name)))
    save(Path(folder), 3, parts)


def save_for_ever(folder, first, asynchronous):
    parts = training(256)  # 0.8 MB with its moments
    saver = ckpt.AsyncSaver(Path(folder) / "x.pt")
    for step in range(first, first + 1_000_000):
        if asynchronous:
            saver.save(*parts, step, {"width": 256})
        else:
            save(Path(folder), step, parts)


def run(target, *arguments):
    process = processes.Process(target=target, args=arguments)
    process.start()
    process.join(timeout=60)
    return process.exitcode


def loaded(folder, width=8):
    """The step that a resume finds, after holding every named file to its digest."""
    for path in (folder / "x.pt", previous_of(folder / "x.pt"), folder / "x.best.pt"):
        if path.exists():
            assert digest_of(path) in digests_beside(path), path
            assert ckpt.verify_checkpoint(path)["sidecar"] == "matches"
    return ckpt.load_checkpoint(folder / "x.pt", *training(width))


def test_a_kill_at_each_system_call_leaves_whole_files_with_their_digests(tmp_path):
    call, steps = 0, []
    while True:
        folder = tmp_path / str(call)
        folder.mkdir()
        save(folder, 1)
        save(folder, 2)
        ended = run(save_and_die, str(folder), call)
        steps.append(loaded(folder))
        assert not list(folder.glob("*.corrupt-*"))
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
        save(folder, 4)  # what a dead save left behind is in nobody's way
        assert loaded(folder) == 4
        assert not list(folder.glob("*.tmp"))
        call += 1
    assert call > 20, "the calls of a save were not met"
    assert steps == sorted(steps)
    assert set(steps) == {2, 3}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_kills_at_random_moments_leave_a_whole_old_or_new_file(tmp_path, asynchronous):
    draw, step = random.Random(), 0
    for _ in range(KILLS // 2):
        process = processes.Process(target=save_for_ever, args=(str(tmp_path), step + 1, asynchronous))
        process.start()
        path = tmp_path / "x.pt"
        before = path.stat().st_ino if path.exists() else 0
        deadline = time.monotonic() + 60
        while not (path.exists() and path.stat().st_ino != before):  # this life has saved once
            assert process.is_alive(), "it died by itself"
            assert time.monotonic() < deadline
            process.join(0.002)
        process.join(draw.uniform(0, 0.05))
        process.kill()
        process.join()
        found = loaded(tmp_path, 256)
        assert found > step
        step = found
    assert not list(tmp_path.glob("*.corrupt-*"))
