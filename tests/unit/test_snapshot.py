"""Snapshots: what was saved comes back, whatever was changed is noticed, whatever is chosen is the newest whole one."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from snapshots import STAGE, large, small, state

from remote_runner.checkpoint import finite, rotate, snapshot, trailing, writer
from remote_runner.checkpoint.snapshot import NonFinite, Snapshot, SnapshotCorrupt, tensor

SMALL_BYTES = 1600  # flips are drawn below this, and taken modulo the file's size


@pytest.fixture(scope="module")
def small_file(tmp_path_factory):
    return snapshot.save(tmp_path_factory.mktemp("small"), small(3)).path


def test_what_was_saved_comes_back(small_file):
    found, given_ = snapshot.load(small_file), small(3)
    assert found.state == given_.state and found.volatile == given_.volatile
    for name, t in given_.tensors.items():
        assert found.tensors[name].dtype == t.dtype and found.tensors[name].shape == t.shape
        assert np.array_equal(found.tensors[name].data, t.data)


def test_every_single_flipped_bit_of_a_small_file_is_noticed(small_file, tmp_path):
    whole = small_file.read_bytes()
    path = tmp_path / small_file.name
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        with pytest.raises(SnapshotCorrupt):
            snapshot.verify(path)


def test_every_truncation_of_a_small_file_is_noticed(small_file, tmp_path):
    whole = small_file.read_bytes()
    path = tmp_path / small_file.name
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(SnapshotCorrupt):
            snapshot.load(path)


@given(flips=st.sets(st.integers(0, SMALL_BYTES - 1), min_size=1, max_size=4), bit=st.integers(0, 7))
def test_any_flipped_bytes_are_noticed(small_file, tmp_path_factory, flips, bit):
    path = tmp_path_factory.mktemp("flip") / small_file.name
    raw = bytearray(small_file.read_bytes())
    for at in {flip % len(raw) for flip in flips}:
        raw[at] ^= 1 << bit
    path.write_bytes(raw)
    with pytest.raises(SnapshotCorrupt):
        snapshot.verify(path)
    with pytest.raises(SnapshotCorrupt):
        snapshot.load(path)


def test_flips_and_truncations_at_random_places_of_a_large_file_are_noticed(tmp_path):
    path = snapshot.save(tmp_path, large(1, 9_000_000)).path
    size, chance = path.stat().st_size, random.Random(11)
    with path.open("r+b") as file:
        for at in [size - 1, *(chance.randrange(size) for _ in range(40))]:
            file.seek(at)
            old = file.read(1)
            for new in (bytes([old[0] ^ 0x10]), old):
                file.seek(at)
                file.write(new)
                file.flush()
                if new != old:
                    with pytest.raises(SnapshotCorrupt):
                        snapshot.verify(path)
    snapshot.verify(path)
    os.truncate(path, size - 1)
    with pytest.raises(SnapshotCorrupt):
        snapshot.verify(path)


def test_the_second_save_keeps_the_first_as_previous(tmp_path):
    snapshot.save(tmp_path, small(1))
    snapshot.save(tmp_path, small(2))
    snapshot.save(tmp_path, small(3))
    latest = rotate.latest_of(tmp_path, STAGE)
    assert snapshot.load(latest).step == 3
    assert snapshot.load(rotate.previous_of(latest)).step == 2
    assert _names(tmp_path) == sorted([latest.name, rotate.previous_of(latest).name])


def test_the_name_decides_and_times_of_files_never_count(tmp_path):
    """Newest first by step, though the file times run the other way."""
    for step in (90, 200, 1000):
        snapshot.save(tmp_path, small(step))
    latest = rotate.latest_of(tmp_path, STAGE)
    os.utime(latest, (1, 1))
    said = []
    found = snapshot.load_newest(tmp_path, STAGE, say=said.append)
    assert found.snapshot.step == 1000 and found.path == latest
    assert "step 1000" in said[-1] and str(latest) in said[-1] and "newest that verifies" in said[-1]


def test_a_bad_latest_is_put_aside_with_one_line_and_previous_wins(tmp_path):
    for step in (1, 2):
        snapshot.save(tmp_path, small(step))
    latest = rotate.latest_of(tmp_path, STAGE)
    os.truncate(latest, 100)
    said = []
    assert snapshot.load_newest(tmp_path, STAGE, say=said.append).snapshot.step == 1
    assert latest.exists(), "a reader repairs nothing"
    said.clear()
    found = snapshot.load_newest(tmp_path, STAGE, say=said.append, repair=True)
    assert found.snapshot.step == 1 and not latest.exists()
    aside = next(tmp_path.glob("codec-training.safetensors.corrupt-*"))
    assert len(said) == 2 and aside.name in said[0] and "announce" in said[0] and "step 1" in said[1]


def test_a_latest_the_disk_can_not_read_any_more_is_put_aside(tmp_path, monkeypatch):
    for step in (1, 2):
        snapshot.save(tmp_path, small(step))
    latest = rotate.latest_of(tmp_path, STAGE)
    broken, real = latest.stat().st_ino, os.preadv

    def preadv(fd, buffers, place):
        if os.fstat(fd).st_ino == broken:
            raise OSError(5, "Input/output error")
        return real(fd, buffers, place)

    monkeypatch.setattr(os, "preadv", preadv)
    said = []
    assert snapshot.load_newest(tmp_path, STAGE, say=said.append, repair=True).snapshot.step == 1
    assert "Input/output error" in said[0] and not latest.exists()
    snapshot.save(tmp_path, small(3))
    assert snapshot.load_newest(tmp_path, STAGE).snapshot.step == 3


def test_a_missing_latest_is_normal(tmp_path):
    for step in (1, 2):
        snapshot.save(tmp_path, small(step))
    rotate.latest_of(tmp_path, STAGE).unlink()
    assert snapshot.load_newest(tmp_path, STAGE).snapshot.step == 1
    assert snapshot.load_newest(tmp_path, "generator") is None


def test_a_snapshot_under_the_name_of_another_stage_is_not_taken(tmp_path):
    path = snapshot.save(tmp_path, small(1)).path
    path.rename(rotate.latest_of(tmp_path, "generator"))
    assert snapshot.load_newest(tmp_path, "generator") is None


def test_rotation_never_promotes_what_it_did_not_prove(tmp_path):
    """The file under latest changed behind the writer's back: it is put aside, previous stays."""
    for step in (1, 2):
        snapshot.save(tmp_path, small(step))
    latest = rotate.latest_of(tmp_path, STAGE)
    raw = bytearray(latest.read_bytes())
    raw[-1] ^= 1
    latest.write_bytes(raw)
    snapshot.save(tmp_path, small(3))
    assert snapshot.load(latest).step == 3 and snapshot.load(rotate.previous_of(latest)).step == 1
    assert next(tmp_path.glob("*.corrupt-*")).read_bytes() == bytes(raw)


