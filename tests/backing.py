"""Backups of a run on this disk: a trainer that rotates its snapshots, backups of it, and each of them proven."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rotating
from pods import wait_for

from remote_runner import backup, restoring, vault
from remote_runner.checkpoint import header
from remote_runner.ondisk import OnDisk
from remote_runner.vault import Place

LATEST = "artifacts/run/generator-training.safetensors"
PREVIOUS = "artifacts/run/generator-training.previous.safetensors"


def make(root: Path, place: Place, last: backup.Backup | None = None) -> backup.Backup:
    source = OnDisk(root, ["artifacts/run"], "run")
    return backup.make(source, place, root.parent / "spool", "attempt", last)


def manifest_of(place: Place, made: backup.Backup) -> dict[str, Any]:
    return vault.checked(place.store.get(place.manifest(made.id)))


@contextlib.contextmanager
def trainer(root: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, rotating.__file__, root, "1"], start_new_session=True)
    try:
        wait_for((root / PREVIOUS).exists, "two snapshots")
        yield process
        assert process.poll() is None, "the trainer was made to fail"
    finally:
        process.kill()
        process.wait()


def restored(place: Place, manifest: dict[str, Any], to: Path) -> Path:
    restoring.put_in_place(restoring.fetch(place, manifest, to / ".incoming"), manifest, to)
    return to


def check_each(place: Place, manifests: list[dict[str, Any]], tmp_path: Path) -> list[int]:
    """Restore every backup; its snapshots verify, are what the manifest says, and its log is a prefix."""
    steps, logs = [], []
    for number, manifest in enumerate(manifests):
        home = restored(place, manifest, tmp_path / f"back-{number}")
        newest = manifest["newest"]
        head = header.verify_digests(home / LATEST)
        assert (head["stage"], head["step"], head["root"]) == (newest["stage"], newest["step"], newest["root"])
        previous = header.verify_digests(home / PREVIOUS)
        assert previous["step"] <= head["step"]
        assert header.verify_digests(home / "artifacts/run/codec-training.safetensors")["step"] == 10
        rows = [json.loads(line) for line in (home / "artifacts/run/metrics.jsonl").read_bytes().split(b"\n")[:-1]]
        assert max(row["step"] for row in rows) >= head["step"] - 1, "the log is behind its snapshot"
        steps.append(head["step"])
        logs.append((home / "runs/run-train.log").read_bytes())
    logs.sort(key=len)
    assert all(b.startswith(a) for a, b in itertools.pairwise(logs))
    return steps
