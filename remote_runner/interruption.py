"""The record of an interruption: what ended a life of a run, what was durable, how it went on, what that cost.

Kept in the report of each attempt that was interrupted or that went on from an earlier one, and as a line of
`runs/<name>-controller.jsonl`, which outlives the report. What nobody knows is said to be unknown.

Not here: what the files that came home tell (report.py), who uses the GPU (pod/contention.py).
"""

from __future__ import annotations

from typing import Any

from remote_runner.checkpoint.contract import PAUSED
from remote_runner.report import Report

UNKNOWN, NOT_MEASURED = "unknown", "not measured"
STILL_OPEN = "unknown"  # the cause of a run whose pod fell silent


def take_status(report: Report, status: dict[str, Any]) -> None:
    """What the supervisor said at the end, beside the end itself; the local facts come first."""
    report.restarts = int(status.get("restarts") or 0)
    seen = status.get("gpu_contention")
    report.gpu_contention = seen if isinstance(seen, dict) else {}
    row = status.get("progress")
    all_saved = report.cause == "done" or report.workload_code == PAUSED  # the contract says so
    report.steps_lost, report.steps_lost_at_least = lost(
        all_saved, row if isinstance(row, dict) else {}, report.last_durable
    )


def conclude(report: Report, can_resume: bool) -> None:
    """The exit code, whether and from where the run can go on, and the record of its interruption.

    Args:
        can_resume: whether the settings say how the command goes on from a snapshot.
    """
    report.settle()
    report.resumable = "" if report.cause in ("done", STILL_OPEN) else _resumable(report, can_resume)
    report.interruption = record(report)


def _resumable(report: Report, can_resume: bool) -> str:
    if not report.last_durable and any(p["exit_code"] in (6, 7) for p in report.problems):
        return "nothing that is home can be resumed; the pod may have more: bring it home first"
    if not report.last_durable:
        return "NOT resumable: it saved no whole snapshot; begin it anew: --fresh"
    if not can_resume:
        return "NOT resumable as the settings stand: they don't say how its command goes on (resume_args)"
    newest = report.last_durable[-1]
    return f"resumable: --resume goes on from {newest['stage']} step {newest['step']}"


def record(report: Report) -> dict[str, Any] | None:
    """The record; None for an attempt that began at step 0 and ran to its end in one life, or may go on still."""
    if report.cause == STILL_OPEN:
        return None
    if report.cause == "done" and not report.resumed_from and not report.restarts:
        return None
    return {
        "attempt": report.attempt,
        "cause": report.cause,
        "evidence": report.evidence,
        "last_durable": report.last_durable,
        "recovery_mode": recovery_mode(report),
        "recovered_from": report.resumed_from or None,
        "source_sha256": report.source_sha256 or None,
        "restarts_by_the_supervisor": report.restarts,
        "steps_lost": _known(report.steps_lost),
        "steps_lost_at_least": report.steps_lost_at_least,
        "steps_repeated": _known(report.steps_repeated),
        "segments": [
            {"segment": s["segment"], "training_s": _known(s.get("training_s")), "steps": s["steps"]}
            for s in report.segments
        ],
        "wall_s": report.wall_s,
        "hardware": report.hardware or UNKNOWN,
        "gpu_contention": report.gpu_contention or NOT_MEASURED,
    }


def _known(value: Any) -> Any:
    return UNKNOWN if value is None else value


def recovery_mode(report: Report) -> str:
    """How this attempt began: anew, exactly where another ended, or with less than the whole state."""
    heads = report.last_durable
    if any(one.get("lineage") for one in heads):
        return "weights only: optimizer and randomness began anew (lineage)"
    if not report.resumed_from:
        return "none: it began at step 0"
    if any(one.get("rule") for one in heads):
        return "the trainer's own snapshot: how exactly it goes on is the trainer's"
    return "full state"


def lost(all_saved: bool, progress: dict[str, Any], durable: list[dict[str, Any]]) -> tuple[int | None, int]:
    """Steps that were done and are not in a snapshot: how many, None where unknown, and how many at least.

    Args:
        progress: the last row of progress that was seen. durable: the last snapshots that are home.
    """
    if all_saved:
        return 0, 0
    step, stage = progress.get("step"), progress.get("stage")
    if not isinstance(step, int):
        return None, 0
    saved = [int(d["step"]) for d in durable if not stage or d["stage"] == stage or d.get("rule")]
    return None, max(0, step - max(saved, default=0))
