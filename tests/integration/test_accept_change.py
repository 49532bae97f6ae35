"""Going on with a named change: what it needs, and where old and new can be read afterwards."""

from __future__ import annotations

import json

import pytest
from pods import TestPod, wait_for
from projects import Project, tiny

from remote_runner.checkpoint import header, lineage

FOREIGN = """
import pathlib, re, sys, time
import numpy as np
rate = re.search(r"rate: (\\S+)", pathlib.Path(sys.argv[1]).read_text()).group(1)
out = pathlib.Path("out"); out.mkdir(exist_ok=True)
step = int(np.load(sys.argv[3])["step"]) if "--from" in sys.argv else 0
first = step
while not (pathlib.Path("enough").exists() and step >= first + 10):
    step += 1
    time.sleep(float(rate))
    if step % 5 == 0:
        np.savez(out / f"w_{step}.npz", step=step, w=np.arange(4) * step)
"""
SETTINGS = """
command = "python main.py {config}"
resume_args = ["--from", "{newest}"]
outputs = ["out"]
snapshots = ["numbered"]
"""


def test_a_trainer_with_the_contract_is_told_and_its_store_is_no_fork(sudoku: Project, pod: TestPod) -> None:
    """Refused by name first; accepted, the backups from before the change count as what it came from."""
    config = sudoku.root / "configs/sudoku-a.json"
    steps = {"codec": {"steps": 4}, "generator": {"steps": 30_000}}
    config.write_text(tiny("sudoku-a", **steps))
    run = ["configs/sudoku-a.json", "--backup-every", "1s"]
    controller = sudoku.start(sudoku.on(pod, *run))
    wait_for((pod.root / "artifacts/sudoku-a/generator-training.safetensors").exists, "a snapshot")
    wait_for(lambda: list((sudoku.root / "backups").rglob("*-generator-*/manifest.json")), "a backup")
    assert sudoku.run(sudoku.at("pause", pod)).returncode == 0
    controller.communicate(timeout=60)
    assert controller.returncode == 75
    at = header.describe(sudoku.root / "artifacts/sudoku-a/generator-training.safetensors")
    steps["generator"] = {"steps": at["step"] + 8, "learning_rate": 0.002}
    config.write_text(tiny("sudoku-a", **steps))
    refused = sudoku.run(sudoku.on(pod, *run, "--resume"))
    assert refused.returncode == 2, refused.stderr
    assert "--accept-change generator.learning_rate" in refused.stdout
    script = sudoku.root / "workloads/ncm_mlx/benchmark.py"
    script.write_text(script.read_text() + "# one line\n")
    words = [w for key in ("generator.learning_rate", "generator.steps", "code") for w in ("--accept-change", key)]
    done = sudoku.run(sudoku.on(pod, *run, "--resume", *words, "--json"))
    assert done.returncode == 0, done.stderr + done.stdout
    assert "workloads/ncm_mlx/benchmark.py +1 -0" in done.stderr
    told = header.describe(sudoku.root / "artifacts/sudoku-a/generator-training.safetensors")["lineage"]
    assert told["root"] == at["root"]
    keys = ["code", "generator.learning_rate", "generator.steps"]
    assert sorted(c["key"] for c in told["changes"]) == keys
    report = json.loads(done.stdout)
    assert report["same_run"] is False
    assert any("generator.steps 30000 ->" in change for change in report["changes"])
    manifests = [json.loads(p.read_text()) for p in (sudoku.root / "backups").rglob("manifest.json")]
    assert max(manifests, key=lambda m: m["unix_s"])["lineage"] == told
    again = sudoku.run(sudoku.on(pod, *run, "--resume"))
    assert again.returncode == 0, again.stderr + again.stdout
    assert "another run since a change of generator" in again.stdout
    assert "the same run" not in again.stdout


def test_the_same_run_is_said_only_where_nothing_changed(project: Project, pod: TestPod) -> None:
    config = project.config(steps=2000, step_s=0.1, log_every=20)
    controller = project.start(project.on(pod, config))
    wait_for((pod.root / "artifacts/toy/toy-training.safetensors").exists, "a snapshot")
    assert project.run(project.at("pause", pod)).returncode == 0
    controller.communicate(timeout=60)
    project.config(steps=2000, log_every=20)  # the pace is no part of the run
    done = project.run(project.on(pod, config, "--resume"))
    assert done.returncode == 0, done.stderr
    assert "; the same run" in done.stdout


