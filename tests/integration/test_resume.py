"""Which state a run goes on from: highest step across pod, here and store, proven; forks are refused, both named."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rotating
from pods import TestPod
from projects import Project

from remote_runner import backup, plan, resume, ssh, vault
from remote_runner.access import Access
from remote_runner.agent import Agent
from remote_runner.checkpoint import header
from remote_runner.errors import UsageFault
from remote_runner.ondisk import OnDisk
from remote_runner.plan import Options, Plan
from remote_runner.resume import Winner
from remote_runner.stores import open_store
from remote_runner.vault import Place

GENERATOR = "artifacts/run/generator-training.safetensors"


class Scene:
    """A pod, a project and a store, each with states of its own; nothing is started."""

    def __init__(self, project: Project, pod: TestPod, tmp_path: Path) -> None:
        self.root, self.pod_root, self.tmp = project.root, pod.home / "run-root", tmp_path
        self.pod_root.mkdir()
        config = project.root / project.config("run")
        self.plan: Plan = plan.make(config, None, Options(resume=True))
        self.store = Place(
            store=open_store(str(tmp_path / "kept"), tmp_path), project=self.plan.project, name="run", keep=100
        )
        access = Access(target=pod.address, identity=pod.key, accept_new_host_key=True)
        self.pod = ssh.connect(access.endpoint(project.root))
        self.agent = Agent(self.pod, self.pod_root)  # type: ignore[arg-type]
        self.said: list[str] = []

    def on_pod(self, step: int, stage: str = "generator", **more: Any) -> None:
        rotating.save(self.pod_root, stage, step, **more)

    def here(self, step: int, stage: str = "generator", **more: Any) -> None:
        rotating.save(self.root, stage, step, **more)

    def stored(self, step: int, stage: str = "generator", **more: Any) -> str:
        made_in = self.tmp / "made"
        rotating.save(made_in, stage, step, **more)
        made = backup.make(OnDisk(made_in, ["artifacts/run"], "run"), self.store, self.tmp / "spool", "a", None)
        shutil.rmtree(made_in)
        return made.id

    def choose(self, only: str = "") -> Winner:
        self.said.clear()
        return resume.choose(self.agent, self.plan, self.store, self.said.append, only)


@pytest.fixture
def scene(project: Project, pod: TestPod, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(project, pod, tmp_path)
    yield made
    made.pod.close()


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)


def test_the_highest_step_wins_wherever_it_is_and_whatever_the_clocks_say(scene: Scene) -> None:
    """H31: snapshots 90, 200 and 1000 in three places, whose file times run the other way."""
    for order in ([90, 200, 1000], [1000, 90, 200], [200, 1000, 90]):
        for folder in (scene.root, scene.pod_root):
            shutil.rmtree(folder / "artifacts", ignore_errors=True)
        shutil.rmtree(scene.tmp / "kept", ignore_errors=True)
        scene.on_pod(order[0])
        scene.here(order[1])
        scene.stored(order[2])
        for root, step in ((scene.pod_root, order[0]), (scene.root, order[1])):
            old = 2_000_000_000 - step * 1000
            os.utime(root / GENERATOR, (old, old))
        winner = scene.choose()
        assert (winner.candidate.step, winner.place) == (1000, ("pod", "here", "store")[order.index(1000)])
        assert "step 1000" in scene.said[-1]
        assert "behind" in scene.said[-1]


def test_a_later_stage_is_further_than_any_step_of_an_earlier_one(scene: Scene) -> None:
    scene.here(900, "codec")
    scene.stored(10, "generator")
    assert scene.choose().place == "store"


def test_ties_go_to_the_pod_then_here(scene: Scene) -> None:
    scene.here(50)
    scene.stored(50)
    assert scene.choose().place == "here"
    scene.on_pod(50)
    assert scene.choose().place == "pod"


def test_what_does_not_verify_is_passed_over_with_its_reason(scene: Scene) -> None:
    scene.on_pod(300)
    scene.here(200)
    flip(scene.pod_root / GENERATOR)
    winner = scene.choose()
    assert winner.place == "here"
    assert "passing over pod: generator step 300" in scene.said[0]
    assert "vector" in scene.said[0], "the damaged tensor is named"


def test_a_damaged_backup_is_passed_over_before_anything_is_touched(scene: Scene) -> None:
    scene.here(100)
    scene.stored(200)
    newest = scene.stored(300)
    sha256 = next(
        e["sha256"]
        for m in vault.manifests(scene.store)
        if m["id"] == newest
        for e in m["files"]
        if e["path"] == GENERATOR
    )
    flip(scene.tmp / "kept" / scene.store.blob(sha256))
    winner = scene.choose()
    assert (winner.place, winner.candidate.step) == ("store", 200)
    assert sha256 in scene.said[0]
    assert header.describe(scene.root / GENERATOR)["step"] == 100
    resume.bring_here(scene.plan, winner, scene.said.append)
    assert header.verify_digests(scene.root / GENERATOR)["step"] == 200
    kept = next((scene.root / "artifacts").glob("run-interrupted-*"))
    assert header.verify_digests(kept / "generator-training.safetensors")["step"] == 100


def test_a_place_is_taken_whole(scene: Scene) -> None:
    """A pod whose generator is furthest but whose codec is damaged can't be gone on from."""
    scene.on_pod(10, "codec")
    scene.on_pod(300)
    scene.here(10, "codec")
    scene.here(200)
    flip(scene.pod_root / "artifacts/run/codec-training.safetensors")
    assert scene.choose().place == "here"
    scene.on_pod(20, "codec")  # the damaged one is previous now; the newest verifies
    scene.here(20, "codec")
    assert scene.choose().place == "pod"


