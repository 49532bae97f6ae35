"""`evaluate`: solve the test boards with the best weights, print the solve rate of each difficulty.

Not here: how blanks are filled in (generator.py).
"""

from __future__ import annotations

import json
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from ncm_mlx import arrays, boards, codec, config, generator, restart, stage
from ncm_mlx.layers import one_hot
from remote_runner.checkpoint import contract, pause, rotate, snapshot
from remote_runner.checkpoint.config import ConfigError

TOGETHER = 32


class Solver(NamedTuple):
    """The two models of a finished run."""

    frozen: codec.VQCodec
    tokens: generator.TokenModel


def run(c: config.Config) -> int:
    """Write `evaluation.json`. Returns the exit code of the contract."""
    request = pause.Request(c.folder)
    solver = load(c)
    test = boards.prepare(c.folder, c.seed, c.data).test
    right = np.zeros(len(test.clues), dtype=bool)
    for first in range(0, len(test.clues), TOGETHER):
        if request.asked():
            request.obeyed()
            contract.say("paused in evaluation: full training state saved")
            return contract.PAUSED
        part = slice(first, first + TOGETHER)
        right[part] = (solve(solver, test.clues[part]) == test.solutions[part]).all(axis=1)
    told: dict[str, dict[str, float]] = {}
    for index, name in enumerate(boards.DIFFICULTIES):
        which = test.difficulty == index
        told[name] = {"boards": int(which.sum()), "solved": int(right[which].sum())}
        told[name]["solve_rate"] = told[name]["solved"] / told[name]["boards"]
        clues = (test.clues[which] > 0).sum(axis=1).mean()
        contract.say(
            f"{name} ({clues:.1f} clues): {told[name]['solve_rate']:.2%} of {told[name]['boards']} boards solved"
        )
    rotate.replace_with(c.folder / "evaluation.json", (json.dumps(told, indent=1) + "\n").encode())
    return contract.DONE


def load(c: config.Config) -> Solver:
    """The models in `codec.safetensors` and `generator.safetensors`. Raises ConfigError when they aren't there."""
    solver = Solver(codec.VQCodec(c.codec), generator.TokenModel(c.generator, c.codec.codes))
    for model, name in zip(solver, (stage.CODEC, stage.GENERATOR), strict=True):
        path = c.folder / f"{name}.safetensors"
        try:
            arrays.put_back(model, "model", restart.weights_of(path))
        except (OSError, snapshot.SnapshotCorrupt, arrays.ArrayMissing) as wrong:
            raise ConfigError(f"{path}: {wrong}", "train this config to its end first") from None
    return solver


def solve(solver: Solver, clues: boards.Cells) -> boards.Cells:
    """(B, 81) clues with 0 for a blank to (B, 81) digits 1..9."""
    given = mx.array(clues)
    known = stage.codes_of(solver.frozen, np.maximum(clues, 1))  # the codes of blanks are never looked at
    filled = generator.fill(solver.tokens, known, given)
    frozen = solver.frozen
    logits = frozen.decode(one_hot(filled, frozen.codebook.shape[0]) @ frozen.codebook)
    digits = mx.where(given > 0, given, (mx.argmax(logits, axis=-1) + 1).astype(given.dtype))
    return np.array(digits)
