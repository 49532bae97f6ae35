"""Backups of files on this disk into every kind of store, while a trainer rotates them: whole, consistent, cheap."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pods
import pytest
import rotating
from backing import LATEST, PREVIOUS, check_each, make, restored, trainer

from remote_runner import backup, retention, vault
from remote_runner.checkpoint import header
from remote_runner.stores import open_store
from remote_runner.vault import Place


def test_two_hundred_backups_while_snapshots_rotate(root: Path, place: Place, tmp_path: Path) -> None:
    made: list[backup.Backup] = []
    found: dict[str, dict[str, object]] = {}
    with trainer(root):
        while len(made) < 200:
            made.append(make(root, place, made[-1] if made else None))
            found[f"{len(made)}"] = vault.checked(place.store.get(place.manifest(made[-1].id)))
    steps = check_each(place, list(found.values()), tmp_path)
    assert len(set(steps)) > 50, "the trainer hardly moved"
    assert [vault.missing(place, m) for m in found.values()] == [[]] * 200


def test_what_the_store_has_costs_nothing(root: Path, place: Place) -> None:
    rotating.save(root, "codec", 10)
    rotating.save(root, "generator", 1)
    size = (root / LATEST).stat().st_size
    first = make(root, place)
    assert first.new_bytes == size + (root / "artifacts/run/codec-training.safetensors").stat().st_size
    assert make(root, place, first).new_bytes == 0
    rotating.save(root, "generator", 2)  # what was latest is previous now
    assert make(root, place, first).new_bytes == size
    rotating.save(root, "generator", 3)
    assert make(root, place).new_bytes == size, "a process that knows nothing asks the store"


def test_awkward_names_and_an_empty_folder_come_back(root: Path, place: Place, s3_place: Place, tmp_path: Path) -> None:
    folder = root / "artifacts/run"
    names = ["a b", "-rf", "new\nline", "$(touch PWNED)", "back\\slash", "ü", "*", "'\"", "%41", "#x", "a+b", "?q=1"]
    (folder / "empty folder").mkdir(parents=True)
    for number, name in enumerate(names):
        (folder / name).write_bytes(b"x" * number)
    for number, where in enumerate((place, s3_place)):
        made = make(root, where)
        home = restored(where, vault.checked(where.store.get(where.manifest(made.id))), tmp_path / f"b{number}")
        assert {p.name: p.stat().st_size for p in (home / "artifacts/run").iterdir() if p.is_file()} == {
            name: number for number, name in enumerate(names)
        }
        assert (home / "artifacts/run/empty folder").is_dir()


def test_a_snapshot_that_does_not_verify_is_kept_and_not_counted_on(root: Path, place: Place) -> None:
    rotating.save(root, "generator", 1)
    rotating.save(root, "generator", 2)
    bad = bytearray((root / LATEST).read_bytes())
    bad[-1] ^= 1
    (root / LATEST).write_bytes(bad)
    made = make(root, place)
    manifest = vault.checked(place.store.get(place.manifest(made.id)))
    assert made.step == 1
    assert [s["path"] for s in manifest["snapshots"]] == [PREVIOUS]
    assert LATEST in [e["path"] for e in manifest["files"]]


# --- what stays ----------------------------------------------------------------------


def test_retention_keeps_the_newest_the_best_and_the_furthest(root: Path, place: Place) -> None:
    made = {}
    for step, metric in [(1, 0.9), (2, 0.2), (3, 0.5), (4, 0.6), (5, 0.7)]:
        rotating.save(root, "generator", step, best={"step": step, "metric": metric})
        made[step] = make(root, place).id
    gone, blobs = retention.prune(replace(place, keep=2)) or ([], 0)
    assert sorted(gone) == [made[1], made[3]]
    assert blobs == 0, "1 and 3 are the previous of 2 and 4"
    assert [m["newest"]["step"] for m in vault.manifests(place)] == [2, 4, 5]
    assert not any(vault.damaged(place, m) for m in vault.manifests(place))


def test_the_last_whole_backup_outlives_newer_broken_ones(root: Path, place: Place) -> None:
    for step in range(1, 6):
        rotating.save(root, "generator", step)
        (root / PREVIOUS).unlink(missing_ok=True)
        make(root, place)
    found = vault.manifests(place)
    for manifest in found[2:]:
        sha256 = next(e["sha256"] for e in manifest["files"] if e["path"] == LATEST)
        size = place.store.has(place.blob(sha256))
        place.store.put(place.blob(sha256), bytes(size or 0))
    retention.prune(replace(place, keep=1), read=True)
    steps = [m["newest"]["step"] for m in vault.manifests(place)]
    assert steps == [2, 5]
    assert vault.damaged(place, vault.manifests(place)[0]) == []


def test_blobs_of_a_manifest_that_can_not_be_read_are_left_alone(root: Path, place: Place) -> None:
    rotating.save(root, "generator", 1)
    make(root, place)
    place.store.put(place.blob("ab" * 32), b"of a later version")
    place.store.put(place.manifest("20990101T000000Z-generator-9"), b'{"format": "remote-run-backup/2"}')
    told: list[str] = []
    assert len(vault.manifests(place, told.append)) == 1
    assert "20990101T000000Z-generator-9" in told[0]
    retention.prune(place)
    assert place.store.has(place.blob("ab" * 32)) is not None


def test_a_fresh_start_keeps_the_old_backups_aside(root: Path, place: Place, tmp_path: Path) -> None:
    rotating.save(root, "generator", 7)
    old = make(root, place)
    assert retention.set_aside(place, "20260101-000000") == [old.id]
    assert vault.manifests(place) == []
    retention.prune(place)
    aside = vault.manifests(place, aside=True)
    assert [m["id"] for m in aside] == [old.id]
    assert header.verify_digests(restored(place, aside[0], tmp_path / "back") / LATEST)["step"] == 7


# --- two at once ---------------------------------------------------------------------


def test_a_prune_steps_aside_for_a_writer(root: Path, place: Place) -> None:
    place.store.put(place.blob("ab" * 32), b"put, and not named yet")
    with retention.writing(place):
        assert retention.prune(place) is None
    assert place.store.has(place.blob("ab" * 32)) is not None
    assert retention.prune(place) == ([], 1)


def test_a_dead_writers_mark_holds_nothing_up_for_long(place: Place) -> None:
    mark = retention.Mark(place, "writing")
    old = place.store.list(place.top)[0].modified_unix_s - retention.DEAD_AFTER_S - 5
    os.utime(place.store._root / mark.key, (old, old))  # type: ignore[attr-defined]
    assert retention.prune(place) == ([], 0)
    with pytest.raises(OSError, match="took this one for dead"):
        mark.hold()


HAMMER = """
import sys
from pathlib import Path
from remote_runner import backup, retention
from remote_runner.ondisk import OnDisk
from remote_runner.stores import open_store
from remote_runner.vault import Place
root, url, spool, rounds = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
place = Place(store=open_store(url, root), project="project", name="run", keep=2)
for _ in range(rounds):
    backup.make(OnDisk(root, ["artifacts/run"], "run"), place, spool, "attempt", None)
    retention.prune(place)
    print("made", flush=True)
