"""Experiments on this machine: the same supervisor, the wrapper scripts, and starts that outlive their parent."""

from __future__ import annotations

import contextlib
import json
import os
import plistlib
import random
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import terminals
from pods import NAMESPACED, wait_for
from projects import REPO, Project

from remote_runner import services
from remote_runner.checkpoint import header
from remote_runner.errors import Refused

SETTINGS = """
[runs."*"]
command = ["python", "train.py", "{config}"]
then = [["sh", "-c", "echo evaluated"], ["sh", "-c", "echo measured"]]
match = "train.py configs/never"
pause = "contract"
"""
LONG = {"steps": 100_000, "step_s": 0.01}

# without a pid namespace a guard elsewhere would see what these tests start, and theirs would see others
pytestmark = [] if NAMESPACED else [pytest.mark.alone]


class Machine:
    """A machine of its own as far as processes go, with one project on it."""

    def __init__(self, project: Project) -> None:
        self.project = project
        (project.root / "remote-run.toml").write_text(SETTINGS)
        init = ["sh", "-c", "echo up; while :; do sleep 1000; done"]
        self.init = subprocess.Popen([*NAMESPACED, *init], stdout=subprocess.PIPE)
        assert self.init.stdout is not None
        self.init.stdout.readline()
        first = Path(f"/proc/{self.init.pid}/task/{self.init.pid}/children").read_text().split()[0]
        self.inside = ["nsenter", "-t", first, "-p", "-m", f"--wd={project.root}"] if NAMESPACED else []

    def start(self, *argv: object) -> subprocess.Popen[str]:
        words = [*self.inside, *map(str, argv)]
        return subprocess.Popen(
            words, cwd=self.project.root, env={**os.environ, "PYTHON": sys.executable}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *argv: object) -> subprocess.CompletedProcess[str]:
        process = self.start(*argv)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def processes(self) -> dict[int, list[str]]:
        """Of this project, by where they work."""
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and (entry / "cwd").readlink() == self.project.root:
                    argv = (entry / "cmdline").read_bytes().split(b"\0")[:-1]
                    if argv and argv[0] != b"nsenter":
                        found[int(entry.name)] = [os.fsdecode(a) for a in argv]
        return found

    def pid(self, word: str) -> int:
        return next(pid for pid, argv in self.processes().items() if word in argv)

    def status(self) -> dict[str, object]:
        found: dict[str, object] = json.loads((self.project.root / "runs/toy-status.json").read_text())
        return found

    def lose(self) -> None:
        for pid in self.processes() if not NAMESPACED else ():
            os.kill(pid, signal.SIGKILL)
        self.init.kill()
        self.init.communicate()


@pytest.fixture
def machine(project: Project) -> Iterator[Machine]:
    made = Machine(project)
    yield made
    made.lose()


RUN, LAUNCH = REPO / "scripts/run_experiment.sh", REPO / "scripts/launch_experiment.sh"


def test_foreground_trains_evaluates_and_measures(machine: Machine) -> None:
    done = machine.run(RUN, machine.project.config(), 500)
    assert done.returncode == 0, done.stderr
    assert done.stdout.index("trained") < done.stdout.index("evaluated") < done.stdout.index("measured")
    assert machine.project.report()["cause"] == "done"
    assert machine.status()["exit"]
    assert not machine.processes()
    again = machine.run(RUN, "configs/toy.json", 500)
    assert again.returncode == 2
    assert "--resume" in again.stderr


def test_memory_over_the_limit_ends_it(machine: Machine) -> None:
    done = machine.run(RUN, machine.project.config(size=20_000_000, **LONG), 100)
    assert done.returncode == 1, done.stderr
    report = machine.project.report()
    assert report["cause"] == "memory"
    assert "the limit is 100 MB" in str(report["evidence"])


