"""An interrupted PyTorch run is the same run, to the bit: straight and interrupted ones end in equal roots.

Every life is a process of its own. The signal comes from inside, at a named point of the program (torch_life.py), so
that each phase is really hit; kills at random moments come from outside.
"""

import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch_life

from remote_runner.checkpoint import header

CONFIG = {
    "seed": 3,
    "out_dir": "artifacts/tiny",
    "data": {
        "sentences": 100, "validation_messages": 16, "length": 16, "substitution_keys": 2, "vigenere_keys": 1,
        "vigenere_period": 3, "workers": 0,
    },
    "model": {"width": 16, "heads": 2, "blocks": 1, "hidden": 16, "dropout": 0.1},
    "train": {
        "steps": 50, "batch": 32, "learning_rate": 0.01, "warmup_steps": 10, "weight_decay": 0.01, "log_every": 10,
        "evaluate_every": 15, "compile": False,
    },
}  # fmt: skip
PER_EPOCH = 29  # batches; a test holds it to the truth

LIFE = Path(__file__).with_name("torch_life.py")
os.environ |= {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}  # before the fork server starts
processes = multiprocessing.get_context("forkserver")
# torch is imported once, in the server; every life is forked from there with nothing trained in it
processes.set_forkserver_preload(["torch", "torch._dynamo", "cipher_torch.train", "torch_life"])


def begin(root: Path, **changes):
    """Write a config into a fresh run root."""
    config = json.loads(json.dumps(CONFIG))
    for key, value in changes.items():
        section, name = key.split("__")
        config[section][name] = value
    (root / "configs").mkdir(parents=True, exist_ok=True)
    (root / "configs" / "tiny.json").write_text(json.dumps(config))
    return root


def start(root, *words, point="none", count=0, number="TERM", env=None):
    """Begin a life of the trainer; what it says goes to `said.log`."""
    (root / "said.log").unlink(missing_ok=True)
    blow = (point, count, number)
    process = processes.Process(
        target=torch_life.run, args=(str(root), blow, ["train", "configs/tiny.json", *words], env or {})
    )
    process.start()
    return process


def live(root, *words, **options):
    """One life of the trainer: (exit code, what it said)."""
    process = start(root, *words, **options)
    process.join(timeout=600)  # compiling takes a while where cores are shared
    assert process.exitcode is not None, "it never ended"
    return process.exitcode, (root / "said.log").read_text()


def said_so_far(root):
    return (root / "said.log").read_text() if (root / "said.log").exists() else ""


def ending(root):
    """What must be equal: the last snapshot's root, and the bytes of the weights."""
    folder = root / "artifacts" / "tiny"
    return header.verify_digests(folder / "cipher-training.safetensors")["root"], (
        folder / "cipher.safetensors"
    ).read_bytes()


@pytest.fixture(scope="session")
def straight(tmp_path_factory):
    root = begin(tmp_path_factory.mktemp("straight"))
    code, said = live(root)
    assert code == 0, said
    return root


def finish(root, **options):
    code, said = live(root, "--resume", **options)
    assert code == 0, said
    return said


