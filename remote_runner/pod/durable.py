"""How far a run's newest snapshot got: what a restart may go on from."""

from __future__ import annotations

import os
from typing import Iterable, List, Optional, Sequence, Tuple

from remote_runner.checkpoint import header
from remote_runner.pod import foreign, layout

Reached = Tuple[int, int]  # (stage_index, step)


def newest(root: str, outputs: Iterable[str], rules: Sequence[foreign.Rule] = ()) -> Optional[Reached]:
    """By the headers alone, and for a foreign trainer by its rules; None where there is no snapshot."""
    outputs = list(outputs)
    found = [(h["stage_index"], h["step"]) for _path, h, _why in layout.snapshots(root, outputs) if h is not None]
    return max(found, default=None) or _foreign(root, outputs, rules)


def newest_verified(root: str, outputs: Iterable[str], rules: Sequence[foreign.Rule] = ()) -> Optional[Reached]:
    """The furthest snapshot whose every byte verifies, of a foreign trainer the furthest complete one; else None."""
    outputs = list(outputs)
    found = [(h["stage_index"], h["step"], path) for path, h, _why in layout.snapshots(root, outputs) if h is not None]
    for stage_index, step, path in sorted(found, reverse=True):
        try:
            header.verify_digests(os.path.join(root, path))
        except (header.SnapshotCorrupt, OSError):
            continue
        return stage_index, step
    return _foreign(root, outputs, rules) if not found else None


def _foreign(root: str, outputs: List[str], rules: Sequence[foreign.Rule]) -> Optional[Reached]:
    found = foreign.newest(root, outputs, list(rules)) if rules else None
    return (0, found.step) if found is not None else None
