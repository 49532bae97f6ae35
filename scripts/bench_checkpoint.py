#!/usr/bin/env python3
"""Time checkpoints of one PyTorch state: ours beside torch.save, DCP's async_save and Lightning's, in the same run.

    python scripts/bench_checkpoint.py [--mib 1024] [--rounds 3] [--folder DIR] [--json FILE]

stall     how long the training thread stands still
durable   from the beginning until the bytes are on disk (fsync), the longest of what each one can promise
load      read back into live objects; ours proves the digest first

One state (150 float32 tensors: weights and both AdamW moments), rounds interleaved, medians printed. Only ours reads
back what it wrote. Needs about 3 times the state on disk and in memory. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch

from remote_runner.checkpoint import torch as ckpt

Timing = dict[str, float]


class Training(NamedTuple):
    """What is saved."""

    model: torch.nn.Module
    optimizer: torch.optim.AdamW

    def state(self) -> dict[str, Any]:
        return {"step": 1, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "config": {}}


def make(size_mib: int) -> Training:
    """A state of `size_mib` MiB in 150 tensors: 50 parameters with two moments each."""
    count = (size_mib << 20) // 4 // 150
    model = torch.nn.ParameterList([torch.rand(count) for _ in range(50)])
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model:
        moments = {"exp_avg": torch.rand(count), "exp_avg_sq": torch.rand(count)}
        optimizer.state[parameter] = {"step": torch.tensor(1.0), **moments}
    return Training(model, optimizer)


def tensors(t: Training) -> list[torch.Tensor]:
    """The 150."""
    return [*t.model.parameters(), *(v for s in t.optimizer.state.values() for k, v in s.items() if k != "step")]


def memcpy_into_reused(t: Training) -> Callable[[Path], Timing]:
    """The floor of a stall: one copy of the same bytes into buffers that are there already."""
    buffers = [numpy.zeros(tensor.numel(), numpy.float32) for tensor in tensors(t)]

    def run(_: Path) -> Timing:
        began = time.perf_counter()
        for buffer, tensor in zip(buffers, tensors(t), strict=True):
            numpy.copyto(buffer, tensor.detach().numpy())
        return {"stall": time.perf_counter() - began}

    return run


def write_and_fsync(t: Training) -> Callable[[Path], Timing]:
    """The floor of durable: the same bytes, written and synced, nothing else."""

    def run(folder: Path) -> Timing:
        began = time.perf_counter()
        with (folder / "x.bin").open("wb", buffering=0) as file:
            for tensor in tensors(t):
                file.write(tensor.detach().numpy().data.cast("B"))
            os.fsync(file.fileno())
        took = time.perf_counter() - began
        return {"stall": took, "durable": took}

    return run


def ours_asynchronous(t: Training) -> Callable[[Path], Timing]:
    """AsyncSaver. Its buffers are filled once before anything is timed, as after the first save of a run."""
    saver = ckpt.AsyncSaver("unused")

    def run(folder: Path) -> Timing:
        with contextlib.redirect_stdout(None):
            began = time.perf_counter()
            saver.save(t.model, t.optimizer, None, 1, {}, path=folder / "x.pt")
            stall = time.perf_counter() - began
            saver.wait()
        return {"stall": stall, "durable": time.perf_counter() - began}

    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder))
    return run


def ours_at_once(t: Training) -> Callable[[Path], Timing]:
    """save_checkpoint, and load_checkpoint of what it wrote."""

    def run(folder: Path) -> Timing:
        with contextlib.redirect_stdout(None):
            began = time.perf_counter()
            ckpt.save_checkpoint(folder / "x.pt", t.model, t.optimizer, None, 1, {})
            took = time.perf_counter() - began
            began = time.perf_counter()
            ckpt.load_checkpoint(folder / "x.pt", t.model, t.optimizer)
        return {"stall": took, "durable": took, "load": time.perf_counter() - began}

    return run


def torch_save(t: Training) -> Callable[[Path], Timing]:
    """torch.save into an open file and fsync; torch.load with weights_only and load_state_dict."""

    def run(folder: Path) -> Timing:
        began = time.perf_counter()
        with (folder / "x.pt").open("wb") as file:
            torch.save(t.state(), file)
            file.flush()
            os.fsync(file.fileno())
        took = time.perf_counter() - began
        began = time.perf_counter()
        found = torch.load(folder / "x.pt", weights_only=True)
        t.model.load_state_dict(found["model"])
        t.optimizer.load_state_dict(found["optimizer"])
        return {"stall": took, "durable": took, "load": time.perf_counter() - began}

    return run


def dcp_async_save(t: Training) -> Callable[[Path], Timing]:
    """torch.distributed.checkpoint.async_save with its own writer, which syncs its files.

    Its stager is kept and so uses its buffers again, where this version of torch has one that does.
    """
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    options: dict[str, Any] = {}
    if hasattr(dcp.staging, "DefaultStager"):
        plain = dcp.staging.StagingOptions(False, False, False, False)  # the others need an accelerator
        options["async_stager"] = dcp.staging.DefaultStager(plain)

    def run(folder: Path) -> Timing:
        writer = dcp.FileSystemWriter(folder / "dcp", sync_files=True)
        began = time.perf_counter()
        future: Any = dcp.async_save(t.state(), storage_writer=writer, **options)
        stall = time.perf_counter() - began
        getattr(future, "upload_completion", future).result()
        return {"stall": stall, "durable": time.perf_counter() - began}

    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder))
    return run


def lightning_asynchronous(t: Training) -> Callable[[Path], Timing]:
    """Lightning's AsyncCheckpointIO; it does not sync, so an fsync of its file is added."""
    from pytorch_lightning.plugins.io import AsyncCheckpointIO, TorchCheckpointIO

    def run(folder: Path) -> Timing:
        plugin = AsyncCheckpointIO(TorchCheckpointIO())
        began = time.perf_counter()
        plugin.save_checkpoint(t.state(), str(folder / "x.ckpt"))
        stall = time.perf_counter() - began
        plugin.teardown()
        with (folder / "x.ckpt").open("rb") as file:
            os.fsync(file.fileno())
        return {"stall": stall, "durable": time.perf_counter() - began}

    return run


