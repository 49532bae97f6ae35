"""H01: both output streams flood at once; every byte is read and accounted for, and the exit code arrives."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import transfer_peers as peers
from pods import TestPod

from remote_runner import ssh

BEHIND = "head -c 8000000 /dev/zero; head -c 8000000 /dev/zero >&2; exit 7"
BESIDE = "head -c 8000000 /dev/zero & head -c 8000000 /dev/zero >&2; wait; exit 7"


@pytest.mark.parametrize("command", [BEHIND, BESIDE], ids=["one after the other", "at the same time"])
def test_sixteen_megabytes_on_two_streams(pod: TestPod, tmp_path: Path, command: str) -> None:
    with ssh.connect(peers.endpoint(pod, tmp_path)) as connection:
        began = time.monotonic()
        done = connection.run(command, timeout_s=20)
        assert time.monotonic() - began < 20
    assert done.code == 7
    assert len(done.stdout) + len(done.stderr) + done.dropped_bytes == 16_000_000
    assert len(done.stdout) == 1 << 20
    assert 0 < len(done.stderr) < 1 << 20
