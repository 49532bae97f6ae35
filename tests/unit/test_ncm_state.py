"""Nothing a model or optimizer holds is left out of a snapshot, and what goes in comes back."""

from __future__ import annotations

import gc
import types
from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from ncm_mlx import arrays, boards, codec, config, layers, loop, stage, state
from trainer_runs import TINY

from remote_runner.checkpoint import pause, snapshot, writer
from remote_runner.checkpoint.config import build

CONFIG = build(TINY, config.Config, "tiny")
SKIPPED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)


@pytest.fixture(scope="module")
def data():
    return boards.make(CONFIG.seed, CONFIG.data)


def build_stage(name, data):
    if name == "codec":
        return stage.build_codec(CONFIG, data)
    frozen = codec.VQCodec(CONFIG.codec)
    return stage.build_generator(CONFIG, data, frozen, "root", CONFIG.generator.steps)


@pytest.fixture(params=["codec", "generator"])
def built(request, data):
    return build_stage(request.param, data)


@pytest.fixture
def run(tmp_path):
    with writer.Writer(tmp_path) as saver:
        folder = replace(CONFIG, out_dir=str(tmp_path))
        yield loop.Run(folder, pause.Request(tmp_path), saver, {"versions": {}, "host": "", "mode": ""})


def reachable_arrays(*roots):
    """Ids of all arrays that the garbage collector can reach from some objects, code aside."""
    seen, found, todo = set(), {}, list(roots)
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, SKIPPED):
            continue
        seen.add(id(thing))
        if isinstance(thing, mx.array):
            found[id(thing)] = thing
        else:
            todo.extend(gc.get_referents(thing))
            todo.extend(vars(thing).values() if hasattr(thing, "__dict__") else [])
    return found


def in_snapshot(built):
    live = {**arrays.live(built.model, "model"), **arrays.live(built.optimizer.state, "optimizer")}
    return {id(array) for array in live.values()}


def test_every_array_a_model_or_optimizer_can_reach_is_in_the_snapshot(built, run):
    progress = state.Progress()
    loop._step(built, progress, run)
    reached = reachable_arrays(built.model, built.optimizer)
    assert len(reached) > 20
    assert set(reached) == in_snapshot(built)
    names = set(state.content(built, progress, run.facts).tensors)
    assert len(names) == len(reached) + 1 and "history.loss" in names


def test_that_walk_finds_an_array_the_snapshot_would_miss(built):
    class Aside:
        hidden = None

    built.model.aside = Aside()
    built.model.aside.hidden = mx.zeros(3)
    assert set(reachable_arrays(built.model, built.optimizer)) - in_snapshot(built)


def test_names_that_parameters_skip_are_walked():
    model = codec.VQCodec(CONFIG.codec)
    model.leave.freeze()
    names = set(arrays.live(model, "model"))
    assert {"model._ema_count", "model._ema_sum", "model.codebook", "model.leave.bias"} <= names


def test_a_tuple_of_arrays_is_refused_since_it_could_not_be_restored():
    model = nn.Module()
    model.pair = (mx.zeros(2), mx.zeros(2))
    with pytest.raises(TypeError, match=r"model\.pair"):
        arrays.live(model, "model")


def test_what_goes_into_a_snapshot_comes_back_into_fresh_objects(built, data, run, tmp_path):
    progress = state.Progress()
    for _ in range(5):
        loop._step(built, progress, run)
    loop._evaluate(built, progress, run)
    snapshot.save(tmp_path, state.content(built, progress, run.facts))
    again = build_stage(built.name, data)
    resumed = state.restore(again, snapshot.load_newest(tmp_path, built.name).snapshot)
    for prefix, old, new in (
        ("model", built.model, again.model),
        ("optimizer", built.optimizer.state, again.optimizer.state),
        ("best", progress.best, resumed.best),
    ):
        first, second = arrays.live(old, prefix), arrays.live(new, prefix)
        assert first.keys() == second.keys() and first
        for name, array in first.items():
            assert array.dtype == second[name].dtype and mx.array_equal(array, second[name]), name
    assert resumed.history == np.float32(progress.history).tolist()
    assert (resumed.step, resumed.best_step, resumed.best_metric) == (5, 5, progress.best_metric)


def test_a_snapshot_taken_by_reference_does_not_see_later_steps(built, run):
    progress = state.Progress()
    loop._step(built, progress, run)
    content = state.content(built, progress, run.facts)
    copies = {name: np.array(t.data) for name, t in content.tensors.items()}
    for _ in range(4):
        loop._step(built, progress, run)
    for name, t in content.tensors.items():
        assert np.array_equal(t.data, copies[name]), name


def test_a_snapshot_in_flight_costs_one_extra_copy_of_the_state_at_most():
    gc.collect()
    live = {f"model.{i}": mx.random.normal((1 << 20,)) for i in range(4)}
    mx.eval(live)
    state_bytes, before = 4 << 22, mx.get_active_memory()
    tensors = {name: arrays.to_tensor(array) for name, array in live.items()}
    assert mx.get_active_memory() == before  # taken by reference
    for name in live:
        live[name] = live[name] * 0.9  # the next step
        mx.eval(live[name])
    assert mx.get_active_memory() - before <= state_bytes
    del tensors
    assert mx.get_active_memory() - before <= state_bytes // 4


def test_a_validation_that_is_not_finite_never_becomes_the_best(built, run, tmp_path):
    progress = state.Progress(best_step=0, best_metric=9.0)
    nan = replace(built, validate=lambda cut: {"validation": float("nan"), "validation_accuracy": 0.0})
    with pytest.raises(snapshot.NonFinite, match="validation is nan"):
        loop._evaluate(nan, progress, run)
    assert (progress.best_step, progress.best_metric) == (0, 9.0)
    assert (tmp_path / f"{built.name}-training.nonfinite.safetensors").exists()


def test_bfloat16_goes_out_and_comes_back():
    value = mx.array([1.5, -2.0, 3e38], dtype=mx.bfloat16)
    kept = arrays.to_tensor(value)
    assert kept.dtype == "BF16" and mx.array_equal(arrays.from_tensor(kept, mx.bfloat16), value)


def test_dropout_is_a_function_of_its_key():
    x, key = mx.ones((100,)), mx.array([1, 2], dtype=mx.uint32)
    mx.random.seed(0)
    once = layers.dropout(x, 0.5, key)
    mx.random.seed(9)
    assert mx.array_equal(once, layers.dropout(x, 0.5, key))
    assert 20 < (once == 2).sum().item() < 80
