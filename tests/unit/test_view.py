"""What is told of a set-up: steps at once, its last line now and then, nothing for each line."""

from __future__ import annotations

import pytest

from remote_runner import view


def test_steps_are_told_as_they_begin_and_talk_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(view.time, "monotonic", lambda: now[0])
    said: list[str] = []
    setup = view.SetUp(said.append)
    setup.log("[remote-run] 2026-01-01T00:00:00 segment 1: python x.pyz prepare\n[remote-run] set-up: old\n", 2)
    setup.log("[remote-run] 2026-01-01T00:00:00 segment 2: python x.pyz prepare\n[remote-run] set-up: the work", 2)
    setup.log("load's Python\nCollecting numpy\nDownloading 1\rDownloading 2\rDown", 2)
    assert said == ["set-up: the workload's Python"]
    now[0] += view.SETUP_LINE_EVERY_S
    setup.beat()
    assert said[1:] == ["set-up, 0:05 so far: Downloading 2"]
    setup.beat()
    setup.log("loading 3\n", 2)
    assert len(said) == 2
    now[0] += view.SETUP_LINE_EVERY_S
    setup.log("[remote-run] set-up: $ pip install " + "x" * 300 + "\n", 2)
    assert len(said[2]) == 160
    assert said[2].startswith("set-up: $ pip install x")
    now[0] += view.SETUP_LINE_EVERY_S
    setup.beat()
    assert said[3].startswith("set-up, 0:15 so far: $ pip install x")  # silent: then what it is at
