"""How far a run's newest snapshot got: what a restart may go on from."""

from __future__ import annotations

import os
from typing import Iterable, Optional, Tuple

from remote_runner.checkpoint import header
from remote_runner.pod import layout

Reached = Tuple[int, int]  # (stage_index, step)


def newest(root: str, outputs: Iterable[str]) -> Optional[Reached]:
    """By the headers alone; None where there is no snapshot."""
    found = [(h["stage_index"], h["step"]) for _path, h, _why in layout.snapshots(root, outputs) if h is not None]
    return max(found, default=None)


def newest_verified(root: str, outputs: Iterable[str]) -> Optional[Reached]:
    """The furthest snapshot whose every byte verifies; None where none does."""
    found = [(h["stage_index"], h["step"], path) for path, h, _why in layout.snapshots(root, outputs) if h is not None]
    for stage_index, step, path in sorted(found, reverse=True):
        try:
            header.verify_digests(os.path.join(root, path))
        except (header.SnapshotCorrupt, OSError):
            continue
        return stage_index, step
    return None