"""


def hammer(root: Path, url: str, spool: Path, rounds: int) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", HAMMER, root, url, spool, str(rounds)]
    return subprocess.Popen([str(a) for a in argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_writers_and_pruners_at_once_leave_only_whole_backups(root: Path, tmp_path: Path) -> None:
    place = Place(store=open_store(str(tmp_path / "kept"), tmp_path), project="project", name="run", keep=2)
    with trainer(root):
        workers = [hammer(root, str(tmp_path / "kept"), tmp_path / f"spool-{n}", 25) for n in range(3)]
        seen = 0
        while any(w.poll() is None for w in workers):
            for manifest in vault.manifests(place):
                # pruned meanwhile is no fault: then its manifest went first
                if vault.missing(place, manifest) and place.store.has(place.manifest(manifest["id"])) is not None:
                    raise AssertionError(f"{manifest['id']} names a blob that is not there")
                seen += 1
    for worker in workers:
        _, err = worker.communicate()
        assert worker.returncode == 0, err
    assert seen > 20
    assert retention.prune(place) is not None
    found = vault.manifests(place)
    assert found
    assert not any(vault.damaged(place, m) for m in found)
    named = {e["sha256"] for m in found for e in m["files"]}
    assert set(vault.blob_sizes(place)) == named


def test_a_writer_killed_at_any_moment_leaves_only_whole_backups(root: Path, tmp_path: Path) -> None:
    place = Place(store=open_store(str(tmp_path / "kept"), tmp_path), project="project", name="run", keep=5)
    with trainer(root):
        for number in range(12):
            worker = hammer(root, str(tmp_path / "kept"), tmp_path / "spool", 1000)
            assert worker.stdout is not None
            for _ in range(1 + number % 3):
                assert worker.stdout.readline() == "made\n"
            with contextlib.suppress(subprocess.TimeoutExpired):  # not a wait for a condition: the moment is the point
                worker.wait(0.003 * (number % 7))
            worker.kill()
            worker.communicate()
            assert not any(vault.damaged(place, m) for m in vault.manifests(place))
        make(root, place)
    assert vault.manifests(place)


def test_a_store_server_killed_at_any_moment_leaves_only_whole_backups(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pods.running(tmp_path / "host") as server, trainer(root):
        server.trust(tmp_path, "vault")
        behind = Place(store=open_store(str(tmp_path / "host/kept"), tmp_path), project="project", name="run", keep=5)
        worker = hammer(root, f"sftp://vault{tmp_path}/host/kept", tmp_path / "spool", 6)
        for number in range(6):
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(0.3 + 0.17 * number)
            server.lose()
            assert not any(vault.damaged(behind, m) for m in vault.manifests(behind))
            server.start()
        _, err = worker.communicate(timeout=120)
        assert worker.returncode == 0, err
    assert not any(vault.damaged(behind, m) for m in vault.manifests(behind))
    assert vault.manifests(behind)
