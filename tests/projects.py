"""A small project whose trainer needs no framework, and the command line run on it.

The trainer writes real snapshots of format 1 and keeps the contract, in a few lines of numpy: what the tool
does around a trainer is tested with it in a second, what the real trainers do in tests of their own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pods

REPO = Path(__file__).parents[1]

TRAINER = '''
"""A toy trainer: `state` is one vector that every step changes; keeps the workload contract."""
import json, os, sys, time
from remote_runner.checkpoint import pause
pause.install()
from pathlib import Path
import numpy as np
from remote_runner.checkpoint import contract, snapshot

config_path = Path(sys.argv[1])
config = json.loads(config_path.read_text())
folder = Path("artifacts") / config_path.stem
folder.mkdir(parents=True, exist_ok=True)
request = pause.Request(folder)
vector, step = np.zeros(config.get("size", 64), "float32"), 0


def content():
    state = {"schema": 1, "stage": "toy", "stage_index": 0, "step": step, "epoch": 0, "cursor": step,
             "order_sha256": "", "seed": config["seed"], "keys": {}, "best": None, "evaluation_due": False,
             "target_steps": config["steps"], "fingerprint": "f" * 64, "lineage": None}
    return snapshot.Snapshot({"vector": snapshot.tensor(vector)}, state, {"attempt": contract.attempt()})


if "--resume" in sys.argv:
    found = snapshot.load_newest(folder, "toy")
    if found is None:
        sys.exit(contract.refuse("no snapshot to resume", "start without --resume"))
    found = found.snapshot
    if found.state["target_steps"] != config["steps"]:
        sys.exit(contract.refuse(f"steps {found.state['target_steps']} -> {config['steps']}", "put the old value back"))
    vector, step = found.tensors["vector"].data.copy(), found.step
while step < config["steps"]:
    vector = (vector * np.float32(0.9) + np.sin(np.arange(len(vector), dtype="float32") + step)).astype("float32")
    step += 1
    time.sleep(config.get("step_s", 0))
    if step == config.get("fail_at"):
        print("about to fail", flush=True)
        sys.exit(config.get("fail_with", 3))
    if step % config.get("log_every", 5) == 0 or step == config["steps"]:
        began = time.monotonic()
        snapshot.save(folder, content())
        contract.append_row(folder, "toy", step, {"loss": float(abs(vector).mean()), "target_steps": config["steps"],
                                                   "save_s": time.monotonic() - began})
    if request.asked():
        snapshot.save(folder, content())
        request.obeyed()
        print(f"paused at step {step}: full training state saved", flush=True)
        sys.exit(contract.PAUSED)
(folder / "result.json").write_text(json.dumps({"sum": float(vector.sum())}))
print("trained", flush=True)
'''

SUDOKU_SETTINGS = """
[runs."sudoku-*"]
command = ["python", "-m", "ncm_mlx", "train", "{config}"]
check = ["python", "-m", "ncm_mlx", "check", "{config}"]
pause = "contract"
env = { PYTHONPATH = "workloads" }
"""
TINY = {
    "seed": 3,
    "data": {"boards": 96, "validation": 8, "test_per_difficulty": 4},
    "codec": {"steps": 6, "batch": 4, "width": 8, "code_width": 4, "codes": 10},
    "generator": {"steps": 40, "batch": 4, "width": 8, "hidden": 8, "blocks": 1},
    "train": {"log_every": 4, "evaluate_every": 20, "compile": False},
}


def tiny(name: str, **changed: dict[str, object] | int) -> str:
    """The text of a tiny config; sections given are merged into it."""
    base = json.loads((REPO / "configs/sudoku-smoke.json").read_text())
    base["out_dir"] = f"artifacts/{name}"
    for more in (TINY, changed):
        for key, value in more.items():
            base[key] = {**base[key], **value} if isinstance(value, dict) else value
    return json.dumps(base, indent=2)


SETTINGS = """
[runs."*"]
command = ["python", "train.py", "{config}"]
pause = "contract"
match = "train.py configs/never"
"""


@dataclass
class Project:
    """A project folder, and `remote-run` in it."""

    root: Path

    @classmethod
    def create(cls, root: Path) -> Project:
        (root / "configs").mkdir(parents=True)
        (root / "train.py").write_text(TRAINER)
        (root / "remote-run.toml").write_text(SETTINGS)
        (root / ".gitignore").write_text("artifacts/\nruns/\nbackups/\n.remote-run/\n")
        subprocess.run(["git", "init", "-q", root], check=True)
        return cls(root)

    def add_sudoku(self) -> None:
        """Bring in the MLX trainer's code and settings."""
        shutil.copytree(REPO / "workloads", self.root / "workloads", ignore=shutil.ignore_patterns("__pycache__"))
        (self.root / "remote-run.toml").write_text(SUDOKU_SETTINGS)

    def config(self, name: str = "toy", **values: object) -> str:
        content = {"seed": 1, "steps": 20, **values}
        (self.root / "configs" / f"{name}.json").write_text(json.dumps(content))
        return f"configs/{name}.json"

    def command(self, *words: object) -> list[str]:
        return [sys.executable, "-m", "remote_runner.cli", *map(str, words)]

    def on(self, pod: pods.TestPod, *words: object, python: bool = True) -> list[str]:
        """`remote-run POD words…` with the pod's key and a trusted host key."""
        interpreter = ["--python", sys.executable] if python else []
        access = ["--identity", pod.key, "--accept-new-host-key"]
        return self.command(pod.address, *words, *access, *interpreter)

    def at(self, command: str, pod: pods.TestPod, *words: object) -> list[str]:
        """`remote-run COMMAND POD words…`."""
        return self.command(command, pod.address, *words, "--identity", pod.key, "--accept-new-host-key")

    def run(self, argv: list[str], timeout_s: float = 120, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv, cwd=self.root, env={**os.environ, **env}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=timeout_s, check=False,
        )  # fmt: skip

    def start(self, argv: list[str], **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            argv, cwd=self.root, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def report(self, name: str = "toy") -> dict[str, object]:
        found: dict[str, object] = json.loads((self.root / f"runs/{name}-report.json").read_text())
        return found
