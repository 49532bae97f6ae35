"""Copy a run's files off the pod while it goes on.

A pod can vanish at any second, so what exists only there counts as lost.

    pod    artifacts/<name>/*, logs                  replaced whole or appended, never edited
      ->   store  blobs/<sha256>                     same bytes are stored once, each new one is read back
      ->   store  backups/<time>-<stage>-<step>/manifest.json   goes last and makes it count

Snapshots go first and logs last: a log that is ahead of its snapshot is cut by the reader, one that is behind
would have a hole. A file that is replaced meanwhile is the old or the new one, whole: it is read from one open
descriptor, and what the manifest says of a snapshot is read from the bytes that were stored.

Not here: what a manifest must look like (vault.py), what is removed (retention.py), where files are read
(onpod.py, ondisk.py), when one is due (regular.py). It also runs on a pod that pushes by itself (push.py).
"""

from __future__ import annotations

import errno
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from remote_runner import retention, vault
from remote_runner.checkpoint import header
from remote_runner.errors import Unverified
from remote_runner.pod import foreign, layout
from remote_runner.pod.status import utc
from remote_runner.vault import Place

SPARE_BYTES = 16 << 20
SNAPSHOTS = ("-training.safetensors", "-training.previous.safetensors")
_SAID_OF_A_SNAPSHOT = ("stage", "stage_index", "step", "target_steps", "root", "root_all", "fingerprint", "lineage")


class Arrived(Protocol):
    """One version of a file, whole, under a temporary name here."""

    @property
    def path(self) -> str: ...
    @property
    def temp(self) -> Path: ...
    @property
    def size(self) -> int: ...
    @property
    def sha256(self) -> str: ...
    @property
    def mode(self) -> int: ...


class Source(Protocol):
    """Where a run's files are read: over a connection to its pod, or on the pod itself."""

    def listing(self) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """Files by path, with size and mode; folders."""

    def digests(self, paths: list[str]) -> dict[str, str]:
        """What the files hold now; those that are gone are left out."""

    def foreign(self) -> dict[str, dict[str, Any]]:
        """Snapshots of other trainers as they are now: path -> what is said of it (pod/foreign.py)."""

    def bring(self, paths: list[str], into: Path, limits: dict[str, int]) -> Iterator[Arrived]:
        """Copy files here, each one version and whole; those that are gone are left out."""


@dataclass(frozen=True, kw_only=True)
class Backup:
    """One backup that counts."""

    id: str
    unix_s: float  # when its reading began
    stage: str
    step: int
    files: int
    new_bytes: int
    took_s: float
    heads: dict[str, dict[str, Any]] = field(repr=False)  # what each snapshot blob says of itself, by digest


def make(
    source: Source, place: Place, spool: Path, attempt: str, last: Backup | None, began_s: float | None = None
) -> Backup:
    """Bring a run's files into the store; what the store has is not sent again.

    Args:
        spool: a folder of ours on a disk with room for the largest file.
        last: the backup before, when this process made it: saves reading what it knows.
        began_s: since when it is under way, by the monotonic clock: a connection that had to be made is part of what
            it took. Default: now.

    Raises:
        OSError: the store refused, or the disk here.
        Unverified: bytes arrived damaged, or the store does not give back what it got.
        LinkLost: the link broke; nothing counts that is not whole.
    """
    began, began_s = time.time(), time.monotonic() if began_s is None else began_s
    with retention.writing(place) as mark:
        sizes = vault.blob_sizes(place)
        heads = dict(last.heads) if last else _known_heads(place)
        foreign_heads = source.foreign()
        found, folders = source.listing()
        job = _Job(source, place, spool, sizes, heads)
        entries = job.store(found)
        told = [{"path": e["path"], **job.heads[e["sha256"]]} for e in entries if e["sha256"] in job.heads]
        told += [{"path": p, **h} for p, h in foreign_heads.items() if foreign.same_content(p, h, entries)]
        newest = layout.newest(told)
        at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(began))
        backup_id = f"{at}-{newest['stage']}-{newest['step']}" if newest else f"{at}-none-0"
        manifest = {
            "format": vault.SCHEMA,
            "id": backup_id,
            "made_at": utc(began),
            "unix_s": began,
            "attempt": attempt,
            "lineage": newest["lineage"] if newest else None,
            "newest": newest,
            "snapshots": told,
            "files": entries,
            "folders": sorted(folders),
            "new_bytes": job.new_bytes,
            "verified": True,  # every blob was read back when it was stored; sizes of all are checked below
        }
        held_s = time.monotonic()
        mark.hold()  # else we slept, and what we saw in the store may be gone
        if gone := vault.missing(place, manifest):
            raise OSError(f"{gone[0]}: gone from the store while the backup was made")
        now_s = time.monotonic()
        manifest["took_s"] = round(
            now_s - began_s + now_s - held_s, 3
        )  # its own way there: about as long as the mark's
        text = json.dumps(manifest, indent=1, sort_keys=True, ensure_ascii=False).encode()
        place.store.put(place.manifest(backup_id), text)
    if last is None or len(vault.manifests(place)) > place.keep:
        retention.prune(place)
    return Backup(
        id=backup_id,
        unix_s=began,
        stage=newest["stage"] if newest else "none",
        step=newest["step"] if newest else 0,
        files=len(entries),
        new_bytes=job.new_bytes,
        took_s=time.monotonic() - began_s,
        heads=job.heads,
    )