PEERS: dict[str, Callable[[Training], Callable[[Path], Timing]]] = {
    "memcpy into reused buffers": memcpy_into_reused,
    "write and fsync": write_and_fsync,
    "ours, AsyncSaver": ours_asynchronous,
    "ours, save_checkpoint": ours_at_once,
    "torch.save, fsync": torch_save,
    "DCP async_save": dcp_async_save,
    "Lightning AsyncCheckpointIO": lightning_asynchronous,
}


def measure(t: Training, rounds: int, root: Path) -> dict[str, dict[str, list[float]]]:
    """Seconds by name and kind, one per round; a peer that is not installed is left out and named."""
    runs = {}
    for name, prepare in PEERS.items():
        try:
            runs[name] = prepare(t)
        except ImportError as error:
            print(f"{name}: not measured ({error})", file=sys.stderr)
    found: dict[str, dict[str, list[float]]] = {name: {} for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            folder = Path(tempfile.mkdtemp(dir=root))
            os.sync()
            for kind, seconds in run(folder).items():
                found[name].setdefault(kind, []).append(seconds)
            shutil.rmtree(folder)
    return found


def table(found: dict[str, dict[str, list[float]]]) -> str:
    """Medians, with the smallest and largest round."""
    lines = [f"{'':28}{'stall s':>24}{'durable s':>24}{'load s':>24}"]
    for name, kinds in found.items():
        cells = ""
        for kind in ("stall", "durable", "load"):
            values = kinds.get(kind, [])
            text = f"{statistics.median(values):.3f} ({min(values):.3f}-{max(values):.3f})" if values else "-"
            cells += f"{text:>24}"
        lines.append(f"{name:28}{cells}")
    return "\n".join(lines)


def goals(found: dict[str, dict[str, list[float]]]) -> str:
    """The two ratios that matter."""

    def median(name: str, kind: str) -> float:
        return statistics.median(found[name][kind]) if name in found else float("nan")

    ours = "ours, AsyncSaver"
    stall = median(ours, "stall") / median("memcpy into reused buffers", "stall")
    durable = median(ours, "durable") / median("DCP async_save", "durable")
    return (
        f"stall: {stall:.2f} x one memcpy into reused buffers (goal: at most 1.20)\n"
        f"durable: {durable:.2f} x DCP's, which verifies nothing (goal: at most 0.50)"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024, help="size of the state")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to write; default: a temporary one")
    parser.add_argument("--json", type=Path, help="also write every round's seconds here")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    load = os.getloadavg()[0]
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, load {load:.1f}, torch {torch.__version__}")
    t = make(options.mib)
    with tempfile.TemporaryDirectory(dir=options.folder) as root:
        found = measure(t, options.rounds, Path(root))
    print(f"{options.mib} MiB in 150 tensors, {options.rounds} rounds: median (least-most)")
    print(table(found))
    print(goals(found))
    if options.json:
        options.json.write_text(json.dumps({"mib": options.mib, "load": load, "seconds": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
