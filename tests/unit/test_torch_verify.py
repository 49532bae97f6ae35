"""`torch_verify` says what a file is: whole, broken where, not what was asked for. As a function and as a program."""

import json
import subprocess
import sys

import pytest
import torch

from remote_runner.checkpoint import torch as ckpt
from remote_runner.checkpoint.torch_publish import sidecar_of


class Net(torch.nn.Module):
    """Built from its config alone, as `--model` wants it."""

    def __init__(self, config):
        super().__init__()
        self.head = torch.nn.Linear(config["width"], 1)


def save_ours(path, kind=torch.float32, **changes):
    model = Net({"width": 3}).to(kind)
    ckpt.save_checkpoint(path, model, torch.optim.AdamW(model.parameters()), None, 7, {"width": 3, **changes})
    return path


def program(*arguments, cwd=None):
    argv = [sys.executable, "-m", "remote_runner.checkpoint.torch_verify", *map(str, arguments)]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=cwd)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def test_ours_is_verified_with_step_and_keys(tmp_path):
    code, said = program(save_ours(tmp_path / "x.pt"))
    assert code == 0
    assert (said["step"], said["ours"], said["sidecar"], said["prefix"]) == (7, True, "matches", "")
    assert {"step", "model", "optimizer", "scheduler", "config"} <= set(said["keys"])
    assert said["summary"].startswith("✓ Verified: step=7")


def test_the_function_says_so_too(tmp_path, capsys):
    ckpt.verify_checkpoint(save_ours(tmp_path / "x.pt"))
    assert "✓ Verified: step=7" in capsys.readouterr().out


def test_code_in_a_file_is_named_by_the_program_and_not_run(tmp_path):
    class Touch:
        def __reduce__(self):
            return open, ("PWNED", "w")

    torch.save({"w": torch.ones(2), "note": Touch()}, tmp_path / "x.pt")
    code, said = program(tmp_path / "x.pt", cwd=tmp_path)
    assert (code, said["kind"], said["ok"]) == (7, "CheckpointRefused", False)
    assert "contains code: io.open" in said["error"]
    assert [path.name for path in tmp_path.iterdir()] == ["x.pt"]


FOREIGN = {"emb.weight": torch.ones(1024), "head.weight": torch.ones(4)}


def prefixed(prefix):
    return {"model": {prefix + name: value for name, value in FOREIGN.items()}}


