"""Compare a checkpoint with the live objects it is meant for; nothing is touched here.

    config by key · names, shapes and types of the weights · parameter groups · ranks · what else was saved

Not here: reading the file, putting it in place (torch_load.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple

import torch

from remote_runner.checkpoint.torch_ranks import world_size
from remote_runner.checkpoint.torch_state import Tree

WRAPPERS = ("module.", "_orig_mod.")  # DistributedDataParallel, torch.compile


class CheckpointMismatch(ValueError):
    """The checkpoint is whole, but it is another run's: config, names, shapes or ranks differ. Nothing was touched."""


def strip_wrappers(name: str) -> str:
    """`module._orig_mod.head.weight` -> `head.weight`, wherever in the name a wrapper stands."""
    return ".".join(part for part in name.split(".") if f"{part}." not in WRAPPERS)


def compare_config(source: Path, saved: Mapping[str, Any], current: Mapping[str, Any], may_change: Set[str]) -> None:
    """Refuse another config, by key, with both values; keys in `may_change`, and below them, may differ."""
    lines = [
        f"{key}: {old} -> {new}" for key, old, new in _differences(saved, current, "") if not _covered(key, may_change)
    ]
    if lines:
        raise CheckpointMismatch(f"{source}: saved under another config (saved -> now): {'; '.join(lines)}")


def _covered(key: str, may_change: Set[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in may_change)


def _differences(saved: Any, current: Any, path: str) -> List[Tuple[str, str, str]]:
    if isinstance(saved, Mapping) and isinstance(current, Mapping):
        found: List[Tuple[str, str, str]] = []
        for key in sorted({*saved, *current}, key=str):
            found += _differences(
                saved.get(key, "(absent)"), current.get(key, "(absent)"), f"{path}.{key}" if path else str(key)
            )
        return found
    same = type(saved) is type(current) and (
        list(saved) == list(current) if isinstance(saved, (list, tuple)) else saved == current
    )
    return [] if same else [(path, repr(saved), repr(current))]


def match_model(source: Path, saved: Mapping[str, Any], model: torch.nn.Module) -> Dict[str, Any]:
    """Return the live entry for each saved name; refuse with the first name, shape or type that differs."""
    live = {strip_wrappers(name): value for name, value in model.state_dict().items()}
    names = {name: strip_wrappers(name) for name in saved}
    problems = [f"{name} is missing" for name in live if name not in set(names.values())]
    problems += [f"{name} is not in the model" for name, bare in names.items() if bare not in live]
    for name, bare in names.items():
        mine, theirs = live.get(bare), saved[name]
        if isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor):
            if mine.shape != theirs.shape:
                problems.append(f"{name} is {tuple(theirs.shape)} in the file, {tuple(mine.shape)} in the model")
            elif mine.dtype != theirs.dtype:
                problems.append(f"{name} is {theirs.dtype} in the file, {mine.dtype} in the model")
    if problems:
        more = f", and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise CheckpointMismatch(f"{source}: does not fit the model: {'; '.join(problems[:3])}{more}")
    return {name: live[bare] for name, bare in names.items()}


def match_optimizer(source: Path, saved: Mapping[str, Any], optimizer: Optional[torch.optim.Optimizer]) -> None:
    """Refuse an optimizer with other parameter groups."""
    if optimizer is None:
        return
    sizes = [len(group["params"]) for group in saved["param_groups"]]
    mine = [len(group["params"]) for group in optimizer.param_groups]
    if sizes != mine:
        raise CheckpointMismatch(f"{source}: its optimizer has parameter groups of {sizes}, this one of {mine}")


def match_rest(source: Path, tree: Mapping[str, Tree], scheduler: Any, data: Any, stateful: Mapping[str, Any]) -> None:
    """Refuse another number of ranks, and a file that lacks a state that is wanted."""
    if len(tree["random"]) != world_size():
        raise CheckpointMismatch(f"{source}: saved by {len(tree['random'])} ranks, now there are {world_size()}")
    for word, wanted, have in (("scheduler", scheduler, tree["scheduler"]), ("data", data, tree["data"])):
        if wanted is not None and have is None:
            raise CheckpointMismatch(f"{source}: holds no {word} state")
    for name in stateful:
        if name not in tree["stateful"]:
            raise CheckpointMismatch(f"{source}: holds no state for {name!r}; it has {sorted(tree['stateful'])}")
