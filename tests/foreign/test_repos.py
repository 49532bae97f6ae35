"""Ordinary training repositories that have never heard of this tool: `init`, a run that is killed, a resume.

Each folder beside this file is one, written as its community writes them. What had to be changed by hand after
`init` stands in its row, three lines at most.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pods import TestPod, wait_for
from projects import Project

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Case:
    """One repository, and how its run is seen from outside."""

    repo: str
    config: str
    snapshots: str  # a glob of what shows that a snapshot was made
    result: str  # written at the end; equal to that of a run never interrupted where `exact`
    script: str = "train.py"
    by_hand: dict[str, str] = field(default_factory=dict)  # lines of the settings that a user changes
    git: bool = True
    needs: str = ""
    exact: bool = True
    last_step: int = 120


CASES = [
    Case("pytorch_yaml", "configs/small.yaml", "outputs/small/ckpt_*.pt", "outputs/small/final.pt"),
    Case(
        "mlx_script", "configs/toy.json", "adapters/toy/weights_*.safetensors", "adapters/toy/weights.safetensors",
        by_hand={"snapshots": 'snapshots = ["numbered"]'}, exact=False,  # MLX writes tensors in any order
    ),
    Case(
        "shell", "experiments/count.env", "results/state-*.txt", "results/finished", script="run.sh",
        by_hand={"snapshots": 'snapshots = [{ glob = "results/state-*.txt", step_regex = "state-(\\\\d+)" }]'},
        last_step=60,
    ),
    Case(
        "no_git", "config.txt", "checkpoints/model-*.npz", "checkpoints/final.npy", script="main.py", git=False,
        by_hand={"resume_args": 'resume_args = ["--resume"]', "snapshots": 'snapshots = ["numbered"]'},
    ),
    Case(
        "hf_trainer", "configs/tiny.json", "outputs/tiny/checkpoint-*/trainer_state.json",
        "outputs/tiny/model.safetensors", needs="transformers", exact=False,
    ),
    Case(
        "lightning_module", "conf/base.yaml", "logs/**/*.ckpt", "logs/lightning_logs/version_0/hparams.yaml",
        needs="lightning", exact=False,
    ),
]  # fmt: skip


def adopted(case: Case, project: Project) -> Project:
    """A copy of the repository after `remote-run init` and the changes by hand."""
    shutil.rmtree(project.root)
    shutil.copytree(HERE / case.repo, project.root)
    if case.git:
        identity = ["-c", "user.name=somebody", "-c", "user.email=somebody@localhost"]
        for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "first"]):
            subprocess.run(["git", *words], cwd=project.root, check=True)
    done = project.run(project.command("init"))
    assert done.returncode == 0, done.stderr
    settings = project.root / "remote-run.toml"
    lines = settings.read_text().splitlines()
    assert len(case.by_hand) <= 3
    kept = [line for line in lines if line.split(" = ")[0] not in case.by_hand]
    settings.write_text("\n".join([*kept, *case.by_hand.values()]) + "\n")
    checked = project.run(project.command("check", case.config))
    assert checked.returncode == 0, checked.stderr
    return project


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.repo)
def test_it_runs_is_killed_and_goes_on(case: Case, project: Project, pod: TestPod) -> None:
    if case.needs and importlib.util.find_spec(case.needs) is None:
        pytest.skip(f"needs {case.needs}, which is not installed here")
    adopted(case, project)
    name = Path(case.config).stem
    controller = project.start(project.on(pod, case.config, "--max-hours", 1))
    try:
        wait_for(lambda: len(list(pod.root.glob(case.snapshots))) >= 2 or controller.poll(), "two snapshots", 120)
        assert controller.poll() is None, controller.communicate()[0]
        trainer = next(pid for pid, argv in pod.commands().items() if any(a.endswith(case.script) for a in argv[:3]))
        os.kill(trainer, signal.SIGKILL)
    finally:
        out, _ = controller.communicate(timeout=60)
    assert controller.returncode == 1, out
    report = project.report(name)
    assert report["cause"] == "killed"
    assert report["last_durable"][0]["step"] >= 10  # type: ignore[index]
    done = project.run(project.on(pod, case.config, "--resume", "--json"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["cause"] == "done"
    assert "resuming from pod: snapshot step" in done.stderr
    assert (project.root / case.result).exists()
    if case.exact:
        straight = project.run([*_plain(project, case)], timeout_s=120)
        assert straight.returncode == 0, straight.stderr
        again = project.root / "again" / case.result
        assert _digest(project.root / case.result) == _digest(again)


def _plain(project: Project, case: Case) -> list[str]:
    """The run as its authors start it, never interrupted, in a copy of its own."""
    copy = project.root / "again"
    shutil.copytree(HERE / case.repo, copy)
    words = {
        "pytorch_yaml": [sys.executable, "train.py", "--config", case.config],
        "mlx_script": [sys.executable, "train.py", case.config],
        "shell": ["bash", "run.sh", case.config],
        "no_git": [sys.executable, "main.py", case.config],
    }[case.repo]
    return ["env", "-C", str(copy), *words]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_an_end_that_was_asked_for_is_no_success(project: Project, pod: TestPod) -> None:
    """The script saves on SIGTERM and ends with 0: stopped, until its own file says that it has finished."""
    case = next(c for c in CASES if c.repo == "shell")
    adopted(case, project)
    with (project.root / "remote-run.toml").open("a") as f:
        f.write('done_file = "results/finished"\n')
    settings = project.root / "remote-run.toml"
    settings.write_text(settings.read_text().replace('pause = "none"', 'pause = "SIGTERM"'))
    (project.root / case.config).write_text("STEPS=600\nSLEEP=0.05\n")
    controller = project.start(project.on(pod, case.config, "--json"))
    wait_for(lambda: list(pod.root.glob(case.snapshots)), "a snapshot")
    assert project.run(project.at("pause", pod, "count")).returncode == 0
    controller.communicate(timeout=60)
    assert controller.returncode == 75
    (project.root / case.config).write_text("STEPS=10\nSLEEP=0.05\n")  # the rest of it is quick
    assert "nothing says that all was done" in str(project.report("count")["evidence"])
    done = project.run(project.on(pod, case.config, "--resume", "--json"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["cause"] == "done"


def test_what_can_only_be_killed_is_asked_for_twice(project: Project, pod: TestPod) -> None:
    case = next(c for c in CASES if c.repo == "no_git")
    adopted(case, project)
    (project.root / case.config).write_text("steps 100000\nsleep 0.02\n")
    controller = project.start(project.on(pod, case.config))
    wait_for(lambda: len(list(pod.root.glob(case.snapshots))) >= 2, "two snapshots")
    refused = project.run(project.at("pause", pod))
    assert refused.returncode == 2
    assert "--kill" in refused.stderr
    assert "its newest complete snapshot is checkpoints/model-" in refused.stderr
    ended = project.run(project.at("pause", pod, "--kill"))
    assert ended.returncode == 0, ended.stderr
    out, _ = controller.communicate(timeout=60)
    assert controller.returncode == 75, out
    assert "what came after it is lost" in str(project.report("config")["evidence"])


def test_its_backup_goes_on_elsewhere(project: Project, pod: TestPod, make_pod: object) -> None:
    case = next(c for c in CASES if c.repo == "no_git")
    adopted(case, project)
    (project.root / case.config).write_text("steps 150\nsleep 0.05\n")
    controller = project.start(project.on(pod, case.config, "--backup-every", "1s", "--give-up-after", "2s"))
    wait_for(lambda: list((project.root / "backups").glob("project/config/backups/*-snapshot-*/manifest.json")), "one")
    pod.lose()
    controller.communicate(timeout=60)
    assert controller.returncode == 6
    second = make_pod("second")  # type: ignore[operator]
    words = [case.config, "--resume", "--abandon", f"127.0.0.1:{pod.port}"]
    done = project.run(project.on(second, *words))
    assert done.returncode == 0, done.stderr
    assert "resuming from store: snapshot step" in done.stderr
    assert "complete by rule, content not proven" in done.stderr


def test_a_submodule_and_a_sibling_package_come_along(project: Project, pod: TestPod) -> None:
    """Two lines by hand: the sibling that the project imports, and whose snapshots they are."""
    parts = HERE / "with_submodule"
    above = project.root.parent
    shutil.rmtree(project.root)
    for name, to in (("project", project.root), ("library", above / "library"), ("mylib", above / "mylib")):
        shutil.copytree(parts / name, to)
    identity = ["-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "protocol.file.allow=always"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run(["git", *identity, *words], cwd=above / "library", check=True)
    for words in (["init", "-q"], ["submodule", "add", "-q", str(above / "library"), "vendor/library"]):
        subprocess.run(["git", *identity, *words], cwd=project.root, check=True, capture_output=True)
    assert project.run(project.command("init")).returncode == 0
    settings = project.root / "remote-run.toml"
    settings.write_text(settings.read_text() + 'snapshots = ["numbered"]\ninclude = ["../mylib"]\n')
    controller = project.start(project.on(pod, "configs/base.txt"))
    wait_for(lambda: len(list(pod.root.glob("results/w_*.npz"))) >= 2 or controller.poll(), "two snapshots", 120)
    assert controller.poll() is None, controller.communicate()[0]
    os.kill(next(pid for pid, argv in pod.commands().items() if "train.py" in argv), signal.SIGKILL)
    controller.communicate(timeout=60)
    assert controller.returncode == 1
    done = project.run(project.on(pod, "configs/base.txt", "--resume"))
    assert done.returncode == 0, done.stderr
    assert "resuming from pod: snapshot step" in done.stderr
    assert (project.root / "results/final.npy").exists()
