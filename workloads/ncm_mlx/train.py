"""`train`: data, codec, generator - each begun, gone on with, or found finished.

Not here: the loop (loop.py), a weights-only restart's arrays (restart.py), the config's rules (config.py).
"""

from __future__ import annotations

import json
import platform
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from ncm_mlx import arrays, boards, codec, config, loop, restart, stage, state
from remote_runner.checkpoint import config as strict
from remote_runner.checkpoint import contract, header, lineage, pause, rotate, snapshot, writer
from remote_runner.checkpoint.config import ConfigError

COMPILED, EAGER = "compiled", "eager"
SAME_BITS = ("versions", "host", "mode")  # facts that a run equal to the bit has in common


def run(c: config.Config, weights: config.Restart | None, *, resume: bool) -> int:
    """Train both stages. Returns the exit code of the contract.

    Raises:
        ConfigError: the start or the resume is refused; nothing was replaced.
    """
    request = pause.Request(c.folder)
    try:
        begun = _begin(c, weights, resume)
        _limit_memory()
        data = boards.prepare(c.folder, c.seed, c.data, cancelled=request.asked)
        with writer.Writer(c.folder) as saver:
            _both_stages(c, data, loop.Run(c, request, saver, _facts(c)), begun, resume)
    except (loop.Paused, boards.Cancelled) as where:
        request.obeyed()
        contract.say(f"paused at {str(where) or 'data preparation'}: full training state saved")
        return contract.PAUSED
    except snapshot.NonFinite as wrong:
        contract.say(f"stopped: {wrong}")
        return contract.NON_FINITE
    except (writer.CannotSave, OSError) as wrong:
        contract.say(f"stopped: can't save: {wrong}")
        return contract.CANNOT_SAVE
    request.obeyed()
    contract.say("training is done")
    return contract.DONE


def _both_stages(c: config.Config, data: boards.Dataset, run: loop.Run, begun: dict[str, Any], resume: bool) -> None:
    if c.codec.source:
        codec_root = restart.take_codec(c.folder, Path(c.codec.source))
    else:
        codec_root = _one_stage(stage.build_codec(c, data), run, resume, None)
    if run.request.asked():
        raise loop.Paused("the end of the codec")
    frozen = codec.VQCodec(c.codec)
    arrays.put_back(frozen, "model", restart.weights_of(c.folder / "codec.safetensors"))
    steps = config.generator_steps() or c.generator.steps
    second = stage.build_generator(c, data, frozen, codec_root, steps)
    _one_stage(second, run, resume, begun["restart"], _derived(c.folder))


def _derived(folder: Path) -> dict[str, Any]:
    """Of the generator's identity: which root the codec had before a change that the user accepted."""
    before = header.describe(rotate.latest_of(folder, stage.CODEC))["lineage"]  # made or verified in this life
    return {"codec.root": before["root"]} if before and before["kind"] == lineage.KIND else {}


def _one_stage(
    s: stage.Stage,
    run: loop.Run,
    resume: bool,
    weights: dict[str, Any] | None,
    derived: dict[str, Any] | None = None,
) -> str:
    """Run a stage from where it stands to its end, and write what inference needs. Returns its root."""
    folder = run.config.folder
    found = _found(folder, s.name) if resume else None
    if found is not None:
        progress = state.restore(s, found.snapshot, derived)
        _warn_of_changes(found.snapshot, progress, run)
    else:
        progress = state.Progress() if weights is None else restart.begin(s, weights)
    root = loop.train(s, progress, run)
    _write_inference(s, progress, run, root)
    return root


