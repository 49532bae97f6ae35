"""An interrupted run is the same run, to the bit: real trainer processes, a new one for each life.

"Equal" is one comparison everywhere: the roots of both stages' last snapshots and the bytes of the inference weights.

Not here: the snapshot library by itself (unit/test_snapshot.py, faults/).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from trainer_runs import STEPS_IN_AN_EPOCH, STRIKE, Root, await_, changed, mark

from remote_runner.checkpoint import header, snapshot

pytestmark = mark
KILLS = 6
STEP = "ncm_mlx.loop:_step"
PHASES = {
    "data preparation": "ncm_mlx.boards:_search:2:SIGUSR1",
    "first step of all": f"{STEP}:1:SIGTERM",
    "gradients of the first step": "mlx.nn:value_and_grad:1:SIGINT",
    "a step of the codec": f"{STEP}:7:SIGUSR1",
    "evaluation of the codec": "ncm_mlx.codec:reconstruct:1:SIGTERM",
    "a save of the codec": "remote_runner.checkpoint.trailing:write:2:SIGUSR1",
    "last step of the codec": f"{STEP}:12:SIGINT",
    "between the stages": "ncm_mlx.train:_write_inference:1:SIGUSR1",
    "encoding for the generator": "ncm_mlx.stage:codes_of:1:SIGUSR1",
    "first step of the generator": f"{STEP}:13:SIGUSR1",
    "a step of the generator": f"{STEP}:20:SIGTERM",
    "evaluation of the generator": "ncm_mlx.generator:blank_nats:2:SIGUSR1",
    "last step of the generator": f"{STEP}:26:SIGUSR1",
    "all at once": f"{STEP}:9:SIGUSR1+SIGTERM+SIGINT+SIGUSR1+SIGUSR1+SIGTERM",
}


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run that was never touched."""
    root = Root(tmp_path_factory.mktemp("straight"))
    root.must_train()
    return root


@pytest.mark.parametrize("phase", PHASES)
def test_a_signal_in_any_phase_is_a_pause_and_changes_nothing(phase, straight, tmp_path):
    root = Root(tmp_path)
    paused = root.must_train(strike=PHASES[phase], code=75)
    assert "full training state saved" in paused.output.splitlines()[-1]
    root.must_train("--resume")
    assert root.roots() == straight.roots()


def test_a_signal_after_the_last_step_lets_the_run_end(straight, tmp_path):
    root = Root(tmp_path)
    root.must_train(strike="ncm_mlx.train:_write_inference:2:SIGUSR1", code=0)
    assert root.roots() == straight.roots()


@pytest.mark.parametrize("cut", [1, STEPS_IN_AN_EPOCH - 1, STEPS_IN_AN_EPOCH, STEPS_IN_AN_EPOCH + 1])
@pytest.mark.parametrize("before", [0, 12], ids=["codec", "generator"])
def test_cuts_around_the_end_of_an_epoch(cut, before, straight, tmp_path):
    root = Root(tmp_path)
    root.must_train(strike=f"{STEP}:{before + cut}:SIGUSR1", code=75)
    assert root.state("generator" if before else "codec")["step"] == cut
    root.must_train("--resume")
    assert root.roots() == straight.roots()


def test_a_pause_after_every_single_step(straight, tmp_path):
    root = Root(tmp_path)
    lives = 0
    while (ended := root.train(*["--resume"][:lives], strike=f"{STEP}:1:SIGUSR1")).code == 75:
        lives += 1
    # The last life takes no step, so its strike never comes; all it does is write the final files.
    assert "strike never came" in ended.output and lives == 26
    assert root.roots() == straight.roots()


def test_kills_at_random_moments(straight, tmp_path):
    chance = random.Random(5)
    root, kills, lasted_s = Root(tmp_path), 0, 2.0
    while kills < KILLS:
        with root.started(*["--resume"][: (root.folder / "begun.json").exists()]) as trainer:
            pid, end = trainer.pid(), time.monotonic() + chance.uniform(0.2, lasted_s)
            await_(lambda end=end, t=trainer: time.monotonic() > end or t.process.poll() is not None, "the moment")
            if trainer.process.poll() is None:
                os.kill(pid, signal.SIGKILL)
            kills += 1
            trainer.ended()
    root.must_train("--resume")
    assert root.roots() == straight.roots()


