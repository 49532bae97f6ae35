"""The archive we write is one that torch reads, and no byte of it can change unseen."""

import hashlib
import os
import subprocess
import zipfile
import zlib
from collections import OrderedDict

import pytest
import torch

from remote_runner.checkpoint import torch_file, torch_zip
from remote_runner.checkpoint.torch_scan import check_file
from remote_runner.checkpoint.torch_zip import CheckpointCorrupt, Member

KINDS = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


def small_tree():
    return {"step": 3, "model": {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2).bfloat16()}, "text": "ä"}


def raw(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


def write(path, tree):
    return torch_file.write_verified(path, torch_file.records_of(tree))


@pytest.mark.parametrize("mapped", [False, True])
def test_torch_reads_what_we_write(tmp_path, mapped):
    tree = {str(kind): torch.arange(12).to(kind).reshape(3, 4) for kind in KINDS}
    tree |= {"empty": torch.empty(0, 3), "scalar": torch.tensor(2.5), "nested": [(1, 2.5), None, OrderedDict(a=b"x")]}
    tree["strided"] = torch.arange(6.0).reshape(2, 3).t()
    tree["tied"] = tree["scalar"]
    digest = write(tmp_path / "x.pt", tree)
    back = torch.load(tmp_path / "x.pt", weights_only=True, mmap=mapped)
    assert list(back) == list(tree)
    for name, value in tree.items():
        if isinstance(value, torch.Tensor):
            assert back[name].dtype == value.dtype
            assert back[name].shape == value.shape
            assert raw(back[name]) == raw(value)
    assert back["nested"] == tree["nested"]
    assert back["tied"].data_ptr() == back["scalar"].data_ptr()
    assert digest == hashlib.sha256((tmp_path / "x.pt").read_bytes()).hexdigest()


def test_other_zip_readers_find_it_whole(tmp_path):
    write(tmp_path / "x.pt", small_tree())
    assert zipfile.ZipFile(tmp_path / "x.pt").testzip() is None
    assert len(torch_zip.check_archive(tmp_path / "x.pt")) == 5


def test_storages_begin_where_torch_wants_them(tmp_path):
    write(tmp_path / "x.pt", small_tree())
    content = (tmp_path / "x.pt").read_bytes()
    assert content.index(torch.arange(6.0).numpy().tobytes()) % 64 == 0


def test_every_flipped_byte_is_noticed_without_a_sidecar(tmp_path):
    path = tmp_path / "x.pt"
    write(path, small_tree())
    whole = path.read_bytes()
    for index in range(len(whole)):
        changed = bytearray(whole)
        changed[index] ^= 0x40
        path.write_bytes(changed)
        with pytest.raises(CheckpointCorrupt, match=r"x\.pt"):
            check_file(path)


def test_every_truncation_is_noticed(tmp_path):
    path = tmp_path / "x.pt"
    write(path, small_tree())
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointCorrupt):
            check_file(path)


def test_a_flip_in_each_region_of_a_file_of_torch_is_noticed(tmp_path):
    """Padding between members is not covered by anything in torch's own files; all else is."""
    path = tmp_path / "x.pt"
    torch.save(small_tree(), path)
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        infos, directory = archive.infolist(), archive.start_dir
    regions = {"directory": directory + 16, "end": len(whole) - 6}
    for info in infos:
        regions[f"header of {info.filename}"] = info.header_offset + 14
        name_bytes, extra_bytes = (
            whole[info.header_offset + 26],
            int.from_bytes(whole[info.header_offset + 28 : info.header_offset + 30], "little"),
        )
        regions[f"name of {info.filename}"] = info.header_offset + 30
        regions[f"data of {info.filename}"] = info.header_offset + 30 + name_bytes + extra_bytes
    for region, index in regions.items():
        changed = bytearray(whole)
        changed[index] ^= 0x40
        path.write_bytes(changed)
        with pytest.raises(CheckpointCorrupt):
            check_file(path)
            pytest.fail(f"a flip in the {region} was not noticed")


def test_other_bytes_on_disk_than_in_memory_are_refused(tmp_path, monkeypatch):
    real = os.write

    def lying(descriptor, chunk):
        return real(descriptor, bytes(chunk).replace(torch.arange(6.0).numpy().tobytes(), b"\0" * 24))

    monkeypatch.setattr(os, "write", lying)
    with pytest.raises(CheckpointCorrupt, match="other bytes were read back than written, near byte"):
        write(tmp_path / "x.pt", small_tree())


def test_members_beyond_four_gibibytes_are_found_again(tmp_path):
    """A sparse file: nothing large is written, the offsets are what is tested."""
    large, small = Member("archive/data/0", 5 << 30, 0), Member("archive/data/1", 4, zlib.crc32(b"abc\n"))
    first = torch_zip.local_header(large, 0)
    at = len(first) + large.size_bytes
    second = torch_zip.local_header(small, at)
    end = at + len(second) + 4
    with (tmp_path / "x.pt").open("wb") as file:
        file.write(first)
        file.seek(at)
        file.write(second + b"abc\n")
        file.write(torch_zip.directory([(large, 0), (small, at)], end))
    with zipfile.ZipFile(tmp_path / "x.pt") as archive:
        assert [info.file_size for info in archive.infolist()] == [5 << 30, 4]
        assert archive.read("archive/data/1") == b"abc\n"
        assert archive.infolist()[0].header_offset == 0


def test_the_bytes_depend_on_the_content_alone(tmp_path):
    assert write(tmp_path / "a.pt", small_tree()) == write(tmp_path / "b.pt", small_tree())


def test_unzip_agrees(tmp_path):
    write(tmp_path / "x.pt", small_tree())
    done = subprocess.run(["python3", "-m", "zipfile", "-t", tmp_path / "x.pt"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