def _write_inference(s: stage.Stage, progress: state.Progress, run: loop.Run, root: str) -> None:
    best = progress.best or {name[1:]: array for name, array in arrays.live(s.model, "").items()}
    tensors = {name: arrays.to_tensor(array) for name, array in best.items()}
    about = {"stage": s.name, "step": str(progress.best_step or progress.step), "root": root}
    folder = run.config.folder
    snapshot.save_weights(folder / f"{s.name}.safetensors", tensors, about)
    told = {
        "stage": s.name,
        "steps": progress.step,
        "best_step": progress.best_step,
        "best_validation": progress.best_metric,
        "root": root,
        "lineage": progress.lineage,
        "uninterrupted": progress.lineage is None and not progress.interruptions,
        "interruptions": progress.interruptions,
        "training_s": round(progress.training_s, 3),
        "waited_for_saves_s": round(run.writer.waited_s, 3),
        **{key: run.facts[key] for key in SAME_BITS},
    }
    rotate.replace_with(folder / f"{s.name}.json", (json.dumps(told, indent=1) + "\n").encode())


def _begin(c: config.Config, weights: config.Restart | None, resume: bool) -> dict[str, Any]:
    """Refuse a start that would overwrite, or a resume of nothing; note what was begun."""
    note = c.folder / "begun.json"
    there = [name for name in (stage.CODEC, stage.GENERATOR) if _files_of(c.folder, name)]
    if there and not resume:
        raise ConfigError(f"{c.folder} holds snapshots of {', '.join(there)}", "go on with --resume, or move it away")
    if resume and note.exists():
        before = {"restart": None, **strict.load(note)}
        restart.must_be_the_same(weights, before["restart"])
        return before
    # A life that was killed in its first moments left nothing, and the next one is told to resume.
    if resume and not there and contract.segment() == 1:
        raise ConfigError(f"{c.folder} holds nothing to resume", "start without --resume")
    told = {"config": asdict(c), "restart": restart.note_of(weights)}
    c.folder.mkdir(parents=True, exist_ok=True)
    rotate.replace_with(note, (json.dumps(told, indent=1) + "\n").encode())
    return told


def _found(folder: Path, name: str) -> snapshot.Found | None:
    """The snapshot to go on from; None where the stage never began. Refuses when there were some, all bad."""
    files = _files_of(folder, name)
    if not files:
        contract.say(f"no {name} snapshot: this stage begins at its first step")
        return None
    found = snapshot.load_newest(folder, name, repair=True)
    if found is None:
        raise ConfigError(
            f"no whole {name} snapshot among {', '.join(f.name for f in files)}",
            "restore one from a backup, or move the folder away and start without --resume",
        )
    return found


def _files_of(folder: Path, name: str) -> list[Path]:
    """Snapshots of a stage, whole or put aside as corrupt; not what a kill left half written."""
    kept = folder.glob(f"{name}-training*.safetensors*")
    return sorted(path for path in kept if path.suffix != ".tmp" and ".nonfinite." not in path.name)


def _warn_of_changes(found: snapshot.Snapshot, progress: state.Progress, run: loop.Run) -> None:
    """Another version, machine or mode may round differently: say so, and keep it with the interruption."""
    changed = {
        key: [found.volatile.get(key), run.facts[key]] for key in SAME_BITS if found.volatile.get(key) != run.facts[key]
    }
    for key, (old, new) in changed.items():
        contract.say(f"warning: {key} {old} -> {new}: what follows may differ in the last bits from a straight run")
    if changed:
        progress.interruptions[-1]["changed"] = changed


def _facts(c: config.Config) -> dict[str, Any]:
    versions = {"mlx": metadata.version("mlx"), "numpy": np.__version__, "python": platform.python_version()}
    return {
        "config": asdict(c),
        "overrides": {"generator.steps": config.generator_steps()},
        "host": f"{platform.system()} {platform.machine()} {mx.default_device()}",
        "versions": versions,
        "mode": COMPILED if c.train.compile else EAGER,
    }


def _limit_memory() -> None:
    limit = config.memory_limit_bytes()
    if limit is not None:
        mx.set_memory_limit(limit)
        mx.set_cache_limit(limit // 4)
        contract.say(f"MLX's allocator is limited to {limit / 2**30:g} GiB")
