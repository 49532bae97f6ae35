"""Backups with one blow each, in the short form: no manifest lies. scripts/soak_kills.py makes the many."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from s3server import KEYS

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import soak_kills


@pytest.mark.skipif(os.getuid() != 0, reason="pods in pid namespaces need root")
def test_four_backups_and_four_blows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    found = soak_kills.soak(4, seed=5, work=tmp_path)
    assert found["lies"] == []
    assert found["next_failed"] == []
    assert found["struck"] >= 1, "the blows came too late to tell anything"
