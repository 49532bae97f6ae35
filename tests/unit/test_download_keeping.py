"""Which checkpoints come home, and which names a disk would mix up."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_runner import keeping
from remote_runner.errors import UsageFault

GB = 1_000_000_000
SIZES = {
    "artifacts/x/step_100.pt": 1,
    "artifacts/x/step_90.pt": 1,
    "artifacts/x/step_1000.pt": 1,
    "artifacts/x/best_90.pt": 1,
    "artifacts/x/checkpoint-200/model.safetensors": 1,
    "artifacts/x/config.json": 1,
    "artifacts/x/generator-training.safetensors": 1,
}


def test_all_means_all() -> None:
    assert keeping.choose(SIZES, "all") == (list(SIZES), [])


def test_newest_goes_by_step_and_the_best_comes_too() -> None:
    chosen, stayed = keeping.choose(SIZES, "newest:2")
    assert stayed == ["artifacts/x/step_100.pt", "artifacts/x/step_90.pt"]
    assert "artifacts/x/best_90.pt" in chosen
    assert "artifacts/x/generator-training.safetensors" in chosen


def test_a_pattern_judges_checkpoints_alone() -> None:
    chosen, stayed = keeping.choose(SIZES, "*/step_9*")
    assert "artifacts/x/config.json" in chosen
    assert "artifacts/x/step_90.pt" in chosen
    assert "artifacts/x/step_1000.pt" in stayed


@pytest.mark.parametrize("keep", ["newest:", "newest:0", "newest:x"])
def test_a_rule_without_a_number_is_refused(keep: str) -> None:
    with pytest.raises(UsageFault, match=keep):
        keeping.choose(SIZES, keep)


def test_beyond_fifty_gigabytes_it_asks_or_takes_the_newest_two() -> None:
    large = {"a/step_1.pt": 30 * GB, "a/step_2.pt": 30 * GB}
    assert keeping.settle({"a": 50 * GB}, "", None) == "all"
    assert keeping.settle(large, "", None) == "newest:2"
    asked: list[str] = []
    assert keeping.settle(large, "", lambda text: not asked.append(text)) == "all"
    assert "60 GB" in asked[0]
    assert keeping.settle(large, "newest:1", None) == "newest:1"


def test_names_that_a_disk_would_mix_up_are_named() -> None:
    paths = ["a/Model.pt", "a/model.pt", "a/caf\u00e9", "a/cafe\u0301"]
    assert keeping.twins(paths, case_blind=False, form_blind=False) == {}
    assert list(keeping.twins(paths, case_blind=True, form_blind=False)) == ["a/model.pt"]
    assert list(keeping.twins(paths, case_blind=False, form_blind=True)) == ["a/caf\u00e9"]


def test_this_disk_is_asked_and_left_as_it_was(tmp_path: Path) -> None:
    assert keeping.blindness(tmp_path) == (False, False)
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.text(min_size=1), unique=True))
def test_a_disk_that_tells_all_apart_has_no_twins(names: list[str]) -> None:
    assert keeping.twins(names, case_blind=False, form_blind=False) == {}
