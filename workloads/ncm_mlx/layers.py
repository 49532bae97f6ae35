"""The few layers both stages use. All arrays are float32.

Randomness comes in as a key, never from MLX's global state: a step is a function of its arguments.

Not here: the codec (codec.py), the token model (generator.py).
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn


def one_hot(indices: mx.array, size: int) -> mx.array:
    """(…,) integers to (…, size) float32.

    Products with it stand in for embedding look-ups, whose gradients add with float atomics on GPUs, in any order.
    """
    return (indices[..., None] == mx.arange(size, dtype=indices.dtype)).astype(mx.float32)


def dropout(x: mx.array, p: float, key: mx.array | None) -> mx.array:
    """Zero a share `p` of the values and scale the rest; nothing without a key. `key` is (2,) uint32."""
    if key is None or p == 0:
        return x
    return x * mx.random.bernoulli(1 - p, x.shape, key=key) * (1 / (1 - p))


def cross_entropy(logits: mx.array, target: mx.array) -> mx.array:
    """(…, K) logits and (…,) target indices to (…,) nats, by a one-hot product."""
    picked = (logits * one_hot(target, logits.shape[-1])).sum(axis=-1)
    return mx.logsumexp(logits, axis=-1) - picked


class HouseMixer(nn.Module):
    """Let each cell see the sums over its row, column and box, then think by itself (two pre-norm branches).

    Sudoku's rules speak of houses alone, so this takes the place of attention at a small part of its cost. In the
    manner of MLP-Mixer (Tolstikhin et al. 2021, arXiv:2105.01601), with the houses as the mixing matrices.
    """

    def __init__(self, width: int, hidden: int, p: float) -> None:
        super().__init__()
        self.mix_norm, self.think_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.own = nn.Linear(width, width)
        self.row, self.column, self.box = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.p = p

    def __call__(self, x: mx.array, key: mx.array | None) -> mx.array:
        """(B, 81, D) to (B, 81, D)."""
        h = self.mix_norm(x)
        mixed = self.own(h) + self._houses(h)
        x = x + self.out(nn.relu(mixed))
        h = nn.relu(self.up(self.think_norm(x)))
        return x + self.down(dropout(h, self.p, key))

    def _houses(self, h: mx.array) -> mx.array:
        b, _, d = h.shape
        grid = h.reshape(b, 9, 9, d)
        rows = self.row(grid.sum(axis=2, keepdims=True) / 3)  # (B, 9, 1, D)
        columns = self.column(grid.sum(axis=1, keepdims=True) / 3)  # (B, 1, 9, D)
        boxes = h.reshape(b, 3, 3, 3, 3, d).sum(axis=(2, 4), keepdims=True) / 3  # (B, 3, 1, 3, 1, D)
        boxes = mx.broadcast_to(self.box(boxes), (b, 3, 3, 3, 3, d)).reshape(b, 9, 9, d)
        return (rows + columns + boxes).reshape(b, 81, d)
