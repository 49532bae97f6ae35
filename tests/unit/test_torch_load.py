"""Loading compares everything before it touches anything, and takes little memory."""

import os
import random
import subprocess
import sys

import numpy
import pytest
import torch

from remote_runner.checkpoint import torch as ckpt


def training(width=4, seed=0):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(width, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(), torch.nn.Linear(8, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return model, optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, 50)


def advance(model, optimizer, scheduler, steps=3):
    width = model[0].in_features
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(6, width)).square().mean().backward()
        optimizer.step()
        scheduler.step()


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def states(parts):
    return [part.state_dict() for part in parts]


CONFIG = {"seed": 1, "model": {"width": 4, "heads": 2}, "log_every": 10}


@pytest.fixture(params=["x.pt", "model-training.safetensors"])
def path(request, tmp_path):
    return tmp_path / request.param


@pytest.fixture
def saved(path):
    parts = training()
    advance(*parts)
    ckpt.save_checkpoint(path, *parts, 3, CONFIG)
    return path, parts


def test_everything_comes_back(saved, capsys):
    path, parts = saved
    drawn = (random.random(), numpy.random.rand(), torch.rand(2).tolist())
    fresh = training(seed=9)
    random.seed(5), numpy.random.seed(5), torch.manual_seed(5)
    assert ckpt.load_checkpoint(path, *fresh, config=CONFIG) == 3
    assert same(states(fresh), states(parts))
    assert drawn == (random.random(), numpy.random.rand(), torch.rand(2).tolist())
    assert "✓ Resumed step 3" in capsys.readouterr().out
    ckpt.load_checkpoint(path, *fresh), advance(*fresh)
    ckpt.load_checkpoint(path, *parts), advance(*parts)
    assert same(states(fresh), states(parts)), "and what follows is equal"


@pytest.mark.parametrize("prefixes", [("", "module."), ("module.", ""), ("", "_orig_mod."), ("module._orig_mod.", "")])
def test_wrappers_of_either_side_are_seen_through(tmp_path, prefixes):
    class Wrapped(torch.nn.Module):
        def __init__(self, inner, name):
            super().__init__()
            self.add_module(name, inner)

    def wrap(model, prefix):
        for name in reversed(prefix.split(".")[:-1]):
            model = Wrapped(model, name)
        return model

    parts, fresh = training(), training(seed=9)
    advance(*parts)
    ckpt.save_checkpoint(tmp_path / "x.pt", wrap(parts[0], prefixes[0]), *parts[1:], 3, {})
    ckpt.load_checkpoint(tmp_path / "x.pt", wrap(fresh[0], prefixes[1]), *fresh[1:])
    assert same(states(fresh), states(parts))


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ({**CONFIG, "seed": 2}, "seed: 1 -> 2"),
        ({**CONFIG, "model": {"width": 4, "heads": 4}}, r"model\.heads: 2 -> 4"),
        ({**CONFIG, "log_every": 10.0}, r"log_every: 10 -> 10\.0"),
        ({**CONFIG, "rate": 1}, r"rate: '\(absent\)' -> 1"),
        ({"seed": 1, "log_every": 10}, "model: "),
    ],
)
def test_another_config_is_refused_by_key_and_nothing_is_touched(saved, now, words):
    path, _ = saved
    fresh = training(seed=9)
    before = [str(state) for state in states(fresh)]
    torch.manual_seed(77)
    drawn = torch.rand(1).item()
    torch.manual_seed(77)
    with pytest.raises(ckpt.CheckpointMismatch, match=words):
        ckpt.load_checkpoint(path, *fresh, config=now)
    assert before == [str(state) for state in states(fresh)]
    assert torch.rand(1).item() == drawn


def test_keys_that_may_change_may(saved):
    path, parts = saved
    fresh = training(seed=9)
    now = {**CONFIG, "log_every": 20, "model": {"width": 4, "heads": 3}}
    assert ckpt.load_checkpoint(path, *fresh, config=now, may_change=["log_every", "model.heads"]) == 3
    assert same(states(fresh), states(parts))


def test_another_shape_name_or_type_is_refused_and_nothing_is_touched(saved):
    path, _ = saved
    cases = [
        (training(width=5), r"0\.weight is \(8, 4\) in the file, \(8, 5\) in the model"),
        ((training()[0].double(), None, None), r"0\.weight is torch\.float32 in the file, torch\.float64 in the model"),
        ((torch.nn.Linear(4, 8), None, None), r"weight is missing"),
    ]
    for parts, words in cases:
        before = str(parts[0].state_dict())
        with pytest.raises(ckpt.CheckpointMismatch, match=words):
            ckpt.load_checkpoint(path, *parts)
        assert str(parts[0].state_dict()) == before
    model = training()[0]
    grouped = torch.optim.AdamW([{"params": [p]} for p in model.parameters()])
    with pytest.raises(ckpt.CheckpointMismatch, match="parameter groups"):
        ckpt.load_checkpoint(path, model, grouped)


def test_another_order_of_the_data_is_refused_and_nothing_is_touched(path):
    parts = training()
    ckpt.save_checkpoint(path, *parts, 0, CONFIG, data=ckpt.Batches(20, batch_size=4, seed=1))
    fresh = training(seed=9)
    before = str(states(fresh))
    with pytest.raises(ValueError, match="batch_size was 4 when saved, is 5 now"):
        ckpt.load_checkpoint(path, *fresh, data=ckpt.Batches(20, batch_size=5, seed=1))
    assert str(states(fresh)) == before


