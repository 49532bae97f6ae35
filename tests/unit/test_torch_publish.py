"""Names, previous, digests beside, best and retention of PyTorch checkpoints."""

import os
import subprocess

import pytest
import torch

from remote_runner.checkpoint import torch as ckpt
from remote_runner.checkpoint import torch_publish


def training(seed=0):
    torch.manual_seed(seed)
    model = torch.nn.Linear(4, 2)
    return model, torch.optim.AdamW(model.parameters()), None


def save(path, step, **options):
    return ckpt.save_checkpoint(path, *training(step), step, {"rate": 1}, **options)


def step_in(path):
    return ckpt.verify_checkpoint(path)["step"]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def sums_agree(folder):
    sides = [path.name for path in folder.glob("*.sha256")]
    return subprocess.run(["sha256sum", "--strict", "-c", *sides], cwd=folder, capture_output=True).returncode == 0


def test_previous_is_kept_and_sha256sum_agrees(tmp_path, capsys):
    for step in (1, 2, 3):
        save(tmp_path / "x.pt", step)
        assert sums_agree(tmp_path)
    assert names(tmp_path) == ["x.previous.pt", "x.pt", "x.pt.sha256"]
    assert (step_in(tmp_path / "x.pt"), step_in(tmp_path / "x.previous.pt")) == (3, 2)
    assert f"✓ Checkpoint: {tmp_path}/x.pt (0.0 MB)" in capsys.readouterr().out


def test_a_changed_latest_never_becomes_previous(tmp_path):
    save(tmp_path / "x.pt", 1)
    save(tmp_path / "x.pt", 2)
    content = bytearray((tmp_path / "x.pt").read_bytes())
    content[-200] ^= 1
    (tmp_path / "x.pt").write_bytes(content)
    save(tmp_path / "x.pt", 3)
    assert (step_in(tmp_path / "x.pt"), step_in(tmp_path / "x.previous.pt")) == (3, 1)
    assert len(list(tmp_path.glob("x.pt.corrupt-*"))) == 1


def test_a_file_without_sidecar_is_proven_by_its_structure(tmp_path):
    save(tmp_path / "x.pt", 1)
    torch_publish.sidecar_of(tmp_path / "x.pt").unlink()
    torch_publish._proven.clear()
    save(tmp_path / "x.pt", 2)
    assert step_in(tmp_path / "x.previous.pt") == 1


def test_where_links_are_refused_latest_is_renamed_to_previous(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    for step in (1, 2, 3):
        save(tmp_path / "x.pt", step, best=step == 2)
    assert (step_in(tmp_path / "x.pt"), step_in(tmp_path / "x.previous.pt")) == (3, 2)
    assert step_in(tmp_path / "x.best.pt") == 2
    assert sums_agree(tmp_path)


def test_retention_goes_by_step_and_spares_the_best_and_the_new_one(tmp_path):
    for number, step in enumerate((90, 200, 1000)):
        save(tmp_path / f"step-{step}.pt", step, best=step == 90)
        os.utime(tmp_path / f"step-{step}.pt", (10_000 - number, 10_000 - number))
    assert ckpt.newest(tmp_path).name == "step-1000.pt"
    save(tmp_path / "step-150.pt", 150, keep=2)  # went back in steps: written just now, and not among the highest
    kept = [f"step-{which}.pt" for which in ("1000", "150", "best")]
    assert names(tmp_path) == sorted(kept + [f"{name}.sha256" for name in kept])
    assert step_in(tmp_path / "step-best.pt") == 90
    assert sums_agree(tmp_path)


def test_the_newest_is_the_highest_step_that_verifies(tmp_path, capsys):
    for step in (90, 200, 1000):
        save(tmp_path / f"step-{step}.pt", step)
    (tmp_path / "step-1000.pt").write_bytes((tmp_path / "step-1000.pt").read_bytes()[:-100])
    assert ckpt.newest(tmp_path) == tmp_path / "step-200.pt"
    assert "passed over step 1000" in capsys.readouterr().out
    assert ckpt.newest(tmp_path, "other-*.pt") is None


def test_keep_never_removes_before_the_new_one_is_verified(tmp_path, monkeypatch):
    for step in (1, 2):
        save(tmp_path / f"step-{step}.pt", step, keep=2)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="checkpoint not saved, the older files are whole: No space left"):
        save(tmp_path / "step-3.pt", 3, keep=1)
    monkeypatch.undo()
    assert [step_in(tmp_path / f"step-{step}.pt") for step in (1, 2)] == [1, 2]
    assert not list(tmp_path.glob("*.tmp"))
