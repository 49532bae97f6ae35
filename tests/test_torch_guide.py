"""The guide's program, as a new user would try it: killed, paused, run again, and equal to the run that never was."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from remote_runner.checkpoint.torch_state import tensors_of

GUIDE = Path(__file__).parents[1] / "docs" / "torch.md"


def program(folder):
    code = re.search(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)[1]
    assert code.count("  # ") >= 10
    # seeded, so that nothing in the file is left to chance
    (folder / "loop.py").write_text(f"import random, numpy\nrandom.seed(1), numpy.random.seed(1)\n{code}")


def start(folder, workers):
    argv = [sys.executable, "loop.py", str(workers)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(argv, cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finish(folder, workers):
    process = start(folder, workers)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "done, loss" in said


def ending(folder):
    tree = torch.load(folder / "run.pt", weights_only=True)
    tree.pop("timestamp")
    return {name: tensor.tolist() for name, tensor in tensors_of(tree)}, str(tree["scheduler"]), tree["data"]


def wait_for_a_save(folder, process, after):
    path = folder / "run.pt"
    while process.poll() is None and (not path.exists() or path.stat().st_ino == after):
        time.sleep(0.002)
    return path.stat().st_ino


@pytest.mark.parametrize("workers", [0, 2])
def test_the_guides_program_is_resumable(tmp_path, workers):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
        program(folder)
    finish(whole, workers)
    saved = 0
    for number in (signal.SIGKILL, signal.SIGTERM):
        process = start(cut, workers)
        saved = wait_for_a_save(cut, process, saved)
        time.sleep(random.uniform(0, 0.03))  # any moment will do
        process.send_signal(number)
        said, _ = process.communicate(timeout=60)
        if number == signal.SIGTERM and process.returncode != 0:
            assert process.returncode == 75, said
            assert "paused: full training state saved" in said
    finish(cut, workers)
    assert ending(cut) == ending(whole)
