"""A pod that lies: bytes changed on their way out are noticed, named, and never put in place of good ones."""

from __future__ import annotations

import hashlib
import io
import zipfile

import pytest
from pods import TestPod
from projects import Project

from remote_runner import zipapp
from remote_runner.cli import cli
from remote_runner.cli.base import run_cli

FLIP = """

_honest = Wire.send


def _flip(self, header, payload=b""):
    plain = zlib.decompress(payload) if header.get("z") else payload
    if b"padding" in plain:  # the one file's content, compressed or not
        payload = payload[:-1] + bytes([payload[-1] ^ 1])
    _honest(self, header, payload)


Wire.send = _flip
"""


def sabotaged(appended: str, module: str = "remote_runner/pod/wire.py") -> zipapp.Zipapp:
    """The program for the pod with something appended to one of its modules."""
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(zipapp.build().content)) as good, zipfile.ZipFile(packed, "w") as bad:
        for name in good.namelist():
            more = appended.encode() if name == module else b""
            bad.writestr(name, good.read(name) + more)
    content = packed.getvalue()
    return zipapp.Zipapp(hashlib.sha256(content).hexdigest()[:32] + ".pyz", content)


def test_a_byte_flipped_on_its_way_is_noticed_and_named(
    project: Project, pod: TestPod, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert project.run(project.on(pod, project.config())).returncode == 0
    good = (project.root / "artifacts/toy/toy-training.safetensors").read_bytes()
    # the pod's own file is whole and of another content, so that it is to be fetched
    assert project.run(project.on(pod, project.config(), "--resume")).returncode == 0
    result = pod.root / "artifacts/toy/result.json"
    result.write_text('{"sum": 1.0, "padding": "' + "x" * 200 + '"}')
    before = (project.root / "artifacts/toy/result.json").read_bytes()

    bad = sabotaged(FLIP)
    monkeypatch.setattr(zipapp, "build", lambda: bad)
    monkeypatch.chdir(project.root)
    code = run_cli(cli, ["download", pod.address, "toy", "--identity", str(pod.key), "--accept-new-host-key"])
    said = capsys.readouterr().err
    assert code == 7, said
    assert "artifacts/toy/result.json" in said
    assert (project.root / "artifacts/toy/result.json").read_bytes() == before
    assert (project.root / "artifacts/toy/toy-training.safetensors").read_bytes() == good

    monkeypatch.undo()
    monkeypatch.chdir(project.root)
    again = project.run(project.at("download", pod, "toy"))
    assert again.returncode == 0, again.stderr
    assert (project.root / "artifacts/toy/result.json").read_bytes() == result.read_bytes()
