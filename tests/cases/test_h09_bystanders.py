"""H09: who merely mentions a trainer is let be; a trainer that somebody started by hand is found."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pods import NAMESPACED, TestPod, wait_for
from projects import Project

pytestmark = pytest.mark.skipif(not NAMESPACED, reason="needs root: on a shared machine other trainers may run")

BYSTANDERS = {
    "tail": ["tail", "-f", "artifacts/demo/train.log"],
    "editor": ["bash", "-c", "exec -a 'vim configs/train.json' sleep 600"],
    "shell": ["bash", "-c", "sleep 600; : ncm_mlx train"],
    "python -c": [sys.executable, "-c", "import time; time.sleep(600)", "ncm_mlx", "train"],
    "server": [sys.executable, "-m", "http.server", "0", "--directory", "ncm_mlx"],
    "grep": ["grep", "-r", "ncm_mlx train", "fifo/never"],
}
TRAINERS = {
    "plain": [sys.executable, "-u", "-m", "ncm_mlx", "train"],
    "options": [sys.executable, "-X", "dev", "-m", "ncm_mlx", "train", "configs/x.json"],
    "env nice": ["env", "A=1", "nice", sys.executable, "-m", "ncm_mlx", "train"],
    "script": ["bash", "run.sh"],
    "renamed": ["bash", "-c", f"exec -a trainer {shlex.quote(sys.executable)} -m ncm_mlx evaluate"],
}


@pytest.fixture
def by_hand(pod: TestPod) -> Callable[[list[str]], None]:
    """Start a program on the pod from another login, in a folder with a module that is called like the trainer."""
    folder = pod.home / "elsewhere"
    (folder / "ncm_mlx").mkdir(parents=True)
    (folder / "ncm_mlx/__init__.py").touch()
    (folder / "ncm_mlx/__main__.py").write_text("import time\ntime.sleep(600)\n")
    (folder / "artifacts/demo").mkdir(parents=True)
    (folder / "artifacts/demo/train.log").write_text("")
    (folder / "fifo").mkdir()
    subprocess.run(["mkfifo", folder / "fifo/never"], check=True)
    (folder / "run.sh").write_text(f"{shlex.quote(sys.executable)} -m ncm_mlx train configs/x.json\necho over\n")

    def start(argv: list[str]) -> None:
        begin = f"cd {folder} && exec {shlex.join(argv)} </dev/null >/dev/null 2>&1"
        log_in = [
            "ssh",
            "-p",
            str(pod.port),
            "-i",
            str(pod.key),
            "-oStrictHostKeyChecking=no",
            "-oUserKnownHostsFile=/dev/null",
        ]
        subprocess.Popen([*log_in, "root@127.0.0.1", begin], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: [a for a in pod.commands().values() if a[-1] == last(argv)], f"{argv} runs on the pod", 20)

    return start


def last(argv: list[str]) -> str:
    """The last word of what finally runs."""
    if argv[0] == "bash" and "exec -a 'vim" in argv[-1]:
        return "600"
    if argv[-1] == "run.sh":
        return "configs/x.json"
    return "evaluate" if argv[-1].endswith("evaluate") else argv[-1]


@pytest.mark.parametrize("who", BYSTANDERS)
def test_a_bystander_is_let_be(project: Project, pod: TestPod, by_hand: Callable[[list[str]], None], who: str) -> None:
    by_hand(BYSTANDERS[who])
    done = project.run(project.on(pod, project.config(steps=2), "--detach"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("who", TRAINERS)
def test_a_trainer_is_found_and_nothing_changes(
    project: Project, pod: TestPod, by_hand: Callable[[list[str]], None], who: str
) -> None:
    by_hand(TRAINERS[who])
    done = project.run(project.on(pod, project.config(steps=2)))
    assert done.returncode == 4, done.stderr
    line = next(line for line in done.stderr.splitlines() if "ncm_mlx" in line)
    pid, since, user = (part.split(" ", 1)[1] for part in line.strip().split(": ", 1)[0].split(", "))
    assert pid.isdigit()
    assert since.startswith("20")
    assert user == "root"
    assert "-m ncm_mlx" in line
    assert "no run of this tool is among it" in done.stderr
    assert sorted(p.name for p in pod.root.iterdir()) == [".remote-run"]


def test_a_run_of_ours_elsewhere_on_the_machine_is_named(project: Project, pod: TestPod) -> None:
    """The way to it is its own name and folder, not those of the run that was refused."""
    started = project.run(project.on(pod, project.config(steps=4000, step_s=0.05), "--detach"))
    assert started.returncode == 0, started.stderr
    done = project.run(project.on(pod, project.config("other"), "--remote-dir", pod.home / "elsewhere"))
    assert done.returncode == 4
    assert f"remote-run attach 127.0.0.1:{pod.port} toy --remote-dir {pod.root}." in done.stderr
    assert " other" not in done.stderr.split("fix: ")[1]


def test_the_override_is_explicit_and_told(
    project: Project, pod: TestPod, by_hand: Callable[[list[str]], None], tmp_path: Path
) -> None:
    by_hand(TRAINERS["plain"])
    done = project.run(project.on(pod, project.config(steps=2), "--ignore-running"))
    assert done.returncode == 0, done.stderr
    assert "going on although this runs there, as asked: pid" in done.stderr
