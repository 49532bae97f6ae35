"""Copy a run's files off the pod while it goes on.

A pod can vanish at any second, so what exists only there counts as lost.

    pod    artifacts/<name>/*, logs                  replaced whole or appended, never edited
      ->   store  blobs/<sha256>                     same bytes are stored once
      ->   store  backups/<time>-<stage>-<step>/manifest.json   goes last and makes it count

Not here: how bytes travel (transfer.py), where they land (stores/).
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remote_runner import transfer
from remote_runner.agent import Agent, Denied, field
from remote_runner.errors import BackupFailed, RunnerError, Unverified
from remote_runner.link import Link
from remote_runner.pod import files, layout
from remote_runner.pod.status import utc
from remote_runner.ssh import LinkLost
from remote_runner.stores import Store

SCHEMA = "remote-run-backup/1"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the backups of one run lie."""

    store: Store
    project: str
    name: str
    keep: int

    def blob(self, sha256: str) -> str:
        return f"{self.project}/{self.name}/blobs/{sha256}"

    @property
    def backups(self) -> str:
        return f"{self.project}/{self.name}/backups/"


@dataclass(frozen=True, kw_only=True)
class Backup:
    """One backup that counts."""

    id: str
    unix_s: float
    stage: str
    step: int
    files: int
    new_bytes: int
    known: dict[str, tuple[tuple[int, ...], str]]  # path -> stamp, sha256: what need not travel again


def make(agent: Agent, place: Place, outputs: list[str], attempt: str, last: Backup | None) -> Backup:
    """Bring a run's files into the store; what the store has is not sent again.

    Raises:
        OSError: the store refused.
        Unverified: bytes arrived damaged.
        LinkLost: the link broke; nothing counts that is not whole.
    """
    began = time.time()
    found, folders, _ = transfer.listing(agent, outputs, [place.name])
    known = last.known if last else {}
    unchanged = {p: known[p] for p, e in found.items() if p in known and known[p][0] == transfer.stamp(e)}
    entries = {p: _entry(p, found[p]["size"], found[p]["mode"], sha) for p, (_, sha) in unchanged.items()}
    fetched, new_bytes = _fetch(agent, place, {p: e for p, e in found.items() if p not in unchanged})
    entries.update((f.path, _entry(f.path, f.size, f.mode, f.sha256)) for f in fetched)
    newest = _newest(agent, outputs)
    at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(began))
    backup_id = f"{at}-{newest['stage']}-{newest['step']}" if newest else f"{at}-none-0"
    manifest = {
        "format": SCHEMA,
        "id": backup_id,
        "made_at": utc(began),
        "unix_s": began,
        "attempt": attempt,
        "newest": newest,
        "files": [entries[path] for path in sorted(entries)],
        "folders": sorted(folders),
    }
    text = json.dumps(manifest, indent=1, sort_keys=True, ensure_ascii=False).encode()
    place.store.put(f"{place.backups}{backup_id}/manifest.json", text)
    prune(place)
    now_known = {**unchanged, **{f.path: (f.stamp, f.sha256) for f in fetched if f.stamp}}
    return Backup(
        id=backup_id,
        unix_s=began,
        stage=newest["stage"] if newest else "none",
        step=newest["step"] if newest else 0,
        files=len(entries),
        new_bytes=new_bytes,
        known=now_known,
    )


def _entry(path: str, size: int, mode: int, sha256: str) -> dict[str, Any]:
    return {"path": path, "size": size, "mode": mode, "sha256": sha256}


def _fetch(agent: Agent, place: Place, wanted: dict[str, dict[str, Any]]) -> tuple[list[transfer.Fetched], int]:
    fetched, new_bytes = [], 0
    with tempfile.TemporaryDirectory(prefix="remote-run-backup-") as folder:
        limits = {path: entry["size"] for path, entry in wanted.items()}
        for one in transfer.fetch(agent, list(wanted), Path(folder), limits):
            if place.store.has(place.blob(one.sha256)) != one.size:
                place.store.put_file(place.blob(one.sha256), one.temp)
                new_bytes += one.size
            one.temp.unlink(missing_ok=True)
            fetched.append(one)
    return fetched, new_bytes


def _newest(agent: Agent, outputs: list[str]) -> dict[str, Any] | None:
    heads = [s.get("header") for s in field(agent.ask("snapshots", outputs=outputs), "snapshots", list)]
    best = layout.newest([h for h in heads if isinstance(h, dict)])
    if best is None:
        return None
    stage, step = str(best["stage"]), int(best["step"])
    files.parts(stage)  # it becomes part of a key
    return {
        "stage": stage,
        "step": step,
        **{k: best.get(k) for k in ("stage_index", "root", "root_all", "fingerprint", "lineage")},
    }


# --- reading a store ---------------------------------------------------------


