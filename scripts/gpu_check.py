#!/usr/bin/env python3
"""The work of gpu_check.sh: run trainers straight, killed and paused, compare roots, time saves, print one table.

Not here: the environment (gpu_check.sh).
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from remote_runner.checkpoint import header

CONFIGS = Path(__file__).parents[1] / "configs"
LIMIT_S = 150  # for one life of a trainer
SAVES = """
import sys, time, torch
from remote_runner.checkpoint import torch as ckpt
device = "cuda" if torch.cuda.is_available() else "cpu"
mib = 1024 if device == "cuda" else 96
model = torch.nn.ParameterList([torch.rand(mib * 2**20 // 4 // 150, device=device) for _ in range(50)])
optimizer = torch.optim.AdamW(model.parameters())
sum(p.sum() for p in model).backward()
optimizer.step()
optimizer.zero_grad()
saver, rows = ckpt.AsyncSaver(sys.argv[1] + "/x.pt"), []
for step in range(4):
    began = time.perf_counter()
    saver.save(model, optimizer, None, step, {})
    stall = time.perf_counter() - began
    saver.wait()
    rows.append((stall, time.perf_counter() - began))
stall, durable = sorted(rows[1:])[1]  # the first one fills the buffers
print("SAVES", mib, device, round(stall, 4), round(durable, 3))
"""


class Trainer(NamedTuple):
    """A trainer to prove: its module, its config shortened for this check, and the step its blow comes at."""

    module: str
    config: dict[str, Any]
    blow_at: int


class Verdict(NamedTuple):
    """What one trainer's three runs came to."""

    trainer: str
    device: str
    run: str
    root: str
    equal: bool
    seconds: float


def trainers() -> list[Trainer]:
    """Those that are installed and have an accelerator here, or all installed ones where nothing has."""
    found = []
    if importlib.util.find_spec("torch"):
        config = json.loads((CONFIGS / "cipher-smoke.json").read_text())
        steps = 400 if machine() else 80  # the dry run proves the script, not the machine
        config["train"] |= {"steps": steps, "log_every": 10, "evaluate_every": 40, "warmup_steps": 20}
        found.append(Trainer("cipher_torch", config, steps // 2))
    if importlib.util.find_spec("mlx"):
        config = json.loads((CONFIGS / "sudoku-smoke.json").read_text())
        config["codec"] |= {"steps": 40, "warmup_steps": 5}
        config["generator"] |= {"steps": 60, "warmup_steps": 5}
        config["train"] |= {"log_every": 10, "evaluate_every": 20}
        found.append(Trainer("ncm_mlx", config, 30))
    return found


def prove(trainer: Trainer, root: Path) -> list[Verdict]:
    """Run it straight, killed and paused."""
    roots, verdicts = {}, []
    for name, number in (("straight", None), ("killed", signal.SIGKILL), ("paused", signal.SIGUSR1)):
        folder = root / trainer.module / name
        (folder / "configs").mkdir(parents=True)
        config = {**trainer.config, "out_dir": "artifacts/check"}
        (folder / "configs" / "check.json").write_text(json.dumps(config))
        began = time.monotonic()
        if number is not None:
            code = life(trainer, folder, number)
            wanted = 75 if number == signal.SIGUSR1 else -signal.SIGKILL
            if code != wanted:
                raise SystemExit(f"{trainer.module}, {name}: ended with {code}, not {wanted}: see {folder}/train.log")
        if life(trainer, folder, None, *(["--resume"] if number else [])) != 0:
            raise SystemExit(f"{trainer.module}, {name}: failed:\n{(folder / 'train.log').read_text()[-2000:]}")
        snapshots = sorted((folder / "artifacts" / "check").glob("*-training.safetensors"))
        about = [header.verify_digests(path) for path in snapshots]
        roots[name] = [a["root"] for a in about]
        device, seconds = about[-1]["volatile"].get("host", "?"), time.monotonic() - began
        same = roots[name] == roots["straight"]
        verdicts.append(Verdict(trainer.module, device, name, " ".join(r[:12] for r in roots[name]), same, seconds))
    return verdicts


def life(trainer: Trainer, folder: Path, number: int | None, *words: str) -> int:
    """One life of the trainer, struck with a signal when its log comes to the step; returns its exit code."""
    argv = [sys.executable, "-m", trainer.module, "train", "configs/check.json", *words]
    with (folder / "train.log").open("ab") as log:
        process = subprocess.Popen(argv, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + LIMIT_S
        try:
            while process.poll() is None and number is not None and last_step(folder) < trainer.blow_at:
                if time.monotonic() > deadline:
                    raise SystemExit(
                        f"{trainer.module}: no step {trainer.blow_at} after {LIMIT_S} s: {folder}/train.log"
                    )
                time.sleep(0.005)
            if number is not None and process.poll() is None:
                process.send_signal(number)
            return process.wait(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            raise SystemExit(f"{trainer.module}: no end after {LIMIT_S} s, at step {last_step(folder)}") from None
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def last_step(folder: Path) -> int:
    """The highest step in the log of this life."""
    steps = re.findall(r" step (\d+)/", (folder / "train.log").read_text(errors="replace"))
    return max(map(int, steps), default=0)


def save_times(root: Path) -> str:
    """Stall and durable seconds of an asynchronous save on this device, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", SAVES, root], capture_output=True, text=True, timeout=LIMIT_S)
    match = re.search(r"SAVES (\d+) (\w+) (\S+) (\S+)", done.stdout)
    if match is None:
        return f"not measured: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'no answer'}"
    mib, device, stall, durable = match.groups()
    return f"{mib} MiB on {device}: stall {stall} s, durable and verified after {durable} s (median of 3)"


def machine() -> str:
    """The accelerator as its driver names it, "" where there is none."""
    try:
        names = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        return subprocess.run(names, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def report(verdicts: list[Verdict], saves: str, seconds: float) -> str:
    """The record, as Markdown."""
    now = datetime.datetime.now(datetime.UTC)
    lines = [
        f"# Interrupted runs on an accelerator, {now:%Y-%m-%d}",
        "",
        f"{machine() or f'No GPU, a dry run: {os.cpu_count()} CPUs, {platform.machine()}'}. "
        f"`scripts/gpu_check.sh`, {seconds:.0f} s in all.",
        "",
        "| trainer | device | run | roots of its stages | equal to straight | s |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {v.trainer} | {v.device} | {v.run} | {v.root} | {'yes' if v.equal else '**no**'} | {v.seconds:.0f} |"
        for v in verdicts
    ]
    return "\n".join([*lines, "", f"AsyncSaver, {saves}.", ""])


def main() -> int:
    """Run everything. Returns 0 when all roots agree, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, metavar="FILE", help="also write the table here")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        verdicts = [verdict for trainer in trainers() for verdict in prove(trainer, Path(folder))]
        text = report(verdicts, save_times(Path(folder)), time.monotonic() - began)
    print(text)
    if options.record:
        options.record.parent.mkdir(parents=True, exist_ok=True)
        options.record.write_text(text)
    return 0 if verdicts and all(v.equal for v in verdicts) else 1


if __name__ == "__main__":
    raise SystemExit(main())
