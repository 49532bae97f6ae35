"""Whole, verified checkpoints for any PyTorch training, in a few lines.

    from remote_runner.checkpoint import torch as ckpt

    step = ckpt.load_checkpoint("run.pt", model, optimizer, scheduler, config=config, data=batches, missing_ok=True)
    …
    ckpt.save_checkpoint("run.pt", model, optimizer, scheduler, step, config, data=batches)

This is the door; the rooms are torch_save.py (what is saved, and saving on a thread), torch_load.py, torch_data.py
(an order of the data that can be put back), torch_pause.py, torch_verify.py. docs/torch.md is the guide.
"""

from __future__ import annotations

from remote_runner.checkpoint.torch_data import Batches
from remote_runner.checkpoint.torch_load import load_checkpoint, newest
from remote_runner.checkpoint.torch_match import CheckpointMismatch
from remote_runner.checkpoint.torch_pause import Pause
from remote_runner.checkpoint.torch_publish import previous_of
from remote_runner.checkpoint.torch_save import AsyncSaver, save_checkpoint
from remote_runner.checkpoint.torch_scan import CheckpointRefused
from remote_runner.checkpoint.torch_state import NonFinite
from remote_runner.checkpoint.torch_verify import verify_checkpoint
from remote_runner.checkpoint.torch_zip import CheckpointCorrupt

__all__ = [
    "AsyncSaver",
    "Batches",
    "CheckpointCorrupt",
    "CheckpointMismatch",
    "CheckpointRefused",
    "NonFinite",
    "Pause",
    "load_checkpoint",
    "newest",
    "previous_of",
    "save_checkpoint",
    "verify_checkpoint",
]
