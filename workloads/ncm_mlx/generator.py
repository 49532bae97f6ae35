"""The token model: fills in masked codes of a board, seeing its clues and the codes that are there.

Source: Chang et al. 2022, arXiv:2202.04200 (MaskGIT): random share of masks in training (section 3.2), decoding in
rounds that keep the surest tokens (section 3.1).

Not here: the training loop (train.py), what the codes mean (codec.py).
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from ncm_mlx.config import Generator
from ncm_mlx.layers import HouseMixer, cross_entropy, dropout, one_hot

ROUNDS = 8


class TokenModel(nn.Module):
    """Codes (K of them, and K itself for a mask) and clues to logits of the codes."""

    def __init__(self, g: Generator, codes: int) -> None:
        super().__init__()
        self.codes, self.p = codes, g.dropout
        self.enter = nn.Linear(codes + 1 + 10, g.width)
        self.position = 0.02 * mx.random.normal((81, g.width))
        self.blocks = [HouseMixer(g.width, g.hidden, g.dropout) for _ in range(g.blocks)]
        self.norm = nn.RMSNorm(g.width)
        self.leave = nn.Linear(g.width, codes)

    def __call__(self, tokens: mx.array, clues: mx.array, key: mx.array | None = None) -> mx.array:
        """(B, 81) tokens in [0, K], (B, 81) clues in [0, 9] with 0 a blank, to (B, 81, K)."""
        seen = mx.concatenate([one_hot(tokens, self.codes + 1), one_hot(clues, 10)], axis=-1)
        keys = [None] * (len(self.blocks) + 1) if key is None else list(mx.random.split(key, len(self.blocks) + 1))
        x = dropout(self.enter(seen), self.p, keys[0]) + self.position
        for block, own in zip(self.blocks, keys[1:], strict=True):
            x = block(x, own)
        return self.leave(self.norm(x))


def loss(model: TokenModel, codes: mx.array, clues: mx.array, mask_key: mx.array, drop_key: mx.array) -> mx.array:
    """Mean nats of the masked codes; a share of a board's blanks is masked that is cos of a uniform draw."""
    share_key, cell_key = mx.random.split(mask_key)
    share = mx.cos(0.5 * mx.pi * mx.random.uniform(shape=(codes.shape[0], 1), key=share_key))
    masked = (mx.random.uniform(shape=codes.shape, key=cell_key) < share) & (clues == 0)
    tokens = mx.where(masked, mx.array(model.codes, codes.dtype), codes)
    nats = cross_entropy(model(tokens, clues, drop_key), codes)
    return (nats * masked).sum() / mx.maximum(masked.sum(), 1)


def blank_nats(model: TokenModel, codes: mx.array, clues: mx.array) -> tuple[mx.array, mx.array]:
    """Validation of one batch, all blanks masked: the sum of nats over them, and how many are right at once."""
    blank = clues == 0
    logits = model(mx.where(blank, mx.array(model.codes, codes.dtype), codes), clues)
    right = (mx.argmax(logits, axis=-1) == codes) & blank
    return (cross_entropy(logits, codes) * blank).sum(), right.sum()


def fill(model: TokenModel, known: mx.array, clues: mx.array) -> mx.array:
    """Fill in the blanks in `ROUNDS` rounds; each keeps the surest, the last keeps all. Draws nothing at random.

    Args:
        known: (B, 81) codes; those of blanks are not looked at.
        clues: (B, 81), 0 is a blank.

    Returns: (B, 81) codes.
    """
    mask = mx.array(model.codes, known.dtype)
    tokens = mx.where(clues == 0, mask, known)
    blanks = (clues == 0).sum(axis=1, keepdims=True)
    for round_ in range(1, ROUNDS + 1):
        logits = model(tokens, clues)
        masked = tokens == mask
        sure = mx.where(masked, mx.max(mx.softmax(logits, axis=-1), axis=-1), -1.0)
        rank = mx.argsort(mx.argsort(-sure, axis=1), axis=1)
        left = masked.sum(axis=1, keepdims=True)
        keep = left - (blanks * (ROUNDS - round_)) // ROUNDS
        tokens = mx.where(masked & (rank < keep), mx.argmax(logits, axis=-1).astype(known.dtype), tokens)
        mx.eval(tokens)
    return tokens
