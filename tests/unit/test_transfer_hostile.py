"""Whatever the pod answers is checked before anything is done with it."""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transfer_peers import NAME, OUTPUT, Peer

from remote_runner import transfer
from remote_runner.conversation import Conversation, Denied
from remote_runner.errors import RunnerError, Unverified
from remote_runner.pod import wire
from remote_runner.pod.bulk import STEP_BYTES
from remote_runner.program import LinkLost

GOOD_ROW = ["f", f"{OUTPUT}/a", 3, 1, 1, 1, 0o644, ""]


class Pretending(Conversation):
    """A peer in the place of the agent."""

    class _Pod:
        rtt_s = 0.0

    pod = _Pod()


def agent(answers: Callable[[dict[str, Any]], list[wire.Message]]) -> Any:
    return Pretending(Peer(answers), "hostile:22", "nonce")


def listed(*rows: Any) -> Any:
    page = wire.chunk(json.dumps(list(rows)).encode(), True)
    return transfer.listing(agent(lambda _: [page, ({"ok": True}, b"")]), [OUTPUT], [NAME])


def row(path: str, **changes: Any) -> list[Any]:
    found = [*GOOD_ROW]
    found[1] = path
    for at, value in changes.items():
        found[int(at[1:])] = value
    return found


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd", "../x", f"{OUTPUT}/../../x", f"{OUTPUT}//x", f"{OUTPUT}/.", f"{OUTPUT}/a\0b", "", "train.py",
        ".remote-run/lock", "artifacts/toy2/x", "artifacts/toy", "\udcff",
    ],
)  # fmt: skip
def test_a_path_that_leaves_the_runs_places_is_refused(path: str) -> None:
    if path == OUTPUT:
        with pytest.raises(Unverified):
            listed(row(path), row(f"{path}/below"))
    else:
        with pytest.raises(Unverified):
            listed(row(path))


@pytest.mark.parametrize(
    "bad",
    [
        row("x", _2=-1), row("x", _2="3"), row("x", _2=True), row("x", _2=1.5), row("x", _7=None), ["f"], [], "f", None,
        ["x", "y"], ["f", 1, 2, 3, 4, 5, 6, ""], {"f": 1}, row(f"{OUTPUT}/a")[:-1],
    ],
)  # fmt: skip
def test_a_row_of_another_shape_is_refused(bad: Any) -> None:
    with pytest.raises(Unverified):
        listed(bad)


def test_names_that_cannot_both_stand_are_refused() -> None:
    for rows in ([GOOD_ROW, GOOD_ROW], [GOOD_ROW, row(f"{OUTPUT}/a/b")], [["d", f"{OUTPUT}/a"], GOOD_ROW]):
        with pytest.raises(Unverified):
            listed(*rows)


def test_setuid_bits_do_not_travel() -> None:
    assert listed(row(f"{OUTPUT}/tool", _6=0o106755))[0][f"{OUTPUT}/tool"]["mode"] == 0o755


def test_links_and_devices_are_named_without_what_a_terminal_obeys() -> None:
    _, _, others = listed(["o", f"{OUTPUT}/\x1b]0;owned\x07link"])
    assert others
    assert "\x1b" not in others[0]


def test_an_error_from_the_pod_carries_no_escape_sequence() -> None:
    said = {"ok": False, "reason": "\x1b[2J", "detail": "\x1b[31mred " + "x" * 10_000}
    assert "\x1b" not in str(Denied(said)) + Denied(said).reason
    assert len(str(Denied(said))) <= 2000


def fetched(tmp_path: Path, answers: Callable[[dict[str, Any]], list[wire.Message]], size: int = 3) -> list[Any]:
    path = f"{OUTPUT}/a"
    return list(transfer.fetch(agent(answers), [path], tmp_path / "incoming", {path: size}))


def pack(content: bytes, *rows: Any) -> Callable[[dict[str, Any]], list[wire.Message]]:
    return lambda _: [wire.chunk(content, False), ({"ok": True, "rows": list(rows)}, b"")]


