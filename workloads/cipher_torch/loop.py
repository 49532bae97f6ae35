"""The training loop: step, evaluate where due, snapshot, pause.

    evaluation due?  ->  boundary: row, snapshot  ->  pause asked?  ->  done?  ->  step  ->  again

Not here: what a step computes (task.py), what a snapshot holds (state.py), the file (remote_runner.checkpoint).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cipher_torch import state, task
from cipher_torch.state import Progress
from cipher_torch.task import STAGE, Task
from remote_runner.checkpoint import contract, pause, snapshot, writer
from remote_runner.checkpoint.torch_state import Buffers


class Paused(Exception):
    """The training stopped on request."""


@dataclass
class Run:
    """What stays the same over one life of the trainer, and what was loaded."""

    request: pause.Request
    writer: writer.Writer
    facts: Mapping[str, Any]  # host, versions, config as read: goes into `volatile`
    loaded_as: tuple[int, bool] | None = None
    loaded_root: str = ""
    buffers: Buffers = field(default_factory=dict)


def train(t: Task, progress: Progress, run: Run) -> str:
    """Train to the last step.

    Returns: the root of the last snapshot.

    Raises:
        Paused: asked for; the state is durable.
        NonFinite, CannotSave: see remote_runner.checkpoint.
    """
    began, before_s, rows = time.monotonic(), progress.training_s, task.rows(t)
    saved_as = run.loaded_as
    while True:
        measured = _evaluate(t, progress, run) if progress.evaluation_due else {}
        progress.training_s = before_s + time.monotonic() - began
        last, asked = progress.step == t.config.train.steps, run.request.asked()
        boundary = progress.step % t.config.train.log_every == 0 or last or saved_as is None
        if (boundary or measured) and saved_as != (progress.step, False):
            _report(t, progress, run, measured)
        if (boundary or asked) and saved_as != (progress.step, progress.evaluation_due):
            _save(t, progress, run)
            saved_as = (progress.step, progress.evaluation_due)
        if asked:
            run.writer.flush()
            raise Paused(f"step {progress.step}/{t.config.train.steps}")
        if last:
            saved = run.writer.flush()
            return saved.root if saved else run.loaded_root
        _step(t, progress, run, rows)


def _save(t: Task, progress: Progress, run: Run) -> None:
    run.writer.settle(progress.step)  # the buffers are filled again
    run.writer.submit(state.content(t, progress, run.facts, run.buffers))


def _step(t: Task, progress: Progress, run: Run, rows: Any) -> None:
    loss = task.train_step(t, next(rows), progress.step)
    progress.step += 1
    progress.history.append(loss)
    every = t.config.train.evaluate_every
    progress.evaluation_due = every > 0 and (progress.step % every == 0 or progress.step == t.config.train.steps)
    if not math.isfinite(loss):
        _stop_non_finite(t, progress, run, f"loss is {loss}")


def _evaluate(t: Task, progress: Progress, run: Run) -> dict[str, float]:
    """Measure the model as it is. Gives nothing, and leaves the evaluation due, when a pause cuts it."""
    measured = task.validate(t, run.request.at_once)
    if measured is None:
        return {}
    progress.evaluation_due = False
    if not math.isfinite(measured["validation"]):
        _stop_non_finite(t, progress, run, f"validation is {measured['validation']}")
    if progress.best_metric is None or measured["validation"] < progress.best_metric:
        progress.best_step, progress.best_metric = progress.step, measured["validation"]
        progress.best = {name: value.detach().cpu().clone() for name, value in t.model.state_dict().items()}
    return measured


def _stop_non_finite(t: Task, progress: Progress, run: Run, why: str) -> None:
    run.writer.settle(progress.step)
    evidence = snapshot.keep_evidence(t.config.folder, state.content(t, progress, run.facts, run.buffers))
    raise snapshot.NonFinite([f"step {progress.step}: {why}"], evidence)


def _report(t: Task, progress: Progress, run: Run, measured: Mapping[str, float]) -> None:
    save_s = round(run.writer.longest_save_s, 3)  # the supervisor keeps 1.5 times of it before the deadline
    row: dict[str, float] = {**measured, "target_steps": t.config.train.steps, "save_s": save_s}
    text = f"{STAGE} step {progress.step}/{t.config.train.steps}"
    if progress.history:
        rate = float(t.scheduler.get_last_lr()[0])
        row = {"loss": progress.history[-1], "lr": rate, "training_s": round(progress.training_s, 3), **row}
        text += f" loss {row['loss']:.4f} lr {rate:.1e}"
    if measured:
        text += f" validation {measured['validation']:.4f} accuracy {measured['validation_accuracy']:.4f}"
    contract.say(text)
    contract.append_row(t.config.folder, STAGE, progress.step, row)
