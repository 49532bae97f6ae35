"""Read a checkpoint, prove it, compare it, and only then put it into the live objects, tensor by tensor.

    x.pt, else x.previous.pt    sidecar or CRCs  ->  no code in it  ->  weights_only load, on the CPU
    everything compared         config by key, names, shapes, types, parameter groups, ranks
    everything put in place     each tensor freed as soon as it is copied

Nothing is touched before all comparisons are done. A file that would run code is refused, and no other is taken
instead: that is no accident.

Not here: the checks of the bytes (torch_zip.py, torch_scan.py), the comparisons (torch_match.py), what is saved
(torch_save.py).
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

import torch

from remote_runner.checkpoint import header, rotate
from remote_runner.checkpoint.contract import say
from remote_runner.checkpoint.torch_match import (
    compare_config,
    match_model,
    match_optimizer,
    match_rest,
    strip_wrappers,
)
from remote_runner.checkpoint.torch_publish import numbered_files, previous_of, prove, set_aside
from remote_runner.checkpoint.torch_ranks import from_writer, is_writer, rank
from remote_runner.checkpoint.torch_save import REQUIRED_KEYS, PathLike
from remote_runner.checkpoint.torch_scan import CheckpointRefused, refuse_renamed_pickle
from remote_runner.checkpoint.torch_state import Tree, set_random_states
from remote_runner.checkpoint.torch_zip import CheckpointCorrupt


def load_checkpoint(
    path: PathLike,
    model: torch.nn.Module,
    optimizer: Optional[torch.optim.Optimizer] = None,
    scheduler: Any = None,
    *,
    config: Optional[Mapping[str, Any]] = None,
    may_change: Iterable[str] = (),
    data: Any = None,
    stateful: Optional[Mapping[str, Any]] = None,
    missing_ok: bool = False,
) -> int:
    """Put a saved training state back; the run goes on as if it had never stopped.

    Args:
        path: as given to `save_checkpoint`. When it is missing or broken, its previous is taken; a broken one is
            renamed `*.corrupt-<time>`. Both with one line that says so.
        model: of the same architecture, on any device, wrapped or not.
        optimizer, scheduler: None: the saved ones are left where they are.
        config: the current one; a difference by key refuses the file. None: not compared.
        may_change: keys of the config that may differ: cadences, paths, limits.
        data, stateful: as in `capture`.
        missing_ok: return 0 when there is no file at all, instead of raising.

    Returns: the step. Peak memory is the file's tensors, one of the model's, and what was there before.

    Raises:
        CheckpointRefused: the file contains code.
        CheckpointCorrupt: neither file is whole.
        CheckpointMismatch: whole, but not this run's; nothing was touched.
        FileNotFoundError: there is none.
    """
    source, tree = _first_good(Path(path), missing_ok)
    if tree is None:
        say(f"no checkpoint at {path}: beginning at step 0")
        return 0
    if config is not None:
        compare_config(source, tree["config"], config, set(may_change))
    places = match_model(source, tree["model"], model)
    match_optimizer(source, tree["optimizer"], optimizer)
    match_rest(source, tree, scheduler, data, stateful or {})
    if data is not None:
        data.load_state_dict(tree["data"])  # first: it may still refuse
    _fill_model(tree.pop("model"), places, model)
    if optimizer is not None:
        _fill_optimizer(tree.pop("optimizer"), optimizer)
    if scheduler is not None:
        scheduler.load_state_dict(tree["scheduler"])
    for name, thing in (stateful or {}).items():
        thing.load_state_dict(tree["stateful"][name])
    set_random_states(tree["random"][rank()])
    say(f"✓ Resumed step {tree['step']}")
    return int(tree["step"])


def read_checkpoint(path: Path) -> Dict[str, Tree]:
    """Read one proven file as a tree of CPU tensors; `weights_only`, always.

    Raises:
        CheckpointRefused, CheckpointCorrupt: with the file's name and the reason.
        OSError: the file can't be read.
    """
    if path.suffix == ".safetensors":
        from remote_runner.checkpoint.torch_snapshot import read_snapshot

        try:
            tree = read_snapshot(path)
        except header.SnapshotCorrupt as error:
            refuse_renamed_pickle(path)
            raise CheckpointCorrupt(str(error)) from None
        rotate.trust(path)
    else:
        prove(path)
        tree = unpickle(path)
    missing = [key for key in REQUIRED_KEYS if not isinstance(tree, dict) or key not in tree]
    if missing:
        raise CheckpointCorrupt(f"{path}: not a whole training state, it lacks {', '.join(missing)}")
    return tree


def unpickle(path: Path, *, mapped: bool = False) -> Any:
    """Load a scanned file with torch's restricted unpickler. `mapped`: tensors stay in the file until touched."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        raise CheckpointRefused(f"{path}: does not load as weights only: {_first_line(error)}") from None
    except (
        RuntimeError,
        ValueError,
        EOFError,
        KeyError,
        IndexError,
        AttributeError,
        TypeError,
        AssertionError,
    ) as error:
        raise CheckpointCorrupt(f"{path}: does not load: {_first_line(error)}") from None