@pytest.mark.parametrize("where", ["trailing:write:3", "rotate:publish:3", "rotate:sync_folder:5"])
def test_a_kill_inside_a_save(where, straight, tmp_path):
    root = Root(tmp_path)
    root.must_train(strike=f"remote_runner.checkpoint.{where}:SIGKILL", code=-9)
    root.must_train("--resume")
    assert root.roots() == straight.roots()
    assert not list(root.folder.glob("*.tmp"))


@pytest.mark.parametrize("stage", ["codec", "generator"])
def test_the_compiled_step_is_really_compiled_and_exact_over_a_kill_and_a_pause(stage, straight, tmp_path):
    """One stage each, as compiling takes most of the time: the codec alone, or the generator on a codec given."""
    source = "" if stage == "codec" else str(straight.folder)
    config = changed(train__compile=True, generator__steps=8, codec__steps=8, codec__source=source)
    whole, cut = Root(tmp_path / "whole", config), Root(tmp_path / "cut", config)
    shared = {"TMPDIR": str(whole.path / "tmp")}  # what was compiled once need not be again
    end = "ncm_mlx.train:_write_inference:1:SIGUSR1"  # of the codec's stage, or after the last step of all
    code = 75 if stage == "codec" else 0
    whole.must_train(strike=end, code=code, env=shared)
    assert list((whole.path / "tmp").rglob("*.so")), "MLX fell back to eager"
    cut.must_train(strike=f"{STEP}:6:SIGKILL", code=-9, env=shared)
    cut.must_train("--resume", strike=f"{STEP}:2:SIGUSR1", code=75, env=shared)
    cut.must_train("--resume", strike=end, code=code, env=shared)
    for one in (header.verify_digests(root.snapshot(stage)) for root in (whole, cut)):
        assert (one["step"], one["root"]) == (8, header.describe(whole.snapshot(stage))["root"])
    weights = f"{stage}.safetensors"
    assert (cut.folder / weights).read_bytes() == (whole.folder / weights).read_bytes()


def test_the_word_now_cuts_an_evaluation_which_the_resumed_run_does_first(straight, tmp_path):
    root = Root(tmp_path)
    root.folder.mkdir(parents=True)
    (root.folder / ".pause").write_text("now\n")
    root.must_train(code=75)  # in data preparation
    assert not (root.folder / ".pause").exists()
    with root.started("--resume", strike=f"{STEP}:5:SIGSTOP") as trainer:
        await_(lambda: "T (stopped)" in Path(f"/proc/{trainer.pid()}/status").read_text(), "the stop at step 5")
        (root.folder / ".pause").write_text("now\n")
        trainer.send(signal.SIGCONT)
        assert trainer.ended().code == 75
    state = root.state("codec")
    assert (state["step"], state["evaluation_due"], state["best"]) == (5, True, None)
    root.must_train("--resume")
    assert root.roots() == straight.roots()


def test_a_signal_in_the_first_milliseconds_is_a_pause(tmp_path):
    """Blocked at the start, as a launcher does it, none is lost; unblocked, from the moment of the handler on."""
    root = Root(tmp_path / "blocked")
    with root.started(blocked=True) as trainer:
        trainer.send(signal.SIGUSR1)
        assert trainer.ended().code == 75
    root = Root(tmp_path / "open")
    with root.started() as trainer:
        await_(trainer.handles_pauses, "the handler")
        trainer.send(signal.SIGTERM)
        assert trainer.ended().code == 75


def test_a_log_that_takes_no_more_lines_changes_neither_the_run_nor_its_exit_code(straight, tmp_path):
    root = Root(tmp_path)
    command = [sys.executable, str(STRIKE), f"{STEP}:6:SIGUSR1", "train", f"configs/{root.name}.json"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, cwd=root.path, env=root.environment(), stdout=full, stderr=full)
    assert done.returncode == 75
    root.must_train("--resume")
    assert root.roots() == straight.roots()


def test_evaluation_draws_nothing_from_training(straight, tmp_path):
    """Every 5 steps, every 7, never: the same weights. The generators share a codec, which evaluation chooses."""
    found = {"codec": [], "generator": []}
    for every in (5, 7, 0):
        for stage, source in (("codec", ""), ("generator", str(straight.folder))):
            config = changed(train__evaluate_every=every, codec__source=source)
            root = Root(tmp_path / f"{stage}{every}", config)
            root.must_train(env={"NCM_MLX_GENERATOR_STEPS": "1"} if stage == "codec" else None)
            digests = header.describe(root.snapshot(stage))["sha256"]
            found[stage].append({k: v for k, v in digests.items() if k.startswith(("model.", "optimizer."))})
    for digests in found.values():
        assert digests == [digests[0]] * 3