def test_a_broken_latest_is_set_aside_and_previous_is_taken(saved, capsys):
    path, parts = saved
    advance(*parts)
    ckpt.save_checkpoint(path, *parts, 6, CONFIG)
    path.write_bytes(path.read_bytes()[:-50])
    assert ckpt.load_checkpoint(path, *training(seed=9)) == 3
    said = capsys.readouterr().out
    assert ".corrupt-" in said
    assert "going on from" in said
    assert "step 3" in said
    assert not path.exists()
    assert len(list(path.parent.glob("*.corrupt-*"))) == 1


def test_a_missing_latest_is_normal(saved):
    path, parts = saved
    ckpt.save_checkpoint(path, *parts, 6, CONFIG)
    path.unlink()
    assert ckpt.load_checkpoint(path, *training(seed=9)) == 3


def test_nothing_there(path):
    with pytest.raises(FileNotFoundError, match="no checkpoint here"):
        ckpt.load_checkpoint(path, *training())
    assert ckpt.load_checkpoint(path, *training(), missing_ok=True) == 0


def test_weights_alone_are_no_checkpoint(tmp_path):
    model, _, _ = training()
    with pytest.raises(TypeError, match="a checkpoint holds model and optimizer"):
        ckpt.save_checkpoint(tmp_path / "x.pt", model, None, None, 1, {})
    torch.save(model.state_dict(), tmp_path / "x.pt")
    with pytest.raises(ckpt.CheckpointCorrupt, match="not a whole training state, it lacks step, model"):
        ckpt.load_checkpoint(tmp_path / "x.pt", *training())


def test_nonfinite_state_replaces_nothing(saved):
    path, parts = saved
    whole = path.read_bytes()
    with torch.no_grad():
        parts[0][3].bias.fill_(float("nan"))
    with pytest.raises(ValueError, match=r"model\.3\.bias"):
        ckpt.save_checkpoint(path, *parts, 4, CONFIG)
    assert path.read_bytes() == whole
    assert not list(path.parent.glob("*.tmp"))


def test_moments_keep_their_own_type(path):
    class Float32Moments(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            for group in self.param_groups:
                for parameter in group["params"]:
                    self.state[parameter]["mean"] = parameter.detach().float() * 1.001

    def make():
        model = torch.nn.Linear(3, 2).bfloat16()
        return model, Float32Moments(model.parameters(), lr=0.1)

    model, optimizer = make()
    model(torch.ones(1, 3).bfloat16()).sum().backward()
    optimizer.step()
    ckpt.save_checkpoint(path, model, optimizer, None, 1, {})
    other, fresh = make()
    ckpt.load_checkpoint(path, other, fresh)
    assert same(fresh.state_dict(), optimizer.state_dict())
    assert fresh.state[other.weight]["mean"].dtype == torch.float32
    assert other.weight.dtype == torch.bfloat16


def test_further_objects_and_extra_state_come_back(path):
    class Counting(torch.nn.Linear):
        seen = 0

        def get_extra_state(self):
            return {"seen": self.seen}

        def set_extra_state(self, state):
            self.seen = state["seen"]

    def make():
        model = Counting(2, 2)
        return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.swa_utils.AveragedModel(model)

    model, optimizer, average = make()
    model.seen = 41
    average.update_parameters(model)
    ckpt.save_checkpoint(path, model, optimizer, None, 1, {}, stateful={"average": average})
    other, fresh, fresh_average = make()
    ckpt.load_checkpoint(path, other, fresh, stateful={"average": fresh_average})
    assert other.seen == 41
    assert same(fresh_average.state_dict(), average.state_dict())
    with pytest.raises(ckpt.CheckpointMismatch, match="holds no state for 'scaler'"):
        ckpt.load_checkpoint(path, other, fresh, stateful={"scaler": fresh_average})


MEMORY = """
import sys, torch
from pathlib import Path


def peak_mib():
    # not ru_maxrss: that begins with what the process held that started this one
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) / 1024


from remote_runner.checkpoint import torch as ckpt
path, load = Path(sys.argv[1]), sys.argv[2] == "load"
model = torch.nn.Linear(3072, 3072, bias=False)  # 36 MiB; with its moments 108 MiB
optimizer = torch.optim.AdamW(model.parameters())
if not load:
    model(torch.ones(1, 3072)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    ckpt.save_checkpoint(path, model, optimizer, None, 1, {})
else:
    torch.load  # imported, and whatever a first load brings in
    before = peak_mib()
    ckpt.load_checkpoint(path, model, optimizer)
    print("grew", peak_mib() - before)
"""


@pytest.mark.parametrize("name", ["x.pt", "model-training.safetensors"])
def test_loading_takes_less_than_a_fifth_more_than_state_and_model(tmp_path, name):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}

    def run(word):
        argv = [sys.executable, "-c", MEMORY, tmp_path / name, word]
        return subprocess.run(argv, check=True, capture_output=True, text=True, env=environment).stdout

    run("save")
    grew_mib = float(run("load").split("grew")[1])
    assert 100 < grew_mib < 1.2 * (108 + 36) - 36, "the model was there before"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
            "'a'",
        ),
        (
            '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
            "b begins",
        ),
    ],
)
def test_doubled_and_overlapping_safetensors_are_refused_by_name(tmp_path, text, words):
    path = tmp_path / "model-training.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text.encode() + bytes(8))
    with pytest.raises(ckpt.CheckpointCorrupt, match=rf"model-training\.safetensors: .*{words}"):
        ckpt.load_checkpoint(path, *training())
