"""Which processes are trainers: 500 decisions over argv made by construction, and the odd ones by name."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from pods import wait_for

from remote_runner.pod import procs, trainers
from remote_runner.pod.procs import Process
from remote_runner.settings_keys import NCM_MATCH

NOBODY = 2**22 + 1  # above pid_max: what such a process is called is all there is to know


def process(argv: list[str]) -> Process:
    return Process(NOBODY, 0.0, "root", argv)


def trainer(pick: random.Random) -> list[str]:
    python = pick.choice(["python", "python3", "python3.11", "/opt/conda/bin/python", "/w/venv/bin/python3", "pypy3"])
    flags = pick.sample(
        [["-u"], ["-X", "dev"], ["-Wignore"], ["-W", "ignore"], ["-OO"], ["-bEs"], ["-Xdev"], ["-I"]], 2
    )
    module = pick.choice([["-m", "ncm_mlx"], ["-mncm_mlx"], ["-um", "ncm_mlx"], ["-umncm_mlx"]])
    verb = pick.choice(["train", "evaluate", "benchmark"])
    config = f"configs/{pick.choice(['a', 'tail', 'vim train'])}.json"
    options = [word for flag in flags[: pick.randint(0, 2)] for word in flag]
    return [python, *options, *module, verb, config, *pick.choice([[], ["--resume"]])]


def look_alike(pick: random.Random) -> list[str]:
    words = pick.choice(["python -m ncm_mlx train", "-m ncm_mlx train configs/a.json", "ncm_mlx train", "ncm_mlx"])
    python = pick.choice(["python3", "/usr/bin/python3.11"])
    return pick.choice(
        [
            [pick.choice(["vim", "nano", "less", "cat", "emacs"]), "workloads/ncm_mlx/train.py"],
            ["tail", "-f", "artifacts/ncm_mlx/train.log"],
            ["grep", "-r", words, "/"],
            ["grep", "-m", "ncm_mlx", "train"],
            ["pgrep", "-fl", words],
            ["ssh", "host", words],
            ["ssh", "-m", "ncm_mlx", "train"],
            ["bash", "-c", f"sleep 600; : {words}"],
            ["sh", "-c", words],
            ["bash", "-lc", words],
            ["sudo", "tail", "-f", words],
            ["tmux", "new", "-d", words],
            ["watch", words],
            ["journalctl", "-u", words],
            [f"vim {words}", "600"],
            [words],
            [python, "-c", "import time; time.sleep(600)", "-m", "ncm_mlx", "train"],
            [python, "-c", "pass", "ncm_mlx", "train"],
            [python, "show.py", "-m", "ncm_mlx", "train"],
            [python, "-m", "http.server", "ncm_mlx", "train"],
            [python, "-m", "pytest", "ncm_mlx", "train"],
            [python, "-m", "ncm_mlx_tools", "train"],
            [python, "-m", "ncm_mlx", "check", "configs/train.json"],
            [python, "-m", "ncm_mlx"],
            [python, "-u", "-", "-m", "ncm_mlx", "train"],
            [python, "-W", "-m", "ncm_mlx", "train"],
            [python, "-X", "-m", "ncm_mlx", "train"],
            ["rsync", "-a", "ncm_mlx", "train"],
            ["git", "log", "-m", "ncm_mlx", "train"],
        ]
    )


def test_500_decisions() -> None:
    pick = random.Random(5)
    wrong = []
    for i in range(500):
        truth = i % 2 == 0
        argv = trainer(pick) if truth else look_alike(pick)
        if trainers.matches(process(argv), [NCM_MATCH]) is not truth:
            wrong.append((truth, argv))
    assert not wrong


@pytest.mark.parametrize(
    ("argv", "pattern", "hit"),
    [
        (["python3", "train.py", "--x"], "train.py", True),
        (["python3", "-u", "/root/project/train.py"], "train.py", True),
        (["python3", "pretrain.py"], "train.py", False),
        (["python3", "eval.py", "train.py"], "train.py", False),
        (["vim", "train.py"], "train.py", False),
        (["/usr/bin/torchrun", "--nproc", "2", "train.py"], "torchrun", True),
        (["python3", "/usr/bin/torchrun", "train.py"], "torchrun", True),
        (["bash", "run.sh", "a"], "run.sh a|b", True),
        (["bash", "-e", "run.sh", "c"], "run.sh a|b", False),
        (["./my_trainer", "go"], "my_trainer", True),
    ],
)
def test_patterns_of_other_trainers(argv: list[str], pattern: str, hit: bool) -> None:
    assert trainers.matches(process(argv), [pattern]) is hit


def test_another_supervisor_of_ours_counts_as_a_job() -> None:
    app = "/root/remote-run/p/.remote-run/0a1b.pyz"
    assert trainers.is_supervisor(process(["python3", app, "supervise", "/root"]))
    assert trainers.is_supervisor(process(["/usr/bin/python3.8", app, "keep", "/root", "7"]))
    assert not trainers.is_supervisor(process(["python3", app, "serve", "/root", "abc"]))
    assert not trainers.is_supervisor(process(["vim", "/root/.remote-run/supervise.pyz"]))


def test_a_python_under_another_name_is_found(tmp_path: Path) -> None:
    """By what is mapped into it: its own name and its argv say nothing."""
    (tmp_path / "ncm_mlx").mkdir()
    (tmp_path / "ncm_mlx/__init__.py").touch()  # else an installed one goes first
    (tmp_path / "ncm_mlx/__main__.py").write_text("import time; print('up', flush=True); time.sleep(60)")
    command = ["bash", "-c", f"exec -a trainer {sys.executable} -m ncm_mlx train"]
    child = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        found = next(p for p in procs.everyone() if p.pid == child.pid)
        assert found.argv == ["trainer", "-m", "ncm_mlx", "train"]
        assert trainers.matches(found, [NCM_MATCH])
    finally:
        child.kill()
        child.wait()


def test_who_uses_the_gpu_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver's tool that names one process, and memory that it does not explain."""
    tool = tmp_path / "nvidia-smi"
    told = "case $1 in *compute-apps*) echo '4711, python3, 2000' ;; *) echo '30000, 80000'; echo '3, 80000' ;; esac"
    tool.write_text(f"#!/bin/sh\n{told}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert trainers.gpu_use() == [
        "pid 4711 (python3) uses 2000 MB of GPU memory",
        "GPU 0: 30000 of 80000 MB are in use, by processes that can't be seen from here",
    ]


def test_a_zombie_counts_as_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    started = procs.start_ticks(child.pid)
    wait_for(lambda: procs.start_ticks(child.pid) is None, "the end, not yet reaped")
    assert not procs.alive(child.pid, started)
    assert child.pid not in {p.pid for p in procs.everyone()}
    assert child.pid not in procs.children(child.pid)
    child.wait()


def test_who_catches_a_signal_is_seen() -> None:
    code = "import signal; signal.signal(signal.SIGUSR1, print); print('up', flush=True); signal.pause()"
    catches = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    ignores = subprocess.Popen(["sh", "-c", "trap '' USR1; echo up; exec sleep 60"], stdout=subprocess.PIPE)
    try:
        for child in (catches, ignores):
            assert child.stdout is not None
            child.stdout.readline()
        assert procs.catches(catches.pid, 10) is True
        assert procs.catches(catches.pid, 12) is False
        assert procs.catches(ignores.pid, 10) is False
    finally:
        for child in (catches, ignores):
            child.kill()
            child.wait()
