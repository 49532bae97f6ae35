"""The backups of one run in a store: where things lie, what a manifest must look like.

    <project>/<name>/blobs/<sha256>                                   content
    <project>/<name>/backups/<UTC time>-<stage>-<step>/manifest.json  makes it count
    <project>/<name>/aside/<stamp>/<id>/manifest.json                 of a run that a fresh start replaced
    <project>/<name>/writing/<token>, pruning/<token>                 who is at work (retention.py)

A store is not trusted more than a pod: every manifest is checked before it is believed, every blob is hashed.

Not here: how a backup is made (backup.py) and brought back (restoring.py), what is removed (retention.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remote_runner.errors import PreflightFailed
from remote_runner.pod import files, layout
from remote_runner.stores import Store, StoreRefused

SCHEMA = "remote-run-backup/1"
MOST_BYTES = 256 << 20  # a manifest of a million files
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the backups of one run lie."""

    store: Store
    project: str
    name: str
    keep: int

    @property
    def top(self) -> str:
        return f"{self.project}/{self.name}/"

    @property
    def blobs(self) -> str:
        return f"{self.top}blobs/"

    @property
    def backups(self) -> str:
        return f"{self.top}backups/"

    @property
    def aside(self) -> str:
        return f"{self.top}aside/"

    def blob(self, sha256: str) -> str:
        return f"{self.blobs}{sha256}"

    def manifest(self, backup_id: str) -> str:
        return f"{self.backups}{backup_id}/manifest.json"


class BadManifest(ValueError):
    """What stands there is no manifest of ours."""


def manifests(
    place: Place,
    tell: Callable[[str], None] = lambda _: None,
    *,
    aside: bool = False,
    bad: dict[str, str] | None = None,
) -> list[dict[str, Any]]:
    """All backups of a run, the highest (stage_index, step) last; what is no manifest is told of and passed over.

    Args:
        aside: those that a fresh start has kept aside, in place of the run's own.
        bad: gets the ids of those that were passed over, and why.
    """
    found = []
    for stored in place.store.list(place.aside if aside else place.backups):
        if not stored.key.endswith("/manifest.json"):
            continue
        backup_id = stored.key.split("/")[-2]
        try:
            if stored.size > MOST_BYTES:
                raise BadManifest(f"{stored.size} bytes are no manifest")
            manifest = checked(place.store.get(stored.key))
            if manifest["id"] != backup_id:
                raise BadManifest(f"it says that it is {manifest['id']!r}")
            found.append(manifest)
        except FileNotFoundError:
            continue  # pruned since it was listed
        except BadManifest as e:
            tell(f"{stored.key}: passed over: {e}")
            if bad is not None:
                bad[backup_id] = str(e)
    return sorted(found, key=order)


def asked(
    place: Place, tell: Callable[[str], None] = lambda _: None, bad: dict[str, str] | None = None
) -> list[dict[str, Any]]:
    """`manifests`, where a store that can't be asked is the user's problem.

    Raises:
        PreflightFailed: it does not answer, or refuses.
    """
    try:
        return manifests(place, tell, bad=bad)
    except StoreRefused as e:
        raise PreflightFailed(f"the store refuses: {e}", fix="look at its address and credentials") from None
    except OSError as e:
        raise PreflightFailed(
            f"the store can't be asked: {e}", fix="try again, or take another store: --backup-to URL", passing=True
        ) from None


def order(manifest: dict[str, Any]) -> tuple[int, int, float]:
    """Sorts backups: by stage and step; the time only among equal ones, and all from one clock at best."""
    newest = manifest.get("newest") or {}
    return newest.get("stage_index") or 0, newest.get("step") or 0, manifest["unix_s"]


