"""The code of a run can be had again, exactly."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from pods import TestPod
from projects import Project


def test_the_code_that_was_sent_comes_back(project: Project, pod: TestPod, tmp_path: Path) -> None:
    (project.root / "tool.sh").write_text("echo hi\n")
    (project.root / "tool.sh").chmod(0o755)
    assert project.run(project.on(pod, project.config())).returncode == 0
    sent = {p: (project.root / p).read_bytes() for p in ("train.py", "configs/toy.json", "tool.sh", "remote-run.toml")}
    (project.root / "train.py").write_text("changed since\n")
    to = tmp_path / "again"
    done = project.run(project.command("reproduce", "toy", "--to", to))
    assert done.returncode == 0, done.stderr
    assert {p: (to / p).read_bytes() for p in sent} == sent
    assert (to / "tool.sh").stat().st_mode & 0o111
    assert f"cd {to} && python train.py configs/toy.json" in done.stdout
    assert "echo hi" in subprocess.run(["tar", "-xzOf", project.root / "runs/toy-code.tar.gz", "tool.sh"],
                                       capture_output=True, text=True, check=True).stdout  # fmt: skip
    again = project.run(project.command("reproduce", "toy", "--to", to))
    assert again.returncode == 2
    assert "is not empty" in again.stderr
    report = json.loads((project.root / "runs/toy-report.json").read_text())
    assert report["cause"] == "done"
