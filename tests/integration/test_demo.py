"""The demo does the main job with a user's commands, on a pretend pod without sftp, and leaves nothing running."""

from __future__ import annotations

import shutil
from pathlib import Path

from pods import NAMESPACED
from projects import Project

from remote_runner.checkpoint import header


def test_the_demo_pauses_resumes_and_verifies(project: Project, tmp_path: Path) -> None:
    config = project.config(steps=300, step_s=0.05, log_every=10)
    done = project.run([*NAMESPACED, *project.command("demo", config)], TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    results = Path(done.stdout.splitlines()[-1])
    assert results.is_relative_to(tmp_path)
    assert header.verify_digests(results / "artifacts/toy/toy-training.safetensors")["step"] == 300
    for step in ("paused", "--resume", "good: artifacts/toy/toy-training.safetensors", "verified"):
        assert step in done.stderr + done.stdout, step
    assert not (project.root / "artifacts").exists()  # nothing but the temporary folder is written
    shutil.rmtree(results.parent)
