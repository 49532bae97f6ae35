"""The decoder: a character transformer that reads a whole enciphered message and names the plain letter of each place.

Not here: the loss and the step (task.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from cipher_torch.corpus import SYMBOLS


class CipherModel(nn.Module):
    """Built from an experiment's config, as a dict, and nothing else.

    Source: Vaswani et al. 2017, arXiv:1706.03762, with the norm first (Xiong et al. 2020, arXiv:2002.04745).
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        size, length = config["model"], config["data"]["length"]
        # one-hot products in place of a gather: its gradient would be summed in no fixed order on a GPU
        self.symbols = nn.Linear(SYMBOLS, size["width"], bias=False)
        self.places = nn.Parameter(torch.randn(length, size["width"]) * 0.1)
        self.drop = nn.Dropout(size["dropout"])
        self.blocks = nn.ModuleList(_Block(size) for _ in range(size["blocks"]))
        self.norm = nn.LayerNorm(size["width"])
        self.head = nn.Linear(size["width"], SYMBOLS)

    def forward(self, secret: torch.Tensor) -> torch.Tensor:
        """(B, L) int64 symbols to (B, L, 27) float32 logits of the plain ones."""
        x = self.symbols(functional.one_hot(secret, SYMBOLS).to(self.places.dtype)) + self.places
        x = self.drop(x)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


class _Block(nn.Module):
    def __init__(self, size: Mapping[str, Any]) -> None:
        super().__init__()
        width = size["width"]
        self.heads = size["heads"]
        self.before_attention, self.before_hidden = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.hidden, self.back = nn.Linear(width, size["hidden"]), nn.Linear(size["hidden"], width)
        self.drop = nn.Dropout(size["dropout"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, L, W) to (B, L, W)."""
        x = x + self.drop(self._attend(self.before_attention(x)))
        hidden: torch.Tensor = functional.gelu(self.hidden(self.before_hidden(x)))
        out: torch.Tensor = x + self.drop(self.back(hidden))
        return out

    def _attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.queries_keys_values(x).view(batch, length, 3, self.heads, width // self.heads)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)  # each (B, H, L, W / H)
        weights = torch.softmax(queries @ keys.transpose(2, 3) * (width // self.heads) ** -0.5, dim=-1)
        mixed: torch.Tensor = self.attended((weights @ values).transpose(1, 2).reshape(batch, length, width))
        return mixed
