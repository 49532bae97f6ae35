"""Bad input: a clear error with a fix, the right exit code, no traceback, nothing changed anywhere."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pods import NAMESPACED, TestPod, free_port
from projects import Project


def refused(project: Project, argv: list[str], code: int, *words: str) -> subprocess.CompletedProcess[str]:
    done = project.run(argv, timeout_s=60)
    assert done.returncode == code, done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done


def nowhere(project: Project, *words: object) -> list[str]:
    """A run on an address where nothing listens: what is refused must be refused before any connection."""
    return project.command(f"127.0.0.1:{free_port()}", *words)


@pytest.mark.parametrize("hours", ["0", "-1", "nan", "inf", "soon"])
def test_hours_that_are_none(project: Project, hours: str) -> None:
    refused(project, nowhere(project, project.config(), f"--max-hours={hours}"), 2, "hours above 0")


@pytest.mark.parametrize("every", ["0s", "-5m", "15", "nanm"])
def test_intervals_that_are_none(project: Project, every: str) -> None:
    refused(project, nowhere(project, project.config(), f"--backup-every={every}"), 2, "length of time")


def test_a_place_to_resume_from_without_a_resume(project: Project) -> None:
    refused(project, nowhere(project, project.config(), "--from", "store"), 2, "--resume", "give both")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("", "names no pod"),
        ("host:0", "no port"),
        ("host:99999", "no port"),
        ("host:ssh", "no port"),
        ("a b:22", "names no pod"),
        ("::1:22", "needs brackets"),
        ("-oProxyCommand=x:22", "No such option"),
        ("abc-123@ssh.runpod.io", "proxy"),
        ("ssh abc-123@ssh.runpod.io -i ~/.ssh/id_ed25519", "proxy"),
    ],
)
def test_targets_that_are_none(project: Project, target: str, said: str) -> None:
    refused(project, project.command(target, project.config()), 2, said)


def test_a_config_that_is_not_there(project: Project) -> None:
    refused(project, nowhere(project, "configs/none.json"), 2, "no such file", "fix:")


def test_a_config_outside_the_project(project: Project, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    refused(project, nowhere(project, tmp_path / "x.json"), 2)


def test_a_typo_in_the_settings_names_the_near_key(project: Project) -> None:
    settings = project.root / "remote-run.toml"
    settings.write_text(settings.read_text() + 'setupp = "sh x"\n')
    refused(project, nowhere(project, project.config()), 2, "setupp", "did you mean 'setup'?")
    settings.write_text('[runs."*"]\ncommand = "x"\nbackup = { evry = "5m" }\n')
    refused(project, nowhere(project, project.config()), 2, "evry", "did you mean 'every'?")
    settings.write_text("[runs\n")
    refused(project, nowhere(project, project.config()), 2, "remote-run.toml")


def test_no_command_for_this_run(project: Project) -> None:
    (project.root / "remote-run.toml").write_text("")
    refused(project, nowhere(project, project.config()), 2, "no command", "command =")


def test_resume_and_fresh_exclude_each_other(project: Project) -> None:
    refused(project, nowhere(project, project.config(), "--resume", "--fresh"), 2)


def test_nothing_listens(project: Project) -> None:
    refused(project, nowhere(project, project.config()), 3, "refused 127.0.0.1:", "fix:")


def test_no_such_host(project: Project) -> None:
    refused(project, project.command("no-such-host.invalid:22", project.config()), 3, "no such host")


def test_an_unknown_host_key_is_refused_without_a_terminal(project: Project, pod: TestPod) -> None:
    argv = project.command(pod.address, project.config(), "--identity", pod.key)
    refused(project, argv, 3, "unknown host key SHA256:", "--host-key SHA256:")
    assert not pod.root.exists()


def test_a_wrong_user(project: Project, pod: TestPod) -> None:
    if not NAMESPACED:
        pytest.skip("a server that is not root's serves one user only")
    argv = project.command(f"nobody@127.0.0.1:{pod.port}", project.config(), "--identity", pod.key)
    refused(project, [*argv, "--accept-new-host-key"], 3, "'nobody'", "--user")


def test_a_folder_that_is_somebody_elses(project: Project, pod: TestPod) -> None:
    (pod.home / "data").mkdir()
    (pod.home / "data" / "theirs").write_text("x")
    argv = project.on(pod, project.config(), "--remote-dir", pod.home / "data")
    refused(project, argv, 3, "somebody else's", "--remote-dir")
    assert sorted(p.name for p in (pod.home / "data").iterdir()) == ["theirs"]


def test_a_disk_that_is_too_small_and_a_python_that_is_none(
    project: Project, make_pod: Callable[..., TestPod], tmp_path: Path
) -> None:
    """Every failure at once, each with its fix."""
    if not NAMESPACED:
        pytest.skip("needs root for a small tmpfs")
    small = tmp_path / "small"
    small.mkdir()
    pod = make_pod(before=f"mount -t tmpfs -o size=10m none {small}")
    argv = project.on(pod, project.config(), "--remote-dir", small / "run", "--python", "/no/such/python", python=False)
    done = refused(project, argv, 3, "MB free", "/no/such/python")
    assert done.stderr.count("fix:") == 2


def test_a_home_that_cannot_be_written(project: Project, make_pod: Callable[..., TestPod]) -> None:
    pod = make_pod(setenv={"HOME": "/nonexistent"})
    refused(project, project.on(pod, project.config()), 3, "--remote-dir")


def test_resume_with_nothing_to_resume(project: Project, pod: TestPod) -> None:
    refused(project, project.on(pod, project.config(), "--resume"), 2, "no snapshot", "--backup-to")
    assert not (pod.root / "train.py").exists()


def test_resume_with_another_budget_is_refused_and_loses_nothing(project: Project, pod: TestPod) -> None:
    assert project.run(project.on(pod, project.config(steps=10))).returncode == 0
    before = (project.root / "artifacts/toy/toy-training.safetensors").read_bytes()
    done = project.run(project.on(pod, project.config(steps=12), "--resume"))
    assert done.returncode == 2, done.stderr
    assert "10 -> 12" in done.stdout + done.stderr
    assert (project.root / "artifacts/toy/toy-training.safetensors").read_bytes() == before


def test_a_dry_run_changes_nothing(project: Project, pod: TestPod) -> None:
    done = project.run(project.on(pod, project.config(), "--dry-run"))
    assert done.returncode == 0, done.stderr
    assert "would send" in done.stdout
    assert sorted(p.name for p in pod.home.iterdir()) == [".bashrc"]
    assert not (project.root / "runs").exists()


@pytest.mark.skipif(not NAMESPACED, reason="needs root to enter the pod's pid namespace")
def test_a_dry_run_looks_who_trains(project: Project, pod: TestPod) -> None:
    """As the guard would: a trainer of somebody's, then a job of ours that holds the folder."""
    inside = ["nsenter", "-t", str(pod.pids()[0]), "-p", "-m", "bash", "-c"]
    code = "import signal, sys; print('up', flush=True); signal.pause()"
    command = f'exec -a python3 {sys.executable} -c "{code}"'
    bystander = subprocess.Popen([*inside, command], stdout=subprocess.PIPE)  # its argv names no module: no trainer
    (pod.home / "ncm_mlx").mkdir()
    (pod.home / "ncm_mlx/__init__.py").touch()  # else an installed one goes first
    (pod.home / "ncm_mlx/__main__.py").write_text(code)
    trainer = None
    try:
        done = project.run(project.on(pod, project.config(), "--dry-run"))
        assert done.returncode == 0, done.stderr
        assert "nothing trains there" in done.stderr
        words = f"cd {pod.home} && exec {sys.executable} -E -m ncm_mlx train configs/x.json"
        trainer = subprocess.Popen([*inside, words], stdout=subprocess.PIPE)
        assert trainer.stdout is not None
        trainer.stdout.readline()
        done = project.run(project.on(pod, project.config(), "--dry-run"))
        assert done.returncode == 4, done.stderr
        assert "-m ncm_mlx train configs/x.json" in done.stderr
        assert project.run(project.on(pod, project.config(), "--dry-run", "--ignore-running")).returncode == 0
        assert not pod.root.exists()
        started = project.on(pod, project.config(steps=100_000, step_s=0.05), "--ignore-running", "--detach")
        assert project.run(started).returncode == 0
        before = {p: p.stat().st_mtime_ns for p in pod.root.glob(".remote-run/*") if p.name != "follower.json"}
        done = project.run(project.on(pod, project.config("other"), "--dry-run"))
        assert done.returncode == 4, done.stderr
        assert "for the run 'toy'" in done.stderr
        assert before == {p: p.stat().st_mtime_ns for p in before}
        assert project.run(project.at("stop", pod, "toy")).returncode == 0
    finally:
        for one in filter(None, (bystander, trainer)):
            one.kill()
            one.wait()


def test_a_set_up_that_fails_starts_nothing(project: Project, pod: TestPod) -> None:
    settings = project.root / "remote-run.toml"
    settings.write_text(settings.read_text() + 'setup = "sh setup.sh"\n')
    (project.root / "setup.sh").write_text("echo no wheel for this machine\nexit 9\n")
    done = project.run(project.on(pod, project.config(), python=False))
    assert done.returncode == 5, done.stderr
    assert "no wheel for this machine" in done.stdout
    assert not (pod.root / "artifacts").exists()
