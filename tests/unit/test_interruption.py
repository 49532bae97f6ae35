"""The record of an interruption: what was lost and repeated, how it went on, each segment's own training time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from remote_runner import interruption
from remote_runner import report as reports
from remote_runner.report import Report

SAVED: dict[str, Any] = {"stage": "generator", "step": 100, "root": "r" * 64}


@pytest.mark.parametrize(
    ("all_saved", "progress", "durable", "lost", "at_least"),
    [
        (True, {"stage": "generator", "step": 130}, [SAVED], 0, 0),  # a pause saves all
        (True, {}, [], 0, 0),
        (False, {"stage": "generator", "step": 130}, [SAVED], None, 30),
        (False, {"stage": "generator", "step": 100}, [SAVED], None, 0),
        (False, {"stage": "codec", "step": 7}, [SAVED], None, 7),  # nothing of that stage was saved
        (False, {}, [SAVED], None, 0),  # nobody saw a step
        (False, {"stage": "", "step": 110}, [{**SAVED, "rule": "by its name"}], None, 10),
    ],
)
def test_what_was_lost(
    all_saved: bool, progress: dict[str, Any], durable: list[dict[str, Any]], lost: int | None, at_least: int
) -> None:
    assert interruption.lost(all_saved, progress, durable) == (lost, at_least)


def rows(path: Path, *given: tuple[int, str, int, float | None]) -> None:
    with path.open("w") as f:
        for segment, stage, step, training_s in given:
            row = {"t": 1000.0 + step, "stage": stage, "step": step, "segment": segment, "training_s": training_s}
            f.write(json.dumps({k: v for k, v in row.items() if v is not None}) + "\n")


def test_each_segment_has_its_own_training_time(tmp_path: Path) -> None:
    """The trainer counts over all segments; what was lost and done again counts where it was done."""
    (tmp_path / "artifacts/x").mkdir(parents=True)
    rows(
        tmp_path / "artifacts/x/metrics.jsonl",
        (1, "codec", 10, 5.0), (1, "codec", 20, 9.0), (1, "generator", 10, 30.0), (1, "generator", 20, 61.0),
        (2, "generator", 20, 64.0), (2, "generator", 30, 94.0),  # went on from generator step 10
    )  # fmt: skip
    report = Report("x", "a2", "here", cause="done", resumed_from="here: generator step 10")
    reports.add_local_facts(report, tmp_path, ["artifacts/x"])
    assert [s["training_s"] for s in report.segments] == [70.0, 64.0]
    assert reports.repeated_steps(report.segments) == 1
    found = interruption.record(report)
    assert found is not None
    assert found["segments"][1] == {"segment": 2, "training_s": 64.0, "steps": {"generator": (20, 30)}}


def test_what_nobody_knows_is_said_to_be_unknown(tmp_path: Path) -> None:
    (tmp_path / "artifacts/x").mkdir(parents=True)
    rows(tmp_path / "artifacts/x/metrics.jsonl", (1, "toy", 5, None))
    report = Report("x", "a1", "here", cause="killed", evidence="signal 9")
    reports.add_local_facts(report, tmp_path, ["artifacts/x"])
    interruption.take_status(report, {"progress": {"stage": "toy", "step": 9}})
    interruption.conclude(report, can_resume=True)
    found = report.interruption
    assert found is not None
    assert (found["steps_lost"], found["steps_lost_at_least"], found["steps_repeated"]) == ("unknown", 9, "unknown")
    assert (found["gpu_contention"], found["hardware"]) == ("not measured", "unknown")
    assert found["segments"][0]["training_s"] == "unknown"
    assert found["recovery_mode"] == "none: it began at step 0"
    assert report.summary().splitlines()[-1].strip().startswith("NOT resumable: it saved no whole snapshot")


@pytest.mark.parametrize(
    ("source", "head", "mode"),
    [
        ("", {}, "none"),
        ("pod: x", {}, "full state"),
        ("pod: x", {"rule": "by its name"}, "the trainer's own"),
        ("", {"lineage": {"start_step": 30000}}, "weights only"),
    ],
)
def test_how_it_went_on(source: str, head: dict[str, Any], mode: str) -> None:
    report = Report("x", "a1", "here", cause="done", resumed_from=source, last_durable=[{**SAVED, **head}])
    assert interruption.recovery_mode(report).startswith(mode)


def test_a_run_of_one_life_has_no_record() -> None:
    assert interruption.record(Report("x", "a1", "here", cause="done")) is None
    assert interruption.record(Report("x", "a1", "here", cause="done", restarts=1)) is not None


def test_what_can_be_resumed_is_the_last_word() -> None:
    report = Report("x", "a1", "here", cause="deadline", last_durable=[SAVED])
    interruption.conclude(report, can_resume=True)
    assert report.summary().splitlines()[-1] == "  resumable: --resume goes on from generator step 100"
    interruption.conclude(report, can_resume=False)
    assert "NOT resumable as the settings stand" in report.summary().splitlines()[-1]
    for cause in ("done", "unknown"):  # over, or nobody knows: the pod fell silent
        report.cause = cause
        interruption.conclude(report, can_resume=True)
        assert "resumable" not in report.summary()
    assert report.interruption is None


def test_what_did_not_come_home_is_not_called_lost() -> None:
    report = Report("x", "a1", "here", cause="paused", problems=[{"exit_code": 7, "message": "disk full"}])
    interruption.conclude(report, can_resume=True)
    assert "bring it home first" in report.summary().splitlines()[-1]


def test_the_logs_tail_is_the_last_segments(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    start = "[remote-run] 2026-01-02T03:04:05+00:00 segment {}: python train.py\n"
    text = start.format(1) + "old\n" * 5 + start.format(2) + "new\n" + start.format(2).replace("train", "evaluate")
    (tmp_path / "runs/x-train.log").write_text(text)
    report = Report("x", "a1", "here", cause="failed")
    reports.add_local_facts(report, tmp_path, ["artifacts/x"])
    assert report.log_tail[0] == start.format(2).strip()
    assert report.log_tail[1] == "new"
    assert len(report.log_tail) == 3
