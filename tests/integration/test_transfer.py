"""Transfers over a real sshd: several connections, what need not travel, what goes on where it broke off."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from pathlib import Path, PurePosixPath

import pytest
import transfer_peers as peers
from pods import TestPod, wait_for
from transfer_peers import NAME, OUTPUT

from remote_runner import openssh, transfer
from remote_runner.agent import Agent
from remote_runner.errors import NotStarted
from remote_runner.transfer import State, channels, engine

LARGE = f"{OUTPUT}/toy-training.safetensors"


def logins(pod: TestPod) -> int:
    return (pod.folder / "log").read_text().count("Accepted publickey")


def settle() -> None:
    """Let files become old enough for their digests to be remembered."""
    time.sleep(2.1)


def test_a_run_arrives_over_several_connections(pod: TestPod, tmp_path: Path) -> None:
    expected = peers.fill(pod.root / OUTPUT)
    told: list[State] = []
    with peers.agent_on(pod, tmp_path) as agent:
        arrived = peers.bring(agent, tmp_path / "here", progress=told.append)
    assert peers.tree(tmp_path / "here") == expected
    assert {one.path: one.sha256 for one in arrived} == expected
    assert logins(pod) > 2  # how many follows the measured round trip
    assert (told[-1].files, told[-1].moved_bytes) == (len(expected), told[-1].total_bytes)
    for path in expected:
        there, here = (pod.root / path).stat(), (tmp_path / "here" / path).stat()
        assert (there.st_mtime_ns, there.st_mode) == (here.st_mtime_ns, here.st_mode & ~0o600 | there.st_mode & 0o600)
    assert not list((tmp_path / "here/.remote-run/incoming").rglob("*.part"))


def test_little_travels_over_the_connection_that_is_there(pod: TestPod, tmp_path: Path) -> None:
    expected = peers.fill(pod.root / OUTPUT, large_mb=5)
    with peers.agent_on(pod, tmp_path) as agent:
        peers.bring(agent, tmp_path / "here")
        sent = transfer.send(agent, peers.items(tmp_path / "here"))
    assert peers.tree(tmp_path / "here") == expected
    assert {i.path: i.sha256 for i in sent} == expected
    assert logins(pod) == 1


def test_a_run_is_sent_and_its_digests_are_taken_on_the_way(pod: TestPod, tmp_path: Path) -> None:
    expected = peers.fill(tmp_path / "here" / OUTPUT)
    with peers.agent_on(pod, tmp_path) as agent:
        sent = transfer.send(agent, peers.items(tmp_path / "here", hashed=False))
    assert peers.tree(pod.root) == expected
    assert {i.path: i.sha256 for i in sent} == expected
    assert logins(pod) > 2  # how many follows the measured round trip
    assert not list((pod.root / ".remote-run/incoming").iterdir())


def test_what_is_there_already_does_not_travel(pod: TestPod, tmp_path: Path) -> None:
    expected = peers.fill(pod.root / OUTPUT)
    here = tmp_path / "here"
    with peers.agent_on(pod, tmp_path) as agent:
        peers.bring(agent, here)
        settle()
        assert peers.bring(agent, here) == []
        assert peers.bring(agent, here) == []
        moved: list[State] = []
        transfer.send(agent, peers.items(here), moved.append)
        assert moved == []
    assert peers.tree(here) == expected


def test_a_rotated_snapshot_is_linked(pod: TestPod, tmp_path: Path) -> None:
    peers.fill(pod.root / OUTPUT, small=2)
    here = tmp_path / "here"
    with peers.agent_on(pod, tmp_path) as agent:
        peers.bring(agent, here)
        latest = pod.root / LARGE
        latest.rename(latest.with_name("toy-training.previous.safetensors"))
        latest.write_bytes(os.urandom(1 << 20))
        inode = (here / LARGE).stat().st_ino
        assert [one.path for one in peers.bring(agent, here)] == [LARGE]
    assert peers.tree(here) == peers.tree(pod.root)
    assert (here / OUTPUT / "toy-training.previous.safetensors").stat().st_ino == inode


@pytest.mark.parametrize("size", [200_000, 9 << 20])
def test_a_log_travels_by_its_tail_and_a_new_one_whole(pod: TestPod, tmp_path: Path, size: int) -> None:
    log = pod.root / OUTPUT / "train.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(os.urandom(size))
    here = tmp_path / "here"
    moved: list[State] = []
    with peers.agent_on(pod, tmp_path) as agent:
        peers.bring(agent, here)
        with log.open("ab") as f:
            f.write(b"more\n" * 100)
        peers.bring(agent, here, progress=moved.append)
        assert moved[-1].moved_bytes == 500
        assert peers.tree(here) == peers.tree(pod.root)
        log.write_bytes(os.urandom(size + 1000))  # another log, and longer
        peers.bring(agent, here)
        assert peers.tree(here) == peers.tree(pod.root)
        with (here / OUTPUT / "train.log").open("ab") as f:
            f.write(b"more\n" * 200)
        transfer.send(agent, peers.items(here), moved.append)
        assert peers.tree(here) == peers.tree(pod.root)
        if size > 4 << 20:
            assert moved[-1].moved_bytes == 1000
        (here / OUTPUT / "train.log").write_bytes(os.urandom(size + 5000))
        transfer.send(agent, peers.items(here, hashed=False))
        assert peers.tree(here) == peers.tree(pod.root)


def broken_off(agent: Agent, here: Path, paths: list[str], limits: dict[str, int], at_bytes: int) -> None:
    """A fetch that is given up in its middle."""

    class GivenUp(Exception):
        pass

    def tell(state: State) -> None:
        if state.moved_bytes >= at_bytes:
            raise GivenUp

    with pytest.raises(GivenUp):
        list(transfer.fetch(agent, paths, here, limits, tell))


def test_a_broken_fetch_goes_on_where_it_was_and_reads_again_what_it_had(pod: TestPod, tmp_path: Path) -> None:
    content = os.urandom(96 << 20)
    (pod.root / OUTPUT).mkdir(parents=True)
    (pod.root / LARGE).write_bytes(content)
    incoming, limits = tmp_path / "incoming", {LARGE: len(content)}
    with peers.agent_on(pod, tmp_path) as agent:
        broken_off(agent, incoming, [LARGE], limits, 40 << 20)
        (part,) = incoming.glob("*.part")
        journal = part.with_suffix(".ranges").read_text().splitlines()
        proven = sum(json.loads(line)[1] for line in journal)
        assert proven > 0
        with part.open("r+b") as f:  # the disk here damages one range of the old part
            first = json.loads(journal[0])[0]
            f.seek(first + 5)
            f.write(bytes([content[first + 5] ^ 1]))
        told: list[State] = []
        (one,) = transfer.fetch(agent, [LARGE], incoming, limits, told.append)
        assert one.temp.read_bytes() == content
        assert told[-1].moved_bytes <= len(content) - proven + engine.RANGE_BYTES


def test_a_broken_fetch_never_mixes_versions(pod: TestPod, tmp_path: Path) -> None:
    (pod.root / OUTPUT).mkdir(parents=True)
    (pod.root / LARGE).write_bytes(os.urandom(64 << 20))
    incoming, limits = tmp_path / "incoming", {LARGE: 64 << 20}
    with peers.agent_on(pod, tmp_path) as agent:
        broken_off(agent, incoming, [LARGE], limits, 20 << 20)
        second = os.urandom(64 << 20)
        (pod.root / LARGE).write_bytes(second)
        (one,) = transfer.fetch(agent, [LARGE], incoming, limits)
        assert one.temp.read_bytes() == second


def test_files_that_are_rotated_while_they_travel_arrive_whole(pod: TestPod, tmp_path: Path) -> None:
    """Each file that arrives is one that stood there, whole, at some time."""
    folder = pod.root / OUTPUT
    folder.mkdir(parents=True)
    versions = [bytes([n]) * (24 << 20) for n in range(1, 6)]
    (pod.root / LARGE).write_bytes(versions[0])
    stop = threading.Event()

    def rotate() -> None:
        number = 0
        while not stop.wait(0.15):
            number += 1
            (folder / "new.tmp").write_bytes(versions[number % 5])
            os.link(pod.root / LARGE, folder / "previous.tmp")
            (folder / "previous.tmp").rename(folder / "toy-training.previous.safetensors")
            (folder / "new.tmp").rename(pod.root / LARGE)

    rotating = threading.Thread(target=rotate)
    rotating.start()
    try:
        with peers.agent_on(pod, tmp_path) as agent:
            for _ in range(4):
                for one in transfer.fetch(agent, [LARGE], tmp_path / "incoming", {LARGE: 24 << 20}):
                    assert one.temp.read_bytes() in versions
    finally:
        stop.set()
        rotating.join()


def test_a_file_that_changes_while_it_is_sent_is_refused(pod: TestPod, tmp_path: Path) -> None:
    here = tmp_path / "here"
    peers.fill(here / OUTPUT, small=1)
    with peers.agent_on(pod, tmp_path) as agent:
        items = peers.items(here)
        (here / LARGE).write_bytes(os.urandom(12 << 20))
        with pytest.raises(NotStarted, match="changed"):
            transfer.send(agent, items)
        assert not (pod.root / LARGE).exists()
        transfer.send(agent, peers.items(here))
    assert peers.tree(pod.root) == peers.tree(here)


def test_without_ssh_here_further_paramiko_connections_carry_the_bytes(
    pod: TestPod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openssh, "available", lambda: False)
    expected = peers.fill(pod.root / OUTPUT)
    with peers.agent_on(pod, tmp_path) as agent:
        peers.bring(agent, tmp_path / "here")
        shutil.rmtree(pod.root / "artifacts")
        transfer.send(agent, peers.items(tmp_path / "here", hashed=False))
    assert peers.tree(tmp_path / "here") == peers.tree(pod.root) == expected
    assert logins(pod) > 2


def test_a_server_that_lets_nobody_else_in_is_done_without(
    make_pod: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "TRIES", 1)
    pod = make_pod("alone", options=["MaxStartups 1:100:1"])  # type: ignore[operator]
    expected = peers.fill(pod.root / OUTPUT)
    with peers.agent_on(pod, tmp_path) as agent:
        authorized = pod.folder / "id.pub"
        authorized.rename(tmp_path / "moved.pub")  # no further login works
        peers.bring(agent, tmp_path / "here")
        shutil.rmtree(pod.root / "artifacts")
        transfer.send(agent, peers.items(tmp_path / "here", hashed=False))
    assert peers.tree(tmp_path / "here") == peers.tree(pod.root) == expected


def test_channels_stay_warm_for_what_follows(pod: TestPod, tmp_path: Path) -> None:
    expected = peers.fill(pod.root / OUTPUT)
    with peers.agent_on(pod, tmp_path) as agent, transfer.Channels.of(agent) as warm:
        for number in range(3):
            peers.bring(agent, tmp_path / f"here{number}", channels=warm)
            assert peers.tree(tmp_path / f"here{number}") == expected
        shutil.rmtree(pod.root / "artifacts")
        for _ in range(2):
            transfer.send(agent, peers.items(tmp_path / "here0", hashed=False), channels=warm)
        assert peers.tree(pod.root) == expected
        (pod.root / LARGE).unlink()  # a data connection that still knows the finished part must not write to it
        transfer.send(agent, peers.items(tmp_path / "here0", hashed=False), channels=warm)
        assert peers.tree(pod.root) == expected
    assert logins(pod) > 2  # how many follows the measured round trip
    wait_for(
        lambda: not [a for a in pod.commands().values() if "bulk" in " ".join(a)], "the data programs are gone", 10
    )


def test_channels_can_be_opened_ahead_to_a_known_pod_alone(pod: TestPod, tmp_path: Path) -> None:
    expected = peers.fill(pod.root / OUTPUT)
    where = peers.endpoint(pod, tmp_path)
    root = PurePosixPath(pod.root)
    with transfer.Channels.ahead(where, root):
        assert logins(pod) == 0  # its key is not known yet
    with peers.agent_on(pod, tmp_path):
        pass
    with transfer.Channels.ahead(where, root) as channels, peers.agent_on(pod, tmp_path) as agent:
        wait_for(lambda: logins(pod) == 4, "two data connections beside the two others")
        peers.bring(agent, tmp_path / "here", channels=channels)
    assert peers.tree(tmp_path / "here") == expected


def test_two_fetches_into_one_folder_do_not_meet(pod: TestPod, tmp_path: Path) -> None:
    expected = peers.fill(pod.root / OUTPUT, large_mb=30)
    incoming = tmp_path / "incoming"
    with peers.agent_on(pod, tmp_path) as one, peers.agent_on(pod, tmp_path) as two:
        found, _, _ = transfer.listing(one, [OUTPUT], [NAME])
        limits = {path: entry["size"] for path, entry in found.items()}
        first, second = (transfer.fetch(a, list(found), incoming, limits) for a in (one, two))
        got = [next(first), next(second), *first, *second]
    assert sorted(f.path for f in got) == sorted([*expected, *expected])
    assert len({f.temp for f in got}) == len(got)
