"""Bytes to and from a pod, each file with its SHA-256 computed while it streams, on both ends.

Requests are sent ahead of their answers, so a round trip is paid once and not once a file. A file gets its
final name only when its digest is proven, in one rename, after an fsync.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remote_runner.agent import Agent, Denied, field
from remote_runner.errors import NotStarted, Unverified
from remote_runner.pod import files, wire

AHEAD = 32  # requests under way before their answers are read
Progress = Callable[[int], None]  # bytes that moved


@dataclass(frozen=True, kw_only=True)
class Item:
    """One file to be sent."""

    path: str  # below the root on the pod
    source: Path
    size: int
    sha256: str
    mode: int
    mtime_ns: int
    durable: bool = True


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """One file that arrived, not yet under its name."""

    path: str
    temp: Path
    size: int
    sha256: str
    mode: int
    mtime_ns: int
    stamp: tuple[int, ...] = ()  # what a later change of the file on the pod would change; empty: can't tell


def stamp(facts: dict[str, Any]) -> tuple[int, ...]:
    """A file's size, times and inode, from a listing or an answer."""
    return tuple(field(facts, name, int) for name in ("size", "mtime_ns", "ctime_ns", "ino"))


def item(root: Path, path: str, *, durable: bool = True) -> Item:
    """Read a file's digest and facts.

    Raises:
        OSError: gone, or no regular file (links are not followed).
    """
    found = hashlib.sha256()
    fd = files.open_read(str(root), path)
    with os.fdopen(fd, "rb") as f:
        info = os.fstat(fd)
        while block := f.read(files.BLOCK_BYTES):
            found.update(block)
    return Item(
        path=path,
        source=root / path,
        size=info.st_size,
        sha256=found.hexdigest(),
        mode=info.st_mode & 0o777,
        mtime_ns=info.st_mtime_ns,
        durable=durable,
    )


def send(agent: Agent, items: Iterable[Item], progress: Progress = lambda _: None) -> None:
    """Put files on the pod.

    Raises:
        NotStarted: a file changed while it was sent, the pod's disk refused, or bytes arrived damaged.
    """
    waiting: list[str] = []
    for one in items:
        agent.send({"op": "put", **{k: v for k, v in vars(one).items() if k != "source"}})
        for block in _blocks(one):
            agent.send({"data": True}, block)
            progress(len(block))
        waiting.append(one.path)
        while len(waiting) > AHEAD or (waiting and agent.waiting()):
            _arrived(agent, waiting.pop(0))
    for path in waiting:
        _arrived(agent, path)


def _blocks(one: Item) -> Iterator[bytes]:
    left = one.size
    with one.source.open("rb") as f:
        while left:
            block = f.read(min(left, wire.CHUNK_BYTES))
            if not block:
                # the announced size must be kept or the next request would be read as this file
                block = bytes(min(left, wire.CHUNK_BYTES))
            left -= len(block)
            yield block


def _arrived(agent: Agent, path: str) -> None:
    try:
        agent.answer()
    except Denied as e:
        fix = "run the command again: a file that changes while it is sent is noticed like any damage"
        if e.reason == "os":
            fix = "make room on the pod, or look at its disk"
        raise NotStarted(f"upload of {path} failed: {e}", fix=fix) from None


def fetch(
    agent: Agent, paths: list[str], incoming: Path, limits: dict[str, int], progress: Progress = lambda _: None
) -> Iterator[Fetched]:
    """Bring files here, one after the other, each proven by digest, under temporary names.

    A file that is gone since it was listed is passed over: a trainer rotates its snapshots while we read.

    Args:
        incoming: a folder of ours for the temporary files.
        limits: the size announced for each path; a file that grew is fetched to the size it has now, but a
            pod can't fill the disk here: twice that and 64 MiB is the end.

    Raises:
        Unverified: the bytes that came are not the ones that the pod hashed, or more than announced.
        Denied: the pod can't read a file that is there.
        OSError: the disk here refused. After an error the program on the pod is out of step: close it.
    """
    incoming.mkdir(parents=True, exist_ok=True)
    asked = 0
    for number, path in enumerate(paths):
        while asked < min(len(paths), number + AHEAD):
            agent.send({"op": "get", "path": paths[asked], "offset": 0})
            asked += 1
        one = _receive(agent, path, incoming / f"{number}.part", 2 * limits[path] + (64 << 20), progress)
        if one is not None:
            yield one


def _receive(agent: Agent, path: str, temp: Path, limit: int, progress: Progress) -> Fetched | None:
    found, size = hashlib.sha256(), 0
    with temp.open("wb") as f:
        while True:
            header, payload = agent.receive()
            if "data" not in header:
                break
            size += len(payload)
            if size > limit:
                raise Unverified(
                    f"{path}: the pod sends more than the {limit} bytes that could be", fix="do not trust it"
                )
            found.update(payload)
            f.write(payload)
            progress(len(payload))
        f.flush()
        os.fsync(f.fileno())
    if header.get("ok") is not True:
        temp.unlink()
        if header.get("errno") == errno.ENOENT:
            return None
        raise Denied(header)
    if header.get("sha256") != found.hexdigest():
        raise Unverified(
            f"{path}: arrived as {found.hexdigest()}, but the pod read {str(header.get('sha256'))[:64]}",
            fix="run the command again; if it stays so, do not trust this pod or the network to it",
        )
    return Fetched(
        path=path,
        temp=temp,
        size=size,
        sha256=found.hexdigest(),
        mode=field(header, "mode", int) & 0o777,
        mtime_ns=field(header, "mtime_ns", int),
        stamp=stamp(header) if header.get("settled") is True else (),
    )


def place(root: Path, one: Fetched, path: str | None = None) -> None:
    """Give a fetched file its name, durable; nothing is followed out of `root`."""
    to = root.joinpath(*files.parts(path or one.path))
    _plain_folders(root, to.parent)
    one.temp.chmod(one.mode | 0o600)
    os.utime(one.temp, ns=(one.mtime_ns, one.mtime_ns))
    one.temp.replace(to)
    fd = os.open(to.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _plain_folders(root: Path, folder: Path) -> None:
    """Make the folders above a file, and refuse a link on the way."""
    folder.mkdir(parents=True, exist_ok=True)
    step = folder
    while step != root:
        if step.is_symlink():
            raise Unverified(f"{step} is a link: nothing is written through it", fix="replace the link by a folder")
        step = step.parent


def listing(
    agent: Agent, outputs: list[str], names: list[str]
) -> tuple[dict[str, dict[str, Any]], list[str], list[str]]:
    """What the pod has of a run: files by path, folders, and what can't travel; every path checked.

    Raises:
        Unverified: a path that leaves the run's places, or two that a case-blind disk here would mix up.
    """
    answer = agent.ask("list", outputs=outputs, names=names)
    found: dict[str, dict[str, Any]] = {}
    tops = (*outputs, "runs")
    for entry in field(answer, "files", list):
        path = str(entry.get("path"))
        try:
            files.parts(path)
        except files.BadPath as e:
            raise Unverified(f"the pod's listing: {e}", fix="do not trust this pod") from None
        if not any(path == t or path.startswith(t + "/") for t in tops):
            raise Unverified(
                f"the pod's listing names {path!r}, which is none of this run's places", fix="do not trust it"
            )
        size = entry.get("size")
        if not isinstance(size, int) or size < 0:
            raise Unverified(f"the pod's listing gives {path} the size {size!r}", fix="do not trust this pod")
        found[path] = entry
    folders = [str(f) for f in field(answer, "folders", list)]
    return found, folders, [str(o) for o in field(answer, "others", list)]
