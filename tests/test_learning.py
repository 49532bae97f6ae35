"""The smoke run really learns, and what it learned is evaluated and measured by the other two commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trainer_runs import Root, mark

pytestmark = mark
SMOKE = json.loads((Path(__file__).parent.parent / "configs" / "sudoku-smoke.json").read_text())


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    root = Root(tmp_path_factory.mktemp("smoke"), SMOKE, "sudoku-smoke")
    root.must_train()
    return root


def rows(root, stage, what):
    found = [json.loads(line) for line in (root.folder / "metrics.jsonl").read_text().splitlines()]
    return [row[what] for row in found if row["stage"] == stage and what in row]


def test_losses_fall_and_the_codec_reconstructs(smoke):
    codec, generator = rows(smoke, "codec", "loss"), rows(smoke, "generator", "loss")
    assert codec[-1] < codec[0] / 5 and generator[-1] < generator[0] / 2
    assert rows(smoke, "codec", "validation_accuracy")[-1] > 0.99
    validation = rows(smoke, "generator", "validation")
    assert validation == sorted(validation, reverse=True) and len(validation) == 3


def test_evaluation_solves_easy_boards_and_fewer_harder_ones(smoke):
    told = smoke.must_train(do="evaluate").output
    found = json.loads((smoke.folder / "evaluation.json").read_text())
    easy, medium, hard = (found[name]["solve_rate"] for name in ("easy", "medium", "hard"))
    assert easy > 0.5 and easy >= medium >= hard
    assert all(f"{name} (" in told for name in found) and found["easy"]["boards"] == 32


def test_the_benchmark_says_boards_a_second(smoke):
    assert "boards/s" in smoke.must_train(do="benchmark").output
    assert json.loads((smoke.folder / "benchmark.json").read_text())["boards_per_s"] > 0


@pytest.mark.parametrize(("do", "at"), [("evaluate", "evaluate:solve:2"), ("benchmark", "evaluate:solve:2")])
def test_both_can_be_paused(do, at, smoke):
    ended = smoke.must_train(do=do, strike=f"ncm_mlx.{at}:SIGTERM", code=75)
    assert "paused" in ended.output and "full training state saved" in ended.output


@pytest.mark.parametrize("do", ["evaluate", "benchmark"])
def test_without_a_trained_model_both_are_refused(do, tmp_path):
    ended = Root(tmp_path).must_train(do=do, code=78)
    assert "codec.safetensors" in ended.output and "Traceback" not in ended.output
