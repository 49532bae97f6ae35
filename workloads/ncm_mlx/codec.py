"""The VQ codec: each cell's digit to one of K learned codes and back.

The codebook is no parameter: it follows the encoder by exponential moving averages, and codes that fell out of use
are set to encoder outputs again. The averages are arrays whose names begin with an underscore, so MLX's
`parameters()` leaves them out; a snapshot does not (arrays.py).

Source: van den Oord et al. 2017, arXiv:1711.00937, eqs. 1-3 and appendix A.1 (EMA).

Not here: the training loop (train.py), tokens over the codes (generator.py).
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from ncm_mlx.config import Codec
from ncm_mlx.layers import cross_entropy, dropout, one_hot

DEAD_BELOW = 0.05  # average use a step, of a code that is given a new place
FLOOR = 1e-5  # keeps the average of an unused code from 0 / 0


class VQCodec(nn.Module):
    """Encoder, codebook, decoder. K codes of D numbers."""

    def __init__(self, c: Codec) -> None:
        super().__init__()
        self.enter, self.to_code = nn.Linear(9, c.width), nn.Linear(c.width, c.code_width)
        self.from_code, self.leave = nn.Linear(c.code_width, c.width), nn.Linear(c.width, 9)
        self.p, self.commitment, self.decay = c.dropout, c.commitment, c.ema_decay
        self.codebook = mx.random.normal((c.codes, c.code_width))
        self._ema_count = mx.ones((c.codes,))
        self._ema_sum = self.codebook * 1.0
        self.freeze(keys=["codebook"], recurse=False)

    def encode(self, digits: mx.array, key: mx.array | None = None) -> mx.array:
        """(B, 81) digits 1..9 to (B, 81, D)."""
        h = nn.relu(self.enter(one_hot(digits - 1, 9)))
        return self.to_code(dropout(h, self.p, key))

    def nearest(self, z: mx.array) -> mx.array:
        """(…, D) to (…,) uint32, the index of the nearest code."""
        distance = (self.codebook * self.codebook).sum(axis=-1) - 2 * (z @ self.codebook.T)
        return mx.argmin(distance, axis=-1)

    def decode(self, z: mx.array) -> mx.array:
        """(…, D) to (…, 9) logits of the digits."""
        return self.leave(nn.relu(self.from_code(z)))

    def follow(self, z: mx.array, codes: mx.array, key: mx.array) -> None:
        """Move the codebook towards the encoder outputs that chose it; `key` picks new places for dead codes.

        Args:
            z: (N, D) encoder outputs without gradient.
            codes: (N,) their codes.
        """
        chosen = one_hot(codes, self.codebook.shape[0])
        count = self.decay * self._ema_count + (1 - self.decay) * chosen.sum(axis=0)
        total = self.decay * self._ema_sum + (1 - self.decay) * (chosen.T @ z)
        dead = (count < DEAD_BELOW)[:, None]
        fresh = z[mx.random.randint(0, z.shape[0], (count.shape[0],), key=key)]
        self._ema_sum = mx.where(dead, fresh, total)
        self._ema_count = mx.where(dead[:, 0], 1.0, count)
        self.codebook = self._ema_sum / (self._ema_count + FLOOR)[:, None]


def loss(model: VQCodec, digits: mx.array, key: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """Reconstruction and commitment, with the gradient passed straight through the codebook (eqs. 2-3).

    Returns: the scalar loss, (N, D) encoder outputs and (N,) codes for `VQCodec.follow`.
    """
    z = model.encode(digits, key)
    codes = mx.stop_gradient(model.nearest(z))
    quantized = mx.stop_gradient(one_hot(codes, model.codebook.shape[0]) @ model.codebook)
    straight = z + mx.stop_gradient(quantized - z)
    reconstruction = cross_entropy(model.decode(straight), digits - 1).mean()
    commitment = ((z - quantized) ** 2).mean()
    flat = mx.stop_gradient(z).reshape(-1, z.shape[-1])
    return reconstruction + model.commitment * commitment, flat, codes.reshape(-1)


def reconstruct(model: VQCodec, digits: mx.array) -> tuple[mx.array, mx.array]:
    """(B, 81) digits to (B, 81) codes and (B, 81, 9) logits, without dropout."""
    codes = model.nearest(model.encode(digits))
    return codes, model.decode(one_hot(codes, model.codebook.shape[0]) @ model.codebook)
