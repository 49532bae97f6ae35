"""The soak of lost pods in its short form: nothing damaged, the same end. scripts/soak_backup.sh is the long one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import soak_backup


@pytest.mark.skipif(os.getuid() != 0, reason="pods in pid namespaces need root")
def test_two_lost_pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    found = soak_backup.soak(2, seed=3, work=tmp_path)
    assert found["same_root"], found
    assert found["damaged"] == []
    # the bound holds on a machine that keeps its pace; tests share theirs with others, so the long soak judges it
    assert found["ended"] == 0