@pytest.mark.parametrize(
    ("content", "prefix"),
    [
        ({"model": FOREIGN, "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}}, "step": 3}, ""),
        ({"model": {name: value.bfloat16() for name, value in FOREIGN.items()}}, ""),
        (prefixed("module."), "module."),
        (prefixed("_orig_mod."), "_orig_mod."),
        (prefixed("module._orig_mod."), "module._orig_mod."),
        (FOREIGN, ""),
        ({"state_dict": FOREIGN}, ""),
    ],
)
def test_foreign_files_with_the_required_keys_pass_and_a_prefix_is_reported(tmp_path, content, prefix):
    torch.save(content, tmp_path / "x.pt")
    found = ckpt.verify_checkpoint(tmp_path / "x.pt", require=["emb.weight", "head.weight"])
    assert found["prefix"] == prefix
    assert not found["ours"]


def test_what_is_missing_is_named(tmp_path):
    torch.save({"model": {"emb.weight": torch.ones(2)}, "step": 3}, tmp_path / "x.pt")
    with pytest.raises(ckpt.CheckpointCorrupt, match=r"lacks head\.weight"):
        ckpt.verify_checkpoint(tmp_path / "x.pt", require=["emb.weight", "head.weight"])
    code, said = program(tmp_path / "x.pt", "--as", "checkpoint")
    assert code == 7
    assert "lacks optimizer, scheduler, config" in said["error"]


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_nan_is_named_with_its_tensor(tmp_path, kind):
    torch.save({"model": {"a": torch.ones(2), "b": torch.tensor([1.0, float("nan")]).to(kind)}}, tmp_path / "x.pt")
    name = str(kind).removeprefix("torch.")
    with pytest.raises(ckpt.CheckpointCorrupt, match=rf"x\.pt: model\.b \({name}\) holds NaN"):
        ckpt.verify_checkpoint(tmp_path / "x.pt")


def test_infinities_warn_in_files_of_others(tmp_path):
    torch.save({"model": {"mask": torch.tensor([0.0, float("-inf")])}}, tmp_path / "x.pt")
    assert ckpt.verify_checkpoint(tmp_path / "x.pt")["warnings"] == ["model.mask holds an infinity"]


def test_ours_without_a_key_is_refused_whatever_was_asked(tmp_path):
    save_ours(tmp_path / "x.pt")
    content = torch.load(tmp_path / "x.pt", weights_only=True)
    del content["optimizer"]
    torch.save(content, tmp_path / "y.pt")
    with pytest.raises(ckpt.CheckpointCorrupt, match="lacks optimizer"):
        ckpt.verify_checkpoint(tmp_path / "y.pt")


def test_a_sidecar_that_does_not_match_is_told(tmp_path):
    path = save_ours(tmp_path / "x.pt")
    sidecar_of(path).write_text(f"{'0' * 64}  x.pt\n")
    with pytest.raises(ckpt.CheckpointCorrupt, match="not in its sidecar"):
        ckpt.verify_checkpoint(path)


def test_the_weights_must_load_into_the_model_of_the_config(tmp_path):
    path = save_ours(tmp_path / "x.pt")
    assert ckpt.verify_checkpoint(path, model=f"{__name__}:Net")["ok"]
    other = save_ours(tmp_path / "y.pt", width=5)
    with pytest.raises(ckpt.CheckpointCorrupt, match=r"size mismatch for head\.weight"):
        ckpt.verify_checkpoint(other, model=f"{__name__}:Net")
    with pytest.raises(ckpt.CheckpointCorrupt, match=r"can't be imported"):
        ckpt.verify_checkpoint(path, model="no_such_module:Net")


@pytest.mark.parametrize("content", [b"", b"step 3 loss 1.25\n", b"PK\3\4", b"\x80\2", b"PK\5\6" + bytes(18)])
def test_what_is_no_checkpoint_at_all(tmp_path, content):
    (tmp_path / "x.pt").write_bytes(content)
    code, said = program(tmp_path / "x.pt")
    assert code == 7
    assert str(tmp_path / "x.pt") in said["error"]


def test_cut_and_flipped_files(tmp_path):
    torch.save({"model": FOREIGN}, tmp_path / "x.pt")
    whole = (tmp_path / "x.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ckpt.CheckpointCorrupt, match="not a whole zip archive"):
        ckpt.verify_checkpoint(tmp_path / "cut.pt")
    flipped = bytearray(whole)
    flipped[whole.index(torch.ones(8).numpy().tobytes()) + 100] ^= 0x10
    (tmp_path / "flip.pt").write_bytes(flipped)
    torch.load(tmp_path / "flip.pt", weights_only=True)  # which notices nothing
    with pytest.raises(ckpt.CheckpointCorrupt, match=r"the member x/data/\d was changed"):
        ckpt.verify_checkpoint(tmp_path / "flip.pt")


def test_our_format_1_is_verified_too(tmp_path):
    path = save_ours(tmp_path / "model-training.safetensors", torch.bfloat16)
    assert (ckpt.verify_checkpoint(path)["step"], ckpt.verify_checkpoint(path)["ours"]) == (7, True)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ckpt.CheckpointCorrupt, match=r"model-training\.safetensors: the bytes of"):
        ckpt.verify_checkpoint(path)


def test_without_torch_code_is_still_named(tmp_path):
    class Touch:
        def __reduce__(self):
            return open, ("PWNED", "w")

    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ModuleNotFoundError('No module', name='torch')")
    torch.save({"w": Touch()}, tmp_path / "evil.pt")
    torch.save({"w": torch.ones(2)}, tmp_path / "good.pt")
    for name, words in (("evil.pt", "contains code: io.open"), ("good.pt", "can't be looked at without torch")):
        code, said = program(tmp_path / name, cwd=tmp_path)
        assert code == 7
        assert words in said["error"]


def test_a_file_that_can_not_be_read(tmp_path):
    code, said = program(tmp_path / "none.pt")
    assert code == 7
    assert "No such file" in said["error"]
