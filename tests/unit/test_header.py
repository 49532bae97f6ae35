"""The snapshot header: canonical, untrusted, and a description only of what it proves."""

from __future__ import annotations

import json
import os
import resource
import struct
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snapshots import small

from remote_runner.checkpoint import header, snapshot
from remote_runner.checkpoint.header import SnapshotCorrupt


@pytest.fixture
def saved(tmp_path):
    return snapshot.save(tmp_path, small(7)).path


def raw_file(path, top, data, length=None):
    text = top if isinstance(top, bytes) else json.dumps(top).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_describe_reads_the_header_alone(saved):
    about = header.describe(saved)
    with saved.open("r+b") as file:  # the data may be anything
        file.seek(-8, os.SEEK_END)
        file.write(b"\xff" * 8)
    assert header.describe(saved) == about
    assert (about["stage"], about["stage_index"], about["step"], about["target_steps"]) == ("codec", 0, 7, 1000)
    assert about["attempt"] == "a1" and about["lineage"] is None and about["tensors"] == 5
    with pytest.raises(SnapshotCorrupt, match=r"optimizer\.step"):
        header.verify_digests(saved)


def test_the_file_is_plain_safetensors_for_others(saved):
    from safetensors import safe_open

    with safe_open(saved, "numpy") as file:
        assert sorted(file.keys()) == sorted(small(7).tensors)
        assert file.metadata()["format"] == "remote-run-snapshot/1"
        assert (file.get_tensor("model.weight") == small(7).tensors["model.weight"].data).all()
        assert file.get_tensor("optimizer.step") == 7


def test_the_header_is_canonical_and_padded(saved):
    raw = saved.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    assert length % 8 == 0 and raw[8:].startswith(b'{"__metadata__":{"format":')
    top = json.loads(raw[8 : 8 + length])
    names = [name for name in top if name != "__metadata__"]
    assert names == sorted(names, key=str.encode)
    ends = [top[name]["data_offsets"] for name in names]
    assert [b for b, _ in ends] == [0, *[e for _, e in ends][:-1]]


def test_root_names_the_content_and_root_all_the_circumstances_too(tmp_path):
    one, two = small(7), small(7)
    first = header.describe(snapshot.save(tmp_path, one).path)
    later = snapshot.Snapshot(two.tensors, two.state, {"attempt": "a2"})
    second = header.describe(snapshot.save(tmp_path, later).path)
    assert first["root"] == second["root"] and first["root_all"] != second["root_all"]
    assert header.describe(snapshot.save(tmp_path, small(8)).path)["root"] != first["root"]


@pytest.mark.parametrize("key", ["state", "volatile", "sha256", "root", "root_all", "stage", "format"])
def test_metadata_that_was_rewritten_is_refused(key, saved, tmp_path):
    head = header.read(saved)
    data = saved.read_bytes()[head.data_start :]
    said = dict(head.metadata)
    said[key] = said[key].replace("7", "8").replace("a1", "a3").replace("codec", "codex").replace("t/1", "t/2")
    assert said != head.metadata
    forged = tmp_path / "forged.safetensors"
    forged.write_bytes(header.encode(head.entries, said) + data)
    with pytest.raises(SnapshotCorrupt, match="forged"):
        header.describe(forged)


def test_a_header_that_is_right_but_not_canonical_is_refused(saved, tmp_path):
    head = header.read(saved)
    text = head.raw[8:].rstrip()
    other = raw_file(tmp_path / "other.safetensors", text.replace(b'"dtype"', b' "dtype"', 1), b"")
    other.write_bytes(other.read_bytes() + saved.read_bytes()[head.data_start :])
    assert len(header.read(other).entries) == 5  # structure is fine
    with pytest.raises(SnapshotCorrupt, match="canonical"):
        header.describe(other)


GOOD = {"a": entry("F32", [2], 0, 8), "b": entry("F32", [], 8, 12)}
BROKEN = {
    "overlap": ({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}, b"0" * 12, "overlap"),
    "hole": ({"a": entry("F32", [2], 0, 8), "b": entry("F32", [1], 12, 16)}, b"0" * 16, "hole"),
    "shape": ({"a": entry("F32", [9, 9], 0, 8)}, b"0" * 8, "needs 324 bytes"),
    "trailing": (GOOD, b"0" * 13, "after the last tensor"),
    "cut": (GOOD, b"0" * 11, "cut off"),
    "dtype": ({"a": entry("F31", [2], 0, 8)}, b"0" * 8, "unknown dtype"),
    "negative": ({"a": entry("F32", [-2], 0, 8)}, b"0" * 8, "wrong kind"),
    "huge": ({"a": entry("F32", [1 << 62, 1 << 62], 0, 8)}, b"0" * 8, "needs"),
    "bool": ({"a": entry("F32", [True, 2], 0, 8)}, b"0" * 8, "wrong kind"),
    "extra": ({"a": {**entry("F32", [2], 0, 8), "x": 1}}, b"0" * 8, "not described"),
    "text": (b"<html>", b"", "not JSON"),
    "list": (b"[1, 2]", b"", "not a JSON object"),
    "twins": (b'{"a":{},"a":{}}', b"", "stands twice"),
    "nan": (b'{"a":NaN}', b"", "NaN"),
    "deep": (b'{"a":' * 9999, b"", "not JSON"),
    "metadata": ({"__metadata__": {"step": 3}}, b"", "object of strings"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_structure_is_named(name, tmp_path):
    top, data, said = BROKEN[name]
    path = raw_file(tmp_path / f"{name}.safetensors", top, data)
    with pytest.raises(SnapshotCorrupt, match=said) as wrong:
        header.read(path)
    assert str(path) in str(wrong.value) and len(str(wrong.value)) < 500


def test_foreign_files_are_read_in_any_order(tmp_path):
    top = {"b": entry("BF16", [2], 8, 12), "a": entry("F32", [0, 3], 8, 8), "c": entry("I64", [1], 0, 8)}
    found = header.read(raw_file(tmp_path / "x.safetensors", top, b"0" * 12))
    assert [e.name for e in found.entries] == ["c", "a", "b"]
    with pytest.raises(SnapshotCorrupt, match="format is None"):
        header.describe(tmp_path / "x.safetensors")


@pytest.mark.parametrize("length", [1 << 62, 33 << 20, 300])
def test_an_announced_length_is_refused_before_it_is_allocated(length, tmp_path):
    path = raw_file(tmp_path / "x.safetensors", b"{}", b"", length)
    os.truncate(path, min(length, 40 << 20) + 7)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.monotonic()
    with pytest.raises(SnapshotCorrupt, match="announce a header"):
        header.describe(path)
    assert time.monotonic() - begun < 0.5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 << 10  # KiB


def test_a_fifo_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "x.safetensors")
    with pytest.raises(SnapshotCorrupt, match="not a regular file"):
        header.read(tmp_path / "x.safetensors")


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(raw):
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        file.write(struct.pack("<Q", max(len(raw) - 4, 0)) + raw)
        file.flush()
        with pytest.raises(SnapshotCorrupt):
            header.describe(file.name)


def test_the_module_needs_the_standard_library_alone():
    code = (
        "import sys; from remote_runner.checkpoint import header, rotate, pause, contract, config;"
        "print(sorted(m for m in ('numpy', 'mlx', 'torch', 'click', 'pydantic') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_file_of_the_library_is_python_3_8():
    import ast
    from pathlib import Path

    for path in Path(header.__file__).parent.glob("*.py"):
        ast.parse(path.read_text(), str(path), feature_version=(3, 8))
