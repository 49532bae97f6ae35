#!/usr/bin/env python3
"""Print the generator's step budget that a run was begun with, as NCM_MLX_GENERATOR_STEPS wants it.

    scripts/checkpoint_steps.py artifacts/NAME

The generator's snapshot says it; before there is one, the codec's does (an override is kept in both). Reads headers
only: no mlx, no numpy.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from remote_runner.checkpoint import header, rotate


def budget(folder: Path) -> int | None:
    """Steps, or None when no snapshot in `folder` can be read; what was wrong goes to stderr."""
    for stage in ("generator", "codec"):
        latest = rotate.latest_of(folder, stage)
        for path in (latest, rotate.previous_of(latest)):
            try:
                about = header.describe(path)
            except FileNotFoundError:
                continue
            except (OSError, header.SnapshotCorrupt) as wrong:
                print(f"{wrong}", file=sys.stderr)
                continue
            if stage == "generator":
                return int(about["target_steps"])
            volatile = about["volatile"]
            return int(volatile["overrides"]["generator.steps"] or volatile["config"]["generator"]["steps"])
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="artifacts/NAME")
    folder = parser.parse_args().folder
    steps = budget(folder)
    if steps is None:
        print(f"error: {folder}: no snapshot says a step budget\nfix: give the artifacts folder", file=sys.stderr)
        return 1
    print(steps)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
