"""What the ranks of one distributed training agree on around a checkpoint; without torch.distributed there is one rank.

Not here: what is saved (torch_save.py), when to pause (torch_pause.py).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, List

import torch
import torch.distributed


def world_size() -> int:
    """How many processes train together."""
    return torch.distributed.get_world_size() if _distributed() else 1


def rank() -> int:
    """Which of them this is, from 0."""
    return torch.distributed.get_rank() if _distributed() else 0


def is_writer() -> bool:
    """True on the rank that writes the file."""
    return rank() == 0


def gather(value: Any) -> List[Any]:
    """Return every rank's value, on every rank; by rank."""
    if not _distributed():
        return [value]
    values: List[Any] = [None] * world_size()
    torch.distributed.all_gather_object(values, value)
    return values


def any_rank(flag: bool) -> bool:
    """True on all ranks when it is True on one."""
    if not _distributed():
        return flag
    device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
    word = torch.tensor([int(flag)], device=device)
    torch.distributed.all_reduce(word, op=torch.distributed.ReduceOp.MAX)
    return bool(word.item())


def from_writer(value: Any) -> Any:
    """Return rank 0's value, on every rank."""
    if not _distributed():
        return value
    values = [value]
    torch.distributed.broadcast_object_list(values, src=0)
    return values[0]


@contextmanager
def share_error(message: str) -> Iterator[None]:
    """Leave the block on all ranks together; when it failed on one, no other goes on as if it had not."""
    failure: Any = None
    try:
        yield
    except Exception as error:  # noqa: BLE001  raised again below, after the other ranks know
        failure = error
    failed = any_rank(failure is not None)
    if failure is not None:
        raise failure
    if failed:
        raise RuntimeError(message)


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
