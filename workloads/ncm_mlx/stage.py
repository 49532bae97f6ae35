"""What the training loop needs to know of a stage, and the two stages.

A stage is its live objects (model, optimizer), a step, a validation and its identity. Both are built from nothing but
the config and the data; a resumed run puts saved arrays into them afterwards.

Not here: the loop (loop.py), which stage runs when (train.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
import numpy.typing as npt

from ncm_mlx import boards, codec, config, generator, order
from ncm_mlx.arrays import number
from ncm_mlx.layers import cross_entropy

VALIDATE_TOGETHER = 64  # boards; a pause can cut an evaluation between two such batches
CODEC, GENERATOR = "codec", "generator"
Rows = npt.NDArray[np.int64]
Keys = dict[str, mx.array]
Validation = Callable[[Callable[[], bool]], dict[str, float] | None]


@dataclass(frozen=True)
class Stage:
    """One of the two trainings. `validate` gives None when its argument, asked between batches, says to stop."""

    name: str
    index: int
    seed: int
    samples: int
    batch: int
    target_steps: int
    model: nn.Module
    optimizer: optim.Optimizer
    key_names: tuple[str, ...]
    step: Callable[[Rows, Keys], mx.array]  # trains on these rows of the data, gives the loss
    validate: Validation
    identity: dict[str, Any]

    @property
    def fingerprint(self) -> str:
        return config.fingerprint(self.identity)

    def keys(self, step: int) -> dict[str, list[int]]:
        """The words of the random keys that the step after `step` finished ones uses, by name."""
        return {name: order.key_words(self.seed, self.name, step, name) for name in self.key_names}

    @property
    def state(self) -> list[Any]:
        """The live containers that a step reads and replaces."""
        return [self.model.state, self.optimizer.state]


def build_codec(c: config.Config, data: boards.Dataset) -> Stage:
    """The codec's stage, at step 0."""
    mx.random.seed(order.key_words(c.seed, CODEC, 0, "init")[0])
    model = codec.VQCodec(c.codec)
    optimizer = _adamw(model, c.codec, c.codec.steps)
    digits = mx.array(data.train.solutions)

    def step(rows: Rows, keys: Keys) -> mx.array:
        return fused(digits[mx.array(rows)], keys["dropout"], keys["vq"])

    def plain(batch: mx.array, drop_key: mx.array, vq_key: mx.array) -> mx.array:
        (loss, z, codes), gradients = nn.value_and_grad(model, codec.loss)(model, batch, drop_key)
        optimizer.update(model, gradients)
        model.follow(z, codes, vq_key)
        return loss

    fused = _fused(c, model, optimizer, plain)

    def validate(cut: Callable[[], bool]) -> dict[str, float] | None:
        nats = right = 0.0
        for first in range(0, len(data.validation.solutions), VALIDATE_TOGETHER):
            if cut():
                return None
            part = mx.array(data.validation.solutions[first : first + VALIDATE_TOGETHER])
            logits = codec.reconstruct(model, part)[1]
            nats += number(cross_entropy(logits, part - 1).sum())
            right += number((mx.argmax(logits, axis=-1) == part - 1).sum())
        cells = data.validation.solutions.size
        return {"validation": nats / cells, "validation_accuracy": right / cells}

    fields = config.identity(c, CODEC, c.codec.steps, data.sha256, "")
    names = ("dropout", "vq")
    n, b = len(data.train.solutions), c.codec.batch
    return Stage(CODEC, 0, c.seed, n, b, c.codec.steps, model, optimizer, names, step, validate, fields)


def build_generator(
    c: config.Config, data: boards.Dataset, frozen: codec.VQCodec, codec_root: str, target_steps: int
) -> Stage:
    """The generator's stage, at step 0, over the codes of the finished codec."""
    mx.random.seed(order.key_words(c.seed, GENERATOR, 0, "init")[0])
    model = generator.TokenModel(c.generator, c.codec.codes)
    optimizer = _adamw(model, c.generator, target_steps)
    codes, clues = codes_of(frozen, data.train.solutions), mx.array(data.train.clues)
    known = codes_of(frozen, data.validation.solutions)

    def step(rows: Rows, keys: Keys) -> mx.array:
        at = mx.array(rows)
        return fused(codes[at], clues[at], keys["mask"], keys["dropout"])

    def plain(batch: mx.array, given: mx.array, mask_key: mx.array, drop_key: mx.array) -> mx.array:
        loss, gradients = nn.value_and_grad(model, generator.loss)(model, batch, given, mask_key, drop_key)
        optimizer.update(model, gradients)
        return loss

    fused = _fused(c, model, optimizer, plain)

    def validate(cut: Callable[[], bool]) -> dict[str, float] | None:
        nats = right = 0.0
        for first in range(0, len(data.validation.clues), VALIDATE_TOGETHER):
            if cut():
                return None
            given = mx.array(data.validation.clues[first : first + VALIDATE_TOGETHER])
            some, good = generator.blank_nats(model, known[first : first + VALIDATE_TOGETHER], given)
            nats, right = nats + number(some), right + number(good)
        blanks = int((data.validation.clues == 0).sum())
        return {"validation": nats / blanks, "validation_accuracy": right / blanks}

    fields = config.identity(c, GENERATOR, target_steps, data.sha256, codec_root)
    names = ("mask", "dropout")
    n, b = len(data.train.solutions), c.generator.batch
    return Stage(GENERATOR, 1, c.seed, n, b, target_steps, model, optimizer, names, step, validate, fields)


def codes_of(frozen: codec.VQCodec, solutions: boards.Cells) -> mx.array:
    """(N, 81) digits to (N, 81) uint32 codes."""
    parts = [
        codec.reconstruct(frozen, mx.array(solutions[first : first + 1024]))[0]
        for first in range(0, len(solutions), 1024)
    ]
    mx.eval(parts)
    return mx.concatenate(parts)


def learning_rate(peak: float, warmup_steps: int, target_steps: int) -> Callable[[mx.array], mx.array]:
    """Linear warm-up to `peak`, then a cosine to 0 at `target_steps`; a function of the step alone."""

    def at(step: mx.array) -> mx.array:
        step = step.astype(mx.float32)
        warm = (step + 1) / max(warmup_steps, 1)
        done = mx.clip((step - warmup_steps) / max(target_steps - warmup_steps, 1), 0.0, 1.0)
        return peak * mx.minimum(warm, 1.0) * 0.5 * (1 + mx.cos(mx.pi * done))

    return at


def _adamw(model: nn.Module, section: config.Codec | config.Generator, target_steps: int) -> optim.AdamW:
    schedule = learning_rate(section.learning_rate, section.warmup_steps, target_steps)
    optimizer = optim.AdamW(learning_rate=schedule, weight_decay=section.weight_decay)
    optimizer.init(model.trainable_parameters())
    return optimizer


def _fused(
    c: config.Config, model: nn.Module, optimizer: optim.Optimizer, plain: Callable[..., mx.array]
) -> Callable[..., mx.array]:
    """Compiled at its first call. Arrays put back into the containers before that, or after, are what it reads."""
    if not c.train.compile:
        return plain
    state = [model.state, optimizer.state]
    return partial(mx.compile, inputs=state, outputs=state)(plain)
