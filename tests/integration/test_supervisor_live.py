"""Coming back to a run: what became of it is told apart, each time with the one command to type."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pods import NAMESPACED, TestPod, keygen, wait_for
from projects import Project

from remote_runner import deadline_test, plan
from remote_runner.access import Access
from remote_runner.checkpoint import header

LONG = {"steps": 100_000, "step_s": 0.05}


def started(project: Project, pod: TestPod, *words: object, **values: object) -> str:
    config = project.config(**{**LONG, **values})
    done = project.run(project.on(pod, config, "--detach", *words))
    assert done.returncode == 0, done.stderr
    wait_for((pod.root / "artifacts/toy/toy-training.safetensors").exists, "the first snapshot")
    return config


def kill(pod: TestPod, *words: str) -> None:
    for pid, argv in pod.commands().items():
        if set(words) & set(argv):
            os.kill(pid, signal.SIGKILL)


def test_running_and_ended_by_name_alone(project: Project, pod: TestPod) -> None:
    """The project remembers where its run is: no address needs to be typed."""
    started(project, pod, "--max-cost", "1", "--price", "2")
    access = ["--identity", pod.key]
    seen = project.run(project.command("status", "toy", *access))
    assert seen.returncode == 0, seen.stderr
    assert "toy: running" in seen.stdout
    assert "--max-cost 1 at 2 an hour" in seen.stdout
    assert "follow it: remote-run attach" in seen.stdout
    told = json.loads(project.run(project.command("status", "toy", "--json", *access)).stdout)
    assert told["status"]["deadline"]["max_s"] == 1800
    assert told["fate"] == "running"
    assert project.run(project.command("pause", "toy", *access)).returncode == 0
    seen = project.run(project.command("status", "toy", *access))
    assert "ended: paused" in seen.stdout
    assert "bring it home: remote-run attach" in seen.stdout
    done = project.run(project.command("attach", "toy", *access))
    assert done.returncode == 75, done.stderr
    assert done.stderr.strip().splitlines()[-1].endswith("is billed until you stop it: 48.00 USD a day")


def test_a_killed_supervisor_is_no_restarted_container(project: Project, pod: TestPod) -> None:
    started(project, pod)
    kill(pod, "keep", "supervise")
    seen = project.run(project.at("status", pod, "toy"))
    assert seen.stdout.startswith("toy: LOST while running")
    assert "its supervisor is gone and left no exit record" in seen.stdout
    done = project.run(project.at("attach", pod, "toy"))
    assert done.returncode == 1
    assert project.report()["cause"] == "lost"
    assert "was killed" in str(project.report()["evidence"])


def test_a_killed_supervisor_is_told_and_the_run_can_be_resumed(project: Project, pod: TestPod) -> None:
    """The controller that follows sees the keeper's record; the resumed run ends like one never touched."""
    values = {"steps": 60, "log_every": 7}
    straight = project.run(project.on(pod, project.config("straight", **values)))
    assert straight.returncode == 0, straight.stderr
    expected = header.describe(project.root / "artifacts/straight/toy-training.safetensors")["root"]
    config = project.config(step_s=0.05, **values)
    running = project.start(project.on(pod, config))
    wait_for((pod.root / "artifacts/toy/toy-training.safetensors").exists, "the first snapshot")
    kill(pod, "supervise")
    out, _ = running.communicate(timeout=60)
    assert running.returncode == 1, out
    assert project.report()["cause"] == "supervisor-lost"
    assert not [argv for argv in pod.commands().values() if "train.py" in argv or "keep" in argv]
    done = project.run(project.on(pod, config, "--resume"))
    assert done.returncode == 0, done.stderr
    assert header.describe(project.root / "artifacts/toy/toy-training.safetensors")["root"] == expected