def facts(content: bytes, **changes: Any) -> list[Any]:
    found = {"code": 0, "size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "mode": 0o4755}
    found.update(mtime_ns=1, ctime_ns=1, ino=1, settled=True)
    found.update(changes)
    return list(found.values())


def test_an_honest_pack_arrives_without_setuid(tmp_path: Path) -> None:
    (one,) = fetched(tmp_path, pack(b"abc", facts(b"abc")))
    assert (one.temp.read_bytes(), one.mode) == (b"abc", 0o755)
    assert one.temp.stat().st_mode & 0o7000 == 0


@pytest.mark.parametrize(
    "answers",
    [
        pack(b"abd", facts(b"abc")),
        pack(b"abcd", facts(b"abc")),
        pack(b"ab", facts(b"abc")),
        pack(b"abc"),
        pack(b"abc", facts(b"abc"), facts(b"")),
        pack(b"abc", facts(b"abc", size=-3)),
        pack(b"abc", facts(b"abc", size="3")),
        pack(b"abc", facts(b"abc", mtime_ns=None)),
        pack(b"abc", [0]),
        pack(b"abc", ["0"]),
        pack(b"abc", {}),
        lambda _: [({"data": True, "z": 1 << 40}, b"x"), ({"ok": True, "rows": []}, b"")],
        lambda _: [({"ok": True}, b"")],
    ],
)
def test_a_dishonest_pack_is_refused_and_nothing_arrives(tmp_path: Path, answers: Any) -> None:
    with pytest.raises(RunnerError):
        fetched(tmp_path, answers)


def test_a_pod_that_sends_without_end_is_stopped(tmp_path: Path) -> None:
    def endless(_: dict[str, Any]) -> list[wire.Message]:
        return [wire.chunk(bytes(1 << 20), False)] * 100

    with pytest.raises(Unverified, match="more than could be"):
        fetched(tmp_path, endless)


def ranged(offered: int, content: bytes, claimed: bytes) -> Callable[[dict[str, Any]], list[wire.Message]]:
    def answers(ask: dict[str, Any]) -> list[wire.Message]:
        known = {"size": offered, "mtime_ns": 1, "ctime_ns": 1, "ino": 1, "mode": 0o644}
        if ask["op"] == "versions":
            return [({"ok": True, "versions": [known]}, b"")]
        if ask["op"] == "prefix":
            ends = [*range(STEP_BYTES, ask["upto"], STEP_BYTES), ask["upto"]]
            marks = [[end, hashlib.sha256(claimed[:end]).hexdigest()] for end in ends if end > ask["begin"]]
            return [({"ok": True, "marks": marks}, b"")]
        begin, end = ask["offset"], ask["offset"] + ask["length"]
        return [wire.chunk(content[begin:end], False), ({"ok": True, "settled": True, **known}, b"")]

    return answers


LARGE = bytes(range(256)) * (20 << 10)  # 5 MiB: in ranges, over the agent's own connection


def test_a_large_file_arrives_in_ranges(tmp_path: Path) -> None:
    (one,) = fetched(tmp_path, ranged(len(LARGE), LARGE, LARGE), len(LARGE))
    assert one.sha256 == hashlib.sha256(LARGE).hexdigest()
    assert one.temp.read_bytes() == LARGE


@settings(deadline=None, max_examples=30)
@given(st.integers(0, len(LARGE) - 1))
def test_any_flipped_byte_is_noticed(tmp_path_factory: pytest.TempPathFactory, at: int) -> None:
    flipped = LARGE[:at] + bytes([LARGE[at] ^ 0x20]) + LARGE[at + 1 :]
    folder = tmp_path_factory.mktemp("flip")
    with pytest.raises((Unverified, LinkLost)):
        fetched(folder, ranged(len(LARGE), flipped, LARGE), len(LARGE))
    assert not list(folder.rglob("a"))


def test_a_file_grown_beyond_reason_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unverified, match="at most"):
        fetched(tmp_path, ranged(1 << 40, LARGE, LARGE), len(LARGE))


def test_a_file_that_is_gone_is_passed_over_and_one_that_cant_be_read_is_not(tmp_path: Path) -> None:
    assert fetched(tmp_path, lambda _: [({"ok": True, "rows": [[errno.ENOENT]]}, b"")]) == []
    with pytest.raises(Denied):
        fetched(tmp_path, lambda _: [({"ok": True, "rows": [[errno.EACCES]]}, b"")])
