"""What the training loop needs to know of the task: its live objects, one step, one validation.

Built from the config alone; a resumed run puts saved tensors into it afterwards.

Not here: the loop (loop.py), what is saved of it (state.py).
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.nn import functional

from cipher_torch import ciphers, config, corpus
from cipher_torch.model import CipherModel
from remote_runner.checkpoint import contract
from remote_runner.checkpoint.torch_data import Batches, mixed_seed

STAGE = "cipher"
VALIDATE_TOGETHER = 64  # messages; a pause can cut an evaluation between two such batches


@dataclass(frozen=True)
class Task:
    """The live objects of a training, and its fixed facts."""

    config: config.Config
    identity: dict[str, Any]
    device: torch.device
    messages: ciphers.Messages
    batches: Batches
    model: CipherModel
    optimizer: torch.optim.AdamW
    scheduler: torch.optim.lr_scheduler.LambdaLR
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of (B, L) enciphered and plain, maybe compiled
    mode: str  # "compiled" or "eager"

    @property
    def fingerprint(self) -> str:
        return config.fingerprint(self.identity)


def build(c: config.Config) -> Task:
    """The task at step 0."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA starts; without it cuBLAS is refused
    torch.use_deterministic_algorithms(True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    messages = ciphers.prepare(c)
    if len(messages.training) < c.train.batch:
        raise ValueError(f"{len(messages.training)} messages are too few for batches of {c.train.batch}")
    torch.manual_seed(mixed_seed(c.seed, "weights"))
    model = CipherModel(asdict(c)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=c.train.learning_rate, weight_decay=c.train.weight_decay)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(c, step))

    def loss(secret: torch.Tensor, plain: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(secret).flatten(0, 1), plain.flatten(), ignore_index=corpus.BLANK)

    compiled = c.train.compile and _compiler_is_here(device)
    if c.train.compile and not compiled:
        contract.say("no C++ compiler here: training uncompiled, which changes the last bits")
    batches = Batches(len(messages.training), batch_size=c.train.batch, seed=mixed_seed(c.seed, STAGE))
    return Task(
        c, config.identity(c, messages.sha256), device, messages, batches, model, optimizer, scheduler,
        torch.compile(loss) if compiled else loss, "compiled" if compiled else "eager",
    )  # fmt: skip


def rate(c: config.Config, step: int) -> float:
    """Learning rate of the step after `step` finished ones, as a share of the highest."""
    if step < c.train.warmup_steps:
        return (step + 1) / c.train.warmup_steps
    done = (step - c.train.warmup_steps) / max(1, c.train.steps - c.train.warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def rows(task: Task) -> Iterator[torch.Tensor]:
    """Yield (B, L) int64 batches of plain messages without end, from where `task.batches` stands."""
    options: dict[str, Any] = {"num_workers": task.config.data.workers}
    loader = task.batches.loader(task.messages.training, **options)
    while True:
        yield from task.batches.over(loader)


def train_step(task: Task, plain: torch.Tensor, step: int) -> float:
    """Train on one batch; every random number of it comes from (seed, step). Returns the loss."""
    task.model.train()
    torch.manual_seed(step_seed(task, step))
    keys = torch.randint(len(task.messages.tables), (len(plain),))
    secret = ciphers.encipher(plain, task.messages.tables, keys)
    task.optimizer.zero_grad(set_to_none=True)
    loss = task.loss(secret.to(task.device), plain.to(task.device))
    loss.backward()  # type: ignore[no-untyped-call]
    task.optimizer.step()
    task.scheduler.step()
    return float(loss.item())


def step_seed(task: Task, step: int) -> int:
    """The random key of the step after `step` finished ones."""
    return mixed_seed(task.config.seed, STAGE, step)


def validate(task: Task, cut: Callable[[], bool]) -> dict[str, float] | None:
    """Loss and accuracy on the validation messages; draws no random number. None when `cut` says to stop."""
    guess, loss = decode(task.model, task.messages, task.device, cut)
    if guess is None:
        return None
    return {"validation": loss, "validation_accuracy": ciphers.accuracy(guess, task.messages.validation)}


def decode(
    model: CipherModel, messages: ciphers.Messages, device: torch.device, cut: Callable[[], bool]
) -> tuple[torch.Tensor | None, float]:
    """(M, L) int64, the model's reading of the validation messages, and its mean loss in nats a letter."""
    model.eval()
    secret = ciphers.encipher(messages.validation, messages.tables, messages.validation_keys)
    guesses, total = [], 0.0
    with torch.no_grad():
        for first in range(0, len(secret), VALIDATE_TOGETHER):
            if cut():
                return None, math.nan
            part = slice(first, first + VALIDATE_TOGETHER)
            plain = messages.validation[part].to(device).flatten()
            logits = model(secret[part].to(device))
            nats = functional.cross_entropy(logits.flatten(0, 1), plain, ignore_index=corpus.BLANK, reduction="sum")
            total += float(nats)
            guesses.append(logits.argmax(-1).cpu())
    return torch.cat(guesses), total / int((messages.validation != corpus.BLANK).sum())


def _compiler_is_here(device: torch.device) -> bool:
    if device.type == "cuda":
        return True  # triton brings its own
    return shutil.which(os.environ.get("CXX", "g++")) is not None