def checked(text: bytes) -> dict[str, Any]:
    """A manifest that can be believed in shape.

    Raises:
        BadManifest: not JSON, another format, a path that leads out, a digest that is none.
    """
    try:
        manifest = json.loads(text)
        if not isinstance(manifest, dict) or manifest.get("format") != SCHEMA:
            raise BadManifest(f"not of the format {SCHEMA}")
        named: set[str] = set()
        for entry in manifest["files"]:
            files.parts(entry["path"])
            if entry["path"] in named:
                raise BadManifest(f"{entry['path']}: twice")
            named.add(entry["path"])
            _kinds(entry, sha256=str, size=int, mode=int)
            if not _SHA256.match(entry["sha256"]) or entry["size"] < 0:
                raise BadManifest(f"{entry['path']}: no SHA-256 or no size")
        for folder in manifest["folders"]:
            files.parts(folder)
            if folder in named:
                raise BadManifest(f"{folder}: a file and a folder")
        for head in [*snapshots(manifest), *filter(None, [manifest.get("newest")])]:
            _kinds(head, stage=str, stage_index=int, step=int, path=str, root=str)
            _kinds(head.get("best") or {}, {"metric": (int, float, None)})
        _kinds(manifest, id=str, made_at=str, unix_s=(int, float))
        _kinds(manifest, {"took_s": (int, float, None), "new_bytes": (int, None), "attempt": (str, None)})
        files.parts(manifest["id"])
    except BadManifest:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise BadManifest(f"{type(e).__name__}: {e}") from None
    return manifest


def _kinds(found: dict[str, Any], optional: dict[str, tuple[Any, ...]] | None = None, **wanted: Any) -> None:
    """Hold fields to their types; a bool is no number, and a number is finite."""
    for name, kind in {**(optional or {}), **wanted}.items():
        kinds = kind if isinstance(kind, tuple) else (kind,)
        value = found.get(name)
        if (value is None and None in kinds) or (type(value) in kinds and _is_finite(value)):
            continue
        raise BadManifest(f"{name}: {str(value)[:40]!r}")


def _is_finite(value: Any) -> bool:
    return isinstance(value, str) or abs(value) < 1 << 60  # False for NaN too


def snapshots(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """What each snapshot in a backup says of itself, with its `path`."""
    found: list[dict[str, Any]] = manifest.get("snapshots") or []
    return found


def is_foreign(head: dict[str, Any]) -> bool:
    """Whether a snapshot is another trainer's; what is said of it came from the pod and must have the right shape."""
    kinds = {"stage": str, "stage_index": int, "step": int, "root": str, "rule": str}
    return all(isinstance(head.get(key), kind) for key, kind in kinds.items())


def strays(manifest: dict[str, Any], outputs: list[str], name: str) -> list[str]:
    """Paths of a backup that are none of the run's places: a store may not put code into a project."""
    own = {layout.run_file(name, suffix) for suffix in layout.POD_RUN_FILES}
    named = [str(e["path"]) for e in manifest["files"]] + [f"{f}/" for f in manifest["folders"]]
    return [p for p in named if p not in own and not any(p.startswith(f"{top}/") or p == top for top in outputs)]


def size_of(manifest: dict[str, Any]) -> int:
    return sum(e["size"] for e in manifest["files"])


def missing(place: Place, manifest: dict[str, Any], sizes: dict[str, int] | None = None) -> list[str]:
    """Keys of the blobs that a backup names and the store lacks, or has with another size."""
    have = blob_sizes(place) if sizes is None else sizes
    return [place.blob(e["sha256"]) for e in manifest["files"] if have.get(e["sha256"]) != e["size"]]


def blob_sizes(place: Place) -> dict[str, int]:
    """Every blob of a run in the store: digest -> size. One listing."""
    return {o.key.rpartition("/")[2]: o.size for o in place.store.list(place.blobs)}


def damaged(place: Place, manifest: dict[str, Any]) -> list[str]:
    """Read every blob of a backup; what is wrong, by key."""
    found = []
    for sha256 in {e["sha256"] for e in manifest["files"]}:
        key = place.blob(sha256)
        try:
            is_now = place.store.digest(key)
        except FileNotFoundError:
            found.append(f"{key}: gone from the store")
            continue
        if is_now != sha256:
            found.append(f"{key}: its bytes are {is_now}")
    return sorted(found)


def spool(root: Path, name: str) -> Path:
    """Where files wait for their way into the store."""
    return root / layout.OWN / "incoming" / f"{name}.backup"