@pytest.mark.skipif(not NAMESPACED, reason="needs root: a pid namespace is the container")
def test_a_restarted_container_does_not_start_the_run_again(project: Project, pod: TestPod) -> None:
    config = started(project, pod)
    pod.lose()
    pod.start()
    seen = project.run(project.at("status", pod, "toy"))
    assert "the pod's container was restarted" in seen.stdout
    assert "not started again by itself" in seen.stdout
    assert not [argv for argv in pod.commands().values() if "train.py" in argv]
    done = project.run(project.at("attach", pod, "toy"))
    assert "container was restarted" in str(project.report()["evidence"])
    assert done.returncode == 1
    resumed = project.run(project.on(pod, config, "--resume", "--detach"))
    assert resumed.returncode == 0, resumed.stderr
    assert "died without a final status: the pod was restarted" in resumed.stderr
    assert project.run(project.at("stop", pod, "toy")).returncode == 0


def test_a_closed_port_and_another_host_key(project: Project, pod: TestPod) -> None:
    started(project, pod)
    pod.lose()
    seen = project.run(project.at("status", pod, "toy"))
    assert seen.returncode == 6
    assert "has another address now" in seen.stderr
    assert "remote-run attach toy --at HOST:PORT" in seen.stderr
    (pod.folder / "hostkey").unlink()
    (pod.folder / "hostkey.pub").unlink()
    keygen(pod.folder / "hostkey")
    pod.start()
    seen = project.run(project.at("status", pod, "toy"))
    assert seen.returncode == 3
    assert seen.stderr.count("SHA256:") >= 2
    assert "ssh-keygen -lf /etc/ssh/" in seen.stderr
    assert "Traceback" not in seen.stderr


def test_a_run_moves_to_a_new_address(project: Project, pod: TestPod, make_pod: Callable[..., TestPod]) -> None:
    """The same pod behind another port; a stranger at that port is refused."""
    started(project, pod)
    second = pods_other_port(pod)
    try:
        access = ["--identity", pod.key]
        seen = project.run(project.command("status", "toy", "--at", second.address, *access))
        assert seen.returncode == 0, seen.stderr
        assert "toy: running" in seen.stdout
        record = json.loads((project.root / "runs/toy-run.json").read_text())
        assert record["attempts"][-1]["target_text"] == second.address
        assert project.run(project.command("stop", "toy", *access)).returncode == 0
        stranger = make_pod("stranger")
        seen = project.run(project.command("status", "toy", "--at", stranger.address, "--identity", stranger.key))
        assert seen.returncode == 3, seen.stderr
    finally:
        second.lose()


def pods_other_port(pod: TestPod) -> TestPod:
    """A second server in the same pid namespace, with the same keys and disk."""
    import pods

    other = TestPod(pod.folder, port=pods.free_port())
    before, pods.NAMESPACED[:] = list(pods.NAMESPACED), ["nsenter", "-t", str(pod.pids()[0]), "-p", "-m"]
    try:
        return other.start()
    finally:
        pods.NAMESPACED[:] = before


