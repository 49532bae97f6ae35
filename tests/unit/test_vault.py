"""Manifests in a store are looked at before they are believed: whatever stands there is one, or is refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_runner import resume, retention, risk, runs, vault
from remote_runner.stores import open_store
from remote_runner.vault import BadManifest, Place

SHA = "ab" * 32
HEAD = {
    "path": "artifacts/run/toy-training.safetensors", "stage": "toy", "stage_index": 0, "step": 5, "root": SHA,
    "fingerprint": SHA, "lineage": None, "best": {"step": 5, "metric": 0.5},
}  # fmt: skip
GOOD: dict[str, Any] = {
    "format": vault.SCHEMA, "id": "20260101T000000Z-toy-5", "made_at": "2026-01-01T00:00:00Z", "unix_s": 1.5,
    "took_s": 0.5, "attempt": "a", "lineage": None, "newest": HEAD, "snapshots": [HEAD], "new_bytes": 7,
    "files": [{"path": HEAD["path"], "size": 7, "sha256": SHA, "mode": 0o644}], "folders": ["artifacts/run"],
}  # fmt: skip
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    found = [path] if path else []
    if isinstance(value, dict):
        return found + [p for k, v in value.items() for p in places(v, (*path, k))]
    if isinstance(value, list):
        return found + [p for n, v in enumerate(value) for p in places(v, (*path, n))]
    return found


def changed(path: tuple[Any, ...], to: Any) -> bytes:
    manifest = copy.deepcopy(GOOD)
    inner: Any = manifest
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = to
    return json.dumps(manifest).encode()


@given(path=st.sampled_from(places(GOOD)), to=JUNK)
def test_what_is_let_through_can_be_worked_with(path: tuple[Any, ...], to: Any) -> None:
    try:
        manifest = vault.checked(changed(path, to))
    except BadManifest:
        return
    vault.order(manifest)
    retention.best([manifest])
    risk.measure([manifest], {}, 1.0, 1.0, 2.0)
    assert vault.size_of(manifest) >= 0
    vault.strays(manifest, ["artifacts/run"], "run")
    for head in vault.snapshots(manifest):
        str(resume._candidate("store", head, head["path"]))


@given(st.binary() | st.text().map(str.encode))
def test_bytes_that_are_no_manifest_are_refused(text: bytes) -> None:
    with pytest.raises(BadManifest):
        vault.checked(text)


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(BadManifest):
        vault.checked(b"[" * 100_000)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(store=open_store("backups", tmp_path), project="project", name="run", keep=5)


def test_each_that_can_not_be_read_is_named_and_the_others_are_listed(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.store.put(place.blob(SHA), b"7 bytes")
    place.store.put(place.manifest(GOOD["id"]), json.dumps(GOOD).encode())
    place.store.put(place.manifest("torn"), b'{"format": "remote-r')
    place.store.put(place.manifest("another"), json.dumps(GOOD).encode())
    (tmp_path / "remote-run.toml").write_text('project = "project"\ncommand = "true"\n')
    told: list[str] = []
    rows = {r["id"]: r for r in runs.backups(tmp_path, "run", "", False, told.append)}
    assert rows[GOOD["id"]]["verdict"] == "verified"
    assert "its manifest can't be read" in rows["torn"]["verdict"]
    assert f"it says that it is '{GOOD['id']}'" in rows["another"]["verdict"]
    assert [r["whole"] for r in rows.values()].count(True) == 1


@pytest.mark.parametrize("path", [".git/hooks/pre-commit", "train.py", "runs/other-train.log", "artifacts/run-two/x"])
def test_a_path_that_is_none_of_the_runs_places_is_a_stray(path: str) -> None:
    manifest = copy.deepcopy(GOOD)
    manifest["files"].append({**manifest["files"][0], "path": path})
    assert vault.strays(vault.checked(json.dumps(manifest).encode()), ["artifacts/run"], "run") == [path]
    assert vault.strays(GOOD, ["artifacts/run"], "run") == []
