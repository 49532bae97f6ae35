"""The experiment file, read strictly, and what of it makes a run the run it is (its identity).

Not here: how JSON is judged (remote_runner.checkpoint.config), what the numbers do (the modules of their sections).
"""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from remote_runner.checkpoint import header
from remote_runner.checkpoint.config import ConfigError, at_least, between, build, load

STEPS_VARIABLE = "NCM_MLX_GENERATOR_STEPS"
MEMORY_VARIABLE = "NCM_MLX_MEMORY_LIMIT_GB"


@dataclass(frozen=True, kw_only=True)
class Data:
    """How many boards, and how many of their 81 cells are given. `boards` are for training."""

    boards: int = at_least(1)
    validation: int = at_least(1)
    test_per_difficulty: int = at_least(1)
    easy_clues: int = between(17, 80)
    medium_clues: int = between(17, 80)
    hard_clues: int = between(17, 80)


@dataclass(frozen=True, kw_only=True)
class Codec:
    """The VQ codec. `codes` is K, `code_width` is D of the codebook."""

    steps: int = at_least(1)
    batch: int = at_least(1)
    width: int = at_least(1)
    code_width: int = at_least(1)
    codes: int = between(2, 255)
    dropout: float = between(0, 0.9)
    commitment: float = at_least(0)
    ema_decay: float = between(0, 1)
    learning_rate: float = at_least(0)
    warmup_steps: int = at_least(0)
    weight_decay: float = at_least(0)
    source: str = ""  # an artifacts folder whose finished codec is used in place of training one


@dataclass(frozen=True, kw_only=True)
class Generator:
    """The masked token model."""

    steps: int = at_least(1)
    batch: int = at_least(1)
    width: int = at_least(1)
    hidden: int = at_least(1)
    blocks: int = at_least(1)
    dropout: float = between(0, 0.9)
    learning_rate: float = at_least(0)
    warmup_steps: int = at_least(0)
    weight_decay: float = at_least(0)


@dataclass(frozen=True, kw_only=True)
class Train:
    """Cadences in steps. `evaluate_every` 0 never evaluates. `compile` traces the step once and fuses it."""

    log_every: int = at_least(1)
    evaluate_every: int = at_least(0)
    compile: bool = True


@dataclass(frozen=True, kw_only=True)
class Config:
    """An experiment. `out_dir` is always `artifacts/<name of the file>`."""

    seed: int = between(0, 2**53)
    out_dir: str
    data: Data
    codec: Codec
    generator: Generator
    train: Train

    @property
    def folder(self) -> Path:
        return Path(self.out_dir)


@dataclass(frozen=True, kw_only=True)
class Restart:
    """A weights-only restart of the generator: where from, and the step the weights stand for."""

    checkpoint: Path
    start_step: int


def read(path: Path) -> Config:
    """Read and judge an experiment file; the steps in the environment replace the generator's.

    Raises:
        ConfigError: says which key or variable, and what to do.
    """
    found = build(load(path), Config, str(path))
    expected = f"artifacts/{path.stem}"
    if found.out_dir != expected:
        raise ConfigError(f"{path}: out_dir is {found.out_dir!r}", f"write {expected!r}: it follows the file's name")
    d = found.data
    if not d.easy_clues >= d.medium_clues >= d.hard_clues:
        raise ConfigError(f"{path}: clues must not grow with difficulty", "easy_clues >= medium_clues >= hard_clues")
    generator_steps()  # refused here, before anything is begun
    return found


def generator_steps() -> int | None:
    """The generator's step budget from the environment, None when it is not set. Raises ConfigError."""
    text = os.environ.get(STEPS_VARIABLE)
    if text is None or text == "":
        return None
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) < 2**53:
        raise ConfigError(f"{STEPS_VARIABLE} is {text!r}", "give a whole number of steps, 1 or more")
    return int(text)


def memory_limit_bytes() -> int | None:
    """The cap for MLX's allocator from the environment, None when it is not set. Raises ConfigError."""
    text = os.environ.get(MEMORY_VARIABLE)
    if text is None or text == "":
        return None
    try:
        limit_gb = float(text)
    except ValueError:
        limit_gb = math.nan
    if not (math.isfinite(limit_gb) and limit_gb > 0):
        raise ConfigError(f"{MEMORY_VARIABLE} is {text!r}", "give gigabytes, a finite number above 0")
    return int(limit_gb * 2**30)


def identity(config: Config, stage: str, target_steps: int, data_sha256: str, codec_root: str) -> dict[str, Any]:
    """What must not change over a resume, flat, by the names used in the file.

    Left out on purpose: out_dir, train.log_every, train.compile, limits. `codec_root` is "" for the codec itself.
    """
    fields: dict[str, Any] = {"seed": config.seed, "data.sha256": data_sha256}
    fields |= {f"data.{key}": value for key, value in asdict(config.data).items()}
    section = asdict(config.codec if stage == "codec" else config.generator)
    section.pop("source", None)
    section["steps"] = target_steps
    fields |= {f"{stage}.{key}": value for key, value in section.items()}
    fields["train.evaluate_every"] = config.train.evaluate_every
    fields["optimizer"] = "adamw, linear warm-up, cosine decay to 0"
    if stage != "codec":
        fields["codec.root"] = codec_root
    return fields


def fingerprint(fields: dict[str, Any]) -> str:
    """The SHA-256 that stands for an identity."""
    return hashlib.sha256(header.canonical(fields)).hexdigest()
