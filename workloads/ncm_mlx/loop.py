"""The training loop of a stage: step, evaluate where due, snapshot, pause.

    evaluation due?  ->  boundary: row, snapshot  ->  pause asked?  ->  done?  ->  step  ->  again

All that a resumed run needs is in `Progress` and in the stage's live arrays; `content` puts both into a snapshot and
`restore` takes them out again, so the two are each other's mirror.

Not here: what a step computes (stage.py), the file (remote_runner.checkpoint).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ncm_mlx import arrays, config, order
from ncm_mlx.stage import Stage
from remote_runner.checkpoint import contract, pause, snapshot, writer
from remote_runner.checkpoint.config import ConfigError

SCHEMA = 1


class Paused(Exception):
    """The stage stopped on request."""


@dataclass
class Progress:
    """What a stage has done so far. `best` holds the weights with the lowest validation, by name."""

    start_step: int = 0
    step: int = 0
    evaluation_due: bool = False
    best_step: int | None = None
    best_metric: float | None = None
    best: dict[str, mx.array] = field(default_factory=dict)
    history: list[float] = field(default_factory=list)  # loss of each step after start_step
    lineage: dict[str, Any] | None = None
    training_s: float = 0.0
    interruptions: list[dict[str, Any]] = field(default_factory=list)


def train(stage: Stage, progress: Progress, run: Run) -> str:
    """Train to the last step.

    Returns: the root of the last snapshot.

    Raises:
        Paused: asked for; the state is durable.
        NonFinite, CannotSave: see remote_runner.checkpoint.
    """
    c, began, before_s = run.config, time.monotonic(), progress.training_s
    saved_as: tuple[int, bool] | None = run.loaded_as
    while True:
        measured = _evaluate(stage, progress, run) if progress.evaluation_due else {}
        progress.training_s = before_s + time.monotonic() - began
        last, asked = progress.step == stage.target_steps, run.request.asked()
        boundary = progress.step % c.train.log_every == 0 or last or saved_as is None
        if (boundary or measured) and saved_as != (progress.step, False):
            _report(stage, progress, run, measured)
        if (boundary or asked) and saved_as != (progress.step, progress.evaluation_due):
            run.writer.submit(content(stage, progress, run))
            saved_as = (progress.step, progress.evaluation_due)
        if asked:
            run.writer.flush()
            raise Paused(f"{stage.name} step {progress.step}/{stage.target_steps}")
        if last:
            saved = run.writer.flush()
            return saved.root if saved else run.loaded_root
        _step(stage, progress, run)


@dataclass
class Run:
    """What stays the same over the stages of one life of the trainer, and what was loaded for the present one."""

    config: config.Config
    request: pause.Request
    writer: writer.Writer
    facts: Mapping[str, Any]  # host, versions, config as read, overrides: goes into `volatile`
    loaded_as: tuple[int, bool] | None = None
    loaded_root: str = ""


def content(stage: Stage, progress: Progress, run: Run) -> snapshot.Snapshot:
    """The full state as it stands, by reference."""
    place = order.place(progress.step, stage.samples, stage.batch)
    best = None if progress.best_step is None else {"step": progress.best_step, "metric": progress.best_metric}
    state = {
        "schema": SCHEMA,
        "stage": stage.name,
        "stage_index": stage.index,
        "step": progress.step,
        **_position(stage, progress.step),
        "epoch": place.epoch,
        "cursor": place.cursor,
        "seed": stage.seed,
        "best": best,
        "evaluation_due": progress.evaluation_due,
        "target_steps": stage.target_steps,
        "fingerprint": stage.fingerprint,
        "lineage": progress.lineage,
    }
    volatile = {
        **run.facts,
        "identity": stage.identity,
        "attempt": contract.attempt(),
        "training_s": round(progress.training_s, 3),
        "interruptions": progress.interruptions,
    }
    live = {
        **arrays.live(stage.model, "model"),
        **arrays.live(stage.optimizer.state, "optimizer"),
        **{f"best.{name}": array for name, array in progress.best.items()},
    }
    mx.eval(live)
    tensors = {name: arrays.to_tensor(array) for name, array in live.items()}
    tensors["history.loss"] = snapshot.tensor(np.array(progress.history, dtype=np.float32))
    return snapshot.Snapshot(tensors, state, volatile)


def restore(stage: Stage, found: snapshot.Snapshot) -> Progress:
    """Put a snapshot into the stage's live objects.

    Raises:
        ConfigError: it belongs to another run: an identity field, a key, the order or an array differs, by name.
    """
    state, volatile = found.state, found.volatile
    _same_identity(stage, state, volatile)
    now = {**_position(stage, found.step), **order.place(found.step, stage.samples, stage.batch)._asdict()}
    for key, value in now.items():
        if state[key] != value:
            raise ConfigError(
                f"{stage.name} snapshot of step {found.step}: its {key} is {state[key]!r}, here it is {value!r}",
                "resume with the version of the code that wrote it",
            )
    try:
        arrays.put_back(stage.model, "model", found.tensors)
        arrays.put_back(stage.optimizer.state, "optimizer", found.tensors)
        kept = _best_of(stage, found)
    except arrays.ArrayMissing as wrong:
        raise ConfigError(f"{stage.name} snapshot: {wrong}", "resume with the code that wrote it") from None
    best = state["best"] or {"step": None, "metric": None}
    lineage = state["lineage"]
    start_step = int(lineage["start_step"]) if lineage else 0
    history = found.tensors["history.loss"].data.tolist()[: found.step - start_step]
    interruptions = [*volatile.get("interruptions", []), {"step": found.step, "segment": contract.segment()}]
    return Progress(
        start_step, found.step, state["evaluation_due"], best["step"], best["metric"], kept, history, lineage,
        volatile.get("training_s", 0.0), interruptions,
    )  # fmt: skip


def _best_of(stage: Stage, found: snapshot.Snapshot) -> dict[str, mx.array]:
    """The best weights in a snapshot; there are none before the first evaluation."""
    if found.state["best"] is None:
        return {}
    live = arrays.live(stage.model, "best")
    missing = [name for name in live if name not in found.tensors]
    if missing:
        raise arrays.ArrayMissing(f"not in the snapshot: {', '.join(missing)}")
    return {n.split(".", 1)[1]: arrays.from_tensor(found.tensors[n], array.dtype) for n, array in live.items()}


def _step(stage: Stage, progress: Progress, run: Run) -> None:
    place = order.place(progress.step, stage.samples, stage.batch)
    rows = _order(stage, place.epoch)[place.cursor : place.cursor + stage.batch]
    keys = {name: mx.array(words, dtype=mx.uint32) for name, words in _keys(stage, progress.step).items()}
    loss = stage.step(rows, keys)
    mx.eval(loss, stage.state)
    progress.step += 1
    progress.history.append(arrays.number(loss))
    every = run.config.train.evaluate_every
    progress.evaluation_due = every > 0 and (progress.step % every == 0 or progress.step == stage.target_steps)
    if not math.isfinite(progress.history[-1]):
        _stop_non_finite(stage, progress, run, f"loss is {progress.history[-1]}")


def _evaluate(stage: Stage, progress: Progress, run: Run) -> dict[str, float]:
    """Measure the model as it is. Gives nothing, and leaves the evaluation due, when a pause cuts it."""
    measured = stage.validate(run.request.at_once)
    if measured is None:
        return {}
    progress.evaluation_due = False
    if not math.isfinite(measured["validation"]):
        _stop_non_finite(stage, progress, run, f"validation is {measured['validation']}")
    if progress.best_metric is None or measured["validation"] < progress.best_metric:
        progress.best_step, progress.best_metric = progress.step, measured["validation"]
        progress.best = {name[1:]: array for name, array in arrays.live(stage.model, "").items()}
    return measured


def _stop_non_finite(stage: Stage, progress: Progress, run: Run, why: str) -> None:
    run.writer.settle(progress.step)  # it writes to the same temp
    evidence = snapshot.keep_evidence(run.config.folder, content(stage, progress, run))
    raise snapshot.NonFinite([f"{stage.name} step {progress.step}: {why}"], evidence)


def _report(stage: Stage, progress: Progress, run: Run, measured: Mapping[str, float]) -> None:
    save_s = round(run.writer.longest_save_s, 3)  # the supervisor keeps 1.5 times of it before the deadline
    row: dict[str, float] = {**measured, "target_steps": stage.target_steps, "save_s": save_s}
    text = f"{stage.name} step {progress.step}/{stage.target_steps}"
    if progress.history:
        rate = arrays.number(stage.optimizer.learning_rate)
        row = {"loss": progress.history[-1], "lr": rate, "training_s": round(progress.training_s, 3), **row}
        text += f" loss {row['loss']:.4f} lr {rate:.1e}"
    if measured:
        text += f" validation {measured['validation']:.4f} accuracy {measured['validation_accuracy']:.4f}"
    contract.say(text)
    contract.append_row(run.config.folder, stage.name, progress.step, row)


def _position(stage: Stage, step: int) -> dict[str, Any]:
    epoch = order.place(step, stage.samples, stage.batch).epoch
    return {"order_sha256": order.order_sha256(_order(stage, epoch)), "keys": _keys(stage, step)}


def _keys(stage: Stage, step: int) -> dict[str, list[int]]:
    return {name: order.key_words(stage.seed, stage.name, step, name) for name in stage.key_names}


_orders: dict[tuple[Any, ...], npt.NDArray[np.int64]] = {}


def _order(stage: Stage, epoch: int) -> npt.NDArray[np.int64]:
    which = (stage.seed, stage.name, epoch, stage.samples)
    if which not in _orders:
        _orders.clear()
        _orders[which] = order.epoch_order(*which)
    return _orders[which]


def _same_identity(stage: Stage, state: Mapping[str, Any], volatile: Mapping[str, Any]) -> None:
    if state["fingerprint"] == stage.fingerprint:
        return
    old, new = volatile.get("identity", {}), stage.identity
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    said = "; ".join(f"{key} {old.get(key)!r} -> {new.get(key)!r}" for key in changed) or "its fingerprint differs"
    fix = "put the old values back, or begin a new run under another name"
    if f"{stage.name}.steps" in changed:
        fix += f"; the old step budget comes back with {config.STEPS_VARIABLE}={old.get(f'{stage.name}.steps')}"
    raise ConfigError(f"{stage.name} snapshot of step {state['step']} is of another run: {said}", fix)
