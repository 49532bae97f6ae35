"""Messages, keys, and what frequency analysis makes of them.

    plain   (B, L) int64, letters 0..25 and 26 for a blank; blanks are left as they are
    tables  (K, L, 27) int64: what key k makes of a symbol at a position

A substitution key is one permutation of the letters for all positions, a Vigenère key shifts the letters by an amount
that repeats with the period. Frequency analysis is given more than it would have: it knows which messages share a key
and, for Vigenère, the period and where it begins.

Not here: the corpus (corpus.py), the model (model.py).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from cipher_torch import config, corpus
from remote_runner.checkpoint.torch_data import mixed_seed

VALIDATION_SHARE = 10  # one sentence in ten is never trained on


class Messages(NamedTuple):
    """What a run trains on and is measured with."""

    training: torch.Tensor  # (N, L) int64
    validation: torch.Tensor  # (M, L) int64
    validation_keys: torch.Tensor  # (M,) int64, the key of each
    tables: torch.Tensor  # (K, L, 27) int64
    sha256: str  # of the corpus


def prepare(c: config.Config) -> Messages:
    """Make the messages and the pool of keys of an experiment."""
    lines = corpus.sentences(c.data.sentences, c.seed)
    held_back = lines[::VALIDATION_SHARE]
    trained = [line for index, line in enumerate(lines) if index % VALIDATION_SHARE]
    validation = _windows(held_back, c.data.length)[: c.data.validation_messages]
    tables = key_tables(c)
    keys = torch.arange(len(validation)) % len(tables)
    return Messages(_windows(trained, c.data.length), validation, keys, tables, corpus.digest(lines))


def key_tables(c: config.Config) -> torch.Tensor:
    """(K, L, 27) int64: the substitution keys, then the Vigenère keys, drawn from the seed."""
    draw = np.random.Generator(np.random.Philox(key=mixed_seed(c.seed, "keys")))
    count, length = len(corpus.ALPHABET), c.data.length
    tables = np.full((c.data.substitution_keys + c.data.vigenere_keys, length, corpus.SYMBOLS), corpus.BLANK)
    for k in range(len(tables)):
        if k < c.data.substitution_keys:
            tables[k, :, :count] = np.argsort(draw.bit_generator.random_raw(count))
        else:
            shifts = draw.bit_generator.random_raw(c.data.vigenere_period) % count
            by_place = np.resize(shifts, length).astype(np.int64)
            tables[k, :, :count] = (np.arange(count) + by_place[:, None]) % count
    return torch.from_numpy(tables.astype(np.int64))


def encipher(plain: torch.Tensor, tables: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """(B, L) int64, each message under its key."""
    return tables[keys].gather(2, plain.unsqueeze(2)).squeeze(2)


def frequency_analysis(
    secret: torch.Tensor, keys: torch.Tensor, periods: list[int], known: torch.Tensor
) -> torch.Tensor:
    """Decipher by matching ranks of letter frequencies, over all messages of a key and place in the period.

    Args:
        secret: (M, L) int64.
        keys: (M,) int64.
        periods: of each key; 1 for a substitution.
        known: (N, L) int64, plain text to learn the language's frequencies from.

    Returns: (M, L) int64.
    """
    guess = secret.clone()
    language = _by_frequency(known)
    for key, period in enumerate(periods):
        for place in range(period):
            rows = torch.nonzero(keys == key).squeeze(1)
            columns = torch.arange(place, secret.shape[1], period)
            part = secret[rows][:, columns]
            mapping = torch.arange(corpus.SYMBOLS)
            mapping[_by_frequency(part)] = language
            guess[rows.unsqueeze(1), columns] = mapping[part]
    return guess


def accuracy(guess: torch.Tensor, plain: torch.Tensor) -> float:
    """The share of letters that are right; blanks are given and don't count."""
    letters = plain != corpus.BLANK
    return float(((guess == plain) & letters).sum() / letters.sum())


def _by_frequency(text: torch.Tensor) -> torch.Tensor:
    counts = torch.bincount(text.reshape(-1), minlength=corpus.SYMBOLS)[: len(corpus.ALPHABET)]
    return torch.argsort(counts, descending=True, stable=True)


def _windows(lines: list[str], length: int) -> torch.Tensor:
    symbols = torch.tensor(corpus.letters(" ".join(lines)))
    return symbols.unfold(0, length, length // 2).contiguous()
