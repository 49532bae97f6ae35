"""Fetched files get their names, in their folders and nowhere else."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from remote_runner import transfer
from remote_runner.errors import Unverified
from remote_runner.pod import digests


def opened() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())


def fetched(folder: Path, path: str, content: bytes = b"bytes", mtime_ns: int = 10**18) -> transfer.Fetched:
    folder.mkdir(exist_ok=True)
    temp = folder / f"{path.replace('/', '_')}.whole"
    temp.write_bytes(content)
    transfer.dress(temp, 0o640, mtime_ns)
    return transfer.Fetched(path=path, temp=temp, size=len(content), sha256="0" * 64, mode=0o640, mtime_ns=mtime_ns)


def test_a_file_keeps_its_mode_and_time_and_its_digest_is_remembered(tmp_path: Path) -> None:
    root, known = tmp_path / "root", digests.Digests(str(tmp_path / "root"))
    (root / ".remote-run").mkdir(parents=True)
    with transfer.Placing(root, known) as placing:
        placing.place(fetched(tmp_path / "in", "artifacts/x/a"))
    info = (root / "artifacts/x/a").stat()
    assert (info.st_mode & 0o777, info.st_mtime_ns) == (0o640, 10**18)
    later_ns = time.time_ns() + 3 * 10**9  # of what changed in the last two seconds nothing is believed
    assert digests.Digests(str(root)).recall("artifacts/x/a", digests.stamp_of(info), later_ns) == "0" * 64


def test_one_that_was_written_to_meanwhile_is_not_remembered(tmp_path: Path) -> None:
    root, known = tmp_path / "root", digests.Digests(str(tmp_path / "root"))
    one = fetched(tmp_path / "in", "a")
    os.utime(one.temp, ns=(1, 1))
    root.mkdir()
    with transfer.Placing(root, known) as placing:
        placing.place(one)
    stamp = digests.stamp_of((root / "a").stat())
    assert known.recall("a", stamp, time.time_ns() + 3 * 10**9) is None


@pytest.mark.parametrize("what", ["link", "file"])
def test_nothing_is_written_through_what_stands_where_a_folder_should(tmp_path: Path, what: str) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    if what == "link":
        (root / "artifacts").symlink_to(outside)
    else:
        (root / "artifacts").write_text("a file")
    with transfer.Placing(root) as placing:
        placing.place(fetched(tmp_path / "in", "before"))
        with pytest.raises(Unverified, match="where a folder should"):
            placing.place(fetched(tmp_path / "in", "artifacts/x"))
    assert not list(outside.iterdir())
    assert (root / "before").exists()


def test_a_folder_where_the_pod_has_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "root/clash").mkdir(parents=True)
    with transfer.Placing(tmp_path / "root") as placing, pytest.raises(Unverified, match="root/clash: a folder stands"):
        placing.place(fetched(tmp_path / "in", "clash"))


def test_what_ended_the_work_is_not_hidden_and_digests_are_kept(tmp_path: Path) -> None:
    root, known = tmp_path / "root", digests.Digests(str(tmp_path / "root"))
    (root / ".remote-run").mkdir(parents=True)
    with pytest.raises(KeyboardInterrupt), transfer.Placing(root, known) as placing:
        for number in range(70):  # the first folder is no longer held open
            placing.place(fetched(tmp_path / "in", f"{number}/a"))
        shutil.rmtree(root / "0")
        (root / "0").write_text("a file")
        raise KeyboardInterrupt
    assert list(digests.Digests(str(root)).holders("0" * 64))


def test_more_folders_than_are_held_open(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    before = opened()
    with transfer.Placing(root) as placing:
        for turn in range(2):
            for number in range(200):
                placing.place(fetched(tmp_path / "in", f"artifacts/{number}/file{turn}"))
        assert opened() < before + 100
    assert opened() == before
    assert sum(1 for p in root.rglob("file*")) == 400
