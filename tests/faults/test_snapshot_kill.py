"""Die or fail at every system call of a save: what is left is always a whole snapshot, and the next save works."""

from __future__ import annotations

import errno
import itertools
import multiprocessing
import os
import signal

import pytest
from snapshots import STAGE, small

from remote_runner.checkpoint import rotate, snapshot

CALLS = ("open", "lseek", "write", "pread", "fsync", "link", "replace", "unlink", "close")
spawn = multiprocessing.get_context("fork")


def counted(at, strike):
    """Replace the calls in `os`, so that the `at`-th of all of them is struck; returns the count so far."""
    count = itertools.count()
    real = {name: getattr(os, name) for name in CALLS}

    def struck(name):
        def call(*args, **named):
            if next(count) == at:
                strike(name)
            return real[name](*args, **named)

        return call

    for name in CALLS:
        setattr(os, name, struck(name))
    return count, lambda: [setattr(os, name, call) for name, call in real.items()]


def save_and_die(folder, at):
    """Save step 3 and die as a lost pod does: at one call, without clean-up."""
    counted(at, lambda _: os.kill(os.getpid(), signal.SIGKILL))
    snapshot.save(folder, small(3))


def calls_of_a_save(folder):
    for step in (1, 2):
        snapshot.save(folder, small(step))
    count, undo = counted(-1, None)
    snapshot.save(folder, small(3))
    undo()
    return next(count)


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    return calls_of_a_save(tmp_path_factory.mktemp("count"))


def before(tmp_path):
    for step in (1, 2):
        snapshot.save(tmp_path, small(step))


def test_a_kill_at_any_call_leaves_a_whole_snapshot(calls, tmp_path_factory):
    seen = set()
    for at in range(calls):
        folder = tmp_path_factory.mktemp("kill")
        before(folder)
        child = spawn.Process(target=save_and_die, args=(folder, at))
        child.start()
        child.join(30)
        assert child.exitcode == -signal.SIGKILL, f"call {at} of {calls}"
        step = snapshot.load_newest(folder, STAGE).snapshot.step
        assert step in (2, 3)
        seen.add(step)
        snapshot.save(folder, small(4))
        latest = rotate.latest_of(folder, STAGE)
        assert snapshot.load(latest).step == 4 and snapshot.load(rotate.previous_of(latest)).step == step
        assert not list(folder.glob("*.tmp"))
    assert seen == {2, 3} and calls > 15


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EROFS], ids=["EIO", "ENOSPC", "EROFS"])
def test_an_error_at_any_call_leaves_whole_files_and_no_temp(code, calls, tmp_path_factory):
    def strike(name):
        raise OSError(code, os.strerror(code))

    failed = 0
    for at in range(calls):
        folder = tmp_path_factory.mktemp("error")
        before(folder)
        latest = rotate.latest_of(folder, STAGE)
        _, undo = counted(at, strike)
        try:
            snapshot.save(folder, small(3))
        except OSError as wrong:
            assert wrong.errno == code
            failed += 1
        finally:
            undo()
        assert not list(folder.glob("*.safetensors.tmp")), f"call {at}"
        assert snapshot.load(rotate.previous_of(latest)).step in (1, 2)
        assert snapshot.load_newest(folder, STAGE).snapshot.step in (2, 3)
        snapshot.save(folder, small(4))
        assert snapshot.load(latest).step == 4 and not list(folder.glob("*.tmp"))
    assert failed > calls // 2
