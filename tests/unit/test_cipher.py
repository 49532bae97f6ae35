"""The PyTorch trainer's parts: config, corpus, ciphers, model, and that its snapshot misses nothing alive."""

import dataclasses
import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cipher_torch import ciphers, config, corpus, state, task
from cipher_torch.model import CipherModel

from remote_runner.checkpoint import header, snapshot
from remote_runner.checkpoint.config import ConfigError
from remote_runner.checkpoint.torch_snapshot import from_tensor

SMOKE = Path(__file__).parents[2] / "configs" / "cipher-smoke.json"


def tiny(**changes):
    found = config.read(SMOKE)
    data = dataclasses.replace(found.data, sentences=100, length=16, validation_messages=16)
    model = dataclasses.replace(found.model, width=16, hidden=16, blocks=1, heads=2)
    train = dataclasses.replace(found.train, steps=20, batch=16, warmup_steps=5, **changes)
    return dataclasses.replace(found, data=data, model=model, train=train)


def advance(t, steps):
    rows = task.rows(t)
    return [task.train_step(t, next(rows), step) for step in range(steps)]


def check(folder, text, name="x"):
    (folder / "configs").mkdir(exist_ok=True)
    path = folder / "configs" / f"{name}.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    argv = [sys.executable, "-m", "cipher_torch", "check", f"configs/{name}.json"]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True)


def changed(**changes):
    content = json.loads(SMOKE.read_text())
    content["out_dir"] = "artifacts/x"
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if name:
            content[section][name] = value
        else:
            content[section] = value
    return json.dumps(content)


def test_the_shipped_config_is_good_and_torch_is_not_loaded_to_say_so():
    code = "import sys; from cipher_torch import cli; print(cli.main(['check', sys.argv[1]]), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, SMOKE], capture_output=True, text=True)
    assert done.stdout.splitlines() == [f"{SMOKE}: good", "0 False"], done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (changed(train__stepz=1), "unknown key 'train.stepz'\nfix: did you mean 'steps'?"),
        (changed(train__steps="20"), "'train.steps' is text"),
        (changed(train__steps=20.5), "'train.steps' is a number where a whole number belongs"),
        (changed(train__compile=1), "'train.compile' is a whole number where true or false belongs"),
        (changed(model__dropout=2), "'model.dropout' is 2.0, it must be from 0 to 0.9"),
        (changed(model__heads=3), "model.width 64 is no multiple of model.heads"),
        (changed(out_dir="artifacts/y"), "write 'artifacts/x'"),
        (changed(data__substitution_keys=0, data__vigenere_keys=0), "no key to encipher with"),
        (changed().replace('"seed": 11', '"seed": NaN'), "NaN"),
        (changed().replace('"seed": 11', '"seed": 11, "seed": 12'), "'seed' stands twice"),
        (changed()[:-2], "line 1 column"),
        (b"\xef\xbb\xbf" + changed().encode(), "byte order mark"),
        ("[]", "holds a list where an object belongs"),
        ("", "the file is empty"),
    ],
)
def test_a_bad_config_is_refused_with_one_message_and_its_fix(tmp_path, text, words):
    done = check(tmp_path, text)
    assert done.returncode == 78
    assert words in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.splitlines()[1].startswith("fix: ")
    assert len(done.stderr.splitlines()) == 2


def test_the_corpus_is_made_from_its_seed():
    lines = corpus.sentences(50, 1)
    assert lines == corpus.sentences(50, 1) != corpus.sentences(50, 2)
    assert all(set(line) <= set(corpus.ALPHABET + " ") for line in lines)
    used = set("".join(corpus.sentences(1000, 1)))
    assert len(used) == 27, "every letter occurs, so no key has an unseen one"


def test_every_key_can_be_undone_and_blanks_are_left():
    c = tiny()
    messages = ciphers.prepare(c)
    for key, table in enumerate(messages.tables):
        assert all(row.sort().values.tolist() == list(range(27)) for row in table)
        keys = torch.full((len(messages.validation),), key)
        secret = ciphers.encipher(messages.validation, messages.tables, keys)
        assert torch.equal(table.argsort(1)[torch.arange(c.data.length), secret], messages.validation)
        assert torch.equal(secret == corpus.BLANK, messages.validation == corpus.BLANK)