def test_two_states_of_one_step_are_a_fork(scene: Scene) -> None:
    scene.on_pod(100)
    rotating.save(scene.root, "generator", 100, best={"step": 1, "metric": 0.5})
    with pytest.raises(UsageFault) as refused:
        scene.choose()
    assert "pod: generator step 100" in str(refused.value)
    assert "here: generator step 100" in str(refused.value)
    assert "--from pod or --from here" in refused.value.fix
    assert scene.choose("here").place == "here"
    assert scene.choose("pod").place == "pod"


@pytest.mark.parametrize("difference", [{"lineage": {"root": "e" * 64}}, {"seed": 2}])
def test_a_lower_step_that_did_not_lead_to_the_winner_is_a_fork(scene: Scene, difference: dict[str, Any]) -> None:
    scene.on_pod(100)
    old = scene.stored(50, **difference)
    with pytest.raises(UsageFault, match="neither came from the other") as refused:
        scene.choose()
    assert f"--from {old}" in refused.value.fix
    winner = scene.choose(old)
    assert (winner.place, winner.candidate.backup_id) == ("store", old)


def test_nothing_anywhere_and_a_place_without_any(scene: Scene) -> None:
    with pytest.raises(UsageFault, match="no snapshot of 'run' on the pod, here or in the store"):
        scene.choose()
    scene.here(1)
    with pytest.raises(UsageFault, match="in pod"):
        scene.choose("pod")


def test_a_resume_leaves_everything_that_it_replaced(
    project: Project, pod: TestPod, make_pod: Any, tmp_path: Path
) -> None:
    """The store is ahead of a replacement pod and of what is here: both olds are preserved, the record stays."""
    config = project.config(steps=60, step_s=0.05, log_every=5)
    assert project.run(project.on(pod, config, "--max-hours", 6 / 3600)).returncode == 75
    behind = header.describe(project.root / "artifacts/toy/toy-training.safetensors")["step"]
    done = project.run(project.on(pod, config, "--resume", "--max-hours", 6 / 3600))
    assert done.returncode in (0, 75), done.stderr
    ahead = header.describe(project.root / "artifacts/toy/toy-training.safetensors")["step"]
    assert ahead > behind
    # what is here goes back to the older state; the store has the newer one
    older = next(m["id"] for m in vault.manifests(_place(project)) if (m["newest"] or {}).get("step") == behind)
    assert project.run(project.command("restore", "toy", "--backup", older)).returncode == 0
    assert header.describe(project.root / "artifacts/toy/toy-training.safetensors")["step"] == behind
    second = make_pod("second")
    done = project.run(project.on(second, config, "--resume"))
    assert done.returncode == 0, done.stderr
    assert f"resuming from store: toy step {ahead}" in done.stderr
    assert f"here has toy step {behind} (behind)" in done.stderr
    kept = sorted((project.root / "artifacts").glob("toy-interrupted-*"))
    assert behind in {header.describe(k / "toy-training.safetensors")["step"] for k in kept}
    attempts = json.loads((project.root / "runs/toy-run.json").read_text())["attempts"]
    assert len(attempts) == 3


def _place(project: Project) -> Place:
    store = open_store("backups", project.root)
    return Place(store=store, project=project.root.name, name="toy", keep=100)
