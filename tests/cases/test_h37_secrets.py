"""H37: the store's credentials are found nowhere: no argv, log, status, upload, record or stored object holds them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pods import TestPod, command_lines_with
from projects import Project
from s3server import KEYS, S3Server

from remote_runner.stores import open_store

MARK = b"SECRET-"


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3Server]:
    server = S3Server(tmp_path).start()
    yield server
    server.stop()


def holding(folder: Path) -> list[str]:
    return [str(p) for p in folder.rglob("*") if p.is_file() and MARK in p.read_bytes()]


@pytest.mark.parametrize("good", [True, False])
def test_credentials_of_the_store_stay_at_home(
    project: Project, pod: TestPod, s3: S3Server, monkeypatch: pytest.MonkeyPatch, good: bool
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    url = s3.url("kept") if good else "s3://no-such-bucket/kept?endpoint=" + s3.endpoint
    with command_lines_with(MARK) as seen:
        done = project.run(
            project.on(pod, project.config(steps=40, step_s=0.05), "--backup-to", url, "--backup-every", "1s")
        )
    assert done.returncode == (0 if good else 2), done.stderr
    assert MARK not in done.stdout.encode() + done.stderr.encode()
    assert not seen
    assert not holding(project.root)
    assert not holding(pod.folder)
    if good:
        store = open_store(url, project.root)
        stored = store.list("project/")
        assert stored
        assert not [o.key for o in stored if MARK in store.get(o.key)]
