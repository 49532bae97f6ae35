"""Snapshots of trainers that know nothing of us: found by rule, ranked by step, complete or not."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_runner.pod import foreign

ALL = list(foreign.PRESETS.values())


def torch_like(path: Path, content: object) -> Path:
    """A file as torch.save writes it, as far as its archive and its pickle go."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr(f"{path.stem}/data.pkl", pickle.dumps(content, protocol=2))
        packed.writestr(f"{path.stem}/data/0", b"\0" * 64)
    return path


def checkpoint(folder: Path, step: int, whole: bool = True) -> Path:
    """As transformers.Trainer leaves one."""
    made = folder / f"checkpoint-{step}"
    made.mkdir(parents=True)
    torch_like(made / "optimizer.pt", {"state": {}})
    if whole:
        (made / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return made


def steps(root: Path) -> list[tuple[int, bool]]:
    return [(s.step, not s.fault) for s in foreign.find(str(root), ["out"], ALL)]


def test_folders_of_the_trainer_rank_by_number_and_count_once_their_last_file_is_there(tmp_path: Path) -> None:
    for step in (90, 1000, 200):
        checkpoint(tmp_path / "out", step)
    checkpoint(tmp_path / "out", 1100, whole=False)
    assert steps(tmp_path) == [(1100, False), (1000, True), (200, True), (90, True)]
    found = foreign.newest(str(tmp_path), ["out"], ALL)
    assert found is not None
    assert found.path == "out/checkpoint-1000"
    assert {p for p, _s in found.files} == {f"{found.path}/optimizer.pt", f"{found.path}/trainer_state.json"}


def test_a_file_without_a_number_is_read_for_its_step(tmp_path: Path) -> None:
    torch_like(tmp_path / "out/last.pt", {"model": {"w": 1}, "epoch": 7, "global_step": 4321, "lr": 0.5})
    torch_like(tmp_path / "out/best.pt", {"model": {"w": 1}})
    assert steps(tmp_path) == [(4321, True)]


def test_reading_a_step_runs_nothing(tmp_path: Path) -> None:
    class Bad:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "PWNED"),)

    torch_like(tmp_path / "out/last.pt", {"step": 5, "bad": Bad()})
    assert steps(tmp_path) == [(5, True)]
    assert not (tmp_path / "PWNED").exists()


def test_lightning_names_its_step(tmp_path: Path) -> None:
    torch_like(tmp_path / "out/lightning_logs/version_0/checkpoints/epoch=1-step=640.ckpt", {})
    assert steps(tmp_path) == [(640, True)]


@given(cut=st.integers(0, 400))
def test_a_cut_file_never_counts(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    root = tmp_path_factory.mktemp("cut")
    torch_like(root / "out/model_0100.pt", {"a": 1})
    newer = torch_like(root / "out/model_0200.pt", {"a": 1})
    data = newer.read_bytes()
    newer.write_bytes(data[: min(cut, len(data) - 1)])
    rule = foreign.PRESETS["torch"]
    now, foreign.LOOK_AGAIN_S = foreign.LOOK_AGAIN_S, 0.0
    try:
        found = foreign.newest(str(root), ["out"], [rule])
    finally:
        foreign.LOOK_AGAIN_S = now
    assert found is not None
    assert found.step == 100


def test_what_changes_between_two_looks_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()
    np.savez(tmp_path / "out/step100.npz", a=np.zeros(3))
    np.savez(tmp_path / "out/step200.npz", a=np.zeros(3))

    def write_on(_seconds: float) -> None:
        np.savez(tmp_path / "out/step200.npz", a=np.zeros(9))

    monkeypatch.setattr(foreign.time, "sleep", write_on)
    assert steps(tmp_path) == [(200, False), (100, True)]


def test_finished_is_a_file_or_the_last_step(tmp_path: Path) -> None:
    job = {"done_file": "out/DONE"}
    assert not foreign.finished(str(tmp_path), job, {"step": 9, "target_steps": 10})
    assert foreign.finished(str(tmp_path), job, {"step": 10, "target_steps": 10})
    (tmp_path / "out").mkdir()
    (tmp_path / "out/DONE").touch()
    assert foreign.finished(str(tmp_path), job, {})
