"""H12: of two controllers that start together exactly one gets the pod; the other names it and changes nothing."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path, PurePosixPath

from pods import TestPod, wait_for
from projects import Project

from remote_runner import ssh
from remote_runner import target as targets
from remote_runner.agent import Agent, Denied
from remote_runner.hostkeys import Policy

ROUNDS = 3


def test_two_commands_at_once(project: Project, pod: TestPod, tmp_path: Path) -> None:
    """Whole commands, from two projects (on one the local lock would decide)."""
    other = Project.create(tmp_path / "elsewhere" / "project")
    pair = (project, other)
    for number in range(ROUNDS):
        name = f"toy{number}"
        started = [one.start(one.on(pod, one.config(name, steps=30, step_s=0.05))) for one in pair]
        said = [process.communicate(timeout=120)[0] for process in started]
        codes = [process.returncode for process in started]
        assert sorted(codes) == [0, 4], said
        refused = said[codes.index(4)]
        assert "is held by" in refused
        assert f"for the run '{name}'" in refused
        assert not (pair[codes.index(4)].root / f"runs/{name}-run.json").exists()
        assert len(list(pod.root.glob(f"artifacts/{name}"))) == 1


def test_twenty_takes_at_once(pod: TestPod, tmp_path: Path) -> None:
    """The lock alone, released by a barrier: one holder each round, and the loser names him, not the one before."""
    policy = Policy(own_file=tmp_path / "known_hosts", pin="", accept_new=True)
    endpoint = ssh.resolve(targets.parse(pod.address), policy, None, pod.key)
    root = PurePosixPath(pod.home) / "root"
    barrier = threading.Barrier(2)
    outcome: dict[str, str] = {}

    def take(who: str) -> None:
        with ssh.connect(endpoint) as here:
            agent = Agent(here, root)
            lease = {"controller": who, "pid": 1, "name": who, "config": "", "attempt": who}
            barrier.wait(30)
            try:
                agent.ask("hold", match=["-m none train"], lease=lease)
                outcome[who] = ""
            except Denied as e:
                outcome[who] = str(e.facts["lease"]["controller"])
            barrier.wait(30)
            agent.close()

    for number in range(20):
        outcome.clear()
        names = [f"a{number}", f"b{number}"]
        threads = [threading.Thread(target=take, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        winner = next(name for name in names if outcome[name] == "")
        loser = next(name for name in names if name != winner)
        assert outcome[loser] == winner


def test_a_second_one_during_the_upload_is_refused(project: Project, pod: TestPod, tmp_path: Path) -> None:
    """The first is stopped in the middle: it holds the pod and has launched nothing."""
    (project.root / "big.bin").write_bytes(os.urandom(50_000_000))
    first = project.start(project.on(pod, project.config(), "--detach"))
    wait_for((pod.root / ".remote-run/lease.json").exists, "the lease")
    first.send_signal(signal.SIGSTOP)
    try:
        assert not (pod.root / "runs").exists(), "the test came too late to see an upload"
        other = Project.create(tmp_path / "elsewhere" / "project")
        began = time.monotonic()
        done = other.run(other.on(pod, other.config("late")))
        assert done.returncode == 4, done.stderr
        assert "is held by" in done.stderr
        assert time.monotonic() - began < 30
    finally:
        first.send_signal(signal.SIGCONT)
    out, _ = first.communicate(timeout=120)
    assert first.returncode == 0, out
    assert not list(pod.root.glob("*/late*"))
