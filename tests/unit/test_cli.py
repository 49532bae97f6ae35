"""The command line starts fast, loads nothing heavy, and ends with the design's codes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from projects import Project

from remote_runner import __version__, errors
from remote_runner.cli import cli
from remote_runner.cli.base import run_cli

HEAVY = ("paramiko", "mlx", "torch", "numpy", "pydantic", "asyncssh", "rich.console", "cryptography")


def test_help_loads_nothing_heavy() -> None:
    argv = [sys.executable, "-X", "importtime", "-m", "remote_runner.cli", "--help"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "remote_runner.cli.base" in loaded
    assert not loaded & set(HEAVY)
    for command in ("run", "attach", "status", "logs", "pause", "stop", "download", "backups", "restore", "demo"):
        assert f"\n  {command} " in done.stdout


def test_help_answers_at_once() -> None:
    """Under 0.3 s; by the processor's time, since the machine may be busy with other tests."""
    took_s = []
    for _ in range(5):
        before = os.times()
        subprocess.run([sys.executable, "-m", "remote_runner.cli", "--help"], capture_output=True, check=True)
        after = os.times()
        took_s.append(after.children_user - before.children_user + after.children_system - before.children_system)
    assert min(took_s) < 0.3


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(cli, ["--version"]) == 0
    assert __version__ in capsys.readouterr().out


def test_completion_scripts_are_offered() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from remote_runner.cli import cli; cli(prog_name='remote-run')"],
        env={"_REMOTE_RUN_COMPLETE": "bash_source", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "complete -o nosort -F" in done.stdout, done.stderr


def test_an_unforeseen_fault_is_70_and_never_the_workloads_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], project: Project
) -> None:
    from remote_runner import plan

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(plan, "make", broken)
    assert run_cli(cli, ["127.0.0.1:1", "x.json"]) == 70
    assert "internal" in capsys.readouterr().err


def test_a_first_word_that_is_no_command_is_a_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(cli, ["host:0", "no/such/config.json"]) == 2
    assert "no such file" in capsys.readouterr().err


def test_each_error_class_has_its_code() -> None:
    classes = {c.__name__: c.exit_code for c in errors.RunnerError.__subclasses__()}
    assert classes == {
        "UsageFault": 2,
        "PreflightFailed": 3,
        "Refused": 4,
        "NotStarted": 5,
        "OutOfContact": 6,
        "Unverified": 7,
        "BackupFailed": 8,
    }
