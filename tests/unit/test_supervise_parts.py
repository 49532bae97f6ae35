"""The supervisor's judgements: what an end means, when a disk is about to fill; and the Python it must run on."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import remote_runner
from remote_runner.pod import health, workload
from remote_runner.pod.health import OomKills, Room

PACKAGE = Path(remote_runner.__file__).parent
GB, MB = 10**9, 10**6


@pytest.mark.parametrize("path", [*sorted((PACKAGE / "pod").glob("*.py")), PACKAGE / "checkpoint/header.py"], ids=str)
def test_what_runs_on_the_pod_is_python_3_8(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 8))


KILL = {"cause": "deadline", "evidence": "killed by us: late"}


@pytest.mark.parametrize(
    ("code", "killed", "pause", "oom", "cause"),
    [
        (0, {}, "", "", "done"),
        (0, KILL, "deadline", "", "done"),  # it was faster than the kill
        (75, KILL, "deadline", "", "deadline"),
        (75, {}, "paused", "", "paused"),
        (75, {}, "", "", "preempted"),
        (-9, KILL, "deadline", "", "deadline"),
        (-9, {}, "paused", "", "paused"),
        (-9, {}, "", "oom_kill 0 -> 1", "out-of-memory"),
        (137, {}, "", "oom_kill 0 -> 1", "out-of-memory"),
        (137, {}, "", "", "failed"),
        (-9, {}, "", "", "killed"),
        (-40, {}, "", "", "killed"),  # a real-time signal, which has no name
        (-15, {}, "", "oom_kill 0 -> 1", "killed"),
        (1, {}, "", "", "failed"),
        (65, {}, "paused", "", "non-finite"),
        (74, {}, "", "", "cannot-save"),
        (78, {}, "", "", "refused"),
    ],
)
def test_what_an_end_means(code: int, killed: dict[str, str], pause: str, oom: str, cause: str) -> None:
    found = workload.verdict(code, killed=killed, pause_cause=pause, oom=oom)
    assert found["cause"] == cause
    assert (found["code"], found["signal"]) == ((code, None) if code >= 0 else (None, -code))


@pytest.mark.parametrize(
    ("free", "largest", "verdict"),
    [
        (10 * GB, 1 * GB, ""),
        (2.4 * GB, 1 * GB, "warn"),
        (1.3 * GB, 1 * GB, "warn"),  # one more save fits
        (1.2 * GB, 1 * GB, "pause"),
        (100 * MB, 0, ""),
        (20 * MB, 0, "warn"),
        (5 * MB, 0, "pause"),
    ],
)
def test_when_a_disk_is_about_to_fill(free: float, largest: int, verdict: str) -> None:
    assert Room(int(free), largest).verdict == verdict


@pytest.mark.parametrize(
    "text",
    ["low 0\nhigh 0\nmax 12\noom 1\noom_kill 3\noom_group_kill 0\n", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"],
    ids=["v2 memory.events", "v1 memory.oom_control"],
)
def test_the_kernels_count_is_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "count"
    path.write_text(text)
    assert health.oom_kills(str(path)) == OomKills(str(path), 3)
    assert health.oom_evidence(OomKills(str(path), 3)) == ""
    assert "oom_kill 2 -> 3" in health.oom_evidence(OomKills(str(path), 2))
    assert health.oom_evidence(None) == ""