def test_a_resume_preserves_what_stood_and_records_its_digest(machine: Machine) -> None:
    config = machine.project.config(**LONG)
    first = machine.start(RUN, config, 500)
    wait_for((machine.project.root / "artifacts/toy/toy-training.safetensors").exists, "a snapshot")
    os.kill(machine.pid("train.py"), signal.SIGUSR1)
    first.communicate(timeout=30)
    assert first.returncode == 75
    before = header.describe(machine.project.root / "artifacts/toy/toy-training.safetensors")
    second = machine.start(RUN, config, 500, "--resume")
    wait_for(lambda: machine.status()["segment"] == 2 and machine.status()["state"] == "running", "the resume")
    wait_for(
        lambda: (
            header.describe(machine.project.root / "artifacts/toy/toy-training.safetensors")["step"] > before["step"]
        ),
        "steps beyond",
    )
    os.kill(machine.pid("local"), signal.SIGTERM)
    second.communicate(timeout=30)
    assert second.returncode == 75
    kept = next((machine.project.root / "artifacts").glob("toy-interrupted-*")) / "toy-training.safetensors"
    assert header.describe(kept)["root"] == before["root"]
    rows = [json.loads(line) for line in (machine.project.root / "runs/toy-controller.jsonl").open()]
    preserved = next(row for row in rows if row["what"] == "preserved")
    import hashlib

    digest = hashlib.sha256(kept.read_bytes()).hexdigest()
    assert preserved["sha256"]["artifacts/toy/toy-training.safetensors"] == digest
    report = machine.project.report()
    assert str(report["resumed_from"]).startswith(f"here: toy step {before['step']}")
    log = (machine.project.root / "runs/toy-train.log").read_text()
    assert "segment 1:" in log
    assert "segment 2:" in log


ROUNDS = int(os.environ.get("REMOTE_RUN_ROUNDS", "6"))


@pytest.mark.parametrize("number", range(ROUNDS))
def test_any_signals_in_any_order_are_one_pause(machine: Machine, number: int) -> None:
    """To the supervisor, its keeper, the wrapper and the trainer, from the trainer's first steps on."""
    pick = random.Random(number)
    process = machine.start(RUN, machine.project.config(**LONG), 500)
    snapshot = machine.project.root / "artifacts/toy/toy-training.safetensors"
    wait_for(snapshot.exists, "a snapshot")
    pids = {word: machine.pid(word) for word in ("supervise", "keep", "local", "train.py")}
    for _ in range(pick.randint(1, 6)):
        who = pick.choice(sorted(pids))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[who], pick.choice([signal.SIGUSR1, signal.SIGTERM, signal.SIGINT]))
    out, err = process.communicate(timeout=30)
    assert process.returncode == 75, (out, err)
    assert out.count("full training state saved") == 1
    step = int(out.split("paused at step ")[1].split(":")[0])
    assert header.verify_digests(snapshot)["step"] == step
    assert "\nevaluated" not in out
    assert "\nmeasured" not in out
    wait_for(lambda: not machine.processes(), "nothing is left", 5)


def test_the_wrapper_killed_or_hung_up_leaves_the_run_going(machine: Machine) -> None:
    process = machine.start(RUN, machine.project.config(**LONG), 500)
    wait_for((machine.project.root / "artifacts/toy/toy-training.safetensors").exists, "a snapshot")
    os.kill(machine.pid("local"), signal.SIGHUP)
    process.communicate(timeout=10)
    trainer = machine.pid("train.py")
    assert os.getsid(trainer) == trainer
    os.kill(machine.pid("supervise"), signal.SIGUSR1)
    wait_for(lambda: machine.status()["exit"], "the pause", 20)
    wait_for(lambda: not machine.processes(), "nothing is left", 5)


