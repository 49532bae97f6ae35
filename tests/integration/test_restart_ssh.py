"""Going on with changed code on the same pod, and a shell where the run is."""

from __future__ import annotations

import json

from pods import TestPod, wait_for
from projects import Project

from remote_runner.checkpoint import header


def test_restart_pauses_sends_the_code_and_goes_on(project: Project, pod: TestPod) -> None:
    config = project.config(steps=400, step_s=0.05)
    assert project.run(project.on(pod, config, "--detach")).returncode == 0
    snapshot = pod.root / "artifacts/toy/toy-training.safetensors"
    wait_for(snapshot.exists, "the first snapshot")
    script = project.root / "train.py"
    script.write_text(script.read_text().replace('config.get("step_s", 0)', "0"))
    words = project.on(pod, config)[3:]
    done = project.run(project.command("restart", *words, "--json"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["segment"] == 2
    assert "resuming from pod: toy step" in done.stderr
    assert "the code is not that of the attempt before (recorded): train.py +1 -1" in done.stderr
    assert header.verify_digests(project.root / "artifacts/toy/toy-training.safetensors")["step"] == 400
    record = json.loads((project.root / "runs/toy-run.json").read_text())
    assert record["attempts"][-1]["code_changed"] == ["train.py"]


def test_a_command_runs_where_the_run_is(project: Project, pod: TestPod) -> None:
    settings = project.root / "remote-run.toml"
    settings.write_text(settings.read_text() + 'env = { COLOUR = "blue green" }\n')
    assert project.run(project.on(pod, project.config())).returncode == 0
    words = ["pwd; echo $COLOUR; echo $REMOTE_RUN_SEGMENT; exit 7"]
    done = project.run([*project.at("ssh", pod, "toy"), "--", *words])
    assert done.returncode == 7, done.stderr
    assert done.stdout.split("\n")[:3] == [str(pod.root), "blue green", "1"]


def test_a_run_that_was_done_says_so_when_it_is_started_again(project: Project, pod: TestPod) -> None:
    config = project.config()
    assert project.run(project.on(pod, config)).returncode == 0
    again = project.run(project.on(pod, config, "--resume"))
    assert again.returncode == 0, again.stderr
    assert "toy was done before; its command is started again all the same" in again.stderr
    assert "; the same run" in again.stdout
    last = project.run(project.at("logs", pod, "toy", "--tail", "2"))
    assert last.stdout.splitlines()[-1:] == ["trained"]
    assert len(last.stdout.splitlines()) == 2