def test_the_epochs_are_as_long_as_the_tests_below_think(straight):
    state = header.describe(straight / "artifacts/tiny/cipher-training.safetensors")["state"]
    assert (state["epoch"], state["cursor"]) == (50 // PER_EPOCH, 50 % PER_EPOCH * 32)


def test_a_signal_before_anything_is_imported_is_a_pause(straight, tmp_path):
    """A real interpreter start, as `python -m cipher_torch` makes it."""
    root = begin(tmp_path)
    argv = [sys.executable, LIFE, "train", "configs/tiny.json"]
    done = subprocess.run(argv, cwd=root, capture_output=True, text=True)
    assert done.returncode == 75, done.stderr
    assert done.stdout.count("full training state saved") == 1
    finish(root)
    assert ending(root) == ending(straight)


PHASES = [
    ("data", 1), ("step", 1), ("step", 27), ("evaluation", 1), ("submit", 3), ("save", 2), ("publish", 2),
    ("rename", 4), ("step", 50),
]  # fmt: skip


@pytest.mark.parametrize(("point", "count"), PHASES)
def test_a_signal_in_any_phase_is_one_pause(straight, tmp_path, point, count):
    root = begin(tmp_path)
    code, said = live(root, point=point, count=count, number=random.choice(["TERM", "USR1", "INT"]))
    assert code == 75, said
    assert said.count("full training state saved") == 1
    assert "Traceback" not in said
    finish(root)
    assert ending(root) == ending(straight)


@pytest.mark.parametrize(("point", "count"), [("step", 24), ("save", 3), ("publish", 2), ("rename", 5), ("submit", 2)])
def test_a_kill_at_a_named_point_loses_only_what_was_after_the_snapshot(straight, tmp_path, point, count):
    root = begin(tmp_path)
    code, said = live(root, point=point, count=count, number="KILL")
    assert code == -signal.SIGKILL, said
    finish(root)
    assert ending(root) == ending(straight)


def test_kills_at_random_moments(straight, tmp_path):
    root, draw, words = begin(tmp_path), random.Random(), ()
    for _ in range(10):
        process = start(root, *words)
        while process.is_alive() and "step" not in said_so_far(root):  # the state of step 0 is on its way
            process.join(0.01)
        process.join(draw.uniform(0, 0.4))  # what is tested is that any moment will do
        process.kill()
        process.join(timeout=60)
        assert process.exitcode in (0, -signal.SIGKILL), said_so_far(root)
        words = ("--resume",)
    finish(root)
    assert ending(root) == ending(straight)


def test_cuts_around_the_end_of_an_epoch(straight, tmp_path):
    root, words = begin(tmp_path), ()
    for life, step in enumerate((PER_EPOCH - 1, PER_EPOCH, PER_EPOCH + 1)):
        code, said = live(root, *words, point="step", count=1 if life else step, number="USR1")
        assert code == 75, said
        assert f"step {step}/50" in said
        words = ("--resume",)
    finish(root)
    assert ending(root) == ending(straight)


def test_data_workers_change_nothing(straight, tmp_path):
    root = begin(tmp_path, data__workers=2)
    code, said = live(root, point="step", count=13, number="TERM")
    assert code == 75, said
    code, said = live(root, "--resume", point="step", count=20, number="KILL")
    assert code == -signal.SIGKILL, said
    finish(root)
    assert ending(root) == ending(straight)


def test_how_often_it_is_evaluated_leaves_the_weights_alone(straight, tmp_path):
    root = begin(tmp_path, train__evaluate_every=7)
    assert live(root)[0] == 0
    names = "artifacts/tiny/cipher-training.safetensors"
    ours, theirs = (header.describe(folder / names)["sha256"] for folder in (root, straight))
    trained = [name for name in ours if name.startswith(("model.", "optimizer.", "history."))]
    assert len(trained) > 20
    assert {name: ours[name] for name in trained} == {name: theirs[name] for name in trained}


def test_an_evaluation_cut_short_is_made_up_for(straight, tmp_path):
    root = begin(tmp_path)
    code, said = live(root, point="cut")
    assert code == 75, said
    assert "paused at step 15/50" in said
    assert header.describe(root / "artifacts/tiny/cipher-training.safetensors")["state"]["evaluation_due"]
    assert not (root / "artifacts/tiny/.pause").exists()
    finish(root)
    assert ending(root) == ending(straight)


def test_a_broken_latest_costs_only_the_steps_behind_previous(straight, tmp_path):
    root = begin(tmp_path)
    assert live(root, point="step", count=35, number="TERM")[0] == 75
    latest = root / "artifacts/tiny/cipher-training.safetensors"
    content = bytearray(latest.read_bytes())
    content[-9] ^= 1
    latest.write_bytes(content)
    said = finish(root)
    assert "corrupt" in said
    assert "step 30" in said
    assert ending(root) == ending(straight)


def test_a_finished_run_may_be_resumed(straight, tmp_path):
    root = tmp_path / "again"
    shutil.copytree(straight, root)
    (root / "artifacts/tiny/cipher.json").unlink()
    finish(root)
    assert ending(root) == ending(straight)
    assert (root / "artifacts/tiny/cipher.json").exists()


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_state_before(straight, tmp_path):
    root = begin(tmp_path)
    code, said = live(root, point="nan", count=24)
    assert code == 65, said
    assert "step 25: loss is nan" in said
    folder = root / "artifacts/tiny"
    assert header.verify_digests(folder / "cipher-training.safetensors")["step"] == 20
    assert (folder / "cipher-training.nonfinite.safetensors").exists()
    finish(root)
    assert ending(root) == ending(straight)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"train__batch": 16}, "train.batch 32 -> 16"),
        ({"train__steps": 60}, "train.steps 50 -> 60"),
        ({"train__learning_rate": 0.02}, "train.learning_rate 0.01 -> 0.02"),
        ({"model__dropout": 0.2}, "model.dropout 0.1 -> 0.2"),
    ],
)
def test_a_resume_with_other_mathematics_is_refused_by_name(straight, tmp_path, change, words):
    root = tmp_path / "changed"
    shutil.copytree(straight, root)
    before = ending(root)
    begin(root, **change)
    code, said = live(root, "--resume")
    assert code == 78, said
    assert words in said
    assert "Traceback" not in said
    assert ending(root) == before


