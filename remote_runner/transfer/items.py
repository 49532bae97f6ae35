"""One file that travels, in either direction.

Not here: how its bytes travel (fetch.py, send.py), how it gets its name here (placing.py).
"""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remote_runner.conversation import field
from remote_runner.errors import Unverified
from remote_runner.pod import digests, files

PACKED_BYTES = 4 << 20  # smaller files travel whole, many to a request


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One file to be sent."""

    path: str  # below the root on the pod
    source: Path
    size: int
    sha256: str  # empty: it is taken while the file is sent
    mode: int
    mtime_ns: int
    durable: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetched:
    """One file that arrived, with its mode and time, not yet under its name."""

    path: str
    temp: Path
    size: int
    sha256: str
    mode: int
    mtime_ns: int
    stamp: tuple[int, ...] = ()  # what a later change of the file on the pod would change; empty: can't tell


def damaged(path: str, found: str, there: object) -> Unverified:
    """What came is not what the pod read."""
    return Unverified(
        f"{path}: arrived as {found}, but the pod read {str(there)[:64]!r}",
        fix="run the command again; if it stays so, do not trust this pod or the network to it",
    )


def stamp(facts: dict[str, Any]) -> tuple[int, ...]:
    """A file's size, times and inode, from a listing or an answer."""
    return tuple(field(facts, name, int) for name in ("size", "mtime_ns", "ctime_ns", "ino"))


def item(
    root: Path, path: str, *, durable: bool = True, known: digests.Digests | None = None, hashed: bool = True
) -> Item:
    """Read a file's digest and facts.

    Args:
        known: digests that are remembered here; an unchanged file is not read again.
        hashed: off where the digest may as well be taken while the file is sent.

    Raises:
        OSError: gone, or no regular file (links are not followed).
    """
    fd = files.open_read(str(root), path)
    try:
        info = os.fstat(fd)
        sha256 = known.get(path, info) or "" if known else ""
        if not sha256 and hashed:
            began_ns = time.time_ns()
            sha256 = files.digest_fd(fd)
            if known and digests.stamp_of(os.fstat(fd)) == digests.stamp_of(info):
                known.put(path, digests.stamp_of(info), sha256, began_ns)
    finally:
        os.close(fd)
    return Item(
        path=path,
        source=root / path,
        size=info.st_size,
        sha256=sha256,
        mode=info.st_mode & 0o777,
        mtime_ns=info.st_mtime_ns,
        durable=durable,
    )


def dress(file: int | Path, mode: int, mtime_ns: int) -> None:
    """Give a file of ours the mode and the time that travel with it."""
    os.chmod(file, mode & 0o777 | 0o600)  # noqa: PTH101
    os.utime(file, ns=(mtime_ns, mtime_ns))


def adopt(root: Path, source: str, path: str, facts: dict[str, Any], incoming: Path) -> Fetched | None:
    """A file whose bytes are here under another name: linked, as if it had arrived.

    Returns:
        None where the bytes are no longer there or the disk knows no links; it must be fetched then.
    """
    incoming.mkdir(parents=True, exist_ok=True)
    temp = incoming / f"{hashlib.sha256(path.encode()).hexdigest()[:32]}.link"
    try:
        temp.unlink(missing_ok=True)
        os.link(root / source, temp, follow_symlinks=False)
        with temp.open("rb") as f:
            sha256 = hashlib.file_digest(f, "sha256").hexdigest()
    except OSError:
        return None
    if sha256 != facts.get("sha256"):
        temp.unlink()
        return None
    dress(temp, field(facts, "mode", int), field(facts, "mtime_ns", int))
    return Fetched(
        path=path,
        temp=temp,
        size=field(facts, "size", int),
        sha256=sha256,
        mode=field(facts, "mode", int) & 0o777,
        mtime_ns=field(facts, "mtime_ns", int),
    )
