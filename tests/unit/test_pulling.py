"""What the controller makes of a pod that fetches by itself: new addresses while it gets on, else its own way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from remote_runner.agent import Denied
from remote_runner.pulling import Direct, wanted

SHA = "ab" * 32
MANIFEST: dict[str, Any] = {
    "id": "x",
    "unix_s": 1.0,
    "files": [
        {"path": "artifacts/toy/a.bin", "size": 5, "sha256": SHA, "mode": 0o600},
        {"path": "artifacts/toy/b.bin", "size": 5, "sha256": SHA, "mode": 0o600},
        {"path": "runs/toy-train.log", "size": 7, "sha256": "cd" * 32, "mode": 0o600},
        {"path": "runs/toy-status.json", "size": 7, "sha256": "ef" * 32, "mode": 0o600},
        {"path": "train.py", "size": 7, "sha256": "01" * 32, "mode": 0o600},
    ],
    "folders": [],
}


class Scene:
    def __init__(self, answers: list[dict[str, Any]], signs: bool = True) -> None:
        self.answers, self.signed, self.said = answers, 0, list[str]()
        plan: Any = SimpleNamespace(name="toy", outputs=["artifacts/toy"], options=SimpleNamespace(all_outputs=False))
        store = SimpleNamespace(sign=self.sign if signs else lambda keys, valid_s: [])
        place: Any = SimpleNamespace(store=store, blob=lambda sha256: f"project/toy/blobs/{sha256}")
        self.direct = Direct(self, plan, place, self.said.append)  # type: ignore[arg-type]

    def sign(self, keys: list[str], _valid_s: float) -> list[str]:
        self.signed += 1
        return [f"https://store/{k}?X-Amz-Signature={self.signed}" for k in keys]

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        assert op == "pull"
        assert len({b["sha256"] for b in fields["blobs"]}) == len(fields["blobs"]) == 2
        answer = self.answers.pop(0)
        if answer.get("reason"):
            raise Denied(answer)
        return answer


def no(kind: str, size: int) -> dict[str, Any]:
    url = "https://store/x?X-Amz-Signature=1&X-Amz-Date=2"
    return {"reason": "pull", "kind": kind, "bytes": size, "detail": f"a hostile pod repeats {url}"}


def test_only_the_runs_own_places_are_asked_for() -> None:
    scene = Scene([{}])
    assert [e["path"] for e in wanted(scene.direct.plan, MANIFEST)[0]] == [
        "artifacts/toy/a.bin",
        "artifacts/toy/b.bin",
        "runs/toy-train.log",
    ]
    assert len(scene.direct.bring(MANIFEST)) == 3


def test_addresses_that_ran_out_are_signed_anew_while_bytes_come() -> None:
    scene = Scene([no("refused", 9), no("refused", 1), {}])
    assert scene.direct.bring(MANIFEST)
    assert (scene.signed, scene.said) == (3, [])


@pytest.mark.parametrize(("kind", "tried_again"), [("away", False), ("refused", False), ("content", True)])
def test_what_fails_is_said_without_the_address_and_closes_the_way(kind: str, tried_again: bool) -> None:
    scene = Scene([no(kind, 0), {}])
    assert scene.direct.bring(MANIFEST) == []
    assert "goes through this machine" in scene.said[0]
    assert "Signature" not in scene.said[0]
    assert bool(scene.direct.bring(MANIFEST)) == tried_again, "other bytes are one backup's fault alone"


def test_a_store_that_signs_nothing_goes_the_old_way_in_silence() -> None:
    scene = Scene([], signs=False)
    assert scene.direct.bring(MANIFEST) == []
    assert scene.said == []
