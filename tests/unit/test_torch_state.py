"""What can be saved is told when it is saved, random states come back, and no number that is none gets through."""

import random

import numpy
import pytest
import torch

from remote_runner.checkpoint import torch_state as state


def test_random_states_come_back():
    saved = state.stage(state.random_states())
    first = (random.random(), numpy.random.rand(), torch.rand(3).tolist(), random.gauss(0, 1), numpy.random.randn())
    state.set_random_states(saved)
    again = (random.random(), numpy.random.rand(), torch.rand(3).tolist(), random.gauss(0, 1), numpy.random.randn())
    assert first == again


def test_random_states_load_as_weights_only(tmp_path):
    random.seed(1)
    random.gauss(0, 1)  # leaves half a pair behind
    torch.save(state.random_states(), tmp_path / "x.pt")
    back = torch.load(tmp_path / "x.pt", weights_only=True)
    state.set_random_states(back)
    assert back["python"]["gauss"] is not None


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"config": {"rate": numpy.float64(0.1)}}, r"config\.rate is a float64"),
        ({"optimizer": [{"hook": print}]}, r"optimizer\[0\]\.hook is a builtin"),
        ({"model": {"w": numpy.ones(2)}}, r"model\.w is a ndarray"),
        ({"config": {(1, 2): 3}}, r"config: the key \(1, 2\) is a tuple"),
        ({"model": {"w": torch.eye(2).to_sparse()}}, r"model\.w is a Tensor \(torch\.sparse_coo\)"),
    ],
)
def test_what_would_not_load_again_is_refused_by_its_path(bad, words):
    with pytest.raises(TypeError, match=words):
        state.stage(bad)


def test_buffers_are_used_again():
    tree, buffers = {"a": torch.zeros(4), "b": [torch.ones(2, 2).t()]}, {}
    first = state.stage(tree, buffers)
    tree["a"] += 1
    assert first["a"].tolist() == [0, 0, 0, 0], "a copy, not the live tensor"
    again = state.stage(tree, buffers)
    assert again["a"].data_ptr() == first["a"].data_ptr()
    assert again["a"].tolist() == [1, 1, 1, 1]


def test_tied_tensors_stay_tied_and_slices_stay_small():
    whole = torch.zeros(1000)
    staged = state.stage({"a": whole[:3], "b": whole[:3], "c": whole[3:6]})
    assert staged["a"] is staged["b"]
    assert staged["c"].untyped_storage().nbytes() == 12


FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.float8_e5m2]


@pytest.mark.parametrize("kind", [*FLOATS, torch.float8_e4m3fn])
def test_nan_is_seen_in_every_type(kind):
    values = torch.ones(100)
    assert state.nonfinite_kind(values.to(kind)) == ""
    values[57] = float("nan")
    assert state.nonfinite_kind(values.to(kind)) == "NaN"


@pytest.mark.parametrize("kind", FLOATS)
def test_infinities_are_told_from_nan_and_from_large_numbers(kind):
    values = torch.ones(100)
    values[57], values[58] = float("inf"), float("-inf")
    assert state.nonfinite_kind(values.to(kind)) == "an infinity"
    if kind in (torch.float16, torch.bfloat16, torch.float32):
        largest = torch.full((100,), torch.finfo(kind).max, dtype=kind)
        assert state.nonfinite_kind(largest) == "", "their sum overflows, they do not"


def test_whole_numbers_and_empty_tensors_are_finite():
    assert state.nonfinite_kind(torch.arange(3)) == state.nonfinite_kind(torch.empty(0)) == ""
