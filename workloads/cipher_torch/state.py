"""A training's state as a snapshot of format 1, and back: each other's mirror.

    model.NAME · optimizer.PARAMETER.NAME · best.NAME · history.loss        tensors, by name
    position, keys, scheduler, best, lineage                                 `state`, in JSON

Not here: when a snapshot is taken (loop.py), the file (remote_runner.checkpoint.snapshot).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from cipher_torch import task as tasks
from cipher_torch.task import STAGE, Task
from remote_runner.checkpoint import contract, lineage, snapshot
from remote_runner.checkpoint.config import ConfigError
from remote_runner.checkpoint.torch_snapshot import as_tensor, from_tensor
from remote_runner.checkpoint.torch_state import Buffers, stage

SCHEMA = 1
FOLLOWS = {"data.sha256": ("seed", "data.")}  # an identity field -> those that it is made from


@dataclass
class Progress:
    """What a training has done so far. `best` holds the weights with the lowest validation, by name, on the host."""

    step: int = 0
    evaluation_due: bool = False
    best_step: int | None = None
    best_metric: float | None = None
    best: dict[str, torch.Tensor] = field(default_factory=dict)
    history: list[float] = field(default_factory=list)  # loss of each step
    training_s: float = 0.0
    interruptions: list[dict[str, Any]] = field(default_factory=list)
    lineage: dict[str, Any] | None = None
    changed: bool = False  # since the snapshot it was loaded from: the change is to be saved before it has effect


def content(task: Task, progress: Progress, facts: Mapping[str, Any], buffers: Buffers) -> snapshot.Snapshot:
    """The full state as it stands, copied into `buffers`, which no save may still be reading."""
    live = stage(live_tensors(task), buffers)
    if task.device.type == "cuda":
        torch.cuda.current_stream().synchronize()
    best = {f"best.{name}": value for name, value in progress.best.items()}
    tensors = {name: as_tensor(value) for name, value in {**live, **best}.items()}
    tensors["history.loss"] = as_tensor(torch.tensor(progress.history, dtype=torch.float32))
    state = {
        "schema": SCHEMA,
        "stage": STAGE,
        "stage_index": 0,
        "step": progress.step,
        **position(task, progress.step),
        "seed": task.config.seed,
        "scheduler": _plain(task.scheduler.state_dict()),
        "best": None if progress.best_step is None else {"step": progress.best_step, "metric": progress.best_metric},
        "evaluation_due": progress.evaluation_due,
        "target_steps": task.config.train.steps,
        "fingerprint": task.fingerprint,
        "lineage": progress.lineage,
    }
    volatile = {
        **facts,
        "identity": task.identity,
        "attempt": contract.attempt(),
        "training_s": round(progress.training_s, 3),
        "interruptions": list(progress.interruptions),
    }
    return snapshot.Snapshot(tensors, state, volatile)


def restore(task: Task, found: snapshot.Snapshot) -> Progress:
    """Put a snapshot into the task's live objects; nothing is touched unless all of it fits.

    Raises:
        ConfigError: it belongs to another run: an identity field, the position, a key or a tensor differs, by name.
    """
    state, volatile = found.state, found.volatile
    changes = _changes(task, state, volatile)
    moved = any(c["key"] in ("seed", "train.batch") or c["key"].startswith("data.") for c in changes)
    for key, value in position(task, found.step).items():
        if state[key] != value and not moved:
            raise ConfigError(
                f"snapshot of step {found.step}: its {key} is {state[key]!r}, this program computes {value!r}",
                "resume with the version of the code that wrote it",
            )
    saved = {name: from_tensor(value) for name, value in found.tensors.items()}
    _fits(task, saved, found.step)
    names = [name for name, _ in task.model.named_parameters()]
    moments: dict[int, dict[str, torch.Tensor]] = {}
    for index, name in enumerate(names):
        start = f"optimizer.{name}."
        moments[index] = {key[len(start) :]: value for key, value in saved.items() if key.startswith(start)}
    with torch.no_grad():
        for name, value in task.model.state_dict().items():
            value.copy_(saved[f"model.{name}"])
    if found.step:
        groups = task.optimizer.state_dict()["param_groups"]
        task.optimizer.load_state_dict({"state": moments, "param_groups": groups})
    # the rates it begins from are the config's, which an accepted change may have changed
    task.scheduler.load_state_dict({**state["scheduler"], "base_lrs": list(task.scheduler.base_lrs)})
    if changes:
        task.scheduler._last_lr = [base * tasks.rate(task.config, found.step) for base in task.scheduler.base_lrs]
    for group, rate in zip(task.optimizer.param_groups, task.scheduler.get_last_lr(), strict=True):
        group["lr"] = rate
    task.batches.seek(found.step)
    best = state["best"] or {"step": None, "metric": None}
    kept = {name[5:]: value for name, value in saved.items() if name.startswith("best.")}
    interruptions = [*volatile.get("interruptions", []), {"step": found.step, "segment": contract.segment()}]
    history = saved["history.loss"].tolist()[: found.step]
    return Progress(
        found.step, state["evaluation_due"], best["step"], best["metric"], kept, history,
        volatile.get("training_s", 0.0), interruptions, lineage.after(changes, state, found.root), bool(changes),
    )  # fmt: skip


def live_tensors(task: Task) -> dict[str, torch.Tensor]:
    """Every tensor of model and optimizer, by name."""
    found = {f"model.{name}": value for name, value in task.model.state_dict().items()}
    for name, parameter in task.model.named_parameters():
        for key, value in task.optimizer.state.get(parameter, {}).items():
            found[f"optimizer.{name}.{key}"] = value
    return found


def position(task: Task, step: int) -> dict[str, Any]:
    """Where the data and the randomness stand after `step` steps: computed, never counted."""
    epoch, batch = divmod(step, len(task.batches))
    return {
        "epoch": epoch,
        "cursor": batch * task.batches.batch_size,
        "order_sha256": task.batches.order_sha256(epoch),
        "keys": {"step": tasks.step_seed(task, step)},
    }


def _fits(task: Task, saved: Mapping[str, torch.Tensor], step: int) -> None:
    live = live_tensors(task)
    if step:
        for name, parameter in task.model.named_parameters():
            live |= {f"optimizer.{name}.{key}": parameter for key in ("exp_avg", "exp_avg_sq")}
    for name, value in live.items():
        if name not in saved:
            raise ConfigError(f"snapshot of step {step}: {name} is not in it", "resume with the code that wrote it")
        if saved[name].shape != value.shape or saved[name].dtype != value.dtype:
            have, want = tuple(saved[name].shape), tuple(value.shape)
            raise ConfigError(
                f"snapshot of step {step}: {name} is {saved[name].dtype} {have}, the model's is {value.dtype} {want}",
                "resume with the code that wrote it",
            )


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """A scheduler's state without what JSON can't hold: functions are the config's business."""
    return {key: value for key, value in state.items() if isinstance(value, int | float | str | list)}


def _changes(task: Task, state: Mapping[str, Any], volatile: Mapping[str, Any]) -> list[lineage.Change]:
    """What the user lets be another than it was; a training that has ended takes no new code in."""
    changes = lineage.told(state["lineage"]) if state["step"] < state["target_steps"] else []
    if state["fingerprint"] == task.fingerprint:
        return changes
    what = f"snapshot of step {state['step']}"
    changes = lineage.judge(what, volatile.get("identity", {}), task.identity, follows=FOLLOWS) + changes
    if state["step"] > task.config.train.steps:
        steps = task.config.train.steps
        raise ConfigError(f"{what} is beyond the {steps} steps asked for", "ask for more in train.steps")
    return changes