def test_the_learning_rate_of_a_resumed_run_is_the_straight_runs(straight, tmp_path):
    root = Root(tmp_path, changed(train__log_every=1))
    root.must_train(strike=f"{STEP}:3:SIGKILL", code=-9)
    root.must_train("--resume", strike=f"{STEP}:14:SIGUSR1", code=75)
    root.must_train("--resume")
    every_step = Root(tmp_path / "straight", changed(train__log_every=1))
    every_step.must_train()
    assert _measured(root, "lr") == _measured(every_step, "lr")
    assert _measured(root, "loss") == _measured(every_step, "loss")
    assert len(_measured(root, "lr")) == 26
    assert root.roots() == every_step.roots() == straight.roots()  # the log's cadence is not identity


def test_a_weights_only_restart_is_labelled_and_differs(straight, tmp_path):
    root = Root(tmp_path)
    root.must_train(strike=f"{STEP}:20:SIGKILL", code=-9)  # generator step 7, last snapshot at 4
    kept = tmp_path / "kept.safetensors"
    root.snapshot("generator").rename(kept)
    again = Root(root.path, changed(codec__source=f"artifacts/{root.name}"), name="again")
    options = ["--generator-checkpoint", str(kept), "--generator-start-step", "4"]
    again.must_train(*options, strike="ncm_mlx.stage:codes_of:1:SIGKILL", code=-9)  # before its first snapshot
    again.must_train(*options, "--resume", strike=f"{STEP}:3:SIGUSR1", code=75)
    assert "not begun from these weights" in again.must_train(*options[:3], "5", "--resume", code=78).output
    kept.rename(tmp_path / "moved.safetensors")  # needed no more
    again.must_train(*options, "--resume")
    kept = tmp_path / "moved.safetensors"
    told = json.loads((again.folder / "generator.json").read_text())
    assert told["lineage"]["kind"] == "weights-only" and told["lineage"]["start_step"] == 4
    assert told["lineage"]["root"] == header.describe(kept)["root"] and not told["uninterrupted"]
    assert again.state("generator")["best"]["metric"] <= _measured(again, "validation")[("generator", 4)]
    assert again.roots()["codec.safetensors"] == straight.roots()["codec.safetensors"]
    assert again.roots()["generator.safetensors"] != straight.roots()["generator.safetensors"]
    lr, before = _measured(again, "lr"), _measured(straight, "lr")
    assert lr[("generator", 8)] == before[("generator", 8)]


def test_an_unreadable_latest_is_put_aside_and_previous_goes_on(straight, tmp_path):
    root = Root(tmp_path)
    root.must_train(strike=f"{STEP}:22:SIGUSR1", code=75)  # generator step 10, snapshots of 10 and 8
    latest = root.snapshot("generator")
    raw = bytearray(latest.read_bytes())
    raw[-3] ^= 0x10
    latest.write_bytes(raw)
    resumed = root.must_train("--resume")
    aside = next(root.folder.glob("generator-training.safetensors.corrupt-*"))
    said = [line for line in resumed.output.splitlines() if aside.name in line]
    assert len(said) == 1 and "is not a whole snapshot" in said[0]
    assert "generator-training.previous.safetensors, step 8" in resumed.output
    assert aside.read_bytes() == bytes(raw)
    assert root.roots() == straight.roots()


