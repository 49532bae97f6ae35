"""The pod backs itself up: no controller is there, and the end of the run is in the store all the same."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pods import TestPod, wait_for
from projects import Project
from s3server import KEYS, S3Server

from remote_runner import pushing, vault
from remote_runner.stores import open_store
from remote_runner.vault import Place


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    server = S3Server(tmp_path).start()
    yield server
    server.stop()


def test_a_pod_pushes_while_nobody_looks(project: Project, pod: TestPod, s3: S3Server) -> None:
    settings = project.root / "remote-run.toml"
    settings.write_text(settings.read_text() + f'\nbackup = {{ to = "{s3.url("kept")}", every = "1s", push = true }}\n')
    config = project.config(steps=200, step_s=0.05)
    done = project.run(project.on(pod, config, "--detach"))
    assert done.returncode == 0, done.stderr
    assert "the pod backs itself up" in done.stderr
    assert "nothing is copied" not in done.stderr
    place = Place(store=open_store(s3.url("kept"), project.root), project="project", name="toy", keep=100)
    credentials = pod.root / ".remote-run/push/credentials.json"
    wait_for(lambda: vault.manifests(place), "a backup that no controller made", 60)
    assert credentials.stat().st_mode & 0o777 == 0o600
    status = pod.root / "runs/toy-status.json"
    wait_for(lambda: json.loads(status.read_text()).get("exit"), "the end of the run", 90)
    wait_for(lambda: not credentials.exists(), "the credentials are removed", 60)
    last = vault.manifests(place)[-1]
    assert last["newest"]["step"] == 200
    assert "artifacts/toy/result.json" in [e["path"] for e in last["files"]], "what came after the last snapshot too"
    assert not any(vault.damaged(place, m) for m in vault.manifests(place))
    assert not [p for p in pod.folder.rglob("*") if p.is_file() and b"SECRET-" in p.read_bytes()]
    said = json.loads((pod.root / ".remote-run/push/status.json").read_text())
    assert (said["step"], said.get("problem")) == (200, None)


def test_a_store_that_the_pod_can_not_reach_is_refused_at_once(project: Project, pod: TestPod) -> None:
    settings = project.root / "remote-run.toml"
    settings.write_text(settings.read_text() + "\nbackup = { push = true }\n")
    done = project.run(project.on(pod, project.config()))
    assert done.returncode == 2
    assert "a pod can't write to backups" in done.stderr


def test_the_program_has_all_that_it_imports(tmp_path: Path) -> None:
    """Alone on its path, with obstore and tenacity beside it: nothing of the controller, no paramiko."""
    (tmp_path / "program.zip").write_bytes(pushing.program())
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'program.zip')!r})\n"
        "import remote_runner.push, remote_runner.stores.objects, remote_runner.stores.steady\n"
        "assert 'program.zip' in remote_runner.push.__file__, remote_runner.push.__file__\n"
        "heavy = {'paramiko', 'numpy', 'click', 'pydantic', 'rich', 'torch', 'mlx'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"})