def test_a_vigenere_key_shifts_by_place_and_a_substitution_does_not():
    c = tiny()
    tables, period = ciphers.key_tables(c), c.data.vigenere_period
    substitution, vigenere = tables[0], tables[c.data.substitution_keys]
    assert all(torch.equal(row, substitution[0]) for row in substitution)
    assert torch.equal(vigenere[0], vigenere[period])
    assert len({int(row[0]) for row in vigenere}) > 1
    assert torch.equal(vigenere[0, :26], (torch.arange(26) + vigenere[0, 0]) % 26)


def test_frequency_analysis_reads_text_whose_frequencies_are_clear():
    plain = torch.tensor([[0] * 8 + [1] * 4 + [2] * 2 + [3, 26]] * 6)
    tables = ciphers.key_tables(tiny())
    keys = torch.zeros(6, dtype=torch.int64)
    secret = ciphers.encipher(plain, tables, keys)
    assert ciphers.accuracy(ciphers.frequency_analysis(secret, keys, [1], plain), plain) == 1
    assert ciphers.accuracy(secret, plain) < 1


def test_validation_text_is_never_trained_on():
    c = tiny()
    lines = corpus.sentences(c.data.sentences, c.seed)
    assert len(set(lines)) > 95
    trained = {tuple(row.tolist()) for row in ciphers.prepare(c).training}
    shared = [row for row in ciphers.prepare(c).validation if tuple(row.tolist()) in trained]
    assert len(shared) == 0


def test_the_model_is_built_from_the_config_alone():
    settings = json.loads(SMOKE.read_text())
    torch.manual_seed(0)
    model = CipherModel(settings)
    assert model(torch.zeros(2, settings["data"]["length"], dtype=torch.int64)).shape == (
        2,
        settings["data"]["length"],
        27,
    )


def test_the_rate_warms_up_and_falls_to_nothing():
    c = tiny()
    rates = [task.rate(c, step) for step in range(c.train.steps + 1)]
    assert rates[:5] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert rates[-1] == pytest.approx(0)


def test_every_tensor_alive_in_model_and_optimizer_is_in_the_snapshot():
    t = task.build(tiny())
    advance(t, 3)
    saved = state.content(t, state.Progress(step=3), {}, {}).tensors
    held = {bytes(value.data) for value in saved.values()}
    alive, queue, seen = [], [t.model, t.optimizer], set()
    while queue:  # whatever is reachable, under whatever name
        thing = queue.pop()
        if id(thing) in seen or isinstance(thing, type | type(gc)):
            continue
        seen.add(id(thing))
        if isinstance(thing, torch.Tensor):
            alive.append(thing.detach())
        elif isinstance(thing, dict):
            queue += [*thing.keys(), *thing.values()]
        elif isinstance(thing, list | tuple | set):
            queue += thing
        elif hasattr(thing, "__dict__") and type(thing).__module__.startswith(
            ("torch.nn", "torch.optim", "cipher_torch")
        ):
            queue += vars(thing).values()
    assert len(alive) > 40
    for value in alive:
        raw = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        assert raw in held, f"{tuple(value.shape)} {value.dtype} is not saved"


def test_a_snapshot_puts_everything_back(tmp_path):
    straight = task.build(tiny())
    losses = advance(straight, 9)
    first = task.build(tiny())
    assert advance(first, 4) == losses[:4]
    snapshot.save(tmp_path, state.content(first, state.Progress(step=4, history=losses[:4]), {}, {}))
    torch.manual_seed(123)
    resumed = task.build(tiny())
    progress = state.restore(resumed, snapshot.load(tmp_path / "cipher-training.safetensors"))
    rows = task.rows(resumed)
    again = [task.train_step(resumed, next(rows), step) for step in range(4, 9)]
    assert progress.history + again == pytest.approx(losses, abs=0)
    a, b = (state.content(t, state.Progress(step=9), {}, {}) for t in (straight, resumed))
    assert a.state == b.state
    assert {name: bytes(value.data) for name, value in a.tensors.items()} == {
        name: bytes(value.data) for name, value in b.tensors.items()
    }


