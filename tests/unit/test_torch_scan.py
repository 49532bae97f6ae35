"""A pickle's calls are named and never made."""

import builtins
import pickle
import zipfile

import pytest
import torch
from hostile_pickles import hostile

from remote_runner.checkpoint import torch as ckpt
from remote_runner.checkpoint.torch_scan import CheckpointRefused, check_file
from remote_runner.checkpoint.torch_zip import CheckpointCorrupt


def test_code_is_named_and_never_run(tmp_path):
    for name, called in hostile(tmp_path).items():
        path = tmp_path / name
        with pytest.raises(CheckpointRefused, match=f"contains code: {called}"):
            check_file(path)
        with pytest.raises(CheckpointRefused, match="contains code"):
            ckpt.verify_checkpoint(path)
    assert not (tmp_path / "MARK").exists()


def test_resuming_from_code_is_refused_and_nothing_else_is_taken_instead(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hostile(tmp_path)
    (tmp_path / "renamed.safetensors").rename(tmp_path / "renamed-training.safetensors")
    for name in ("zip.pt", "with_tensors.pt", "legacy.pt", "bare2.pt", "renamed-training.safetensors"):
        path = tmp_path / name
        ckpt.save_checkpoint(tmp_path / "good.pt", model, optimizer, None, 1, {})
        (tmp_path / "good.pt").replace(ckpt.previous_of(path))
        with pytest.raises(CheckpointRefused, match=r"contains code: io\.open"):
            ckpt.load_checkpoint(path, model, optimizer)
        assert path.exists()
    assert not (tmp_path / "MARK").exists()


def test_a_name_declared_safe_to_torch_is_still_refused(tmp_path):
    hostile(tmp_path)
    with (
        torch.serialization.safe_globals([builtins.open]),
        pytest.raises(CheckpointRefused, match=r"contains code: io\.open"),
    ):
        ckpt.verify_checkpoint(tmp_path / "zip.pt")
    assert not (tmp_path / "MARK").exists()


@pytest.mark.parametrize("legacy", [False, True])
def test_plain_checkpoints_of_others_pass(tmp_path, legacy):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "p": torch.nn.Parameter(torch.ones(2))}
    torch.save(state, tmp_path / "x.pt", _use_new_zipfile_serialization=not legacy)
    check_file(tmp_path / "x.pt")
    assert ckpt.verify_checkpoint(tmp_path / "x.pt")["tensors"] == 9


def test_a_pickle_bomb_is_not_read(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * (64 << 20))
    with pytest.raises(CheckpointCorrupt, match="is compressed"):
        check_file(tmp_path / "x.pt")


def test_a_member_that_stands_twice_or_overlaps_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "twice.pt", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}, 2))
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("archive/data.pkl", pickle.dumps({"step": 1}, 2))
    with pytest.raises(CheckpointCorrupt, match="twice"):
        check_file(tmp_path / "twice.pt")
    with zipfile.ZipFile(tmp_path / "overlap.pt", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}, 2))
        archive.writestr("archive/data/0", b"12345678")
        archive.filelist[1].header_offset = 4
    with pytest.raises(CheckpointCorrupt, match="overlaps"):
        check_file(tmp_path / "overlap.pt")
