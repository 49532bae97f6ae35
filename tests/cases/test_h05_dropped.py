"""H05: dropped at the door: a booting pod, a server that lets one in at a time, a port where nothing listens."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import relay
import transfer_peers as peers
from pods import TestPod, free_port, wait_for
from projects import Project

from remote_runner import program, ssh
from remote_runner.errors import PreflightFailed


def test_a_booting_pod_is_waited_for_with_growing_pauses(pod: TestPod, tmp_path: Path) -> None:
    told: list[tuple[float, str]] = []
    with relay.to(pod.port, close_first=3) as way:
        began = time.monotonic()
        with ssh.connect(
            peers.endpoint(pod, tmp_path, way.port), lambda text: told.append((time.monotonic(), text))
        ) as connection:
            assert time.monotonic() - began < 60
            assert connection.run("echo in").stdout == b"in\n"
        assert way.accepted == 4
    assert len(told) == 3
    assert all("closed the connection before the login" in text for _, text in told)


@pytest.mark.parametrize("after_bytes", [10, 1000, 1300, *range(1620, 1800, 15)])
def test_a_server_that_goes_during_the_login_is_no_refusal(pod: TestPod, tmp_path: Path, after_bytes: int) -> None:
    """Cut anywhere between its banner and the word that the key is good: tried again, never called a wrong key."""
    with relay.to(pod.port, cut_first_after=after_bytes) as way:
        where = peers.endpoint(pod, tmp_path, way.port)
        with ssh.connect(where) as connection:
            assert connection.host_key().startswith("SHA256:")
        assert way.accepted <= 2


@pytest.mark.parametrize("after_bytes", [2500, 3000])
def test_a_connection_lost_after_the_login_is_not_a_program_that_said_nothing(
    pod: TestPod, tmp_path: Path, after_bytes: int
) -> None:
    with relay.to(pod.port, cut_first_after=after_bytes) as way:
        connection = ssh.connect(peers.endpoint(pod, tmp_path, way.port))
        with connection, pytest.raises(program.LinkLost):
            connection.run("head -c 4000 /dev/zero; sleep 60")


def open_sockets(port: int) -> list[str]:
    done = subprocess.run(["ss", "-tnp", f"dport = :{port}"], capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines()[1:] if f"pid={os.getpid()}," in line]


def test_a_refused_host_key_leaves_no_socket(make_pod: Callable[..., TestPod], tmp_path: Path) -> None:
    pod = make_pod(options=["MaxStartups 1:100:1"])
    where = peers.endpoint(pod, tmp_path)
    other = (pod.folder / "id.pub").read_text().split()[1]
    where.policy.own_file.write_text(f"[127.0.0.1]:{pod.port} ssh-ed25519 {other}\n")
    time.sleep(0.3)  # the login of the test pod's own readiness check is over
    with pytest.raises(PreflightFailed, match="host key"):
        ssh.connect(where)
    wait_for(lambda: not open_sockets(pod.port), "no socket is left", 1)
    where.policy.own_file.unlink()
    with ssh.connect(where) as connection:
        assert connection.run("echo in").stdout == b"in\n"


def test_a_whole_run_works_where_one_login_at_a_time_is_let_in(
    project: Project, make_pod: Callable[..., TestPod]
) -> None:
    pod = make_pod(options=["MaxStartups 1:100:1"])
    done = project.run(project.on(pod, project.config(steps=10, size=4_000_000, log_every=10)))
    assert done.returncode == 0, done.stderr
    arrived = project.root / "artifacts/toy/toy-training.safetensors"
    assert arrived.stat().st_size > 16_000_000
    assert arrived.read_bytes() == (pod.root / "artifacts/toy/toy-training.safetensors").read_bytes()


def test_from_preflight_to_launch_one_connection(project: Project, pod: TestPod) -> None:
    done = project.run(project.on(pod, project.config(steps=1000, step_s=0.1), "--detach"))
    assert done.returncode == 0, done.stderr
    assert (pod.folder / "log").read_text().count("Accepted publickey") == 1
    assert project.run(project.at("stop", pod, "toy")).returncode == 0


def test_a_port_where_nothing_listens(project: Project, pod: TestPod) -> None:
    nowhere = free_port()
    argv = project.on(pod, project.config())
    argv[argv.index(pod.address)] = f"127.0.0.1:{nowhere}"
    began = time.monotonic()
    done = project.run(argv)
    assert time.monotonic() - began < 20
    assert done.returncode == 3
    assert re.search(rf"refused 127\.0\.0\.1:{nowhere}\b", done.stderr)
    assert "Traceback" not in done.stderr
