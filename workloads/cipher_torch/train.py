"""`train`: begin a run or go on with one, train it to its end, write what inference needs.

Not here: the loop (loop.py), the config's rules (config.py).
"""

from __future__ import annotations

import json
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from cipher_torch import config, loop, state, task
from cipher_torch.task import STAGE
from remote_runner.checkpoint import contract, pause, rotate, snapshot, writer
from remote_runner.checkpoint.config import ConfigError
from remote_runner.checkpoint.torch_snapshot import as_tensor


def run(c: config.Config, *, resume: bool) -> int:
    """Train. Returns the exit code of the contract.

    Raises:
        ConfigError: the start or the resume is refused; nothing was replaced.
    """
    request = pause.Request(c.folder)
    try:
        _begin(c, resume)
        with writer.Writer(c.folder) as saver:
            _train(c, request, saver, resume)
    except loop.Paused as where:
        request.obeyed()
        contract.say(f"paused at {where}: full training state saved")
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


def _train(c: config.Config, request: pause.Request, saver: writer.Writer, resume: bool) -> None:
    t = task.build(c)
    run = loop.Run(request, saver, _facts(c, t))
    found = _found(c.folder) if resume else None
    progress = state.Progress()
    if found is not None:
        progress = state.restore(t, found.snapshot)
        _warn_of_versions(found.snapshot, run)
        run.loaded_root = found.snapshot.root
        run.loaded_as = None if progress.changed else (progress.step, progress.evaluation_due)
    root = loop.train(t, progress, run)
    _write_inference(t, progress, run, root)


def _begin(c: config.Config, resume: bool) -> None:
    """Refuse a start that would overwrite, or a resume of nothing; note what was begun."""
    c.folder.mkdir(parents=True, exist_ok=True)
    note = c.folder / "begun.json"
    if resume and not _files(c.folder) and not note.exists():
        raise ConfigError(f"{c.folder} holds nothing to resume", "start without --resume")
    if not resume and _files(c.folder):
        raise ConfigError(f"{c.folder} holds snapshots of {STAGE}", "go on with --resume, or move it away")
    if not resume:
        rotate.replace_with(note, (json.dumps({"config": asdict(c)}, indent=1) + "\n").encode())


def _found(folder: Path) -> snapshot.Found | None:
    """The snapshot to go on from; None when the run was paused before its first. Refuses when all are bad."""
    files = _files(folder)
    if not files:
        contract.say("no snapshot yet: beginning at the first step")
        return None
    found = snapshot.load_newest(folder, STAGE, repair=True)
    if found is None:
        raise ConfigError(
            f"no whole snapshot among {', '.join(file.name for file in files)}",
            "restore one from a backup, or move the folder away and start without --resume",
        )
    return found


def _files(folder: Path) -> list[Path]:
    """Snapshots, whole or put aside as corrupt; not what a kill left half written."""
    kept = folder.glob(f"{STAGE}-training*.safetensors*")
    return sorted(path for path in kept if path.suffix != ".tmp" and ".nonfinite." not in path.name)


def _write_inference(t: task.Task, progress: state.Progress, run: loop.Run, root: str) -> None:
    best = progress.best or {name: value.detach().cpu() for name, value in t.model.state_dict().items()}
    tensors = {name: as_tensor(value) for name, value in best.items()}
    about = {"stage": STAGE, "step": str(progress.best_step or progress.step), "root": root}
    snapshot.save_weights(t.config.folder / f"{STAGE}.safetensors", tensors, about)
    told = {
        "stage": STAGE,
        "steps": progress.step,
        "best_step": progress.best_step,
        "best_validation": progress.best_metric,
        "root": root,
        "lineage": progress.lineage,
        "uninterrupted": progress.lineage is None and not progress.interruptions,
        "interruptions": progress.interruptions,
        "training_s": round(progress.training_s, 3),
        "waited_for_saves_s": round(run.writer.waited_s, 3),
        **{key: run.facts[key] for key in ("versions", "host", "mode")},
    }
    rotate.replace_with(t.config.folder / f"{STAGE}.json", (json.dumps(told, indent=1) + "\n").encode())


def _facts(c: config.Config, t: task.Task) -> dict[str, Any]:
    device = torch.cuda.get_device_name() if t.device.type == "cuda" else f"cpu, {torch.get_num_threads()} threads"
    return {
        "config": asdict(c),
        "overrides": {},
        "host": f"{platform.system()} {platform.machine()} {device}",
        "versions": {"torch": str(torch.__version__), "python": platform.python_version()},
        "mode": t.mode,
    }


def _warn_of_versions(found: snapshot.Snapshot, run: loop.Run) -> None:
    for key in ("versions", "mode", "host"):
        if found.volatile.get(key) != run.facts[key]:
            contract.say(
                f"warning: {key} {found.volatile.get(key)} -> {run.facts[key]}: "
                "what follows may differ in the last bits from a run that was never touched"
            )
