"""The state of a stage: what it has done so far, into a snapshot and out of one.

`content` and `restore` are each other's mirror: all that a resumed run needs is in `Progress` and in the live arrays.

Not here: the loop that makes progress (loop.py), the file (remote_runner.checkpoint).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np

from ncm_mlx import arrays, config, order
from ncm_mlx.stage import Stage
from remote_runner.checkpoint import contract, lineage, snapshot
from remote_runner.checkpoint.config import ConfigError

SCHEMA = 1
FOLLOWS = {"data.sha256": ("seed", "data.")}  # an identity field -> those that it is made from


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
    saved_as: tuple[int, bool] | None = None  # step and evaluation_due of the last snapshot, given away or loaded
    root: str = ""  # of the snapshot it was loaded from


def content(stage: Stage, progress: Progress, facts: Mapping[str, Any]) -> snapshot.Snapshot:
    """The full state as it stands, by reference. `facts` go into `volatile`: host, versions, the config as read."""
    best = None if progress.best_step is None else {"step": progress.best_step, "metric": progress.best_metric}
    state = {
        "schema": SCHEMA,
        "stage": stage.name,
        "stage_index": stage.index,
        "step": progress.step,
        **_position(stage, progress.step),
        "seed": stage.seed,
        "best": best,
        "evaluation_due": progress.evaluation_due,
        "target_steps": stage.target_steps,
        "fingerprint": stage.fingerprint,
        "lineage": progress.lineage,
    }
    volatile = {
        **facts,
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


def restore(stage: Stage, found: snapshot.Snapshot, derived: Mapping[str, Any] | None = None) -> Progress:
    """Put a snapshot into the stage's live objects.

    Args:
        derived: identity fields that follow from an accepted change in the stage before, with their old values.

    Raises:
        ConfigError: it belongs to another run: an identity field, a key, the order or an array differs, by name.
    """
    state, volatile = found.state, found.volatile
    changes = _changes(stage, state, volatile, derived)
    moved = any(c["key"] == "seed" or c["key"].startswith("data.") or c["key"].endswith(".batch") for c in changes)
    for key, value in _position(stage, found.step).items():
        if state[key] != value and not moved:
            raise ConfigError(
                f"{stage.name} snapshot of step {found.step}: its {key} is {state[key]!r}, here it is {value!r}",
                "resume with the version of the code that wrote it",
            )
    try:
        arrays.put_back(stage.model, "model", found.tensors)
        arrays.put_back(stage.optimizer.state, "optimizer", found.tensors)
        kept = _best_of(stage, found)
        _need(found, ["history.loss"])
    except arrays.ArrayMissing as wrong:
        raise ConfigError(f"{stage.name} snapshot: {wrong}", "resume with the code that wrote it") from None
    best = state["best"] or {"step": None, "metric": None}
    start_step = next((int(one["start_step"]) for one in lineage.chain(state["lineage"]) if "start_step" in one), 0)
    history = found.tensors["history.loss"].data.tolist()[: found.step - start_step]
    interruptions = [*volatile.get("interruptions", []), {"step": found.step, "segment": contract.segment()}]
    return Progress(
        start_step=start_step,
        step=found.step,
        evaluation_due=state["evaluation_due"],
        best_step=best["step"],
        best_metric=best["metric"],
        best=kept,
        history=history,
        lineage=lineage.after(changes, state, found.root),
        training_s=volatile.get("training_s", 0.0),
        interruptions=interruptions,
        saved_as=None if changes else (found.step, state["evaluation_due"]),  # a change is durable before it has effect
        root=found.root,
    )


def _best_of(stage: Stage, found: snapshot.Snapshot) -> dict[str, mx.array]:
    """The best weights in a snapshot; there are none before the first evaluation."""
    if found.state["best"] is None:
        return {}
    live = arrays.live(stage.model, "best")
    _need(found, live)
    return {n.split(".", 1)[1]: arrays.from_tensor(found.tensors[n], array.dtype) for n, array in live.items()}


def _need(found: snapshot.Snapshot, names: Iterable[str]) -> None:
    missing = [name for name in names if name not in found.tensors]
    if missing:
        raise arrays.ArrayMissing(f"not in the snapshot: {', '.join(missing)}")


def _position(stage: Stage, step: int) -> dict[str, Any]:
    """What follows from the step alone; stored all the same, so that code that computes it otherwise is found out."""
    place = order.place(step, stage.samples, stage.batch)
    shuffled = order.epoch_order(stage.seed, stage.name, place.epoch, stage.samples)
    return {**place._asdict(), "order_sha256": order.order_sha256(shuffled), "keys": stage.keys(step)}


def _changes(
    stage: Stage, state: Mapping[str, Any], volatile: Mapping[str, Any], derived: Mapping[str, Any] | None
) -> list[lineage.Change]:
    """What the user lets be another than it was; a stage that has ended takes no new code in."""
    changes = lineage.told(state["lineage"]) if state["step"] < state["target_steps"] else []
    if state["fingerprint"] == stage.fingerprint:
        return changes
    old, new, what = volatile.get("identity", {}), stage.identity, f"{stage.name} snapshot of step {state['step']}"
    fix = ""
    if old.get(budget := f"{stage.name}.steps") != new[budget]:
        fix = f"; the old step budget comes back with {config.STEPS_VARIABLE}={old.get(budget)}"
    changes = lineage.judge(what, old, new, follows=FOLLOWS, derived=derived, fix=fix) + changes
    if state["step"] > stage.target_steps:
        raise ConfigError(f"{what} is beyond the {stage.target_steps} steps asked for", f"ask for more in {budget}")
    return changes
