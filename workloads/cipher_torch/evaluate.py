"""`evaluate`: decode the validation messages with the best weights, beside frequency analysis.

Not here: the two ways to decode (task.py, ciphers.py).
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import torch

from cipher_torch import ciphers, config, task
from cipher_torch.model import CipherModel
from cipher_torch.task import STAGE
from remote_runner.checkpoint import contract, pause, rotate, snapshot
from remote_runner.checkpoint.config import ConfigError
from remote_runner.checkpoint.torch_snapshot import from_tensor


def run(c: config.Config) -> int:
    """Write `evaluation.json`. Returns the exit code of the contract."""
    request = pause.Request(c.folder)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = _load(c).to(device)
    messages = ciphers.prepare(c)
    guess, _ = task.decode(model, messages, device, request.asked)
    if guess is None:
        request.obeyed()
        contract.say("paused in evaluation: full training state saved")
        return contract.PAUSED
    secret = ciphers.encipher(messages.validation, messages.tables, messages.validation_keys)
    periods = [1] * c.data.substitution_keys + [c.data.vigenere_period] * c.data.vigenere_keys
    counted = ciphers.frequency_analysis(secret, messages.validation_keys, periods, messages.training)
    told = {}
    for name, first, end in (
        ("substitution", 0, c.data.substitution_keys),
        ("vigenere", c.data.substitution_keys, len(periods)),
    ):
        rows = (messages.validation_keys >= first) & (messages.validation_keys < end)
        if not bool(rows.any()):
            continue
        plain = messages.validation[rows]
        told[name] = {
            "messages": int(rows.sum()),
            "accuracy": round(ciphers.accuracy(guess[rows], plain), 4),
            "frequency_analysis": round(ciphers.accuracy(counted[rows], plain), 4),
        }
        contract.say(
            f"{name}: {told[name]['accuracy']:.2%} of letters right, frequency analysis "
            f"{told[name]['frequency_analysis']:.2%} ({told[name]['messages']} messages)"
        )
    rotate.replace_with(c.folder / "evaluation.json", (json.dumps(told, indent=1) + "\n").encode())
    return contract.DONE


def _load(c: config.Config) -> CipherModel:
    path: Path = c.folder / f"{STAGE}.safetensors"
    try:
        saved = {name: from_tensor(value) for name, value in snapshot.read_tensors(path).items()}
        model = CipherModel(asdict(c))
        model.load_state_dict(saved, strict=True)
    except (OSError, snapshot.SnapshotCorrupt, RuntimeError) as wrong:
        raise ConfigError(f"{path}: {wrong}", "train this config to its end first") from None
    return model
