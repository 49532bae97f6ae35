"""H29: PyTorch files of others, whole and broken, through the verify that a user calls."""

import io
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


@pytest.mark.parametrize("name", BAD)
def test_broken_files_are_refused_with_file_and_reason(tmp_path, name):
    content, words = BAD[name]
    (tmp_path / "x.pt").write_bytes(content)
    found = verify.verify_file(tmp_path / "x.pt", REQUIRED)
    assert words in found.problem
    assert str(tmp_path / "x.pt") in found.problem