def manifests(place: Place) -> list[dict[str, Any]]:
    """All backups of a run, the highest (stage_index, step) last."""
    found = []
    for key in place.store.keys(place.backups):
        if key.endswith("/manifest.json"):
            manifest = json.loads(place.store.get(key))
            if manifest.get("format") == SCHEMA:
                found.append(manifest)
    return sorted(found, key=_order)


def _order(manifest: dict[str, Any]) -> tuple[int, int, float]:
    newest = manifest.get("newest") or {}
    return newest.get("stage_index") or 0, newest.get("step") or 0, manifest["unix_s"]


def restore(place: Place, manifest: dict[str, Any], to: Path) -> int:
    """Bring a backup's files back, each proven by its digest before it gets its name.

    Returns:
        Bytes restored.

    Raises:
        Unverified: a blob is missing or damaged; the key is named. Files before it are in place.
    """
    total = 0
    incoming = to / layout.OWN / "incoming"
    incoming.mkdir(parents=True, exist_ok=True)
    for entry in manifest["files"]:
        key = place.blob(entry["sha256"])
        temp = incoming / "restore.part"
        try:
            place.store.fetch(key, temp)
        except FileNotFoundError:
            raise Unverified(f"{key}: gone from the store", fix="take an older backup: --backup ID") from None
        with temp.open("rb") as f:
            sha256 = hashlib.file_digest(f, "sha256").hexdigest()
        if sha256 != entry["sha256"]:
            raise Unverified(f"{key}: its bytes are {sha256}", fix="take an older backup: --backup ID")
        one = transfer.Fetched(
            path=entry["path"],
            temp=temp,
            size=entry["size"],
            sha256=sha256,
            mode=entry["mode"],
            mtime_ns=int(manifest["unix_s"] * 1e9),
        )
        transfer.place(to, one)
        total += entry["size"]
    for folder in manifest["folders"]:
        to.joinpath(*files.parts(folder)).mkdir(parents=True, exist_ok=True)
    return total


def prune(place: Place) -> list[str]:
    """Keep the newest backups; blobs that no manifest names go with the manifests that named them.

    Returns:
        The ids that went.
    """
    found = manifests(place)
    doomed = found[: -place.keep]
    if not doomed:
        return []
    kept = {e["sha256"] for m in found[-place.keep :] for e in m["files"]}
    for manifest in doomed:
        place.store.delete(f"{place.backups}{manifest['id']}/manifest.json")
    for sha256 in {e["sha256"] for m in doomed for e in m["files"]} - kept:
        place.store.delete(place.blob(sha256))
    return [m["id"] for m in doomed]


# --- at the interval -----------------------------------------------------------


class Regular:
    """Backups beside the following, one at a time; a due one is skipped while another is under way."""

    def __init__(
        self, place: Place, outputs: list[str], attempt: str, every_s: float, tell: Callable[[str], None]
    ) -> None:
        self.place, self.every_s = place, every_s
        self._outputs, self._attempt, self._tell = outputs, attempt, tell
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="backup")
        self._under_way: Future[Backup] | None = None
        self._due_s = time.monotonic() + every_s
        self.last: Backup | None = None
        self.made = 0

    def tick(self, link: Link) -> None:
        """Start one when it is due; take in the result of one that is done."""
        if self._under_way is not None and self._under_way.done():
            self._take(self._under_way)
            self._under_way = None
        if time.monotonic() < self._due_s:
            return
        self._due_s = time.monotonic() + self.every_s
        if self._under_way is not None:
            self._tell("backup skipped: the one before is still under way")
            return
        agent = link.second()
        self._under_way = self._pool.submit(self._make, agent)

    def _make(self, agent: Agent) -> Backup:
        with agent:
            return make(agent, self.place, self._outputs, self._attempt, self.last)

    def _take(self, done: Future[Backup]) -> None:
        try:
            self.last = done.result()
        except (OSError, LinkLost, RunnerError, Denied) as e:
            self._tell(f"backup failed: {e}; the next is due in {self.every_s:.0f} s")
            return
        self.made += 1
        self._tell(
            f"backup {self.last.id}: {self.last.files} files, {self.last.new_bytes / 1e6:.2f} MB new, safe in the store"
        )

    def finish(self, agent: Agent) -> Backup:
        """Wait for the one under way, then make the last.

        Raises:
            BackupFailed: it did not get into the store.
        """
        if self._under_way is not None:
            try:
                self._take_finished(self._under_way)
            finally:
                self._under_way = None
        try:
            self.last = make(agent, self.place, self._outputs, self._attempt, self.last)
        except (OSError, Denied) as e:
            raise BackupFailed(
                f"the last backup failed: {e}", fix="look at the store; the pod still has its files"
            ) from e
        self.made += 1
        self._tell(f"last backup {self.last.id}: {self.last.files} files, {self.last.new_bytes / 1e6:.2f} MB new")
        return self.last

    def _take_finished(self, future: Future[Backup]) -> None:
        future.exception(timeout=600)
        self._take(future)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
