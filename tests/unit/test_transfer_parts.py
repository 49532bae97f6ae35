"""The small rules of the transfer: ranges, journals, digests that are remembered, the ssh command line."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_runner import openssh
from remote_runner.hostkeys import Policy
from remote_runner.pod import digests, files, parts, wire
from remote_runner.ssh import Endpoint
from remote_runner.transfer import engine, part_file
from remote_runner.transfer.channels import streams_for

SIZE = 1000


@given(st.lists(st.tuples(st.integers(-5, 1100), st.integers(-5, 400))))
def test_gaps_and_proven_ranges_are_the_whole_file(ranges: list[tuple[int, int]]) -> None:
    text = "".join(json.dumps([offset, length]) + "\n" for offset, length in ranges)
    rows = parts.rows(text, SIZE)
    covered = bytearray(SIZE)
    for offset, length in rows:
        assert not any(covered[offset : offset + length])
        covered[offset : offset + length] = b"x" * length
    for begin, end in part_file.gaps(rows, SIZE):
        assert begin < end
        assert not any(covered[begin:end])
        covered[begin:end] = b"x" * (end - begin)
    assert all(covered)
    assert len(covered) == SIZE


@pytest.mark.parametrize(
    "torn", ["[0, 10", '[0, 10, "aa"]', "[0]", "null", '{"a": 1}', "[0, 1001]", '[0, "x"]', "\x00"]
)
def test_a_torn_line_of_a_journal_is_no_range(torn: str) -> None:
    assert parts.rows(f"[10, 20]\n{torn}", SIZE) == [[10, 20]]


@given(st.integers(0, 1 << 40), st.integers(1, 8))
def test_a_range_is_never_empty_nor_larger_than_the_largest(left: int, streams: int) -> None:
    assert engine.LEAST_RANGE_BYTES <= engine.range_bytes(left, streams) <= engine.RANGE_BYTES


def test_streams_follow_the_round_trip_time() -> None:
    assert [streams_for(rtt_s) for rtt_s in (0.0003, 0.04, 0.08, 0.12)] == [2, 4, 4, 8]


@given(st.binary(max_size=5000), st.booleans())
def test_a_piece_comes_out_as_it_went_in(data: bytes, squeeze: bool) -> None:
    assert wire.unpack(wire.chunk(data, squeeze)) == data


def test_text_shrinks_and_noise_is_left_alone() -> None:
    text, noise = b"step 100 loss 0.25\n" * 1000, os.urandom(20_000)
    assert len(wire.chunk(text, True)[1]) < len(text) / 5
    assert wire.chunk(noise, True) == ({"data": True}, noise)


@pytest.mark.parametrize("says", [10, 0, -1, 1 << 40, "x", True])
def test_a_compressed_piece_that_unpacks_to_more_is_refused(says: object) -> None:
    _, bomb = wire.chunk(bytes(4 << 20), True)
    with pytest.raises(wire.WireError):
        wire.unpack(({"data": True, "z": says}, bomb))


def test_an_answer_beyond_the_limit_is_refused_before_it_is_held() -> None:
    decoder = wire.Decoder(wire.MAX_ANSWER_BYTES)
    decoder.feed((wire.MAX_ANSWER_BYTES + 1).to_bytes(4, "big") + bytes(4))
    with pytest.raises(wire.WireError):
        decoder.next()


def test_a_nested_answer_is_refused() -> None:
    text = b"[" * 200_000
    decoder = wire.Decoder(wire.MAX_ANSWER_BYTES)
    decoder.feed(len(text).to_bytes(4, "big") + bytes(4) + text)
    with pytest.raises(wire.WireError):
        decoder.next()


def old_file(root: Path, name: str = "a", content: bytes = b"content") -> Path:
    """A file that changed long ago, as far as its mtime tells."""
    path = root / name
    path.write_bytes(content)
    hour_ago = time.time() - 3600
    os.utime(path, (hour_ago, hour_ago))
    return path


def remembered(root: Path, path: Path) -> digests.Digests:
    known = digests.Digests(str(root))
    stamp = digests.stamp_of(path.stat())
    known.put(path.name, stamp, hashlib.sha256(path.read_bytes()).hexdigest(), time.time_ns(), ours=True)
    return known


def test_a_file_changed_in_the_last_two_seconds_is_read_whatever_is_remembered(tmp_path: Path) -> None:
    path = old_file(tmp_path)
    known = remembered(tmp_path, path)
    assert known.get("a", path.stat()) is None  # its ctime is now


def test_a_remembered_digest_goes_with_any_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = old_file(tmp_path)
    known = remembered(tmp_path, path)
    now_ns = time.time_ns()
    monkeypatch.setattr(digests.time, "time_ns", lambda: now_ns + 10_000_000_000)
    assert known.get("a", path.stat()) == hashlib.sha256(b"content").hexdigest()
    path.write_bytes(b"CONTENT")
    assert known.get("a", path.stat()) is None
    assert known.of("a") == hashlib.sha256(b"CONTENT").hexdigest()


def test_a_file_replaced_under_the_same_times_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = old_file(tmp_path)
    known = remembered(tmp_path, path)
    times = path.stat()
    (tmp_path / "b").write_bytes(b"CONTENT")
    os.utime(tmp_path / "b", ns=(times.st_atime_ns, times.st_mtime_ns))
    (tmp_path / "b").replace(path)
    now_ns = time.time_ns()
    monkeypatch.setattr(digests.time, "time_ns", lambda: now_ns + 10_000_000_000)
    assert known.of("a") == hashlib.sha256(b"CONTENT").hexdigest()


def test_the_memory_survives_and_a_torn_one_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".remote-run").mkdir()
    path = old_file(tmp_path)
    remembered(tmp_path, path).save()
    now_ns = time.time_ns()
    monkeypatch.setattr(digests.time, "time_ns", lambda: now_ns + 10_000_000_000)
    assert digests.Digests(str(tmp_path)).get("a", path.stat())
    memory = tmp_path / ".remote-run" / "digests.json"
    memory.write_bytes(memory.read_bytes()[:-9])
    assert digests.Digests(str(tmp_path)).get("a", path.stat()) is None


def test_a_link_stands_for_a_rotated_file_in_one_step(tmp_path: Path) -> None:
    (tmp_path / "latest").write_bytes(b"new")
    (tmp_path / "previous").write_bytes(b"old")
    files.link(str(tmp_path), "latest", "previous")
    files.link(str(tmp_path), "latest", "previous")  # both are one file now
    assert (tmp_path / "previous").read_bytes() == b"new"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "previous"]


def test_a_file_of_ours_is_never_opened_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "door").symlink_to(tmp_path / "outside")
    for path in ("door/x", "door"):
        with pytest.raises(OSError):
            files.open_write(str(tmp_path / "root"), path)
    assert not list((tmp_path / "outside").iterdir())


def test_a_data_connection_goes_to_the_proven_machine_and_asks_nothing(tmp_path: Path) -> None:
    where = Endpoint(
        host="1.2.3.4", port=22022, user="root", policy=Policy(own_file=tmp_path / "k"), alias="gpu",
        identities=[Path("/keys/id")], identities_only=True, jump="bastion",
    )  # fmt: skip
    openssh.prepare(tmp_path, ["ssh-ed25519 AAAA"])
    words, known = openssh.argv(where, tmp_path, "exec python3"), tmp_path / "known_hosts"
    assert words[-3:] == ["--", "gpu", "exec python3"]
    assert known.read_text() == "remote-run-pod ssh-ed25519 AAAA\n"
    for option in (
        "HostName=1.2.3.4", "HostKeyAlias=remote-run-pod", f'UserKnownHostsFile="{known}"', "StrictHostKeyChecking=yes",
        "GlobalKnownHostsFile=/dev/null", "BatchMode=yes", "ControlPath=none", "ProxyJump=bastion",
        "IdentitiesOnly=yes",
    ):  # fmt: skip
        assert words[words.index(option) - 1] == "-o"
    assert words[words.index("/keys/id") - 1] == "-i"
