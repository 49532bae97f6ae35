"""H37: the store's credentials are found nowhere: no argv, log, status, upload, record or stored object holds them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pods import TestPod
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


def watch_command_lines(stop: threading.Event, found: list[bytes]) -> None:
    while not stop.is_set():
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = path.read_bytes()
            except OSError:
                continue
            if MARK in line and b"pytest" not in line:
                found.append(line)


@pytest.mark.parametrize("good", [True, False])
def test_credentials_of_the_store_stay_at_home(
    project: Project, pod: TestPod, s3: S3Server, monkeypatch: pytest.MonkeyPatch, good: bool
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    url = s3.url("kept") if good else "s3://no-such-bucket/kept?endpoint=" + s3.endpoint
    stop, seen = threading.Event(), list[bytes]()
    watcher = threading.Thread(target=watch_command_lines, args=(stop, seen))
    watcher.start()
    done = project.run(
        project.on(pod, project.config(steps=40, step_s=0.05), "--backup-to", url, "--backup-every", "1s")
    )
    stop.set()
    watcher.join()
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