def newest(folder: PathLike, pattern: str = "step-*.pt") -> Optional[Path]:
    """The numbered checkpoint with the highest step that proves whole; times of files never count.

    Args:
        pattern: a name with one `*` where the step stands.
    """
    prefix, _, suffix = pattern.partition("*")
    for step, path in numbered_files(Path(folder), prefix, suffix):
        try:
            prove(path)
        except CheckpointRefused:
            raise
        except CheckpointCorrupt as error:
            say(f"passed over step {step}: {error}")
            continue
        say(f"newest: {path}, step {step}, the highest that verifies")
        return path
    return None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def _first_good(path: Path, missing_ok: bool) -> Tuple[Path, Optional[Dict[str, Tree]]]:
    """Rank 0 chooses and puts broken files aside; the other ranks then read the file it chose."""
    found: Tuple[Path, Optional[Dict[str, Tree]]] = (path, None)
    failure: Optional[Exception] = None
    if is_writer():
        try:
            found = _choose(path, missing_ok)
        except Exception as error:  # noqa: BLE001  the other ranks wait for an answer; raised on all of them below
            failure = error
    failure, source, there = from_writer((failure, found[0], found[1] is not None))
    if failure is not None:
        raise failure
    if there and not is_writer():
        return source, read_checkpoint(source)
    return found


def _choose(path: Path, missing_ok: bool) -> Tuple[Path, Optional[Dict[str, Tree]]]:
    before = rotate.previous_of(path) if path.suffix == ".safetensors" else previous_of(path)
    reasons: List[str] = []
    for candidate in (path, before):
        try:
            tree = read_checkpoint(candidate)
        except FileNotFoundError:
            continue
        except CheckpointRefused:
            raise
        except CheckpointCorrupt as error:
            reasons.append(str(error))
            set_aside(candidate, str(error))
            continue
        if candidate != path:
            why = reasons[0] if reasons else f"{path.name} is missing"
            say(f"going on from {candidate}, step {tree['step']}: {why}")
        return candidate, tree
    if reasons:
        raise CheckpointCorrupt("; ".join(reasons))
    if missing_ok:
        return path, None
    raise FileNotFoundError(f"{path}: no checkpoint here, and no {before.name}")


def _fill_model(saved: Dict[str, Any], places: Mapping[str, Any], model: torch.nn.Module) -> None:
    extra = {}
    with torch.no_grad():
        for name in list(saved):
            value = saved.pop(name)
            if isinstance(places[name], torch.Tensor) and isinstance(value, torch.Tensor):
                places[name].copy_(value)
            else:
                extra[strip_wrappers(name)] = value  # a module's get_extra_state
    if extra:
        full = {name: extra[strip_wrappers(name)] for name in model.state_dict() if strip_wrappers(name) in extra}
        model.load_state_dict(full, strict=False)


def _fill_optimizer(saved: Dict[str, Any], optimizer: torch.optim.Optimizer) -> None:
    kept = {
        key: {name: v.dtype for name, v in entry.items() if isinstance(v, torch.Tensor)}
        for key, entry in saved["state"].items()
    }
    optimizer.state.clear()  # what it held need not stay in memory beside what comes
    optimizer.load_state_dict(saved)
    live = optimizer.state_dict()["state"]
    for key, dtypes in kept.items():
        for name, dtype in dtypes.items():  # torch casts moments to the parameter's type; float32 ones must stay so
            if live[key][name].dtype != dtype:
                live[key][name] = saved["state"][key][name].to(live[key][name].device)
