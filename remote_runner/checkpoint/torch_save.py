"""What a checkpoint of a PyTorch training holds, captured from the live objects; saved at once or on a thread.

    capture(model, optimizer, scheduler, …)  ->  tree  ->  write_checkpoint          save_checkpoint waits for it
                                                 tree in reused host buffers  ->  thread      AsyncSaver does not

Under torch.distributed every rank calls the same function at the same step: their random states are gathered and
rank 0 writes.

Not here: the file (torch_file.py, torch_publish.py), loading (torch_load.py).
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Union

import torch

from remote_runner.checkpoint.contract import CANNOT_SAVE, say
from remote_runner.checkpoint.torch_publish import write_checkpoint
from remote_runner.checkpoint.torch_ranks import gather, is_writer, share_error
from remote_runner.checkpoint.torch_state import Buffers, Tree, random_states, stage
from remote_runner.checkpoint.torch_zip import FORMAT

REQUIRED_KEYS = ("step", "model", "optimizer", "scheduler", "config")
PathLike = Union[str, Path]


def capture(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    step: int,
    config: Mapping[str, Any],
    data: Any = None,
    stateful: Optional[Mapping[str, Any]] = None,
) -> Dict[str, Tree]:
    """Return the whole state of a training, its tensors by reference.

    Args:
        model: any module; `module.` and `_orig_mod.` wrappers may be on it.
        optimizer: any torch optimizer.
        scheduler: a learning-rate scheduler, or None for a constant rate.
        step: how many optimizer steps are done.
        config: what the run was made from; compared key by key when it is loaded.
        data: where the training data stands; anything with `state_dict` and `load_state_dict` (`Batches`, torchdata's
            StatefulDataLoader).
        stateful: more such objects by name: a gradient scaler, an average of the weights.

    Raises:
        TypeError: no optimizer. Weights alone are no checkpoint.
    """
    if not hasattr(optimizer, "state_dict") or not hasattr(model, "state_dict"):
        raise TypeError("a checkpoint holds model and optimizer; save weights alone under another name with torch.save")
    return {
        "format": FORMAT,
        "step": int(step),
        "model": dict(model.state_dict()),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict() if scheduler is not None else None,
        "config": dict(config),
        "random": gather(random_states()),  # one entry per rank
        "data": data.state_dict() if data is not None else None,
        "stateful": {name: thing.state_dict() for name, thing in (stateful or {}).items()},
        "timestamp": time.time(),
        "torch": str(torch.__version__),
    }


def save_checkpoint(
    path: PathLike,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    step: int,
    config: Mapping[str, Any],
    *,
    data: Any = None,
    stateful: Optional[Mapping[str, Any]] = None,
    keep: Optional[int] = None,
    best: bool = False,
) -> Path:
    """Save the whole training state; durable and read back when this returns.

    Args: as `capture`; `path`, `keep` and `best` as `torch_publish.write_checkpoint`. A path that ends in
        `.safetensors` is written in snapshot format 1, without any pickle.

    Returns: the path. What stood there is now `<stem>.previous<suffix>`.

    Raises:
        NonFinite, TypeError: this state can't be saved, with the tensor's name; nothing was touched.
        OSError: the disk refused; the older files are whole.
    """
    tree = capture(model, optimizer, scheduler, step, config, data, stateful)
    with share_error(f"{path}: rank 0 could not save it"):
        if is_writer():
            _write(Path(path), stage(tree), keep, best)
    return Path(path)


def _write(path: Path, tree: Dict[str, Tree], keep: Optional[int], best: bool) -> None:
    if path.suffix == ".safetensors":
        from remote_runner.checkpoint.torch_snapshot import write_snapshot

        size_bytes = write_snapshot(path, tree)
    else:
        size_bytes = write_checkpoint(path, tree, keep=keep, best=best)
    say(f"✓ Checkpoint: {path} ({size_bytes / 1e6:.1f} MB)")


class AsyncSaver:
    """Saves on a thread; training waits only while its state is copied into host buffers that are used again.

    One save is in flight at most: the next `save` waits for it, says for how long, and drops nothing. An error of the
    thread is raised by the next `save`, by `wait` and at the end of the `with` block, which also joins it; a program
    that never asks again ends with 74 rather than as if all were well.

    Args:
        path: as `save_checkpoint`.
        keep: likewise.
    """

    def __init__(self, path: PathLike, *, keep: Optional[int] = None) -> None:
        self.path, self._keep = Path(path), keep
        self._buffers: Buffers = {}
        self._thread: Optional[threading.Thread] = None
        self._error: Optional[BaseException] = None
        self._hook: Any = None
        self.stall_s = 0.0  # how long the last save held the training up
        self.waited_s = 0.0  # of all saves, how long the training waited for an earlier one
        atexit.register(self._last_word)

    def save(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Any,
        step: int,
        config: Mapping[str, Any],
        *,
        data: Any = None,
        stateful: Optional[Mapping[str, Any]] = None,
        best: bool = False,
        path: Optional[PathLike] = None,
    ) -> None:
        """Copy the state and return; the file is written behind. `path`: a numbered name for this one save."""
        began = time.perf_counter()
        with share_error(f"{self.path}: rank 0 could not save it"):
            self.wait()
        waited_s = time.perf_counter() - began
        if waited_s > 0.001:
            self.waited_s += waited_s
            say(f"waited {waited_s:.3f} s for the save before (step {step})")
        tree = capture(model, optimizer, scheduler, step, config, data, stateful)
        if is_writer():
            staged, arrived = self._stage(tree, model, optimizer)
            target = Path(path) if path is not None else self.path
            self._thread = threading.Thread(target=self._run, args=(target, tree, staged, arrived, best), daemon=False)
            self._thread.start()
        self.stall_s = time.perf_counter() - began

    def wait(self) -> None:
        """Wait until the save in flight is durable; raises what it met."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def __enter__(self) -> AsyncSaver:
        return self

    def __exit__(self, *_: object) -> None:
        atexit.unregister(self._last_word)
        self.wait()

    def _last_word(self) -> None:
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            say(f"the last save failed: {self._error}")
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(CANNOT_SAVE)

    def _stage(self, tree: Tree, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        """Copy into the buffers. From CUDA that goes on beside the next forward and backward pass."""
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return stage(tree, self._buffers), None
        copies: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        copies.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(copies):
            staged = stage(tree, self._buffers)
            arrived = copies.record_event()
        if next(model.buffers(), None) is not None:  # a forward pass may change a buffer, the weights only step() does
            torch.cuda.current_stream().wait_event(arrived)
        if self._hook is not None:
            self._hook.remove()
        self._hook = optimizer.register_step_pre_hook(lambda *_: torch.cuda.current_stream().wait_event(arrived))
        return staged, arrived

    def _run(self, path: Path, held: Tree, staged: Tree, arrived: Any, best: bool) -> None:
        try:
            if arrived is not None:
                arrived.synchronize()
            del held  # the device's tensors had to live until here
            _write(path, staged, self._keep, best)
        except BaseException as error:  # noqa: BLE001  wait() raises it in the training thread
            self._error = error
