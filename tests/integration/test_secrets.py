"""Secrets: in the workload's environment, and nowhere else on both machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pods import TestPod, wait_for
from projects import Project

VALUES = {"API_KEY": "SECRET-aaa-111", "FROM_FILE": "SECRET-bbb-222", "FROM_COMMAND": "SECRET-ccc-333"}
MAIN = """
import hashlib, json, os, pathlib, sys, time
out = pathlib.Path("out/toy"); out.mkdir(parents=True, exist_ok=True)
names = ["API_KEY", "FROM_FILE", "FROM_COMMAND"]
print("here they are:", {n: os.environ[n] for n in names}, flush=True)
print(os.environ["API_KEY"], file=sys.stderr, flush=True)
(out / "seen.json").write_text(json.dumps({n: hashlib.sha256(os.environ[n].encode()).hexdigest() for n in names}))
while not pathlib.Path("go-on").exists():
    time.sleep(0.05)
raise RuntimeError("failed with " + os.environ["FROM_FILE"])
"""
SETTINGS = """
command = "python main.py"
outputs = ["out/{name}"]
secrets = ["API_KEY", "FROM_FILE", "FROM_COMMAND"]
secrets_command = "sh keys.sh"
"""


def holders(processes: dict[int, list[str]]) -> list[list[str]]:
    """Processes with a value in their arguments or their environment."""
    found = []
    for pid, argv in processes.items():
        text = " ".join(argv)
        try:
            text += Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
        if "SECRET-" in text:
            found.append(argv)
    return found


def test_values_are_found_nowhere(project: Project, pod: TestPod) -> None:
    (project.root / "main.py").write_text(MAIN)
    (project.root / "remote-run.toml").write_text(SETTINGS)
    (project.root / ".env").write_text(f"export FROM_FILE='{VALUES['FROM_FILE']}'\n")
    # split, so that the file that is sent does not hold the value itself
    (project.root / "keys.sh").write_text("echo OTHER=x\nprintf 'FROM_COMMAND=SEC'; echo RET-ccc-333\n")
    controller = project.start(project.on(pod, project.config(), "--verbose"), API_KEY=VALUES["API_KEY"])
    wait_for((pod.root / "out/toy/seen.json").exists, "the workload")
    assert [argv[1:] for argv in holders(pod.commands())] == [["main.py"]]
    (pod.root / "go-on").touch()
    out, _ = controller.communicate(timeout=60)
    assert controller.returncode == 1, out
    assert "SECRET-" not in out
    log = (project.root / "runs/toy-train.log").read_text()
    assert "here they are: {'API_KEY': '***', 'FROM_FILE': '***', 'FROM_COMMAND': '***'}" in log
    assert "RuntimeError: failed with ***" in log
    left = [
        path
        for folder in (project.root, pod.home)
        for path in folder.rglob("*")
        if path.is_file() and b"SECRET-" in path.read_bytes()
    ]
    assert left == [project.root / ".env"]
    seen = json.loads((project.root / "out/toy/seen.json").read_text())
    assert len(set(seen.values())) == 3


@pytest.mark.parametrize(
    ("secrets", "env", "says"),
    [
        ('["NOWHERE", "API_KEY"]', {"API_KEY": "SECRET-aaa-111"}, "that are nowhere: NOWHERE"),
        ('["API_KEY"]', {"API_KEY": "abc"}, "shorter than 6 characters"),
    ],
)
def test_a_missing_one_is_named_before_anything(
    project: Project, pod: TestPod, secrets: str, env: dict[str, str], says: str
) -> None:
    (project.root / "remote-run.toml").write_text(f'command = "python main.py"\nsecrets = {secrets}\n')
    done = project.run(project.on(pod, project.config()), **env)
    assert done.returncode == 3
    assert says in done.stderr
    assert not pod.root.exists()


def test_a_command_that_fails_shows_nothing_it_printed(project: Project, pod: TestPod) -> None:
    (project.root / "remote-run.toml").write_text(
        'command = "python main.py"\nsecrets = ["A_KEY"]\nsecrets_command = "sh keys.sh"\n'
    )
    (project.root / "keys.sh").write_text("echo A_KEY=SECRET-ddd; echo SECRET-ddd >&2; exit 4\n")
    done = project.run(project.on(pod, project.config()))
    assert done.returncode == 3
    assert "secrets_command ended with 4" in done.stderr
    assert "SECRET-" not in done.stderr