def test_a_closed_terminal_leaves_the_run_going(machine: Machine) -> None:
    with terminals.opened(machine.project.root) as terminal:
        words = [*machine.inside, "env", f"PYTHON={sys.executable}", RUN, machine.project.config(**LONG), 500]
        terminal.type(shlex.join(map(str, words)))
        wait_for((machine.project.root / "artifacts/toy/toy-training.safetensors").exists, "a snapshot")
        terminal.close()
    wait_for(lambda: not [argv for argv in machine.processes().values() if "local" in argv], "the wrapper's end", 10)
    assert machine.pid("train.py")
    os.kill(machine.pid("supervise"), signal.SIGUSR1)
    wait_for(lambda: machine.status()["exit"], "the pause", 20)
    wait_for(lambda: not machine.processes(), "nothing is left", 5)


def test_a_launch_outlives_its_parent_and_refuses_a_second(machine: Machine) -> None:
    config = machine.project.config(**LONG)
    began = machine.run("sh", "-c", f"{LAUNCH} {config}; kill -9 $$")  # the parent dies at once
    assert "started com.ncm-mlx.toy: pid" in began.stdout, began.stderr
    wait_for((machine.project.root / "artifacts/toy/toy-training.safetensors").exists, "a snapshot")
    for word in ("local", "train.py"):
        stat = Path(f"/proc/{machine.pid(word)}/stat").read_text().rsplit(")", 1)[1].split()
        assert stat[4] == "0", "no terminal"
    job = json.loads((machine.project.root / ".remote-run/job.json").read_text())
    assert job["memory_limit_mb"] == 24_000
    assert b"NCM_MLX_MEMORY_LIMIT_GB=20" in Path(f"/proc/{machine.pid('train.py')}/environ").read_bytes().split(b"\0")
    second = machine.run(LAUNCH, machine.project.config("other"))
    assert second.returncode == 4
    assert "supervise" in second.stderr
    os.kill(machine.pid("local"), signal.SIGUSR1)
    wait_for(lambda: machine.status()["exit"], "the pause", 20)
    wait_for(lambda: not machine.processes(), "nothing is left", 10)
    assert machine.project.report()["cause"] == "paused"


def test_the_trainers_own_words_are_passed_on(machine: Machine) -> None:
    (machine.project.root / "train.py").write_text("import sys; print('words', sys.argv[1:])\n")
    machine.project.config()
    began = machine.run(LAUNCH, "configs/toy.json", "--generator-checkpoint", "a b", "--generator-start-step", "3")
    assert began.returncode == 0, began.stderr
    wait_for((machine.project.root / "runs/toy-report.json").exists, "the end")
    words = "words ['configs/toy.json', '--generator-checkpoint', 'a b', '--generator-start-step', '3']"
    assert words in (machine.project.root / "runs/toy-train.log").read_text()


def service(root: Path) -> services.Service:
    return services.Service(
        label="com.ncm-mlx.toy",
        argv=["/venv/bin/python", "-m", "remote_runner.cli", "local", 'configs/a "b" $x %n.json', "--resume"],
        root=root,
        log=root / "log 1",
        plist=root / "runs/toy.plist",
        env={"NCM_MLX_MEMORY_LIMIT_GB": "20", "PATH": "/usr/bin:/bin"},
    )


def test_the_plist_is_what_launchd_needs(tmp_path: Path) -> None:
    """Keys and types as launchd.plist(5) has them; started once, never again by itself."""
    job = plistlib.loads(services.plist_of(service(tmp_path)))
    assert job.pop("Label") == "com.ncm-mlx.toy"
    assert job.pop("ProgramArguments") == service(tmp_path).argv
    assert job.pop("EnvironmentVariables")["NCM_MLX_MEMORY_LIMIT_GB"] == "20"
    for path in ("StandardOutPath", "StandardErrorPath", "WorkingDirectory"):
        assert Path(job[path]).is_absolute()  # launchd knows no folder of ours
    assert job == {
        "WorkingDirectory": str(tmp_path),
        "StandardOutPath": str(tmp_path / "log 1"),
        "StandardErrorPath": str(tmp_path / "log 1"),
        "StandardInPath": "/dev/null",
        "RunAtLoad": True,
        "KeepAlive": False,
        "ProcessType": "Interactive",
        "ExitTimeOut": 1800,
        "AbandonProcessGroup": True,
    }