def _known_heads(place: Place) -> dict[str, dict[str, Any]]:
    """What earlier backups found in their snapshots, so that a blob which is there need not come again."""
    found = {}
    for manifest in vault.manifests(place):
        by_path = {head["path"]: head for head in vault.snapshots(manifest)}
        for entry in manifest["files"]:
            if entry["path"] in by_path:
                found[entry["sha256"]] = {k: v for k, v in by_path[entry["path"]].items() if k != "path"}
    return found


@dataclass
class _Job:
    """One backup under way."""

    source: Source
    place: Place
    spool: Path
    sizes: dict[str, int]  # blobs in the store
    heads: dict[str, dict[str, Any]]
    new_bytes: int = 0

    def store(self, found: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
        """Make sure that the store has every file's bytes.

        Returns:
            The manifest's entries, sorted by path.
        """
        appended = [p for p in found if p.endswith(layout.APPENDED)]
        whole = sorted((p for p in found if not p.endswith(layout.APPENDED)), key=lambda p: not p.endswith(SNAPSHOTS))
        there = self.source.digests(whole)
        entries = []
        for path in whole:
            sha256 = there.get(path, "")
            if sha256 in self.sizes and (sha256 in self.heads or not path.endswith(SNAPSHOTS)):
                entries.append(_entry(path, self.sizes[sha256], found[path]["mode"], sha256))
        settled = {e["path"] for e in entries}
        for paths in ([p for p in whole if p in there and p not in settled], appended):
            entries += self._bring(paths, {p: found[p]["size"] for p in paths})
        return sorted(entries, key=lambda e: str(e["path"]))

    def _bring(self, paths: list[str], limits: dict[str, int]) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = []
        if not paths:
            return entries
        self.spool.mkdir(parents=True, exist_ok=True)
        _room(self.spool, max(limits.values()))
        try:
            for one in self.source.bring(paths, self.spool, limits):
                self._keep(one)
                one.temp.unlink(missing_ok=True)
                entries.append(_entry(one.path, one.size, one.mode, one.sha256))
        finally:
            shutil.rmtree(self.spool, ignore_errors=True)
        return entries

    def _keep(self, one: Arrived) -> None:
        if one.path.endswith(SNAPSHOTS) and one.sha256 not in self.heads:
            head = _head(one.temp)
            if head is not None:
                self.heads[one.sha256] = head
        if self.sizes.get(one.sha256) == one.size:
            return
        key = self.place.blob(one.sha256)
        self.place.store.put_file(key, one.temp)
        if (is_now := self.place.store.digest(key)) != one.sha256:
            self.place.store.delete(key)
            raise Unverified(
                f"{key}: the store gives back other bytes than it got ({is_now})",
                fix="do not rely on this store; take another: --backup-to URL",
            )
        self.sizes[one.sha256] = one.size
        self.new_bytes += one.size


def _head(path: Path) -> dict[str, Any] | None:
    """What a snapshot says of itself, proven; None of one that does not verify: it is kept, and not counted on."""
    try:
        found = header.verify_digests(path)
    except (header.SnapshotCorrupt, OSError):
        return None
    best = found["state"].get("best")
    return {**{k: found[k] for k in _SAID_OF_A_SNAPSHOT}, "best": best}


def _entry(path: str, size: int, mode: int, sha256: str) -> dict[str, Any]:
    return {"path": path, "size": size, "mode": mode, "sha256": sha256}


def _room(spool: Path, need_bytes: int) -> None:
    free_bytes = shutil.disk_usage(spool).free
    if need_bytes + SPARE_BYTES > free_bytes:
        raise OSError(
            errno.ENOSPC,
            f"the disk here is full: a backup needs {(need_bytes + SPARE_BYTES) / 1e6:.1f} MB in {spool}, "
            f"{free_bytes / 1e6:.1f} MB are free",
        )
