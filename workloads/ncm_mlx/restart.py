"""A weights-only restart of the generator: weights from a file, all else fresh, the position kept.

It goes on at a given step of the schedule and of the data order, with new optimizer moments. That is another run than
the one that was interrupted, and its `lineage` says so wherever it goes.

Not here: exact resume (state.restore).
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import mlx.core as mx

from ncm_mlx import arrays, config, stage, state
from remote_runner.checkpoint import contract, header, rotate, snapshot
from remote_runner.checkpoint.config import ConfigError

CHANGES = ["fresh optimizer moments", "fresh random state"]


def note_of(weights: config.Restart | None) -> dict[str, Any] | None:
    """What identifies the restart: the file's bytes and the step. Raises ConfigError when the file can't be read."""
    if weights is None:
        return None
    try:
        digest = _sha256(weights.checkpoint)
        root = header.read(weights.checkpoint).metadata.get("root")
    except (OSError, snapshot.SnapshotCorrupt) as wrong:
        raise ConfigError(f"--generator-checkpoint: {wrong}", "give a whole safetensors file") from None
    return {"file": str(weights.checkpoint), "start_step": weights.start_step, "sha256": digest, "root": root}


def must_be_the_same(weights: config.Restart | None, note: dict[str, Any] | None) -> None:
    """Refuse a resume that names other weights than the run was begun from; none named is fine.

    The file itself is not looked at: once the generator has a snapshot it is needed no more, and may be gone.
    """
    if weights is None:
        return
    given = [str(weights.checkpoint), weights.start_step]
    before = [note["file"], note["start_step"]] if note else None
    if given != before:
        raise ConfigError(
            f"this run was not begun from these weights: {before} -> {given}",
            "resume without --generator-checkpoint, or begin a new run under another name",
        )


def begin(s: stage.Stage, note: dict[str, Any]) -> state.Progress:
    """Put the weights into the stage; its first act will be to validate them, so that worse ones never win."""
    step = note["start_step"]
    if not 0 <= step < s.target_steps:
        raise ConfigError(f"--generator-start-step is {step}", f"give a step from 0 to {s.target_steps - 1}")
    try:
        if _sha256(Path(note["file"])) != note["sha256"]:
            raise ConfigError(f"{note['file']} is not the file that this run was begun from", "put that one back")
        arrays.put_back(s.model, "model", weights_of(Path(note["file"])))
    except (OSError, snapshot.SnapshotCorrupt, arrays.ArrayMissing) as wrong:
        raise ConfigError(f"{note['file']}: {wrong}", "give weights of a generator of this config") from None
    s.optimizer.state["step"] = mx.array(step, dtype=s.optimizer.state["step"].dtype)
    lineage = {
        "kind": "weights-only",
        "source_sha256": note["sha256"],
        "root": note["root"],
        "start_step": step,
        "changes": CHANGES,
    }
    return state.Progress(start_step=step, step=step, evaluation_due=True, lineage=lineage)


def take_codec(folder: Path, source: Path) -> str:
    """Use the finished codec of another run: copy its snapshot and weights into `folder`. Returns its root.

    What lies in `folder` already is used as it is, so a resume needs the source no more.

    Raises:
        ConfigError: the source has no finished codec.
    """
    weights = f"{stage.CODEC}.safetensors"
    place = folder if (folder / weights).exists() else source
    found = snapshot.load_newest(place, stage.CODEC)
    if found is None or found.snapshot.step != found.snapshot.state["target_steps"]:
        raise ConfigError(f"{place} holds no finished codec", "train the run of codec.source to its end first")
    if place == source:
        try:
            snapshot.read_tensors(source / weights)  # proves its digests
            about = (source / f"{stage.CODEC}.json").read_bytes()
            raw = (source / weights).read_bytes()
        except (OSError, snapshot.SnapshotCorrupt) as wrong:
            raise ConfigError(f"codec.source: {wrong}", "train the run of codec.source to its end first") from None
        snapshot.save(folder, found.snapshot)
        rotate.replace_with(folder / f"{stage.CODEC}.json", about)
        rotate.replace_with(folder / weights, raw)  # last: it makes the rest count
    contract.say(f"codec taken from {found.path}")
    return found.snapshot.root


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def weights_of(path: Path) -> dict[str, snapshot.Tensor]:
    """The weights in a file as `model.<name>`: of inference weights, or of a training snapshot's model."""
    tensors = snapshot.read_tensors(path)
    if any(name.startswith("model.") for name in tensors):
        return {name: t for name, t in tensors.items() if name.startswith("model.")}
    return {f"model.{name}": t for name, t in tensors.items()}
