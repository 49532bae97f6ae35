"""A trainer that does nothing but save and rotate snapshots as fast as it can, and a log that grows.

rotating.py ROOT SEED [STEPS]      until it is ended, or to STEPS
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from remote_runner.checkpoint import contract, snapshot

STAGES = ("codec", "generator")


def content(
    stage: str, step: int, seed: int = 1, size: int = 4096, lineage: object = None, **more: object
) -> snapshot.Snapshot:
    """The state at a step: a function of stage, step and seed."""
    state = {
        "schema": 1, "stage": stage, "stage_index": STAGES.index(stage), "step": step, "epoch": 0, "cursor": step,
        "order_sha256": "", "seed": seed, "keys": {}, "best": None, "evaluation_due": False, "target_steps": 1 << 30,
        "fingerprint": f"{seed:064x}", "lineage": lineage, **more,
    }  # fmt: skip
    vector = np.random.default_rng([seed, step, STAGES.index(stage)]).random(size, dtype="float32")
    return snapshot.Snapshot({"vector": snapshot.tensor(vector)}, state, {"attempt": "test"})


def save(root: Path, stage: str, step: int, seed: int = 1, **more: object) -> None:
    folder = root / "artifacts/run"
    folder.mkdir(parents=True, exist_ok=True)
    snapshot.save(folder, content(stage, step, seed, **more))  # type: ignore[arg-type]


def main() -> None:
    root, seed = Path(sys.argv[1]), int(sys.argv[2])
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 1 << 30
    (root / "runs").mkdir(parents=True, exist_ok=True)
    save(root, "codec", 10, seed)
    with (root / "runs/run-train.log").open("a") as log:
        for step in range(1, steps + 1):
            log.write(f"generator step {step}\n" * 20)
            log.flush()
            save(root, "generator", step, seed)
            contract.append_row(root / "artifacts/run", "generator", step, {"loss": 1 / step})
            os.sched_yield()


if __name__ == "__main__":
    main()
