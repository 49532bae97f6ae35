"""H29: PyTorch files of others, whole and broken, through the verify that a user calls."""

import io
import subprocess
import sys
import zipfile

import pytest
import torch

from remote_runner import verify

WEIGHTS = {"emb.weight": torch.ones(1024), "head.weight": torch.ones(4)}
REQUIRED = ("emb.weight", "head.weight")


def saved(content):
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def flipped(content):
    at = content.index(torch.ones(64).numpy().tobytes()) + 100
    return content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :]


def empty_zip():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/version", "3")
    return buffer.getvalue()


WHOLE = saved({"model": WEIGHTS, "step": 3})
GOOD = {
    "basic": WHOLE,
    "bf16": saved({"model": {name: value.bfloat16() for name, value in WEIGHTS.items()}}),
    "module": saved({"model": {f"module.{name}": value for name, value in WEIGHTS.items()}}),
    "compiled": saved({"model": {f"_orig_mod.{name}": value for name, value in WEIGHTS.items()}}),
}
NAN = {"emb.weight": torch.ones(2), "head.weight": torch.tensor([1.0, float("nan")]).bfloat16()}
BAD = {
    "missing": (saved({"model": {"emb.weight": torch.ones(2)}}), "lacks head.weight"),
    "nan": (saved({"model": NAN}), "model.head.weight (bfloat16) holds NaN"),
    "empty": (b"", "no bytes"),
    "cut": (WHOLE[: len(WHOLE) // 2], "not a whole zip archive"),
    "flip": (flipped(WHOLE), "was changed (CRC"),
    "no_pickle": (empty_zip(), "without data.pkl"),
    "text": (b"step 3 loss 1.25", "neither a zip archive nor a pickle"),
}


@pytest.mark.parametrize("name", GOOD)
def test_whole_files_pass(tmp_path, name):
    (tmp_path / "x.pt").write_bytes(GOOD[name])
    found = verify.verify_file(tmp_path / "x.pt", REQUIRED)
    assert found.good, found.problem
    prefix = {"module": "'module.'", "compiled": "'_orig_mod.'"}.get(name, "")
    assert found.about.endswith(f"prefix {prefix}" if prefix else "step" if name == "basic" else "model")


@pytest.mark.parametrize("name", BAD)
def test_broken_files_are_refused_with_file_and_reason(tmp_path, name):
    content, words = BAD[name]
    (tmp_path / "x.pt").write_bytes(content)
    found = verify.verify_file(tmp_path / "x.pt", REQUIRED)
    assert words in found.problem
    assert str(tmp_path / "x.pt") in found.problem


def test_the_command_takes_what_a_checkpoint_and_its_model_must_be(tmp_path):
    (tmp_path / "x.pt").write_bytes(WHOLE)
    argv = [sys.executable, "-m", "remote_runner.cli", "verify", "x.pt"]
    plain, held, modelled = (
        subprocess.run([*argv, *more], cwd=tmp_path, capture_output=True, text=True)
        for more in ([], ["--as", "checkpoint"], ["--model", "no_such_module:Net"])
    )
    assert (plain.returncode, held.returncode, modelled.returncode) == (0, 7, 7)
    assert "step 3, 2 tensors, keys model, step" in plain.stdout
    assert "x.pt: lacks optimizer, scheduler, config" in held.stderr
    assert "no_such_module:Net can't be imported" in modelled.stderr