def stand_in(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, answers: str) -> Path:
    """A program of the machine's that writes down what it was asked; the lines."""
    asked = folder / "asked"
    (folder / "bin").mkdir()
    tool = folder / "bin" / name
    tool.write_text(f'#!/bin/sh\necho "$*" >> {asked}\n{answers}\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder / "bin"), prepend=":")
    return asked


@pytest.mark.parametrize("entry", ["none", "finished", "running"])
def test_an_entry_of_launchd_is_replaced_once_it_has_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    shows = {"none": "exit 113", "finished": "echo state = not running", "running": "echo state = running"}[entry]
    asked = stand_in(tmp_path, "launchctl", monkeypatch, f"case $1 in print) {shows};; esac")
    monkeypatch.setattr(services, "choose", lambda: "launchd")
    made = service(tmp_path)
    made.plist.parent.mkdir()
    made.plist.write_text("the plist that launchd reads now")
    before = made.plist.open()
    domain = f"gui/{os.getuid()}"
    if entry == "running":
        with pytest.raises(Refused, match="runs already"):
            services.start(made)
        assert asked.read_text() == f"print {domain}/com.ncm-mlx.toy\n"
        return
    told = services.start(made)
    bootout = [f"bootout {domain}/com.ncm-mlx.toy"] if entry == "finished" else []
    assert asked.read_text().splitlines() == [
        f"print {domain}/com.ncm-mlx.toy", *bootout, f"bootstrap {domain} {made.plist}",
    ]  # fmt: skip
    assert plistlib.loads(made.plist.read_bytes())["Label"] == "com.ncm-mlx.toy"
    assert before.read() == "the plist that launchd reads now"  # replaced by a rename, not written over
    assert f"launchctl kill SIGUSR1 {domain}/com.ncm-mlx.toy" in told


@pytest.mark.parametrize("running", [False, True])
def test_a_unit_of_systemd_is_started_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, running: bool) -> None:
    active = "exit 0" if running else "exit 3"
    asked = stand_in(tmp_path, "systemctl", monkeypatch, f"case $2 in is-active) {active};; esac")
    monkeypatch.setattr(services, "choose", lambda: "systemd")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    if running:
        with pytest.raises(Refused, match="runs already"):
            services.start(service(tmp_path))
        return
    services.start(service(tmp_path))
    name = "com.ncm-mlx.toy.service"
    assert asked.read_text().splitlines() == [
        f"--user is-active {name}", "--user daemon-reload", f"--user start {name}",
    ]  # fmt: skip
    assert (tmp_path / "run/systemd/user" / name).read_text() == services.unit_of(service(tmp_path))


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_the_unit_is_one_for_systemd(tmp_path: Path) -> None:
    made = service(tmp_path)
    made = services.Service(**{**made.__dict__, "argv": [sys.executable, *made.argv[1:]]})
    unit = tmp_path / "com.ncm-mlx.toy.service"
    unit.write_text(services.unit_of(made))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "com.ncm-mlx.toy" not in done.stderr, done.stderr
    assert '"configs/a \\"b\\" $$x %%n.json"' in unit.read_text()
    assert "Restart=no" in unit.read_text()


def test_a_controller_in_the_background(machine: Machine) -> None:
    """remote_run.sh hands everything but its own word on; the refusal of a closed port ends in the log."""
    machine.project.config()
    done = machine.run(REPO / "scripts/remote_run.sh", "127.0.0.1:9", "configs/toy.json", "--background", "--name", "n")
    assert done.returncode == 0, done.stderr
    assert "started com.ncm-mlx.controller-toy" in done.stdout
    log = machine.project.root / ".remote-run/controller-toy-service.log"
    wait_for(lambda: log.exists() and "error:" in log.read_text(), "the controller's end", 60)
    assert "127.0.0.1:9" in log.read_text()
