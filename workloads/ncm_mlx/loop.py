"""The training loop of a stage: step, evaluate where due, snapshot, pause.

    evaluation due?  ->  boundary: row, snapshot  ->  pause asked?  ->  done?  ->  step  ->  again

Not here: what a step computes (stage.py), what a snapshot holds (state.py).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ncm_mlx import arrays, config, order, state
from ncm_mlx.stage import Stage
from ncm_mlx.state import Progress
from remote_runner.checkpoint import contract, pause, snapshot, writer


class Paused(Exception):
    """The stage stopped on request."""


@dataclass(frozen=True)
class Run:
    """What stays the same over the stages of one life of the trainer."""

    config: config.Config
    request: pause.Request
    writer: writer.Writer
    facts: Mapping[str, Any]  # host, versions, config as read, overrides: goes into `volatile`


def train(stage: Stage, progress: Progress, run: Run) -> str:
    """Train to the last step.

    Returns: the root of the last snapshot.

    Raises:
        Paused: asked for; the state is durable.
        NonFinite, CannotSave: see remote_runner.checkpoint.
    """
    c, began, before_s = run.config, time.monotonic(), progress.training_s
    while True:
        measured = _evaluate(stage, progress, run) if progress.evaluation_due else {}
        progress.training_s = before_s + time.monotonic() - began
        last, asked = progress.step == stage.target_steps, run.request.asked()
        boundary = progress.step % c.train.log_every == 0 or last or progress.saved_as is None
        if (boundary or measured) and progress.saved_as != (progress.step, False):
            _report(stage, progress, run, measured)
        if (boundary or asked) and progress.saved_as != (progress.step, progress.evaluation_due):
            run.writer.submit(state.content(stage, progress, run.facts))
            progress.saved_as = (progress.step, progress.evaluation_due)
        if asked:
            run.writer.flush()
            raise Paused(f"{stage.name} step {progress.step}/{stage.target_steps}")
        if last:
            saved = run.writer.flush()
            return saved.root if saved else progress.root
        _step(stage, progress, run)


def _step(stage: Stage, progress: Progress, run: Run) -> None:
    place = order.place(progress.step, stage.samples, stage.batch)
    shuffled = order.epoch_order(stage.seed, stage.name, place.epoch, stage.samples)
    rows = shuffled[place.cursor : place.cursor + stage.batch]
    keys = {name: mx.array(words, dtype=mx.uint32) for name, words in stage.keys(progress.step).items()}
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
    evidence = snapshot.keep_evidence(run.config.folder, state.content(stage, progress, run.facts))
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