def test_a_whole_file_put_there_by_others_is_proven_and_then_kept(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    snapshot.save(other, small(5))
    snapshot.save(tmp_path, small(1))
    rotate.latest_of(other, STAGE).replace(rotate.latest_of(tmp_path, STAGE))
    snapshot.save(tmp_path, small(6))
    assert snapshot.load(rotate.previous_of(rotate.latest_of(tmp_path, STAGE))).step == 5


def test_where_links_are_refused_latest_is_renamed(tmp_path, monkeypatch):
    def no_link(*_):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_link)
    for step in (1, 2, 3):
        snapshot.save(tmp_path, small(step))
    latest = rotate.latest_of(tmp_path, STAGE)
    assert snapshot.load(latest).step == 3 and snapshot.load(rotate.previous_of(latest)).step == 2


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_state_that_is_not_finite_replaces_nothing_and_is_kept_as_evidence(value, tmp_path):
    snapshot.save(tmp_path, small(1))
    before = rotate.latest_of(tmp_path, STAGE).read_bytes()
    bad = small(2)
    weights = np.array(bad.tensors["model.weight"].data)
    weights[1, 2] = value
    bad.tensors["model.weight"] = tensor(weights)
    with pytest.raises(NonFinite, match=r"model\.weight") as wrong:
        snapshot.save(tmp_path, bad)
    assert rotate.latest_of(tmp_path, STAGE).read_bytes() == before
    assert wrong.value.evidence.name == "codec-training.nonfinite.safetensors"
    assert snapshot.load(wrong.value.evidence).step == 2
    with pytest.raises(SnapshotCorrupt, match=r"model\.weight holds"):
        snapshot.verify(wrong.value.evidence)


@pytest.mark.parametrize(
    ("dtype", "bits", "found"),
    [
        ("F16", np.array([0x7C00, 0xFC00, 0x7E00, 0x7BFF, 0x0001], np.uint16), (1, 2)),
        ("BF16", np.array([0x7F80, 0xFF80, 0x7FC0, 0x7F7F, 0x0001], np.uint16), (1, 2)),
        ("F32", np.array([0x7F800000, 0x7FC00000, 0x7F7FFFFF, 1], np.uint32), (1, 1)),
        ("F64", np.array([0x7FF0 << 48, 0x7FF8 << 48, 1], np.uint64), (1, 1)),
        ("C64", np.array([0, 0x7FC00000], np.uint32), (1, 0)),
        ("F8_E4M3", np.array([0x7F, 0xFF, 0x7E, 0x78], np.uint8), (2, 0)),
        ("F8_E5M2", np.array([0x7C, 0xFC, 0x7D, 0xFF, 0x7B], np.uint8), (2, 2)),
        ("F8_E4M3FNUZ", np.array([0x80, 0x7F, 0xFF], np.uint8), (1, 0)),
        ("F8_E8M0", np.array([0xFF, 0x7F], np.uint8), (1, 0)),
        ("I64", np.array([-1, 1 << 62], np.int64), (0, 0)),
        ("U8", np.array([255], np.uint8), (0, 0)),
        ("F32", np.array([], np.float32), (0, 0)),
    ],
)
def test_non_finite_values_are_counted_by_their_bits(dtype, bits, found):
    assert finite.count(dtype, bits.tobytes()) == found


