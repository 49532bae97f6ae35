"""Key problems are named, without waiting for input when there is no terminal."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from pods import TestPod, keygen, wait_for
from projects import Project

PASSPHRASE = "open sesame"


def attempt(project: Project, pod: TestPod, key: Path, **env: str) -> subprocess.CompletedProcess[str]:
    argv = project.command(pod.address, project.config(), "--identity", key, "--accept-new-host-key", "--dry-run")
    began = time.monotonic()
    done = project.run(argv, timeout_s=20, **env)
    assert time.monotonic() - began < 20
    return done


@pytest.mark.parametrize(
    ("which", "said"),
    [
        ("wrong", "refused the login"),
        ("encrypted", "needs a passphrase"),
        ("public", "is a public key"),
        ("missing", "no such file"),
        ("garbage", "no private key that can be read"),
    ],
)
def test_each_problem_has_its_words(project: Project, pod: TestPod, tmp_path: Path, which: str, said: str) -> None:
    key = tmp_path / "keys" / which
    key.parent.mkdir()
    if which in ("wrong", "public"):
        keygen(key)
    elif which == "encrypted":
        keygen(key, PASSPHRASE)
    elif which == "garbage":
        key.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nnonsense\n-----END OPENSSH PRIVATE KEY-----\n")
    if which == "public":
        key = key.with_suffix(".pub")
    done = attempt(project, pod, key)
    assert done.returncode == 3
    assert said in done.stderr
    assert str(key) in done.stderr
    assert "Traceback" not in done.stderr


def encrypted_key(pod: TestPod, tmp_path: Path) -> Path:
    """An encrypted copy of the key that the pod accepts."""
    key = tmp_path / "encrypted"
    shutil.copy(pod.key, key)
    key.chmod(0o600)
    shutil.copy(f"{pod.key}.pub", f"{key}.pub")
    subprocess.run(["ssh-keygen", "-qp", "-P", "", "-N", PASSPHRASE, "-f", key], check=True, capture_output=True)
    return key


def test_an_agent_opens_an_encrypted_key(project: Project, pod: TestPod, tmp_path: Path) -> None:
    key = encrypted_key(pod, tmp_path)
    ask = tmp_path / "askpass"
    ask.write_text(f"#!/bin/sh\necho '{PASSPHRASE}'\n")
    ask.chmod(0o700)
    socket = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL)
    try:
        wait_for(socket.exists, "the agent's socket")
        env = {"SSH_AUTH_SOCK": str(socket), "SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force"}
        subprocess.run(["ssh-add", "-q", key], env={**os.environ, **env}, check=True, stdin=subprocess.DEVNULL)
        done = attempt(project, pod, key, SSH_AUTH_SOCK=str(socket))
    finally:
        agent.terminate()
        agent.wait()
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("typed", "code"), [(PASSPHRASE, 0), ("wrong", 3)])
def test_a_terminal_is_asked(project: Project, pod: TestPod, tmp_path: Path, typed: str, code: int) -> None:
    key = encrypted_key(pod, tmp_path)
    argv = project.command(pod.address, project.config(), "--identity", key, "--accept-new-host-key", "--dry-run")
    ours, theirs = pty.openpty()
    running = subprocess.Popen(
        argv, cwd=project.root, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    seen = b""
    answered = 0
    while True:
        try:
            block = os.read(ours, 4096)
        except OSError:
            break  # the other end closed
        if not block:
            break
        seen += block
        while seen.count(b"passphrase of") > answered:
            answered += 1
            os.write(ours, typed.encode() + b"\n")
    os.close(ours)
    assert running.wait(30) == code, seen
    if code:
        assert b"wrong passphrase" in seen
    assert PASSPHRASE.encode() not in seen
