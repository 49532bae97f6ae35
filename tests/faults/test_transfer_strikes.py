"""Whatever strikes a transfer, and whenever: nothing wrong under a final name, a clear end, and the next call finishes.

The moments are random, from a seed that is shown; scripts/soak_transfer.py strikes many more, over a long link.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import relay
import transfer_peers as peers
from pods import TestPod
from transfer_peers import OUTPUT

MOVE = Path(__file__).parents[1] / "transfer_move.py"
LARGE_MB, BYTES_S = 24, 20e6
CODES = {3, 5, 6, 7}  # of the design: not in contact, not uploaded, link lost, not verified


class Mover:
    """One transfer in its own process."""

    def __init__(self, pod: TestPod, port: int, way: str, here: Path, there: Path, **more: Any) -> None:
        spec = {
            "port": port,
            "user": pod.address.partition("@")[0] if "@" in pod.address else os.environ.get("USER", "root"),
            "known_hosts": here.parent / "known_hosts",
            "key": pod.key,
            "here": here,
            "there": there,
            "way": way,
            **more,
        }
        self.moved = 0
        self.process = subprocess.Popen(
            [sys.executable, MOVE, json.dumps(spec, default=str)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.moved = int(line.split()[1])

    def wait_until(self, moved_bytes: int) -> None:
        while self.moved < moved_bytes and self.process.poll() is None:
            time.sleep(0.01)

    def end(self, timeout_s: float = 120) -> tuple[int, str]:
        code = self.process.wait(timeout_s)
        assert self.process.stderr is not None
        return code, self.process.stderr.read()


def kill_controller(mover: Mover, pod: TestPod) -> None:
    mover.process.kill()


def kill_sessions(mover: Mover, pod: TestPod) -> None:
    for pid, argv in pod.commands().items():
        if argv[0].startswith("sshd:") and "[listener]" not in argv[0]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def kill_programs(mover: Mover, pod: TestPod) -> None:
    for pid, argv in pod.commands().items():
        if "python" in argv[0] and str(pod.root) in argv:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def ends(pod: TestPod, tmp_path: Path) -> dict[str, Path]:
    here = tmp_path / "controller" / "here"
    here.mkdir(parents=True)
    pod.root.mkdir(parents=True)
    return {"here": here, "there": pod.root}


@pytest.fixture
def way_in(pod: TestPod) -> Iterator[relay.Relay]:
    with relay.to(pod.port, bytes_s=BYTES_S) as slow:
        yield slow


def nothing_wrong(source: Path, target: Path) -> None:
    expected = peers.tree(source)
    for path, sha256 in peers.tree(target).items():
        if not path.endswith(".part"):
            assert expected[path] == sha256, f"{path} has wrong bytes under its final name"


def finish(pod: TestPod, port: int, way: str, ends: dict[str, Path], source: Path, target: Path) -> None:
    code, said = Mover(pod, port, way, **ends).end()
    assert code == 0, said
    assert {p: s for p, s in peers.tree(target).items() if not p.endswith(".part")} == peers.tree(source)


@pytest.mark.parametrize("way", ["down", "up"])
@pytest.mark.parametrize("strike", [kill_controller, kill_sessions, kill_programs])
def test_a_killed_end(
    pod: TestPod,
    ends: dict[str, Path],
    way_in: relay.Relay,
    way: str,
    strike: Callable[[Mover, TestPod], None],
) -> None:
    source, target = (ends["there"], ends["here"]) if way == "down" else (ends["here"], ends["there"])
    peers.fill(source / OUTPUT, large_mb=LARGE_MB)
    seed = random.randrange(1 << 30)
    print("seed", seed)
    mover = Mover(pod, way_in.port, way, **ends)
    mover.wait_until(random.Random(seed).randrange(LARGE_MB << 20))
    strike(mover, pod)
    code, said = mover.end()
    nothing_wrong(source, target)
    if strike is not kill_controller:
        assert code in {0, *CODES}, said
        assert "Traceback" not in said
    finish(pod, way_in.port, way, ends, source, target)


@pytest.mark.parametrize("way", ["down", "up"])
def test_a_link_that_is_silent_for_a_moment(pod: TestPod, ends: dict[str, Path], way_in: relay.Relay, way: str) -> None:
    source, target = (ends["there"], ends["here"]) if way == "down" else (ends["here"], ends["there"])
    peers.fill(source / OUTPUT, large_mb=LARGE_MB)
    mover = Mover(pod, way_in.port, way, **ends)
    mover.wait_until(random.randrange(LARGE_MB << 20))
    way_in.freeze()
    threading.Timer(2, way_in.thaw).start()
    code, said = mover.end()
    assert code == 0, said
    assert peers.tree(target) == peers.tree(source)


@pytest.mark.parametrize("way", ["down", "up"])
def test_a_byte_flipped_by_the_program_on_the_pod(pod: TestPod, ends: dict[str, Path], way: str) -> None:
    source, target = (ends["there"], ends["here"]) if way == "down" else (ends["here"], ends["there"])
    peers.fill(source / OUTPUT, large_mb=LARGE_MB)
    code, said = Mover(pod, pod.port, way, flip=True, **ends).end()
    assert code == (7 if way == "down" else 5), said
    assert "arrived as" in said
    nothing_wrong(source, target)
    finish(pod, pod.port, way, ends, source, target)


@pytest.mark.parametrize("way", ["down", "up"])
def test_a_disk_that_fills(pod: TestPod, ends: dict[str, Path], way: str) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root for a small tmpfs")
    source, target = (ends["there"], ends["here"]) if way == "down" else (ends["here"], ends["there"])
    peers.fill(source / OUTPUT, large_mb=LARGE_MB)
    server = str(pod.pids()[0])  # the pod sees mounts of its own
    enter = ["nsenter", "-t", server, "-m", "-p", "--"] if way == "up" else []
    subprocess.run([*enter, "mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", target], check=True)
    try:
        code, said = Mover(pod, pod.port, way, **ends).end()
        assert code in CODES, said
        assert "free" in said or "No space left" in said
        subprocess.run([*enter, "mount", "-o", "remount,size=200m", target], check=True)
        code, said = Mover(pod, pod.port, way, **ends).end()
        assert code == 0, said
        here = Path(f"/proc/{server}/root{target}") if way == "up" else target
        assert peers.tree(here) == peers.tree(source)
    finally:
        subprocess.run([*enter, "umount", "-l", target], check=True)