def test_what_is_read_back_differently_is_no_snapshot(tmp_path, monkeypatch):
    """A disk that returns other bytes than it was given."""
    snapshot.save(tmp_path, small(1))
    real = trailing._write_all

    def spoiled(fd, block):
        real(fd, memoryview(bytes(block).replace(b"\x80", b"\x81")))

    monkeypatch.setattr(trailing, "_write_all", spoiled)
    with pytest.raises(SnapshotCorrupt, match="read back"):
        snapshot.save(tmp_path, small(2))
    assert _names(tmp_path) == ["codec-training.safetensors"]
    assert snapshot.load_newest(tmp_path, STAGE).snapshot.step == 1


class Disk:
    """Stands in for `snapshot.save` where a test needs to hold or break the background save."""

    def __init__(self, *failures):
        self.failures, self.go, self.begun, self.saved = list(failures), threading.Event(), threading.Event(), []

    def save(self, folder, content, say):
        self.begun.set()
        self.go.wait(10)
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure
        self.saved.append(content.step)
        return snapshot.Saved(folder, "", 0, 0.0)


def test_one_save_is_in_flight_and_nothing_is_dropped(tmp_path, monkeypatch):
    disk, said = Disk(), []
    monkeypatch.setattr(snapshot, "save", disk.save)
    with writer.Writer(tmp_path, say=said.append) as saver:
        saver.submit(small(1))
        assert disk.begun.wait(5)
        threading.Timer(0.1, disk.go.set).start()
        saver.submit(small(2))  # waits for the first
        assert disk.saved[0] == 1 and saver.waited_s > 0.05
        assert "waited" in said[0] and "step 2" in said[0]
        saver.flush()
    assert disk.saved == [1, 2]


def test_a_failed_save_is_loud_and_the_next_one_makes_it_good(tmp_path, monkeypatch):
    disk, said = Disk(OSError(28, "No space left on device", str(tmp_path / "x"))), []
    disk.go.set()
    monkeypatch.setattr(snapshot, "save", disk.save)
    with writer.Writer(tmp_path, say=said.append) as saver:
        saver.submit(small(1))
        saver.submit(small(2))
        saver.flush()
    assert disk.saved == [2] and "step 1 failed" in said[0] and "No space left on device" in said[0]


def test_failures_in_a_row_and_a_failed_last_save_end_the_writing(tmp_path, monkeypatch):
    disk = Disk(*[OSError(5, "Input/output error", "x")] * 4)
    disk.go.set()
    monkeypatch.setattr(snapshot, "save", disk.save)
    with writer.Writer(tmp_path, say=lambda _: None) as saver:
        saver.submit(small(1))
        with pytest.raises(writer.CannotSave):
            saver.flush()
        saver.submit(small(2))
        saver.submit(small(3))
        with pytest.raises(writer.CannotSave, match="3 saves in a row"):
            saver.submit(small(4))


def test_a_non_finite_state_surfaces_at_the_next_call(tmp_path):
    bad = small(2)
    bad.tensors["model.weight"] = tensor(np.full((3, 4), np.nan, np.float32))
    with writer.Writer(tmp_path) as saver:
        saver.submit(small(1))
        saver.submit(bad)
        with pytest.raises(NonFinite):
            saver.submit(small(3))


MEASURE = """
import resource, sys
import numpy as np
sys.path[:0] = [{tests!r}]
from snapshots import large, small
from remote_runner.checkpoint import snapshot
snapshot.save({folder!r}, small(1))  # everything is imported and warm
state = large(2, {size})
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
before = peak()
saved = snapshot.save({folder!r}, state)
mid = peak()
snapshot.verify(saved.path)
print(mid - before, peak() - mid)
"""


def test_saving_and_verifying_take_constant_memory(tmp_path):
    """By reference: the state is not copied, whatever its size; nor is a file read whole to be verified."""
    size = 64 << 20
    code = MEASURE.format(tests=str(Path(__file__).parent.parent), folder=str(tmp_path), size=size)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    saving, verifying = map(int, done.stdout.split())
    assert saving < 20 << 20 and verifying < 8 << 20


def test_weights_of_equal_content_are_equal_bytes(tmp_path):
    tensors = dict(small(1).tensors)
    snapshot.save_weights(tmp_path / "a.safetensors", tensors, {"stage": "codec"})
    snapshot.save_weights(tmp_path / "b.safetensors", dict(reversed(tensors.items())), {"stage": "codec"})
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    raw = bytearray((tmp_path / "a.safetensors").read_bytes())
    raw[-1] ^= 1
    (tmp_path / "a.safetensors").write_bytes(raw)
    with pytest.raises(SnapshotCorrupt, match="not those that were saved"):
        snapshot.read_tensors(tmp_path / "a.safetensors")


def test_a_buffer_that_does_not_fit_its_shape_is_refused(tmp_path):
    wrong = Snapshot({"w": snapshot.Tensor("F32", (3,), b"12345678")}, state(1), {})
    with pytest.raises(ValueError, match="8 bytes given"):
        snapshot.save(tmp_path, wrong)
    assert _names(tmp_path) == []


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
