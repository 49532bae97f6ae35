"""Backups of files on this disk into every kind of store, while a trainer rotates them: whole, consistent, cheap."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pods
import pytest
import rotating
from pods import wait_for
from s3server import KEYS, S3Server

from remote_runner import backup, restoring, retention, vault
from remote_runner.checkpoint import header
from remote_runner.errors import Unverified
from remote_runner.ondisk import OnDisk
from remote_runner.stores import open_store
from remote_runner.vault import Place

LATEST = "artifacts/run/generator-training.safetensors"
PREVIOUS = "artifacts/run/generator-training.previous.safetensors"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "pod/runs").mkdir(parents=True)
    return tmp_path / "pod"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(store=open_store("kept", tmp_path), project="project", name="run", keep=1000)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("s3")).start()
    yield server
    server.stop()


@pytest.fixture
def s3_place(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    return Place(store=open_store(s3.url(tmp_path.name), tmp_path), project="project", name="run", keep=1000)


def make(root: Path, place: Place, last: backup.Backup | None = None) -> backup.Backup:
    source = OnDisk(root, ["artifacts/run"], "run")
    return backup.make(source, place, root.parent / "spool", "attempt", last)


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


def restored(place: Place, manifest: dict[str, object], to: Path) -> Path:
    restoring.put_in_place(restoring.fetch(place, manifest, to / ".incoming"), manifest, to)
    return to


def check_each(place: Place, manifests: list[dict[str, object]], tmp_path: Path) -> list[int]:
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


def test_the_same_against_an_object_store(root: Path, s3_place: Place, tmp_path: Path) -> None:
    last, found = None, []
    with trainer(root):
        for _ in range(15):
            last = make(root, s3_place, last)
            found.append(vault.checked(s3_place.store.get(s3_place.manifest(last.id))))
    check_each(s3_place, found, tmp_path)


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


def test_a_change_that_size_and_times_do_not_show(root: Path, place: Place, tmp_path: Path) -> None:
    rotating.save(root, "generator", 1)
    notes = root / "artifacts/run/notes.bin"
    notes.write_bytes(b"before")
    before = notes.stat()
    last = make(root, place)
    notes.write_bytes(b"beforE")
    os.utime(notes, ns=(before.st_atime_ns, before.st_mtime_ns))
    last = make(root, place, last)
    home = restored(place, vault.checked(place.store.get(place.manifest(last.id))), tmp_path / "back")
    assert (home / "artifacts/run/notes.bin").read_bytes() == b"beforE"


def test_an_object_of_many_parts_is_known_by_its_bytes(root: Path, s3_place: Place, s3: S3Server) -> None:
    """Other bytes of the same length are found and named by key; nothing travels when nothing has changed."""
    (root / "artifacts/run").mkdir(parents=True)
    big = root / "artifacts/run/model.bin"
    big.write_bytes(os.urandom(12 << 20))
    first = make(root, s3_place)
    manifest = vault.checked(s3_place.store.get(s3_place.manifest(first.id)))
    assert vault.damaged(s3_place, manifest) == []
    assert make(root, s3_place).new_bytes == 0
    key = s3_place.blob(manifest["files"][0]["sha256"])
    s3_place.store.put(key, bytes(12 << 20))
    assert [d.partition(":")[0] for d in vault.damaged(s3_place, manifest)] == [key]
    with pytest.raises(Unverified, match=key):
        restoring.fetch(s3_place, manifest, root.parent / "incoming")


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
        ssh = tmp_path / ".ssh"
        ssh.mkdir(mode=0o700)
        (ssh / "config").write_text(
            f"Host vault\n  HostName 127.0.0.1\n  Port {server.port}\n  User root\n  IdentityFile {server.key}\n"
        )
        (ssh / "known_hosts").write_text(f"[127.0.0.1]:{server.port} {(server.folder / 'hostkey.pub').read_text()}")
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
