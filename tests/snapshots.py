"""Small snapshots for tests of the library, no trainer needed."""

from __future__ import annotations

import numpy as np

from remote_runner.checkpoint.snapshot import Snapshot, tensor

STAGE = "codec"


def state(step: int, target_steps: int = 1000) -> dict:
    return {
        "schema": 1,
        "stage": STAGE,
        "stage_index": 0,
        "step": step,
        "epoch": 0,
        "cursor": step,
        "order_sha256": "0" * 64,
        "seed": 1,
        "keys": {"dropout": [step, 2]},
        "best": None,
        "evaluation_due": False,
        "target_steps": target_steps,
        "fingerprint": "f" * 64,
        "lineage": None,
    }


def small(step: int) -> Snapshot:
    """About a kilobyte: a matrix out of row order, a scalar, nothing at all, and BF16."""
    rng = np.random.default_rng(step)
    tensors = {
        "model.weight": tensor(rng.standard_normal((4, 3)).astype(np.float32).T),
        "model._ema_count": tensor(np.ones(3, np.float32)),
        "model.half": tensor(np.array([0x3F80, 0xBF80], np.uint16), "BF16"),
        "optimizer.step": tensor(np.array(step, np.uint64)),
        "history.loss": tensor(np.zeros(0, np.float32)),
    }
    return Snapshot(tensors, state(step), {"attempt": "a1", "training_s": 1.5})


def large(step: int, size_bytes: int, tensors: int = 4) -> Snapshot:
    """float32 noise in equal parts."""
    rng = np.random.default_rng(step)
    part = size_bytes // 4 // tensors
    arrays = {f"t{i:03}": tensor(rng.random(part, dtype=np.float32)) for i in range(tensors)}
    return Snapshot(arrays, state(step), {"attempt": None})
