"""Mistakes in a configuration are found before any connection; changes on resume are refused or allowed by kind."""

from __future__ import annotations

from pathlib import Path

import pytest
from pods import TestPod, free_port
from projects import Project, tiny

from remote_runner.checkpoint import header


def write(project: Project, name: str, text: str | bytes) -> str:
    path = project.root / "configs" / f"{name}.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return f"configs/{name}.json"


GOOD = tiny("sudoku-x")
MISTAKES = {
    "unknown key": (GOOD.replace('"seed"', '"seedd"'), "did you mean 'seed'"),
    "doubled key": (GOOD.rstrip()[:-1].rstrip() + ',\n  "seed": 999999\n}\n', "seed"),
    "number as text": (GOOD.replace('"seed": 3', '"seed": "3"'), "seed"),
    "trailing comma": (GOOD.rstrip()[:-1].rstrip() + ",\n}\n", "line"),
    "comment": ("// my run\n" + GOOD, "line 1"),
    "NaN": (GOOD.replace('"seed": 3', '"seed": NaN'), "NaN"),
    "cut off": (GOOD[: len(GOOD) // 2], "line"),
    "empty": ("", "empty"),
    "a list": (f"[{GOOD}]", "object"),
    "byte order mark": (b"\xef\xbb\xbf" + GOOD.encode(), "byte order mark"),
    "another out_dir": (GOOD.replace("artifacts/sudoku-x", "artifacts/elsewhere"), "artifacts/sudoku-x"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found_before_any_connection(sudoku: Project, mistake: str) -> None:
    text, said = MISTAKES[mistake]
    config = write(sudoku, "sudoku-x", text)
    done = sudoku.run(sudoku.command(f"127.0.0.1:{free_port()}", config), timeout_s=20)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "refused 127" not in done.stderr


def interrupted(sudoku: Project, pod: TestPod, name: str) -> Path:
    """A run of the real trainer that was stopped by its step budget's deadline; its newest snapshot here."""
    config = write(sudoku, name, tiny(name, generator={"steps": 100_000}))
    done = sudoku.run(sudoku.on(pod, config, "--max-hours", 14 / 3600))
    assert done.returncode == 75, done.stderr + done.stdout
    return sudoku.root / f"artifacts/{name}/generator-training.safetensors"


CHANGES = {
    "batch size": {"generator": {"steps": 100_000, "batch": 8}},
    "learning rate": {"generator": {"steps": 100_000, "learning_rate": 0.5}},
    "seed": {"seed": 4, "generator": {"steps": 100_000}},
    "data": {"data": {"boards": 128}, "generator": {"steps": 100_000}},
    "step budget": {"generator": {"steps": 90_000}},
}


def test_a_resume_with_other_mathematics_is_refused(sudoku: Project, pod: TestPod) -> None:
    newest = interrupted(sudoku, pod, "sudoku-y")
    before = header.describe(newest)["root"]
    for what, change in CHANGES.items():
        config = write(sudoku, "sudoku-y", tiny("sudoku-y", **change))
        done = sudoku.run(sudoku.on(pod, config, "--resume"))
        assert done.returncode == 2, f"{what}: {done.stderr}{done.stdout}"
        assert "->" in done.stderr + done.stdout, f"{what}: {done.stderr}{done.stdout}"
        assert header.describe(newest)["root"] == before, what
    limits = tiny("sudoku-y", generator={"steps": 100_000}, train={"log_every": 9})
    done = sudoku.run(sudoku.on(pod, write(sudoku, "sudoku-y", limits), "--resume", "--max-hours", 12 / 3600))
    assert done.returncode == 75, done.stderr + done.stdout
    assert header.describe(newest)["step"] > 0
