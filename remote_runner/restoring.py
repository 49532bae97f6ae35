"""Bring a backup back: every blob proven by its digest before any file gets its name.

Not here: what is in a backup (vault.py), which one is taken (resume.py).
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

from remote_runner import transfer, vault
from remote_runner.errors import Unverified
from remote_runner.pod import files, layout
from remote_runner.vault import Place

SPARE_BYTES = 16 << 20


def fetch(place: Place, manifest: dict[str, Any], incoming: Path) -> list[transfer.Fetched]:
    """Bring all files of a backup here, each proven by its digest, none under its name yet.

    Raises:
        Unverified: a blob is missing or damaged (the key is named), or there is no room; nothing was replaced.
    """
    need_bytes = vault.size_of(manifest)
    shutil.rmtree(incoming, ignore_errors=True)
    incoming.mkdir(parents=True, exist_ok=True)
    free_bytes = shutil.disk_usage(incoming).free
    if need_bytes + SPARE_BYTES > free_bytes:
        raise Unverified(
            f"{incoming}: the backup {manifest['id']} needs {need_bytes / 1e6:.1f} MB, "
            f"{free_bytes / 1e6:.1f} MB are free; nothing was fetched",
            fix="make room here, or restore to another disk: --to DIR",
        )
    found = []
    for number, entry in enumerate(manifest["files"]):
        temp = incoming / f"{number}.part"
        _fetch_blob(place, entry, temp)
        transfer.dress(temp, entry["mode"], int(manifest["unix_s"] * 1e9))
        found.append(
            transfer.Fetched(
                path=entry["path"],
                temp=temp,
                size=entry["size"],
                sha256=entry["sha256"],
                mode=entry["mode"] & 0o777,
                mtime_ns=int(manifest["unix_s"] * 1e9),
            )
        )
    return found


def _fetch_blob(place: Place, entry: dict[str, Any], temp: Path) -> None:
    key = place.blob(entry["sha256"])
    try:
        place.store.fetch(key, temp)
    except FileNotFoundError:
        raise Unverified(f"{key}: gone from the store", fix="take another backup: --backup ID") from None
    with temp.open("rb") as f:
        sha256 = hashlib.file_digest(f, "sha256").hexdigest()
    if sha256 != entry["sha256"]:
        raise Unverified(
            f"{key}: its bytes are {sha256}",
            fix="take another backup (--backup ID); when this object is removed, the next backup stores it again",
        )


def put_in_place(fetched: list[transfer.Fetched], manifest: dict[str, Any], to: Path) -> None:
    """Give fetched files their names; the folders of the backup too, so that empty ones survive."""
    with transfer.Placing(to) as placing:
        for one in fetched:
            placing.place(one)
    for folder in manifest["folders"]:
        to.joinpath(*files.parts(folder)).mkdir(parents=True, exist_ok=True)


def incoming(root: Path, name: str) -> Path:
    """Where files of a run wait for their names: on the disk that they will be on."""
    return root / layout.OWN / "incoming" / f"{name}.restore"