def test_a_foreign_run_carries_its_changes_in_record_report_and_backups(project: Project, pod: TestPod) -> None:
    (project.root / "main.py").write_text(FOREIGN)
    (project.root / "remote-run.toml").write_text(SETTINGS)
    config = project.root / "configs/toy.yaml"
    config.write_text("rate: 0.05\n")
    controller = project.start(project.on(pod, "configs/toy.yaml", "--backup-every", "1s"))
    wait_for(lambda: len(list(pod.root.glob("out/w_*.npz"))) >= 2, "two snapshots")
    assert project.run(project.at("pause", pod, "--kill")).returncode == 0
    controller.communicate(timeout=60)
    config.write_text("rate: 0.001\n")
    (pod.root / "enough").touch()
    (project.root / "main.py").write_text(FOREIGN + "# more\n")
    done = project.run(project.on(pod, "configs/toy.yaml", "--resume", "--accept-change", "config", "--json"))
    assert done.returncode == 0, done.stderr
    assert (
        "the config is not that of the attempt before (accepted: another run from here on): rate: 0.05 -> rate: 0.001"
        in done.stderr
    )
    assert "the code is not that of the attempt before (recorded): main.py +1 -0" in done.stderr
    report = json.loads(done.stdout)
    assert report["same_run"] is False
    assert any("config rate: 0.05 -> rate: 0.001 at step" in change for change in report["changes"])
    assert any(change.startswith("code changed") for change in report["changes"])
    record = json.loads((project.root / "runs/toy-run.json").read_text())
    assert record["lineage"]["changes"] == [{"key": "config", "old": "rate: 0.05", "new": "rate: 0.001"}]
    manifests = [json.loads(p.read_text()) for p in (project.root / "backups").rglob("manifest.json")]
    newest = max(manifests, key=lambda m: m["unix_s"])
    assert newest["lineage"] == record["lineage"]
    assert all(m["lineage"] is None for m in manifests if m["newest"]["step"] <= record["lineage"]["step"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--resume", "--accept-change", "rate"], "--accept-change config"),
        (["--accept-change", "code"], "add --resume"),
    ],
)
def test_a_key_that_nobody_can_judge_is_refused(project: Project, pod: TestPod, words: list[str], says: str) -> None:
    (project.root / "main.py").write_text(FOREIGN)
    (project.root / "remote-run.toml").write_text(SETTINGS)
    done = project.run(project.on(pod, project.config(), *words))
    assert done.returncode == 2
    assert says in done.stderr
    assert not pod.root.exists()


def test_a_state_came_from_those_that_its_lineage_names() -> None:
    def state(step: int, root: str, fingerprint: str, of: object = None) -> dict[str, object]:
        return {"step": step, "root": root, "fingerprint": fingerprint, "lineage": of}

    first = lineage.after([{"key": "k", "old": 1, "new": 2}], state(50, "r50", "f"), "r50")
    second = lineage.after([{"key": "k", "old": 2, "new": 3}], state(80, "r80", "g", first), "r80")
    now = state(90, "r90", "h", second)
    assert lineage.came_from(now, state(40, "r40", "f"))
    assert lineage.came_from(now, state(50, "r50", "f"))
    assert lineage.came_from(now, state(70, "r70", "g", first))
    assert not lineage.came_from(now, state(50, "other", "f"))
    assert not lineage.came_from(now, state(60, "r60", "f"))  # further than where the change was made: a fork
    assert not lineage.came_from(now, state(40, "r40", "x"))
    assert not lineage.came_from(state(40, "r40", "f"), now)
    assert lineage.text(second) == "k 2 -> 3 at step 80; k 1 -> 2 at step 50"
    for strange in ({"changes": 5}, {"changes": [{}, "x", None]}, {"kind": "changed", "step": "9"}, [1], "x"):
        assert isinstance(lineage.text(strange), str)
        assert not lineage.came_from(state(9, "r", "f", strange), state(4, "r", "f"))
