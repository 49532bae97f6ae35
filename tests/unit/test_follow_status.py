"""A status that can't be read for a moment is not the end of a run."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from remote_runner.pod import files, follow, layout, procs


def test_a_status_that_is_missing_for_a_moment_ends_nothing(tmp_path: Path) -> None:
    """As on a network volume, where a file can't be opened while it is replaced."""
    me = {"pid": os.getpid(), "start": procs.start_ticks(os.getpid())}
    status = {"name": "toy", "state": "running", "supervisor": me, "boot": procs.boot()}
    files.replace_json(str(tmp_path), layout.status("toy"), status)
    path = tmp_path / layout.status("toy")
    path.rename(path.with_suffix(".away"))
    back = threading.Timer(0.15, lambda: path.with_suffix(".away").rename(path))
    back.start()
    seen = follow.look(str(tmp_path), "toy", 0)
    back.join()
    assert seen["fate"] == "running"
    assert seen["supervisor_lives"]


def test_a_run_without_a_status_is_unknown(tmp_path: Path) -> None:
    seen = follow.look(str(tmp_path), "toy", 0)
    assert (seen["status"], seen["fate"], seen["supervisor_lives"]) == (None, "unknown", False)
