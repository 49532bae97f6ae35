"""All the forms of a known_hosts entry, and what the tool does with each before it sends anything."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from pathlib import Path

import pytest
from pods import TestPod
from projects import Project

from remote_runner import ssh
from remote_runner.errors import PreflightFailed
from remote_runner.hostkeys import Policy
from remote_runner.target import parse

OTHER = base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0 " + hashlib.sha256(b"another machine").digest()).decode()


def forms(pod: TestPod) -> dict[str, str]:
    kind, blob = (pod.folder / "hostkey.pub").read_text().split()[:2]
    name = f"[127.0.0.1]:{pod.port}"
    salt = hashlib.sha1(b"a fixed salt").digest()
    mac = base64.b64encode(hmac.new(salt, name.encode(), hashlib.sha1).digest()).decode()
    good = f"{name} {kind} {blob}\n"
    return {
        "plain": good,
        "hashed": f"|1|{base64.b64encode(salt).decode()}|{mac} {kind} {blob}\n",
        "marker lines": f"@cert-authority *.example.test ssh-ed25519 {OTHER}\n# comment\n\nnot a line\n{good}",
        "other key": f"{name} ssh-ed25519 {OTHER}\n",
        "revoked": f"@revoked {name} {kind} {blob}\n{good}",
        "bare host only": f"127.0.0.1 {kind} {blob}\n",
        "other key under the bare host": f"127.0.0.1 ssh-ed25519 {OTHER}\n",
        "empty": "",
    }


def connect(pod: TestPod, own: Path, **policy: object) -> str:
    target = parse(pod.address)
    endpoint = ssh.resolve(target, Policy(own_file=own, **policy), None, pod.key)  # type: ignore[arg-type]
    with ssh.connect(endpoint) as connected:
        return connected.host_key()


@pytest.mark.parametrize("form", ["plain", "hashed", "marker lines"])
def test_a_known_key_connects(project: Project, pod: TestPod, tmp_path: Path, form: str) -> None:
    write(forms(pod)[form])
    assert connect(pod, tmp_path / "own").startswith("SHA256:")
    assert not (tmp_path / "own").exists()  # nothing to pin: the user's file has it


@pytest.mark.parametrize("form", ["other key", "revoked", "bare host only", "other key under the bare host", "empty"])
def test_anything_else_is_refused_without_a_terminal(project: Project, pod: TestPod, tmp_path: Path, form: str) -> None:
    write(forms(pod)[form])
    with pytest.raises(PreflightFailed) as refused:
        connect(pod, tmp_path / "own")
    assert f"[127.0.0.1]:{pod.port}" in str(refused.value)
    assert "SHA256:" in str(refused.value)
    log = (pod.folder / "log").read_text()
    assert "Accepted publickey" not in log  # no credential was used


def test_a_changed_key_names_all_that_helps(project: Project, pod: TestPod, tmp_path: Path) -> None:
    path = write(forms(pod)["other key"])
    with pytest.raises(PreflightFailed) as refused:
        connect(pod, tmp_path / "own", accept_new=True)  # accepting new keys never accepts a changed one
    text = f"{refused.value} {refused.value.fix}"
    assert f"{path}:1" in text
    assert len(set(re.findall(r"SHA256:[\w+/]+", text))) == 2
    assert "re-used address" in text


def test_a_new_key_is_pinned_once_accepted(project: Project, pod: TestPod, tmp_path: Path) -> None:
    own = tmp_path / "own"
    seen = connect(pod, own, accept_new=True)
    assert connect(pod, own) == seen
    with pytest.raises(PreflightFailed):
        connect(pod, own, pin="SHA256:" + "A" * 43)
    assert connect(pod, tmp_path / "another", pin=seen) == seen
    assert connect(pod, tmp_path / "another") == seen


def write(text: str) -> Path:
    path = Path("~/.ssh/known_hosts").expanduser()
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path
