"""Real trainer processes for tests: a tiny config, a start in a pid namespace of its own, an exact moment to strike.

Not here: what must hold afterwards (the tests say that).
"""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from remote_runner.checkpoint import header

ROOT = os.geteuid() == 0
# A namespace hides the trainer from guards of other tests; without root it runs in the open, alone.
APART = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
# Below a shell, so that the trainer is not the namespace's first process, which the kernel shields from signals.
SHELL = ["sh", "-c", '"$@"; exit $?', "sh"]
mark = [] if ROOT else [pytest.mark.alone]
STRIKE = Path(__file__).parent / "strike.py"
NAME = "tiny"
TINY: dict[str, Any] = {
    "seed": 3,
    "out_dir": f"artifacts/{NAME}",
    "data": {
        "boards": 40,
        "validation": 9,
        "test_per_difficulty": 2,
        "easy_clues": 76,
        "medium_clues": 70,
        "hard_clues": 60,
    },
    "codec": {
        "steps": 12,
        "batch": 8,
        "width": 8,
        "code_width": 4,
        "codes": 10,
        "dropout": 0.5,
        "commitment": 0.25,
        "ema_decay": 0.9,
        "learning_rate": 0.02,
        "warmup_steps": 3,
        "weight_decay": 0.01,
    },
    "generator": {
        "steps": 14,
        "batch": 8,
        "width": 8,
        "hidden": 8,
        "blocks": 1,
        "dropout": 0.5,
        "learning_rate": 0.01,
        "warmup_steps": 3,
        "weight_decay": 0.01,
    },
    "train": {"log_every": 4, "evaluate_every": 5, "compile": False},
}
STEPS_IN_AN_EPOCH = 5


def changed(**values: Any) -> dict[str, Any]:
    """`TINY` with some values replaced: changed(train__evaluate_every=7)."""
    config = copy.deepcopy(TINY)
    for name, value in values.items():
        *path, last = name.split("__")
        place = config
        for key in path:
            place = place[key]
        place[last] = value
    return config


class Root:
    """A run's root with one config in it."""

    def __init__(self, path: Path, config: dict[str, Any] = TINY, name: str = NAME) -> None:
        self.path, self.name = path, name
        self.folder = path / "artifacts" / name
        self.config = path / "configs" / f"{name}.json"
        (path / "tmp").mkdir(parents=True, exist_ok=True)
        self.config.parent.mkdir(parents=True, exist_ok=True)
        self.write(config)

    def write(self, config: dict[str, Any]) -> None:
        config = {**config, "out_dir": f"artifacts/{self.name}"}
        self.config.write_text(json.dumps(config))

    def snapshot(self, stage: str) -> Path:
        return self.folder / f"{stage}-training.safetensors"

    def state(self, stage: str) -> dict[str, Any]:
        return dict(header.describe(self.snapshot(stage))["state"])

    def roots(self) -> dict[str, Any]:
        """What two equal runs have in common: roots of both stages, bytes of the inference weights."""
        found: dict[str, Any] = {s: header.verify_digests(self.snapshot(s))["root"] for s in ("codec", "generator")}
        return found | {n: (self.folder / n).read_bytes() for n in ("codec.safetensors", "generator.safetensors")}

    def environment(self, **more: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("NCM_MLX_", "REMOTE_RUN_"))}
        return {**kept, "TMPDIR": str(self.path / "tmp"), **more}

    def train(self, *options: str, strike: str = "", env: dict[str, str] | None = None, do: str = "train") -> Ended:
        """Run `train`, or another command, to its end.

        `strike` is `module:function:call:SIGNAL`: it sends itself that signal there (strike.py).
        """
        with self.started(*options, strike=strike, env=env, do=do) as trainer:
            return trainer.ended()

    def must_train(
        self, *options: str, code: int = 0, strike: str = "", env: dict[str, str] | None = None, do: str = "train"
    ) -> Ended:
        """`train`, with an exit code that must come."""
        ended = self.train(*options, strike=strike, env=env, do=do)
        assert ended.code == code, f"exit {ended.code}, not {code}:\n{ended.output}"
        return ended

    @contextmanager
    def started(
        self,
        *options: str,
        strike: str = "",
        env: dict[str, str] | None = None,
        blocked: bool = False,
        do: str = "train",
    ) -> Iterator[Trainer]:
        """A running trainer; it is killed when the block is left."""
        program = [sys.executable, str(STRIKE), strike] if strike else [sys.executable, "-m", "ncm_mlx"]
        # dash clears the mask it was given, so a blocked start does without it.
        apart = APART if blocked else [*APART, *SHELL]
        command = [*(apart if ROOT else []), *program, do, f"configs/{self.name}.json", *options]
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, Trainer.PAUSES if blocked else [])
        try:
            process = subprocess.Popen(
                command,
                cwd=self.path,
                env=self.environment(**(env or {})),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        trainer = Trainer(process)
        try:
            yield trainer
        finally:
            process.kill()  # takes the namespace with it
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


class Ended:
    """How a trainer ended; `code` is negative for a signal, as in subprocess."""

    def __init__(self, code: int, output: str) -> None:
        self.code, self.output = (128 - code if 128 < code < 160 else code), output


class Trainer:
    """A trainer process inside its namespace."""

    PAUSES = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._pid: int | None = None if ROOT else process.pid

    def pid(self) -> int:
        """The trainer's own pid, seen from here."""
        while self._pid is None:
            below = self.process.pid
            for _ in range(2):  # unshare, and mostly a shell
                below = below and _only_child(below)
                if below and Path(f"/proc/{below}/cmdline").read_bytes().startswith(sys.executable.encode()):
                    self._pid = below
            assert self.process.poll() is None, "it ended before it could be found"
        return self._pid

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid(), number)

    def handles_pauses(self) -> bool:
        """Whether the kernel would call its handler for SIGUSR1 (SigCgt of proc(5))."""
        for line in Path(f"/proc/{self.pid()}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (signal.SIGUSR1 - 1) & 1)
        return False

    def until(self, text: str) -> None:
        """Read its output up to a line that contains `text`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if text in line:
                return
        raise AssertionError(f"it ended without a line with {text!r}")

    def ended(self) -> Ended:
        output, _ = self.process.communicate(timeout=280)
        return Ended(self.process.returncode, output)


def _only_child(pid: int) -> int:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return 0
    return int(children[0]) if children else 0


def await_(condition: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
    """Wait until a condition holds, looking often."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"waited {timeout_s} s in vain for {what}"
        time.sleep(0.002)