@pytest.mark.parametrize("lost", ["optimizer", "scheduler", "step"])
def test_leaving_a_part_out_of_the_snapshot_would_be_seen(tmp_path, lost):
    """The proof above can fail: without moments, schedule position or step the rest of the run differs."""
    straight, first, resumed = (task.build(tiny()) for _ in range(3))
    losses = advance(straight, 9)
    advance(first, 4)
    found = state.content(first, state.Progress(step=4), {}, {})
    state.restore(resumed, snapshot.Snapshot(found.tensors, found.state, {}))
    if lost == "optimizer":
        resumed.optimizer.state.clear()
    if lost == "scheduler":
        resumed.optimizer.param_groups[0]["lr"] *= 0.2  # as at the first step
    if lost == "step":
        resumed.batches.seek(3)
    rows = task.rows(resumed)
    again = [task.train_step(resumed, next(rows), step) for step in range(4, 9)]
    assert again != losses[4:]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda s: s.state.update(keys={"step": 1}), "its keys is"),
        (lambda s: s.state.update(order_sha256="0"), "its order_sha256 is"),
        (lambda s: s.state.update(cursor=0), "its cursor is"),
        (lambda s: s.tensors.pop("model.head.weight"), r"model\.head\.weight is not in it"),
        (lambda s: s.tensors.pop("optimizer.head.bias.exp_avg"), r"optimizer\.head\.bias\.exp_avg is not in it"),
        (lambda s: s.state.update(fingerprint="0"), "is of another run"),
    ],
)
def test_a_snapshot_that_does_not_fit_is_refused_and_nothing_is_touched(spoil, words):
    t = task.build(tiny())
    advance(t, 4)
    found = state.content(t, state.Progress(step=4), {}, {})
    found = snapshot.Snapshot(dict(found.tensors), dict(found.state), dict(found.volatile))
    spoil(found)
    fresh = task.build(tiny())
    before = {name: value.clone() for name, value in fresh.model.state_dict().items()}
    with pytest.raises(ConfigError, match=words):
        state.restore(fresh, found)
    assert all(torch.equal(value, before[name]) for name, value in fresh.model.state_dict().items())


def test_what_may_change_over_a_resume_is_no_identity():
    base = config.identity(tiny(), "x")
    assert config.identity(tiny(log_every=7, compile=True), "x") == base
    assert config.identity(tiny(evaluate_every=7), "x") != base
    assert config.identity(tiny(), "y") != base


def test_a_short_run_learns_and_leaves_what_the_contract_names(tmp_path):
    content = json.loads(
        changed(train__steps=120, train__log_every=40, train__evaluate_every=60, train__warmup_steps=20)
    )
    content["data"] |= {
        "sentences": 600,
        "length": 24,
        "substitution_keys": 1,
        "vigenere_keys": 1,
        "validation_messages": 64,
    }
    content["model"] |= {"width": 32, "hidden": 32, "blocks": 1}
    content["train"] |= {"learning_rate": 0.02}
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "x.json").write_text(json.dumps(content))

    def run(word):
        argv = [
            sys.executable,
            "-c",
            "from cipher_torch import cli; raise SystemExit(cli.main())",
            word,
            "configs/x.json",
        ]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, env=env)

    done = run("train")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "artifacts" / "x"
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "loss" in row] == [40, 60, 80, 120]
    assert {"t", "stage", "step", "segment"} <= set(rows[-1])
    assert header.verify_digests(folder / "cipher-training.safetensors")["step"] == 120
    assert header.verify_digests(folder / "cipher-training.previous.safetensors")["step"] == 80
    done = run("evaluate")
    assert done.returncode == 0, done.stderr
    told = json.loads((folder / "evaluation.json").read_text())
    assert all(part["accuracy"] > part["frequency_analysis"] + 0.1 for part in told.values()), told
    again = run("train")
    assert again.returncode == 78, "a fresh start never overwrites"
    assert "go on with --resume" in again.stderr
    weights = snapshot.read_tensors(folder / "cipher.safetensors")
    CipherModel(content).load_state_dict({name: from_tensor(value) for name, value in weights.items()}, strict=True)
