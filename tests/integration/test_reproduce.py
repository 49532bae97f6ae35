"""The code of a run can be had again, exactly, with what is known of where it came from and ran."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from pods import TestPod, wait_for
from projects import Project

WAITS = """
import pathlib, time
pathlib.Path("out").mkdir(exist_ok=True)
while not pathlib.Path("go-on").exists():
    time.sleep(0.05)
"""
SETTINGS = 'command = "python main.py {config}"\noutputs = ["out"]\n'


def commit(project: Project) -> None:
    identity = ["-c", "user.name=somebody", "-c", "user.email=somebody@localhost"]
    for words in (["add", "."], ["commit", "-qm", "first"]):
        subprocess.run(["git", *identity, *words], cwd=project.root, check=True)


def test_the_code_that_was_sent_comes_back(project: Project, pod: TestPod, tmp_path: Path) -> None:
    (project.root / "main.py").write_text(WAITS)
    (project.root / "remote-run.toml").write_text(SETTINGS)
    config = project.config()
    commit(project)
    (project.root / "main.py").write_text(WAITS + "# changed\n")
    (project.root / "tool.sh").write_text("echo hi\n")
    (project.root / "tool.sh").chmod(0o755)
    controller = project.start(project.on(pod, config))
    events = pod.root / "runs/toy-events.jsonl"
    wait_for(lambda: events.exists() and '"environment"' in events.read_text(), "what the pod has")
    (pod.root / "go-on").touch()
    out, _ = controller.communicate(timeout=60)
    assert controller.returncode == 0, out
    sent = {p: (project.root / p).read_bytes() for p in ("main.py", config, "tool.sh", "remote-run.toml")}
    (project.root / "main.py").write_text("changed since\n")
    to = tmp_path / "again"
    done = project.run(project.command("reproduce", "toy", "--to", to))
    assert done.returncode == 0, done.stderr
    assert {p: (to / p).read_bytes() for p in sent} == sent
    assert (to / "tool.sh").stat().st_mode & 0o111
    assert f"cd {to} && python main.py {config}" in done.stdout
    packed = ["tar", "-xzOf", project.root / "runs/toy-code.tar.gz", "tool.sh"]
    assert "echo hi" in subprocess.run(packed, capture_output=True, text=True, check=True).stdout
    environment = json.loads((to / ".remote-run/reproduced.json").read_text())["environment"]
    assert any(p.startswith("numpy==") for p in environment["packages"])
    assert environment["image"]["system"]
    assert (to / ".remote-run/freeze.txt").read_text().splitlines() == environment["packages"]
    assert f"python {environment['python']}, {len(environment['packages'])} packages" in done.stdout
    assert ", uncommitted +1 -0\n  untracked: tool.sh\n" in done.stdout
    again = project.run(project.command("reproduce", "toy", "--to", to))
    assert again.returncode == 2
    assert "is not empty" in again.stderr
