#!/usr/bin/env python3
"""How long a snapshot holds up the training, and how long until it is durable, against the common ways.

    scripts/bench_snapshot.py [--size-mib 1024] [--tensors 150] [--repeat 5] [--folder DIR] [--json]

All rows save the same float32 bytes to the same disk in the same run, one after the other, round by round:

    stall      seconds the calling thread stood still in the call that saves
    durable    seconds from that call until the bytes are on the disk (fsync included, for every row)
    load       seconds to read it again, with whatever verification the format offers

`floor` is write(2) and fsync(2) of the same bytes. The goals are printed beside what was measured. A second part
measures what a snapshot every 30 s costs a training loop (a state of the e17 size, MLX steps, eager).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from remote_runner.checkpoint import rotate, snapshot, writer

Times = dict[str, float]
STATE = {
    "schema": 1, "stage": "bench", "stage_index": 0, "step": 0, "epoch": 0, "cursor": 0, "order_sha256": "",
    "seed": 0, "keys": {}, "best": None, "evaluation_due": False, "target_steps": 1 << 30, "fingerprint": "",
    "lineage": None,
}  # fmt: skip


def clock(call: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def fsync(path: Path) -> None:
    for place in [path, *path.rglob("*")] if path.is_dir() else [path, path.parent]:
        fd = os.open(place, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def floor(arrays: dict[str, np.ndarray], folder: Path) -> Times:
    def write() -> None:
        with (folder / "floor").open("wb", buffering=0) as file:
            for array in arrays.values():
                view = memoryview(array).cast("B")
                while view:
                    view = view[file.write(view) :]
            os.fsync(file.fileno())

    seconds = clock(write)
    return {"stall": seconds, "durable": seconds}


def ours(arrays: dict[str, np.ndarray], folder: Path) -> Times:
    with writer.Writer(folder, say=lambda _: None) as saver:
        begun = time.perf_counter()
        saver.submit(snapshot.Snapshot({n: snapshot.tensor(a) for n, a in arrays.items()}, STATE, {}))
        stall = time.perf_counter() - begun
        saver.flush()
        durable = time.perf_counter() - begun
    return {"stall": stall, "durable": durable, "load": clock(lambda: snapshot.load(rotate.latest_of(folder, "bench")))}


def torch_save(arrays: dict[str, np.ndarray], folder: Path) -> Times:
    tensors, path = {n: torch.from_numpy(a) for n, a in arrays.items()}, folder / "x.pt"
    stall = clock(lambda: torch.save(tensors, path))
    durable = stall + clock(lambda: fsync(path))
    return {"stall": stall, "durable": durable, "load": clock(lambda: torch.load(path, weights_only=True))}


def safetensors_save(arrays: dict[str, np.ndarray], folder: Path) -> Times:
    from safetensors.torch import load, save_file

    tensors, path = {n: torch.from_numpy(a) for n, a in arrays.items()}, folder / "x.safetensors"
    stall = clock(lambda: save_file(tensors, path))
    durable = stall + clock(lambda: fsync(path))
    return {"stall": stall, "durable": durable, "load": clock(lambda: load(path.read_bytes()))}


def dcp_async(arrays: dict[str, np.ndarray], folder: Path) -> Times:
    import torch.distributed.checkpoint as dcp

    tensors, path = {n: torch.from_numpy(a) for n, a in arrays.items()}, folder / "dcp"
    begun = time.perf_counter()
    pending = dcp.async_save(tensors, storage_writer=dcp.FileSystemWriter(path, sync_files=True), no_dist=True)
    stall = time.perf_counter() - begun
    pending.result()
    fsync(path)
    durable = time.perf_counter() - begun
    empty = {n: torch.empty_like(t) for n, t in tensors.items()}
    load = clock(lambda: dcp.load(empty, storage_reader=dcp.FileSystemReader(path), no_dist=True))
    return {"stall": stall, "durable": durable, "load": load}


METHODS = {
    "floor": floor,
    "remote_runner": ours,
    "torch.save": torch_save,
    "safetensors.torch.save_file": safetensors_save,
    "dcp.async_save": dcp_async,
}


def compare(size_mib: int, tensors: int, repeat: int, parent: Path) -> dict[str, Times]:
    """Median times of each method; the order of the methods turns by one each round."""
    noise = np.random.default_rng(0)
    arrays = {f"t{i:03}": noise.random(size_mib * 2**18 // tensors, dtype=np.float32) for i in range(tensors)}
    found: dict[str, list[Times]] = {name: [] for name in METHODS}
    names = list(METHODS)
    for round_ in range(repeat + 1):
        for name in names[round_ % len(names) :] + names[: round_ % len(names)]:
            folder = Path(tempfile.mkdtemp(dir=parent))
            times = METHODS[name](arrays, folder)
            shutil.rmtree(folder)
            os.sync()  # the next one does not pay for this one's writes
            if round_:  # the first round is for warming up
                found[name].append(times)
    return {name: {k: statistics.median(t[k] for t in rows) for k in rows[0]} for name, rows in found.items()}


def overhead(every_s: float, repeat: int, parent: Path) -> dict[str, float]:
    """What one snapshot of an e17-sized state (100 MB) costs a loop of MLX steps, and its share of `every_s`."""
    import mlx.core as mx
    from ncm_mlx import arrays

    live = {f"model.t{i:03}": mx.random.normal((160_000,)) for i in range(156)}
    a, b = mx.random.normal((256, 256)), mx.random.normal((256, 256))
    mx.eval(live, a, b)

    def steps(count: int) -> float:
        return clock(lambda: [mx.eval(a @ b) for _ in range(count)])

    def save() -> float:
        """Seconds that the training stands still in `submit`."""
        content = snapshot.Snapshot({n: arrays.to_tensor(x) for n, x in live.items()}, STATE, {})
        return clock(lambda: saver.submit(content))

    steps(50)
    one_s = steps(50) / 50
    count = max(int(1.0 / one_s), 20)  # a second of steps: longer than the save beside them
    plain, beside, stalls = [], [], []
    with tempfile.TemporaryDirectory(dir=parent) as folder, writer.Writer(folder, say=lambda _: None) as saver:
        for _ in range(repeat * 4):
            plain.append(steps(count))
            begun = time.perf_counter()
            stalls.append(save())
            steps(count)
            beside.append(time.perf_counter() - begun)
            saver.flush()
            os.sync()
    lost_s = statistics.median(beside) - statistics.median(plain)
    spread_s = statistics.quantiles(plain, n=4)[2] - statistics.quantiles(plain, n=4)[0]
    return {
        "step_s": one_s,
        "stall_s": statistics.median(stalls),
        "lost_s": lost_s,
        "spread_s": spread_s,
        "share": lost_s / every_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size-mib", type=int, default=1024)
    parser.add_argument("--tensors", type=int, default=150)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = compare(options.size_mib, options.tensors, options.repeat, options.folder)
    loop = overhead(30, options.repeat, options.folder)
    if options.json:
        print(json.dumps({"rows": rows, "overhead": loop}, indent=1))
        return
    print(
        f"{options.size_mib} MiB float32 in {options.tensors} tensors, median of {options.repeat}, {options.folder}\n"
    )
    print(f"{'':28} {'stall s':>10} {'durable s':>10} {'load s':>8}   stall/ours  durable/floor")
    mine, base = rows["remote_runner"], rows["floor"]
    for name, t in rows.items():
        ratios = f"{t['stall'] / mine['stall']:10.1f}x {t['durable'] / base['durable']:10.2f}x"
        print(f"{name:28} {t['stall']:10.4f} {t['durable']:10.3f} {t.get('load', 0):8.3f}   {ratios}")
    share = mine["stall"] / rows["torch.save"]["stall"]
    print(f"\nstall against torch.save: {share:.5f} (goal: at most 0.01)")
    print(f"durable and verified against the floor: {mine['durable'] / base['durable']:.2f} (goal: at most 1.5)")
    goal_s = 0.001 + 0.01 * loop["step_s"]
    print(f"100 MB state, MLX steps of {loop['step_s'] * 1e3:.1f} ms: stall {loop['stall_s'] * 1e3:.2f} ms", end=" ")
    print(f"(goal: at most {goal_s * 1e3:.2f} ms), lost {loop['lost_s'] * 1e3:.0f} ms a snapshot =", end=" ")
    print(f"{loop['share']:.2%} of 30 s (goal: at most 0.5%;", end=" ")
    print(f"the same steps without a save differ by {loop['spread_s'] * 1e3:.0f} ms between quartiles)")


if __name__ == "__main__":
    main()
