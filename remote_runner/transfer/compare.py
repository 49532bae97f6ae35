"""Which of the pod's files need to travel: the same digest here means nothing moves.

    size differs                        ->  fetch
    size and digest of both remembered  ->  known at once
    else                                ->  hashed on both ends at the same time
    a digest that is here under another name (a rotated snapshot)  ->  linked

Not here: how they travel (fetch.py).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from remote_runner.agent import Agent
from remote_runner.conversation import field as answer_field
from remote_runner.pod import digests, files, layout
from remote_runner.transfer.items import Item

HASH_AT_ONCE = 1_000


@dataclass
class Difference:
    """How what is here differs from what the pod has."""

    same: dict[str, str] = field(default_factory=dict)  # path -> sha256
    linked: dict[str, str] = field(default_factory=dict)  # path -> the path here that has its bytes
    wanted: list[str] = field(default_factory=list)


def compare(
    agent: Agent, root: Path, found: dict[str, dict[str, Any]], known: digests.Digests, fresh: bool = False
) -> Difference:
    """Compare a listing of the pod with the files below `root`.

    The entries of `found` get their `sha256` where it had to be asked for.

    Args:
        known: digests that are remembered here.
        fresh: believe no memory, neither here nor on the pod.
    """
    here = _seen(root, found)
    at_hand = {
        (info.st_size, info.st_mtime_ns): path  # these travel with a file and stay when it is rotated
        for path, info in here.items()
        if info.st_size > 0 and not path.endswith(layout.APPENDED)
    }
    doubtful = [
        path
        for path, entry in found.items()
        if (fresh or not entry["sha256"])
        and (_size(here, path) == entry["size"] or (entry["size"], entry["mtime_ns"]) in at_hand)
    ]
    taken: dict[str, str] = {}

    def digest_here(path: str) -> str:
        if path not in taken:
            info = here.get(path)
            taken[path] = (info and not fresh and known.get(path, info)) or _digest(known, path, fresh)
        return taken[path]

    parts = list(_chunks(doubtful))
    asked = 0
    for number, part in enumerate(parts):
        for ahead in parts[asked : number + 2]:
            agent.send({"op": "hash", "paths": ahead, "fresh": fresh})
            asked += 1
        for path in part:  # meanwhile, on this end
            digest_here(path)
        there = answer_field(agent.answer(), "sha256", dict)
        for path in part:
            found[path]["sha256"] = str(there.get(path) or "")
    result = Difference()
    for path, entry in found.items():
        sha256 = entry["sha256"]
        if sha256 and _size(here, path) == entry["size"] and digest_here(path) == sha256:
            result.same[path] = sha256
            continue
        source = at_hand.get((entry["size"], entry["mtime_ns"]))
        if sha256 and source and source != path and digest_here(source) == sha256:
            result.linked[path] = source
        else:
            result.wanted.append(path)
    return result


def remember_sent(root: Path, known: digests.Digests, sent: list[Item], began_ns: int) -> None:
    """Keep the digests of files that were sent and have not changed since: sending them again reads nothing here.

    Args:
        began_ns: when the first of them was looked at.
    """
    for one in sent:
        with contextlib.suppress(OSError):
            info = os.lstat(one.source)
            if one.source == root / one.path and (info.st_size, info.st_mtime_ns) == (one.size, one.mtime_ns):
                known.put(one.path, digests.stamp_of(info), one.sha256, began_ns)
    known.save()


def _seen(root: Path, paths: Iterable[str]) -> dict[str, os.stat_result]:
    """What stands here of some paths; no link is followed below the root."""
    found: dict[str, os.stat_result] = {}
    absent: set[str] = set()
    with files.Folders(str(root), most=16) as folders:
        for path in paths:
            above = path.rpartition("/")[0]
            if above in absent:
                continue
            try:
                folder, name = folders.of(path)
            except OSError:
                absent.add(above)
                continue
            with contextlib.suppress(OSError):
                found[path] = os.stat(name, dir_fd=folder, follow_symlinks=False)
    return found


def _size(here: dict[str, os.stat_result], path: str) -> int:
    return here[path].st_size if path in here else -1


def _digest(known: digests.Digests, path: str, fresh: bool) -> str:
    try:
        return known.of(path, fresh=fresh)
    except OSError:
        return ""


def _chunks(paths: list[str]) -> Iterator[list[str]]:
    for at in range(0, len(paths), HASH_AT_ONCE):
        yield paths[at : at + HASH_AT_ONCE]
