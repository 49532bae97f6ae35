"""H31: the newest state is the one with the highest step, whatever the times of files say; here for numbered files.

The same for snapshots on a pod, here and in a store: tests/integration/test_resume.py.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from backing import make, manifest_of

from remote_runner import keeping
from remote_runner.pod import foreign, layout
from remote_runner.vault import Place

STEPS = (90, 200, 1000)


@pytest.mark.parametrize("pattern", ["step_{}.pt", "model-{:06d}.pt", "ckpt-{}.pt"])
def test_numbered_checkpoints(root: Path, place: Place, pattern: str) -> None:
    folder = root / "artifacts/run"
    folder.mkdir(parents=True)
    for step in STEPS:
        path = folder / pattern.format(step)
        path.write_bytes(b"PK\5\6" + bytes(18))  # an empty zip archive
        then = 2_000_000_000 - step * 1000
        os.utime(path, (then, then))
    (root / layout.OWN).mkdir()
    (root / layout.JOB).write_text(json.dumps({"outputs": ["artifacts/run"], "snapshots": [foreign.PRESETS["torch"]]}))
    found = foreign.newest(str(root), ["artifacts/run"], [foreign.PRESETS["torch"]])
    assert found is not None
    assert found.step == 1000
    assert manifest_of(place, make(root, place))["newest"]["step"] == 1000
    names = {pattern.format(step): 1 for step in STEPS}
    assert keeping.choose(names, "newest:1")[0] == [pattern.format(1000)]
    assert keeping.choose(names, "newest:2")[1] == [pattern.format(90)]
