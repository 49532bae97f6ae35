"""Order and randomness as functions of (seed, stage, step): nothing here remembers anything.

So a resumed run needs no replay, and whatever an evaluation draws can't reach the training.

Not here: what is done with a batch (train.py).
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from remote_runner.checkpoint import header


class Place(NamedTuple):
    """Where a step stands: its epoch, and how many samples of the epoch are used up before it."""

    epoch: int
    cursor: int


def key_words(seed: int, stage: str, step: int, name: str) -> list[int]:
    """The two 32-bit words of one random key."""
    raw = hashlib.sha256(header.canonical([seed, stage, step, name])).digest()
    return [int.from_bytes(raw[:4], "big"), int.from_bytes(raw[4:8], "big")]


def place(step: int, samples: int, batch: int) -> Place:
    """Where the step after `step` finished ones begins; an epoch's last, smaller rest is left out."""
    per_epoch = samples // batch
    return Place(step // per_epoch, step % per_epoch * batch)


@lru_cache(maxsize=2)
def epoch_order(seed: int, stage: str, epoch: int, samples: int) -> npt.NDArray[np.int64]:
    """(samples,) int64, the shuffled order of one epoch.

    Sorted raw words of Philox: NumPy promises the stream of a bit generator for good, not that of `permutation`
    (NEP 19).
    """
    words = key_words(seed, stage, epoch, "order")
    found = np.argsort(np.random.Philox(key=words[0] << 32 | words[1]).random_raw(samples), kind="stable")
    found.flags.writeable = False  # it is handed out again
    return found


def order_sha256(order: npt.NDArray[np.int64]) -> str:
    """The digest of an epoch's order, the same on every machine."""
    return hashlib.sha256(order.astype("<i8").tobytes()).hexdigest()
