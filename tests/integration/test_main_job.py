"""The main job on a real sshd, with a trainer of a few lines: start, end, pause, failure, refusal, recovery."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
from pathlib import Path

import pods
import pytest
from pods import TestPod, wait_for
from projects import Project

from remote_runner.checkpoint import header


def tree(folder: Path) -> dict[str, str]:
    """Digest of every file below a folder."""
    return {
        p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def root_of(project: Project, name: str = "toy") -> str:
    return str(header.describe(project.root / f"artifacts/{name}/toy-training.safetensors")["root"])


def straight_root(project: Project, pod: TestPod, **values: object) -> str:
    """The root that a run never interrupted ends with."""
    done = project.run(project.on(pod, project.config("straight", **{**values, "step_s": 0})))
    assert done.returncode == 0, done.stderr
    return root_of(project, "straight")


def test_a_run_comes_home_verified(project: Project, pod: TestPod) -> None:
    done = project.run(project.on(pod, project.config(), "--json"))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["cause"], report["exit_code"], report["last_durable"][0]["step"]) == ("done", 0, 20)
    remote = pod.root
    for path in ("artifacts/toy/toy-training.safetensors", "artifacts/toy/result.json", "runs/toy-train.log"):
        assert (project.root / path).read_bytes() == (remote / path).read_bytes()
    assert header.verify_digests(project.root / "artifacts/toy/toy-training.safetensors")["step"] == 20
    assert list((project.root / "backups").rglob("manifest.json"))


def test_a_failing_workload_is_home_and_shown(project: Project, pod: TestPod) -> None:
    done = project.run(project.on(pod, project.config(fail_at=12)))
    assert done.returncode == 1, done.stderr
    assert "about to fail" in done.stdout
    report = project.report()
    assert (report["cause"], report["workload_code"]) == ("failed", 3)
    assert header.verify_digests(project.root / "artifacts/toy/toy-training.safetensors")["step"] == 10


def test_the_deadline_pauses_and_brings_home(project: Project, pod: TestPod) -> None:
    config = project.config(steps=100_000, step_s=0.05)
    done = project.run(project.on(pod, config, "--max-hours", 10 / 3600, "--json"))
    assert done.returncode == 75, done.stderr
    report = json.loads(done.stdout)
    assert report["cause"] == "deadline"
    assert 5 < report["phases_s"]["run"] < 12
    assert "full training state saved" in "\n".join(report["log_tail"])


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_an_interrupted_run_ends_like_one_never_touched(project: Project, pod: TestPod, how: str) -> None:
    values = {"steps": 60, "log_every": 7}
    expected = straight_root(project, pod, **values)
    config = project.config(step_s=0.05, **values)
    controller = project.start(project.on(pod, config))
    snapshot = pod.root / "artifacts/toy/toy-training.safetensors"
    rows = pod.root / "artifacts/toy/metrics.jsonl"
    wait_for(lambda: snapshot.exists() and rows.exists(), "the first snapshot, and its row behind it")
    trainer = next(pid for pid, argv in pod.commands().items() if "train.py" in argv)
    os.kill(trainer, signal.SIGKILL if how == "kill" else signal.SIGUSR1)
    controller.communicate(timeout=60)
    assert controller.returncode == (1 if how == "kill" else 75)
    report = project.report()
    assert report["cause"] == ("killed" if how == "kill" else "preempted")
    done = project.run(project.on(pod, config, "--resume"))
    assert done.returncode == 0, done.stderr
    assert root_of(project) == expected
    segments = {json.loads(row)["segment"] for row in (project.root / "artifacts/toy/metrics.jsonl").open()}
    assert segments == {1, 2}


def test_a_lost_controller_loses_nothing(project: Project, pod: TestPod) -> None:
    config = project.config(steps=100_000, step_s=0.05)
    controller = project.start(project.on(pod, config, "--max-hours", 12 / 3600))
    snapshot = pod.root / "artifacts/toy/toy-training.safetensors"
    wait_for(snapshot.exists, "the first snapshot")
    controller.kill()
    controller.communicate()
    step = header.describe(snapshot)["step"]
    wait_for(lambda: header.describe(snapshot)["step"] > step, "training goes on without a controller")
    status = pod.root / "runs/toy-status.json"
    wait_for(lambda: json.loads(status.read_text())["exit"], "the deadline fires on the pod", 30)
    done = project.run(project.at("attach", pod, "toy", "--json"))
    assert done.returncode == 75, done.stderr
    assert json.loads(done.stdout)["cause"] == "deadline"
    assert root_of(project) == header.describe(snapshot)["root"]


def test_attach_takes_a_running_job_to_its_end(project: Project, pod: TestPod) -> None:
    config = project.config(steps=100, step_s=0.05)
    done = project.run(project.on(pod, config, "--detach"))
    assert done.returncode == 0, done.stderr
    done = project.run(project.at("attach", pod))
    assert done.returncode == 0, done.stderr
    assert project.report()["cause"] == "done"


def test_a_second_controller_is_refused_and_changes_nothing(project: Project, pod: TestPod, tmp_path: Path) -> None:
    config = project.config(steps=100_000, step_s=0.05)
    assert project.run(project.on(pod, config, "--detach")).returncode == 0
    wait_for((pod.root / "artifacts/toy/toy-training.safetensors").exists, "the first snapshot")
    other = Project.create(tmp_path / "elsewhere" / "project")
    (other.root / "train.py").write_text("print('other code')\n")
    other_config = other.config("other")

    def quiet() -> dict[str, str]:
        kept = ("artifacts/", "runs/", ".remote-run/")
        return {p: sha for p, sha in tree(pod.root).items() if not p.startswith(kept)}

    before = quiet()
    done = other.run(other.on(pod, other_config))
    assert done.returncode == 4, done.stderr
    assert "is held by" in done.stderr
    assert "toy" in done.stderr
    assert quiet() == before
    assert not list(pod.root.glob("*/other*"))
    assert project.run(project.at("stop", pod, "toy")).returncode == 0


def test_a_byte_flipped_on_the_pods_disk_is_noticed(project: Project, pod: TestPod) -> None:
    config = project.config(steps=40, step_s=0.02)
    assert project.run(project.on(pod, config)).returncode == 0
    good = (project.root / "artifacts/toy/toy-training.safetensors").read_bytes()
    bad = bytearray(good)
    bad[-3] ^= 1
    (pod.root / "artifacts/toy/toy-training.safetensors").write_bytes(bad)
    done = project.run(project.at("download", pod, "toy"))
    assert done.returncode == 7, done.stderr
    assert "artifacts/toy/toy-training.safetensors" in done.stderr
    assert (project.root / "artifacts/toy/toy-training.safetensors").read_bytes() == good


def test_a_lost_pod_is_replaced_from_the_store(project: Project, pod: TestPod, make_pod: object) -> None:
    values = {"steps": 60, "log_every": 5}
    expected = straight_root(project, pod, **values)
    config = project.config(step_s=0.1, **values)
    controller = project.start(project.on(pod, config, "--backup-every", "1s", "--give-up-after", "2s"))
    wait_for(lambda: list((project.root / "backups").glob("project/toy/backups/*-toy-*/manifest.json")), "a backup")
    pod.lose()
    out, _ = controller.communicate(timeout=60)
    assert controller.returncode == 6, out
    second = make_pod("second")  # type: ignore[operator]
    refused = project.run(project.on(second, config, "--resume"))
    assert refused.returncode == 2
    assert "--abandon" in refused.stderr
    done = project.run(project.on(second, config, "--resume", "--abandon", f"127.0.0.1:{pod.port}"))
    assert done.returncode == 0, done.stderr
    assert root_of(project) == expected


def test_fresh_keeps_what_was_there(project: Project, pod: TestPod) -> None:
    config = project.config(steps=10)
    assert project.run(project.on(pod, config)).returncode == 0
    old = root_of(project)
    refused = project.run(project.on(pod, config))
    assert refused.returncode == 2
    assert "--resume" in refused.stderr
    project.config(steps=15)
    done = project.run(project.on(pod, config, "--fresh"))
    assert done.returncode == 0, done.stderr
    assert root_of(project) != old
    kept = next((project.root / "artifacts").glob("toy-interrupted-*")) / "toy-training.safetensors"
    assert header.describe(kept)["root"] == old
    assert list((pod.root / "artifacts").glob("toy-interrupted-*"))


def test_pods_are_apart(pod: TestPod, make_pod: object) -> None:
    """What the other tests rely on: a pod sees its own processes alone, and losing it ends them all."""
    if not pods.NAMESPACED:
        pytest.skip("needs root for a pid namespace")
    second = make_pod("second")  # type: ignore[operator]
    marked = subprocess.Popen(["sleep", "60"])
    try:
        inside = subprocess.run(
            ["nsenter", "-t", str(second.pids()[0]), "-p", "-m", "ps", "-eo", "args"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    finally:
        marked.kill()
        marked.wait()
    assert "sshd" in inside.stdout
    assert "sleep 60" not in inside.stdout
    second.lose()
    assert not second.listens()
    assert pod.listens()
