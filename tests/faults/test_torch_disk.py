"""Disks that refuse: full, failing, read-only. Old files stay whole, the temp is gone, the error says what where."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from remote_runner.checkpoint import header
from remote_runner.checkpoint import torch as ckpt
from remote_runner.checkpoint.torch_publish import digest_of, sidecar_of

needs_mount = pytest.mark.skipif(os.geteuid() != 0, reason="a small tmpfs is mounted, which takes root")


@contextlib.contextmanager
def small_disk(folder, size_mib):
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def training():
    torch.manual_seed(0)
    model = torch.nn.Linear(512, 500, bias=False)  # 1.0 MB, 3.1 MB with its moments
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 512)).sum().backward()
    optimizer.step()
    return model, optimizer, None


def content(folder):
    return {path.name: digest_of(path) for path in folder.iterdir() if path.is_file()}


@needs_mount
@pytest.mark.parametrize("name", ["x.pt", "model-training.safetensors"])
def test_a_full_disk_leaves_the_old_files_and_a_clear_error(tmp_path, name):
    parts = training()
    with small_disk(tmp_path / "disk", 10) as disk:
        path = disk / name
        for step in (1, 2):
            ckpt.save_checkpoint(path, *parts, step, {})
        with (disk / "ballast").open("wb") as ballast:
            ballast.write(bytes(2 << 20))
        before = content(disk)
        with pytest.raises(OSError, match="No space left on device") as failure:
            ckpt.save_checkpoint(path, *parts, 3, {})
        assert name in str(failure.value)
        assert content(disk) == before, "byte for byte, and no temp"
        assert ckpt.load_checkpoint(path, *parts) == 2
        (disk / "ballast").unlink()
        ckpt.save_checkpoint(path, *parts, 4, {})
        assert ckpt.load_checkpoint(path, *parts) == 4


@needs_mount
def test_an_asynchronous_save_tells_at_the_next_one_and_at_the_end(tmp_path):
    parts = training()
    with small_disk(tmp_path / "disk", 10) as disk:
        with pytest.raises(OSError, match="No space left"), ckpt.AsyncSaver(disk / "x.pt") as saver:
            saver.save(*parts, 1, {})
            saver.save(*parts, 2, {})
            saver.wait()
            with (disk / "ballast").open("wb") as ballast:
                ballast.write(bytes(2 << 20))
            saver.save(*parts, 3, {})
            with pytest.raises(OSError, match="No space left"):
                saver.save(*parts, 4, {})
            saver.save(*parts, 5, {})
        assert ckpt.load_checkpoint(disk / "x.pt", *parts) == 2
        assert not list(disk.glob("*.tmp"))


@pytest.mark.parametrize("error", [5, 28, 30])
def test_an_error_at_any_system_call_of_a_save_leaves_both_old_files(tmp_path, monkeypatch, error):
    """EIO, ENOSPC and EROFS at each call in turn, until a save meets none."""
    parts = training()
    for step in (1, 2):
        ckpt.save_checkpoint(tmp_path / "x.pt", *parts, step, {})
    call = 0
    while True:
        before, left = content(tmp_path), [call]
        real = {name: getattr(os, name) for name in ("write", "fsync", "link", "replace")}

        def failing(name, real=real, left=left):
            def struck(*arguments, **options):
                left[0] -= 1
                if left[0] == -1:
                    raise OSError(error, os.strerror(error))
                return real[name](*arguments, **options)

            return struck

        for name in real:
            monkeypatch.setattr(os, name, failing(name))
        try:
            ckpt.save_checkpoint(tmp_path / "x.pt", *parts, 3, {})
        except OSError as failure:
            assert "x.pt" in str(failure)
            assert os.strerror(error) in str(failure)
        else:
            break
        finally:
            monkeypatch.undo()
        assert not list(tmp_path.glob("*.tmp"))
        after = content(tmp_path)
        if ckpt.load_checkpoint(tmp_path / "x.pt", *training()) == 2:
            assert after["x.pt"] == before["x.pt"]
            assert after["x.previous.pt"] in (before["x.previous.pt"], before["x.pt"])
        else:  # the last call failed: the new one stands, and the old one as previous
            assert after["x.previous.pt"] == before["x.pt"]
        for path in (tmp_path / "x.pt", tmp_path / "x.previous.pt"):
            assert digest_of(path) in sidecar_of(tmp_path / "x.pt").read_text()
        call += 1
        for step in (1, 2):  # begin again from two different files
            ckpt.save_checkpoint(tmp_path / "x.pt", *parts, step, {})
    assert call > 8


@pytest.mark.skipif(os.geteuid() != 0, reason="a tmpfs is mounted read-only, which takes root")
def test_a_read_only_folder(tmp_path):
    parts = training()
    with small_disk(tmp_path / "disk", 12) as disk:
        ckpt.save_checkpoint(disk / "x.pt", *parts, 1, {})
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        with pytest.raises(OSError, match="Read-only file system"):
            ckpt.save_checkpoint(disk / "x.pt", *parts, 2, {})
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        assert ckpt.load_checkpoint(disk / "x.pt", *parts) == 1


@needs_mount
def test_a_trainer_on_a_full_disk_says_so_and_keeps_its_newest_snapshot(tmp_path):
    """Three saves in a row fail, and it ends with the contract's code for that."""
    smoke = Path(__file__).parents[2] / "configs" / "cipher-smoke.json"
    content = json.loads(smoke.read_text()) | {"out_dir": "artifacts/x"}
    content["data"] |= {"sentences": 100, "length": 16}
    content["model"] |= {"width": 16, "hidden": 16, "blocks": 1}
    content["train"] |= {"steps": 40, "log_every": 4, "evaluate_every": 0, "batch": 16}
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "x.json").write_text(json.dumps(content))
    (tmp_path / "artifacts").mkdir()
    with small_disk(tmp_path / "artifacts" / "x", 1) as disk:
        with (disk / "ballast").open("wb") as ballast:
            ballast.write(bytes((1 << 20) - (120 << 10)))
        argv = [
            sys.executable,
            "-c",
            "from cipher_torch import cli; raise SystemExit(cli.main())",
            "train",
            "configs/x.json",
        ]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, env=env)
        assert done.returncode == 74, done.stdout + done.stderr
        assert "artifacts/x/cipher-training.safetensors" in done.stdout
        assert "No space left on device" in done.stdout
        assert not list(disk.glob("*.tmp"))
        assert header.verify_digests(disk / "cipher-training.safetensors")["step"] >= 0