@pytest.mark.parametrize(
    "part", ["optimizer.enter.weight.m", "optimizer.step", "model._ema_sum", "best.leave.bias", "history.loss"]
)
def test_no_part_of_the_state_can_be_left_out(part, straight, tmp_path):
    """Missing: refused by name. There, but as at the start: the run ends elsewhere."""
    for how in ("missing", "reset"):
        root = Root(tmp_path / how)
        root.must_train(strike=f"{STEP}:10:SIGUSR1", code=75)
        whole = snapshot.load(root.snapshot("codec"))
        tensors = {k: v for k, v in whole.tensors.items() if how == "reset" or k != part}
        if how == "reset":
            old = tensors[part]
            tensors[part] = old._replace(data=np.zeros_like(old.data))
        snapshot.save(root.folder, snapshot.Snapshot(tensors, whole.state, whole.volatile))
        if how == "missing":
            assert part in root.must_train("--resume", code=78).output
        else:
            if part.startswith("best."):  # matters only where nothing better comes: let nothing come
                state = {**whole.state, "best": {"step": 5, "metric": -1.0}}
                snapshot.save(root.folder, snapshot.Snapshot(tensors, state, whole.volatile))
            root.must_train("--resume")
            assert root.roots() != straight.roots()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"generator__batch": 4}, "generator.batch 8 -> 4"),
        ({"generator__learning_rate": 0.5}, "generator.learning_rate 0.01 -> 0.5"),
        ({"seed": 4}, "seed 3 -> 4"),
        ({"data__boards": 48}, "data.boards 40 -> 48"),
        ({"generator__steps": 20}, "generator.steps 14 -> 20"),
        ({"train__evaluate_every": 6}, "train.evaluate_every 5 -> 6"),
    ],
)
def test_a_resume_with_another_identity_is_refused_by_name(change, said, tmp_path):
    root = Root(tmp_path)
    root.must_train(strike=f"{STEP}:18:SIGUSR1", code=75)
    before = root.snapshot("generator").read_bytes()
    root.write(changed(**change))
    refused = root.must_train("--resume", code=78)
    assert said in refused.output and "fix: " in refused.output and "Traceback" not in refused.output
    assert root.snapshot("generator").read_bytes() == before


def test_an_accepted_change_goes_on_and_is_told_of_for_ever(straight, tmp_path):
    """Accepted once, old and new stand in lineage and metadata of all that follows; what is not named is refused."""
    root = Root(tmp_path)
    root.must_train(strike=f"{STEP}:18:SIGUSR1", code=75)
    before = header.describe(root.snapshot("generator"))
    root.write(changed(generator__learning_rate=0.002, generator__dropout=0.25))
    one = {"REMOTE_RUN_ACCEPT": '{"generator.learning_rate": null}'}
    refused = root.must_train("--resume", code=78, env=one)
    assert "generator.dropout 0.5 -> 0.25" in refused.output and "learning_rate" not in refused.output
    assert "--accept-change generator.dropout" in refused.output
    both = {"REMOTE_RUN_ACCEPT": '{"generator.learning_rate": null, "generator.dropout": null, "code": ["a", "b"]}'}
    assert root.must_train("--resume", strike="ncm_mlx.loop:_step:1:SIGUSR1", code=75, env=both)
    root.must_train("--resume")  # accepted once is enough
    state = root.state("generator")
    assert state["step"] == state["target_steps"]
    told = state["lineage"]
    assert (told["root"], told["step"], told["before"]) == (before["root"], before["step"], None)
    assert sorted((c["key"], c["old"], c["new"]) for c in told["changes"]) == [
        ("code", "a", "b"), ("generator.dropout", 0.5, 0.25), ("generator.learning_rate", 0.01, 0.002),
    ]  # fmt: skip
    metadata = json.loads((root.folder / "generator.json").read_text())
    assert metadata["lineage"] == told and metadata["uninterrupted"] is False
    assert root.state("codec")["lineage"] is None
    assert root.roots()["codec.safetensors"] == straight.roots()["codec.safetensors"]
    lr, straight_lr = _measured(root, "lr"), _measured(straight, "lr")
    assert lr[("generator", 8)] == pytest.approx(straight_lr[("generator", 8)] / 5)


def test_a_change_that_reaches_both_stages_leads_from_one_to_the_other(tmp_path):
    """The codec has ended: it keeps its tensors, says what was changed, and the generator follows its new root."""
    root = Root(tmp_path)
    root.must_train(strike=f"{STEP}:18:SIGUSR1", code=75)
    codec = header.describe(root.snapshot("codec"))
    root.write(changed(seed=4))
    assert "seed 3 -> 4" in root.must_train("--resume", code=78).output
    root.must_train("--resume", env={"REMOTE_RUN_ACCEPT": '{"seed": null}'})
    now = header.describe(root.snapshot("codec"))
    assert now["sha256"] == codec["sha256"] and now["lineage"]["root"] == codec["root"]
    keys = [c["key"] for c in root.state("generator")["lineage"]["changes"]]
    assert sorted(keys) == ["codec.root", "data.sha256", "seed"]
    root.write(changed(seed=4, generator__steps=20))
    root.must_train("--resume", env={"REMOTE_RUN_ACCEPT": '{"generator.steps": null}'})
    told = root.state("generator")["lineage"]
    assert told["changes"] == [{"key": "generator.steps", "old": 14, "new": 20}]
    assert sorted(c["key"] for c in told["before"]["changes"]) == sorted(keys)
    root.write(changed(seed=4, generator__steps=10))
    beyond = root.must_train("--resume", code=78, env={"REMOTE_RUN_ACCEPT": '{"generator.steps": null}'})
    assert "beyond the 10 steps" in beyond.output


