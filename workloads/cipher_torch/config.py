"""The experiment file, read strictly, and what of it makes a run the run it is (its identity).

Not here: how JSON is judged (remote_runner.checkpoint.config), what the numbers do (the modules of their sections).
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from remote_runner.checkpoint import header
from remote_runner.checkpoint.config import ConfigError, at_least, between, build, load

NOT_IDENTITY = ("data.workers", "train.log_every", "train.compile")  # what may change over a resume


@dataclass(frozen=True, kw_only=True)
class Data:
    """Messages are `length` characters; each is enciphered with one of a pool of keys. `workers` load data."""

    sentences: int = at_least(100)
    validation_messages: int = at_least(1)
    length: int = between(8, 512)
    substitution_keys: int = at_least(0)
    vigenere_keys: int = at_least(0)
    vigenere_period: int = between(2, 16)
    workers: int = between(0, 16)


@dataclass(frozen=True, kw_only=True)
class Model:
    """The transformer: residual width, attention heads, blocks, width inside a block's feed-forward part."""

    width: int = at_least(2)
    heads: int = at_least(1)
    blocks: int = at_least(1)
    hidden: int = at_least(1)
    dropout: float = between(0, 0.9)


@dataclass(frozen=True, kw_only=True)
class Train:
    """The budget and cadences, in steps. `evaluate_every` 0 never evaluates."""

    steps: int = at_least(1)
    batch: int = at_least(1)
    learning_rate: float = at_least(0)
    warmup_steps: int = at_least(0)
    weight_decay: float = at_least(0)
    log_every: int = at_least(1)
    evaluate_every: int = at_least(0)
    compile: bool


@dataclass(frozen=True, kw_only=True)
class Config:
    """An experiment. `out_dir` is always `artifacts/<name of the file>`."""

    seed: int = between(0, 2**53)
    out_dir: str
    data: Data
    model: Model
    train: Train

    @property
    def folder(self) -> Path:
        return Path(self.out_dir)


def read(path: Path) -> Config:
    """Read and judge an experiment file.

    Raises:
        ConfigError: says which key, and what to do.
    """
    found = build(load(path), Config, str(path))
    expected = f"artifacts/{path.stem}"
    if found.out_dir != expected:
        raise ConfigError(f"{path}: out_dir is {found.out_dir!r}", f"write {expected!r}: it follows the file's name")
    if found.model.width % found.model.heads:
        raise ConfigError(
            f"{path}: model.width {found.model.width} is no multiple of model.heads", "choose one that is"
        )
    if found.data.substitution_keys + found.data.vigenere_keys == 0:
        raise ConfigError(f"{path}: no key to encipher with", "raise data.substitution_keys or data.vigenere_keys")
    return found


def identity(config: Config, data_sha256: str) -> dict[str, Any]:
    """What must not change over a resume, flat, by the names used in the file."""
    fields: dict[str, Any] = {"seed": config.seed, "data.sha256": data_sha256}
    for section in ("data", "model", "train"):
        fields |= {f"{section}.{key}": value for key, value in asdict(getattr(config, section)).items()}
    fields["optimizer"] = "adamw, linear warm-up, cosine decay to 0"
    return {key: value for key, value in fields.items() if key not in NOT_IDENTITY}


def fingerprint(fields: dict[str, Any]) -> str:
    """The SHA-256 that stands for an identity."""
    return hashlib.sha256(header.canonical(fields)).hexdigest()
