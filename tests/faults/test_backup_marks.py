"""A prune or a writer that is killed in the middle holds nobody up for long, and nobody is harmed by the sleeping."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from remote_runner import retention
from remote_runner.stores import open_store
from remote_runner.vault import Place

KILLED = """
import os, sys
from pathlib import Path
from remote_runner import retention
from remote_runner.stores import open_store
from remote_runner.vault import Place
place = Place(store=open_store(sys.argv[1], Path("/")), project="project", name="run", keep=1)
mark = retention.Mark(place, sys.argv[2])
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(store=open_store("kept", tmp_path), project="project", name="run", keep=1)


def kill_one(tmp_path: Path, kind: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "kept", kind], check=False)
    assert done.returncode == -9


def age(tmp_path: Path, kind: str, by_s: float) -> None:
    """Make a mark old by the store's clock: what a minute of waiting would do."""
    for path in (tmp_path / "kept/project/run" / kind).iterdir():
        then = time.time() - by_s
        os.utime(path, (then, then))


def test_a_killed_prune_is_waited_for_no_longer_than_it_can_be_alive(place: Place, tmp_path: Path) -> None:
    kill_one(tmp_path, "pruning")
    age(tmp_path, "pruning", retention.DEAD_AFTER_S - 3)
    began = time.monotonic()
    with retention.writing(place):
        waited_s = time.monotonic() - began
    assert 1 < waited_s < 15
    assert place.store.list("project/run/pruning/") == []


def test_a_killed_writer_keeps_a_prune_away_for_a_minute_alone(place: Place, tmp_path: Path) -> None:
    kill_one(tmp_path, "writing")
    assert retention.prune(place) is None
    age(tmp_path, "writing", retention.DEAD_AFTER_S + 3)
    assert retention.prune(place) == ([], 0)


def test_a_mark_is_put_anew_while_its_owner_is_busy(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A blob may take many minutes: the thread of the mark says all the while that its owner lives."""
    monkeypatch.setattr(retention, "BEAT_S", 0.1)
    mark = retention.Mark(place, "writing")
    try:
        age(tmp_path, "writing", 1000)
        give_up = time.monotonic() + 10
        while time.time() - place.store.list("project/run/writing/")[0].modified_unix_s > 100:
            assert time.monotonic() < give_up, "no beat came"
            time.sleep(0.05)
        assert retention.prune(place) is None
    finally:
        mark.close()