def test_the_step_budget_of_the_environment_is_part_of_the_run(tmp_path):
    root = Root(tmp_path)
    budget = {"NCM_MLX_GENERATOR_STEPS": "9"}
    root.must_train(strike=f"{STEP}:4:SIGUSR1", code=75, env=budget)
    assert _printed_steps(root) == "9"
    root.must_train("--resume", strike=f"{STEP}:12:SIGUSR1", code=75, env=budget)
    assert _printed_steps(root) == "9"
    assert "NCM_MLX_GENERATOR_STEPS=9" in root.must_train("--resume", code=78).output
    root.must_train("--resume", env=budget)
    assert root.state("generator")["step"] == 9


def test_a_finished_run_resumed_writes_its_metadata_again(straight, tmp_path):
    root = Root(tmp_path)
    root.must_train()
    before = root.roots()
    for name in ("codec.json", "generator.json", "codec.safetensors", "generator.safetensors"):
        (root.folder / name).unlink()
    root.must_train("--resume")
    assert root.roots() == before and (root.folder / "generator.json").exists()


def test_a_start_over_snapshots_and_a_resume_of_nothing_are_refused(straight, tmp_path):
    assert "--resume" in straight.must_train(code=78).output
    root = Root(tmp_path)
    assert "nothing to resume" in root.must_train("--resume", code=78).output
    assert not root.folder.exists()
    # A restart by a supervisor, of a life that ended before it left anything, begins at the first step.
    root.must_train("--resume", env={"REMOTE_RUN_SEGMENT": "2"})
    assert root.roots() == straight.roots()


def test_another_mode_on_resume_is_told_and_kept(tmp_path):
    root = Root(tmp_path)
    root.must_train(strike=f"{STEP}:20:SIGUSR1", code=75)
    whole = snapshot.load(root.snapshot("generator"))
    elsewhere = {**whole.volatile, "versions": {**whole.volatile["versions"], "mlx": "0.1"}}
    snapshot.save(root.folder, snapshot.Snapshot(whole.tensors, whole.state, elsewhere))
    assert "warning: versions" in root.must_train("--resume").output
    changed_ = json.loads((root.folder / "generator.json").read_text())["interruptions"][-1]["changed"]
    assert changed_["versions"][0]["mlx"] == "0.1"


def test_a_loss_that_is_not_finite_ends_with_65_and_keeps_the_evidence(tmp_path):
    root = Root(tmp_path, changed(codec__learning_rate=1e38, train__log_every=1))
    ended = root.must_train(code=65)
    assert "non" in ended.output and list(root.folder.glob("codec-training.nonfinite.safetensors"))
    for path in root.folder.glob("codec-training*.safetensors"):
        if ".nonfinite." not in path.name:
            snapshot.verify(path)


def test_the_memory_limit_reaches_mlx(tmp_path):
    root = Root(tmp_path)
    ended = root.train(strike=f"{STEP}:1:SIGUSR1", env={"NCM_MLX_MEMORY_LIMIT_GB": "0.5"})
    assert ended.code == 75 and "limited to 0.5 GiB" in ended.output
    for bad in ("0", "-1", "nan", "much"):
        refused = Root(tmp_path / bad).must_train(code=78, env={"NCM_MLX_MEMORY_LIMIT_GB": bad})
        assert "NCM_MLX_MEMORY_LIMIT_GB" in refused.output


def _measured(root: Root, what: str) -> dict[tuple[str, int], float]:
    rows = [json.loads(line) for line in (root.folder / "metrics.jsonl").read_text().splitlines()]
    return {(row["stage"], row["step"]): row[what] for row in rows if what in row}


def _printed_steps(root: Root) -> str:
    program = Path(__file__).parent.parent / "scripts" / "checkpoint_steps.py"
    done = subprocess.run([sys.executable, program, root.folder], capture_output=True, text=True, check=True)
    return done.stdout.strip()
