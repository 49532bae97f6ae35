"""One holder per root: the kernel's lock, the way out where a volume does not answer, the lease that names him."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote_runner.pod import lock


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / ".remote-run").mkdir()
    yield tmp_path
    for path in Path("/dev/shm").glob("remote-run-*"):
        if path.stat().st_ino in _made:
            path.unlink()


_made: set[int] = set()


def test_the_second_is_refused_until_the_first_is_gone(root: Path) -> None:
    fd = lock.acquire(str(root))
    with pytest.raises(lock.Held):
        lock.acquire(str(root))
    os.close(fd)
    os.close(lock.acquire(str(root)))


def test_it_ends_with_the_last_process_that_holds_it(root: Path) -> None:
    """Handed on as a descriptor; a holder that is killed holds nothing."""
    fd = lock.acquire(str(root))
    heir = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], pass_fds=(fd,))
    os.close(fd)
    with pytest.raises(lock.Held):
        lock.acquire(str(root))
    heir.kill()
    heir.wait()
    os.close(lock.acquire(str(root)))


@pytest.mark.parametrize("fault", ["silent", "without locks"])
def test_a_volume_without_an_answer_is_replaced_by_shared_memory(
    root: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """The same path gives the same lock there, whoever asks for it."""
    real = fcntl.flock

    def flock(fd: int, operation: int) -> None:
        if str(root) in str(Path(f"/proc/self/fd/{fd}").readlink()):
            if fault == "without locks":
                raise OSError(errno.ENOLCK, "No locks available")
            time.sleep(60)  # interrupted by the alarm
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(lock, "ANSWER_S", 1)
    fd = lock.acquire(str(root))
    _made.add(os.fstat(fd).st_ino)
    assert str(Path(f"/proc/self/fd/{fd}").readlink()).startswith("/dev/shm/remote-run-")
    with pytest.raises(lock.Held):
        lock.acquire(str(root / "." / ".remote-run" / ".."))
    os.close(fd)


def test_the_lease_is_the_living_holders(root: Path) -> None:
    """Between taking the lock and writing the lease there is a moment; who looks then waits for it."""
    dead = subprocess.Popen(["true"])
    dead.wait()
    old = {"controller": "the one before", "holder": {"pid": dead.pid, "start": "1"}}
    (root / ".remote-run/lease.json").write_text(json.dumps(old))
    late = threading.Timer(0.5, lock.write_lease, [str(root), {"controller": "the new one"}, os.getpid()])
    late.start()
    found = lock.holder(str(root))
    late.join()
    assert found is not None
    assert found["controller"] == "the new one"


def test_without_a_living_holder_the_last_lease_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "LEASE_WITHIN_S", 0.2)
    assert lock.holder(str(root)) is None
    (root / ".remote-run/lease.json").write_text('{"controller": "the one before", "holder": {"pid": 1, "start": "x"}}')
    found = lock.holder(str(root))
    assert found is not None
    assert found["controller"] == "the one before"
