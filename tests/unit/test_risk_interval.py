"""How often there is a snapshot, as far as the pod can tell: one term of what may be lost."""

from __future__ import annotations

from typing import Any

import pytest
from transfer_peers import Peer

from remote_runner import risk
from remote_runner.conversation import Conversation
from remote_runner.pod import wire


def asked(times: dict[str, float], rows: list[Any]) -> float | None:
    def answers(ask: dict[str, Any]) -> list[wire.Message]:
        if ask["op"] == "list":
            found = [{"path": path, "mtime_ns": int(at * 1e9)} for path, at in times.items()]
            return [({"ok": True, "files": found}, b"")]
        return [({"ok": True, "snapshots": rows}, b"")]

    return risk.snapshot_interval_s(Conversation(Peer(answers), "pod:22", "nonce"), ["artifacts/x"])  # type: ignore[arg-type]


def row(path: str, step: Any) -> dict[str, Any]:
    return {"path": path, "header": {"step": step}, "why": ""}


OURS = {"artifacts/x/g-training.safetensors": 107.0, "artifacts/x/g-training.previous.safetensors": 100.0}


def test_of_our_own_snapshots_the_two_last() -> None:
    assert asked(OURS, []) == pytest.approx(7)


def test_of_another_trainers_files_the_two_furthest() -> None:
    times = {"artifacts/x/c-1.npz": 500.0, "artifacts/x/c-2.npz": 100.0, "artifacts/x/c-3.npz": 130.0}
    assert asked(times, [row(path, n + 1) for n, path in enumerate(times)]) == pytest.approx(30)


def test_a_folder_is_as_young_as_what_was_last_written_in_it() -> None:
    times = {"a/checkpoint-1/model": 10.0, "a/checkpoint-2/model": 20.0, "a/checkpoint-2/trainer_state.json": 26.0}
    assert asked(times, [row("a/checkpoint-1", 1), row("a/checkpoint-2", 2)]) == pytest.approx(16)


@pytest.mark.parametrize("rows", [[], [row("a", 1)], [row("a", 1), row("gone", 2)], [None, row("a", "2"), {"path": 1}]])
def test_where_there_are_not_two_nothing_is_said(rows: list[Any]) -> None:
    assert asked({"a": 1.0}, rows) is None


def test_a_bound_that_is_not_known_says_why() -> None:
    said = risk.Risk(stage="s", step=1, backup_id="b", since_s=3.0, every_s=5.0, transfer_s=1.0).lines()
    assert any("bound: not known" in line for line in said)
