"""What would be lost, as a number: from manifests and a status alone."""

from __future__ import annotations

from typing import Any

from remote_runner import risk


def manifest(step: int, unix_s: float, stage: str = "generator", took_s: float = 4.0) -> dict[str, Any]:
    newest = {"stage": stage, "stage_index": 1, "step": step, "root": f"root-{step}"}
    return {"id": f"id-{step}-{unix_s:.0f}", "unix_s": unix_s, "newest": newest, "took_s": took_s}


def status(step: int, stage: str = "generator", save_s: float = 0.0, **more: float) -> dict[str, Any]:
    return {"status": {"progress": {"stage": stage, "step": step, "save_s": save_s}, **more}, "now_unix_s": 7000.0}


def test_time_and_steps_since_the_last_copy_and_the_bound() -> None:
    both = [manifest(100, 1000.0), manifest(200, 1900.0, took_s=9.0)]
    found = risk.measure(both, status(260, save_s=2.0), 900.0, 30.0, 2000.0)
    assert (found.step, found.steps, found.since_s) == (200, 60, 100.0)
    assert found.bound_s == 900.0 + 30.0 + 2.0 + (1.5 * 9.0 + 1.0)
    assert "60 steps" in found.lines()[0]
    assert "15:46 = 15:00 between copies + 0:30 between snapshots + 0:02 to save one" in found.lines()[1]
    assert not found.overdue


def test_a_copy_longer_than_the_interval_makes_the_next_one_wait_for_the_interval_after() -> None:
    found = risk.measure([manifest(200, 1900.0, took_s=5.0)], status(260), 4.0, 1.0, 1901.0)
    assert (found.between_s, found.transfer_s) == (12.0, 8.5)


def test_a_copy_that_did_not_come_when_it_was_due_is_said() -> None:
    found = risk.measure([manifest(200, 1000.0)], status(260), 60.0, 1.0, 2000.0)
    assert found.overdue
    assert "remote-run attach" in found.lines()[-1]


def test_the_time_when_no_pod_was_there_is_not_counted() -> None:
    """The pod's age by its own clock: that of this machine may be another."""
    found = risk.measure([manifest(200, 1000.0)], status(200, started_unix_s=6990.0), 60.0, 1.0, 90_000.0)
    assert found.since_s == 10.0


def test_a_run_that_did_not_move_is_as_safe_as_the_last_look() -> None:
    found = risk.measure([manifest(200, 1900.0), manifest(200, 1990.0)], status(200), 60.0, None, 2000.0)
    assert (found.since_s, found.steps, found.bound_s) == (10.0, 0, None)


def test_without_a_backup_everything_is_at_risk() -> None:
    found = risk.measure([], status(50), 60.0, 5.0, 2000.0)
    assert found.step is None
    assert "everything" in found.lines()[0]


def test_steps_of_another_stage_are_not_counted() -> None:
    assert risk.measure([manifest(5, 1.0, "codec")], status(7), 60.0, 1.0, 2.0).steps is None


def test_a_clock_that_went_back_gives_no_negative_age() -> None:
    assert risk.measure([manifest(5, 100.0)], status(5), 60.0, 1.0, 50.0).since_s == 0.0
