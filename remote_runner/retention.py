"""What goes from a store, and that nobody is harmed by it: writers and pruners of one run see each other.

Keys in a store change one at a time and conditional puts are not honoured everywhere, so both sides say what they
do before they look:

    a writer   puts writing/<token>,  then waits while there is a pruning/<token>
    a pruner   puts pruning/<token>,  then steps aside when there is a writing/<token>

Whoever comes second sees the first; when both see each other, the pruner goes. Tokens are put anew while their
owner works. One that was not for a while belongs to the dead; its age is told by the store's clock alone (the
token just put against the other), so no clock of a pod or a laptop counts. Who sleeps past that age finds his
token gone and stops before he does anything that relies on it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from remote_runner import vault
from remote_runner.errors import Unverified
from remote_runner.stores import StoreAway
from remote_runner.vault import Place

BEAT_S = 10.0
DEAD_AFTER_S = 60.0  # by the store's clock
WAIT_S = 90.0  # a prune takes seconds


class Mark:
    """One token of ours in the store, put anew by a thread of its own while we work."""

    def __init__(self, place: Place, kind: str) -> None:
        self._place, self._kind = place, kind
        self._store = place.store.another()
        host = "".join(c if c.isalnum() else "-" for c in socket.gethostname())[:40]
        self.key = f"{place.top}{kind}/{host}-{os.getpid()}-{secrets.token_hex(6)}"
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._store.put(self.key, b"")
        self._thread = threading.Thread(target=self._beat, name="mark", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_S):
            with contextlib.suppress(OSError):  # whoever works with the store will meet the same
                self.hold()

    def hold(self) -> None:
        """Make sure that we are still seen, and go on being so.

        Raises:
            StoreAway: our token is gone: we were taken for dead, and what we saw may not hold any more.
        """
        with self._lock:
            if self._store.has(self.key) is None:
                raise StoreAway(f"{self.key}: gone; another process took this one for dead while it slept or hung")
            self._store.put(self.key, b"")

    def others(self, kind: str) -> list[str]:
        """Tokens of one kind that are not ours and not dead; the dead ones are removed."""
        now = self._now_unix_s()
        alive = []
        for other in self._place.store.list(f"{self._place.top}{kind}/"):
            if other.key == self.key:
                continue
            if now - other.modified_unix_s > DEAD_AFTER_S:
                self._place.store.delete(other.key)
            else:
                alive.append(other.key)
        return alive

    def _now_unix_s(self) -> float:
        """The time by the store's clock: that of a token just put."""
        self.hold()
        for own in self._place.store.list(f"{self._place.top}{self._kind}/"):
            if own.key == self.key:
                return own.modified_unix_s
        raise StoreAway(f"{self.key}: put, and not listed")

    def close(self) -> None:
        self._stop.set()
        with self._lock, contextlib.suppress(OSError):  # the next one to look finds it dead
            self._store.delete(self.key)
        if self._store is not self._place.store:
            self._store.close()


@contextlib.contextmanager
def writing(place: Place) -> Iterator[Mark]:
    """While a backup is made: no blob that it sees is removed.

    Raises:
        StoreAway: a prune does not end.
    """
    mark = Mark(place, "writing")
    try:
        give_up = time.monotonic() + WAIT_S
        while others := mark.others("pruning"):
            if time.monotonic() > give_up:
                raise StoreAway(f"{others[0]}: backups are being pruned for more than {WAIT_S:.0f} s")
            time.sleep(0.5)
        yield mark
    finally:
        mark.close()


def best(found: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The backup whose state has the lowest validation metric of the last stage; of equal ones the first made."""
    rated = []
    for manifest in found:
        metric = ((manifest.get("newest") or {}).get("best") or {}).get("metric")
        if isinstance(metric, (int, float)):
            rated.append((-(manifest["newest"].get("stage_index") or 0), metric, manifest["unix_s"], manifest))
    return min(rated, key=lambda r: r[:3])[3] if rated else None


def set_aside(place: Place, stamp: str) -> list[str]:
    """Move all backups of a run out of the way of a fresh start; their blobs stay, restore finds them by their ids.

    Returns:
        Their ids.
    """
    found = vault.manifests(place)
    with writing(place):
        for manifest in found:
            text = place.store.get(place.manifest(manifest["id"]))
            place.store.put(f"{place.aside}{stamp}/{manifest['id']}/manifest.json", text)
            place.store.delete(place.manifest(manifest["id"]))
    return [m["id"] for m in found]


def kept(place: Place, found: list[dict[str, Any]], sizes: dict[str, int], read: bool) -> list[dict[str, Any]]:
    """The backups that stay: the newest, the furthest, the best, and at least one that is whole.

    Args:
        found: all of them.
        read: prove that one by reading its blobs, not by their sizes alone.
    """
    by_time = sorted(found, key=lambda m: float(m["unix_s"]))
    stay = by_time[-place.keep :]
    # the furthest too: a clock that went back must not cost it
    for one in (best(found), max(found, key=vault.order, default=None)):
        if one is not None and one not in stay:
            stay = [one, *stay]

    def whole(manifest: dict[str, Any]) -> bool:
        return not vault.missing(place, manifest, sizes) and not (read and vault.damaged(place, manifest))

    if not any(whole(m) for m in reversed(stay)):
        for manifest in reversed(by_time):
            if manifest not in stay and whole(manifest):
                return [manifest, *stay]
        return found  # none is whole: whatever there is may be of use
    return stay


def prune(place: Place, read: bool = False) -> tuple[list[str], int] | None:
    """Remove backups beyond those that are kept, then blobs that none names, then what dead writers left.

    Returns:
        The ids that went and how many blobs; None where a backup is being made: then nothing is touched.

    Raises:
        Unverified: none of several backups is whole; nothing was removed.
    """
    mark = Mark(place, "pruning")
    try:
        if mark.others("writing") or mark.others("pruning"):
            return None
        found = vault.manifests(place)
        sizes = vault.blob_sizes(place)
        stay = kept(place, found, sizes, read)
        if read and len(found) > 1 and all(vault.damaged(place, m) for m in found):
            raise Unverified(
                f"none of the {len(found)} backups of {place.name!r} is whole; nothing was removed",
                fix="make a new one: remote-run backup",
            )
        doomed = [m for m in found if m not in stay]
        for manifest in doomed:
            mark.hold()
            place.store.delete(place.manifest(manifest["id"]))
        named = {e["sha256"] for m in [*stay, *vault.manifests(place, aside=True)] for e in m["files"]}
        unread = _unreadable(place, {m["id"] for m in found})
        orphans = [] if unread else [sha256 for sha256 in sizes if sha256 not in named]
        for sha256 in orphans:
            mark.hold()
            place.store.delete(place.blob(sha256))
        mark.hold()
        for below in (place.blobs, place.backups):  # not the marks: others put theirs while we work
            place.store.sweep(below)
        return [m["id"] for m in doomed], len(orphans)
    finally:
        mark.close()


def _unreadable(place: Place, known: set[str]) -> bool:
    """Whether a manifest stands there that we can't read: a later version's, say. Its blobs are not ours to judge."""
    keys = [o.key for o in place.store.list(place.backups) if o.key.endswith("/manifest.json")]
    aside = [o.key for o in place.store.list(place.aside) if o.key.endswith("/manifest.json")]
    if len(aside) != len(vault.manifests(place, aside=True)):
        return True
    return any(k.split("/")[-2] not in known for k in keys)