def test_logs_go_on_over_a_lost_link(project: Project, make_pod: Callable[..., TestPod]) -> None:
    pod = make_pod()
    (project.root / "talk.py").write_text(
        "import time\nfor i in range(120):\n    print(f'line {i:03} ü€\\x1b[31m', flush=True)\n    time.sleep(0.1)\n"
    )
    (project.root / "remote-run.toml").write_text('[runs."*"]\ncommand = ["python", "talk.py"]\n')
    assert project.run(project.on(pod, project.config(), "--detach")).returncode == 0
    shown = project.root / "shown"
    with shown.open("w") as sink:
        process = subprocess.Popen(
            project.at("logs", pod, "toy", "-f"), cwd=project.root, stdout=sink, stderr=subprocess.PIPE, text=True
        )
    wait_for(lambda: shown.read_text(), "the first lines")
    seen = shown.read_text().count("line")
    wait_for(lambda: shown.read_text().count("line") > seen + 5, "some more lines")
    for pid, argv in pod.commands().items():
        if argv[0].startswith("sshd") and "[listener]" not in argv[0]:
            os.kill(pid, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    out = shown.read_text()
    assert process.returncode == 0, err
    assert "lost contact" in err
    assert "\x1b" not in out
    lines = [line[:8] for line in out.splitlines() if line.startswith("line ")]
    assert lines == [f"line {i:03}" for i in range(120)]
    assert "ü€" in out


def test_there_is_one_follower(project: Project, pod: TestPod, tmp_path: Path) -> None:
    started(project, pod)
    first = project.start(project.at("attach", pod, "toy"))
    wait_for((pod.root / ".remote-run/follower.json").exists, "the first follower")
    other = tmp_path / "elsewhere"
    subprocess.run(["cp", "-r", project.root, other], check=True)
    second = Project(other)
    refused = second.run(second.at("attach", pod, "toy"))
    assert refused.returncode == 4, refused.stderr
    assert "--take-over" in refused.stderr
    took = second.start(second.at("attach", pod, "toy", "--take-over"))
    out, _ = first.communicate(timeout=30)
    assert first.returncode == 4, out
    assert "another controller follows toy now" in out
    assert second.run(second.at("pause", pod, "toy")).returncode == 0
    out, _ = took.communicate(timeout=60)
    assert took.returncode == 75, out


def test_a_follower_that_was_killed_is_not_waited_for(project: Project, pod: TestPod) -> None:
    """Its connection ends with it, and the pod takes its mark away."""
    started(project, pod)
    first = project.start(project.at("attach", pod, "toy"))
    mark = pod.root / ".remote-run/follower.json"
    wait_for(mark.exists, "the first follower")
    first.kill()
    first.communicate()
    wait_for(lambda: not mark.exists(), "its mark is gone", 10)
    second = project.start(project.at("attach", pod, "toy"))
    wait_for(mark.exists, "the second follower", 15)
    assert project.run(project.at("pause", pod, "toy")).returncode == 0
    out, _ = second.communicate(timeout=60)
    assert second.returncode == 75, out


@pytest.mark.parametrize("what", ["detach", "pause"])
def test_ctrl_c(project: Project, pod: TestPod, what: str) -> None:
    config = project.config(**LONG)
    running = project.start(project.on(pod, config, "--on-interrupt", what))
    wait_for((pod.root / ".remote-run/follower.json").exists, "the follower")
    wait_for((pod.root / "artifacts/toy/toy-training.safetensors").exists, "the first snapshot")
    running.send_signal(signal.SIGINT)
    out, _ = running.communicate(timeout=60)
    if what == "pause":
        assert running.returncode == 75, out
        assert project.report()["cause"] == "paused"
    else:
        assert running.returncode == 130, out
        assert "Come back with: remote-run attach" in out
        time.sleep(0.5)
        assert json.loads((pod.root / "runs/toy-status.json").read_text())["state"] == "running"
        assert project.run(project.at("stop", pod, "toy")).returncode == 0


def test_no_hours_are_left_of_the_total(project: Project, pod: TestPod) -> None:
    config = project.config(**LONG)
    first = project.run(project.on(pod, config, "--max-total-hours", 7 / 3600, "--max-hours", 1))
    assert first.returncode == 75, first.stderr
    assert project.report()["cause"] == "deadline"
    again = project.run(project.on(pod, config, "--resume", "--max-total-hours", 3 / 3600))
    assert again.returncode == 2
    assert "--max-total-hours" in again.stderr


def test_the_deadline_test_proves_it(project: Project, pod: TestPod) -> None:
    made = plan.make(project.root / project.config(), None, plan.Options(python="python3"))
    access = Access(target=pod.address, identity=pod.key, accept_new_host_key=True)
    said: list[str] = []
    proof = deadline_test.run(access, made, said.append, test_s=8.0)
    assert "fired with nobody connected" in proof
    assert not list(pod.root.glob("runs/*"))