def test_an_accepted_change_goes_on_and_is_told_of_for_ever(straight, tmp_path):
    root = begin(tmp_path)
    assert live(root, point="step", count=25, number="TERM")[0] == 75
    before = header.describe(root / "artifacts/tiny/cipher-training.safetensors")
    begin(root, train__learning_rate=0.001, train__batch=16, train__log_every=1)
    accept = {"REMOTE_RUN_ACCEPT": '{"train.learning_rate": null, "train.batch": null, "code": ["a", "b"]}'}
    code, said = live(root, "--resume", env={"REMOTE_RUN_ACCEPT": '{"train.batch": null}'})
    assert code == 78 and "train.learning_rate 0.01 -> 0.001" in said and "train.batch" not in said, said
    assert "--accept-change train.learning_rate" in said
    assert live(root, "--resume", env=accept, point="step", count=1, number="TERM")[0] == 75
    finish(root, env=accept)  # what was accepted once is not added again
    told = header.describe(root / "artifacts/tiny/cipher-training.safetensors")["lineage"]
    assert (told["root"], told["step"], told["before"]) == (before["root"], before["step"], None)
    assert sorted(c["key"] for c in told["changes"]) == ["code", "train.batch", "train.learning_rate"]
    metadata = json.loads((root / "artifacts/tiny/cipher.json").read_text())
    assert metadata["lineage"] == told and metadata["uninterrupted"] is False
    rows = [json.loads(line) for line in (root / "artifacts/tiny/metrics.jsonl").read_text().splitlines()]
    at = {row["step"]: row["lr"] for row in rows if "lr" in row}
    assert at[before["step"] + 1] == pytest.approx(0.1 * 0.01 * _share(before["step"] + 1), rel=1e-6)


def _share(step):
    """The part of the highest rate that the schedule has after so many steps."""
    return 0.5 * (1 + math.cos(math.pi * (step - 10) / 40))


@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_runs_are_equal_too(tmp_path):
    env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    whole, cut = begin(tmp_path / "whole", train__compile=True), begin(tmp_path / "cut", train__compile=True)
    code, said = live(whole, env=env)
    assert code == 0, said
    assert list((tmp_path / "cache").rglob("*.so")), "nothing was compiled"
    code, said = live(cut, point="step", count=1, number="TERM", env=env)  # while it compiles
    assert code == 75, said
    code, said = live(cut, "--resume", point="step", count=22, number="KILL", env=env)
    assert code == -signal.SIGKILL, said
    finish(cut, env=env)
    assert ending(cut) == ending(whole)
    assert header.describe(cut / "artifacts/tiny/cipher-training.safetensors")["volatile"]["mode"] == "compiled"
