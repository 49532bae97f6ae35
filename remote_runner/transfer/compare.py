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
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from remote_runner.agent import Agent
from remote_runner.conversation import Denied
from remote_runner.conversation import field as answer_field
from remote_runner.errors import RunnerError
from remote_runner.pod import digests, files, layout
from remote_runner.ssh import LinkLost
from remote_runner.transfer.items import Fetched

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
    here = {path: size for path in found if (size := _size(root, path)) is not None}
    at_hand = _candidates(root, found, here)
    doubtful = [
        path
        for path, entry in found.items()
        if (fresh or not entry["sha256"])
        and (here.get(path) == entry["size"] or (entry["size"], entry["mtime_ns"]) in at_hand)
    ]
    digests_here: dict[str, str] = {}
    parts = list(_chunks(doubtful))
    asked = 0
    for number, part in enumerate(parts):
        for ahead in parts[asked : number + 2]:
            agent.send({"op": "hash", "paths": ahead, "fresh": fresh})
            asked += 1
        for path in part:  # meanwhile, on this end
            _digest_here(root, path, known, digests_here, fresh)
        there = answer_field(agent.answer(), "sha256", dict)
        for path in part:
            found[path]["sha256"] = str(there.get(path) or "")
    result = Difference()
    for path, entry in found.items():
        sha256 = entry["sha256"]
        if (
            sha256
            and here.get(path) == entry["size"]
            and _digest_here(root, path, known, digests_here, fresh) == sha256
        ):
            result.same[path] = sha256
            continue
        source = at_hand.get((entry["size"], entry["mtime_ns"]))
        if sha256 and source and source != path and _digest_here(root, source, known, digests_here, fresh) == sha256:
            result.linked[path] = source
        else:
            result.wanted.append(path)
    return result


def remember(agent: Agent, root: Path, known: digests.Digests, arrived: list[Fetched]) -> None:
    """Keep the digests of files that were placed, here and on the pod, so that the next comparison reads nothing."""
    now_ns = time.time_ns()
    for one in arrived:
        with contextlib.suppress(OSError):
            info = os.lstat(f"{root}/{one.path}")
            if (info.st_size, info.st_mtime_ns) == (one.size, one.mtime_ns):
                known.put(one.path, digests.stamp_of(info), one.sha256, now_ns, ours=True)
    known.save()
    with contextlib.suppress(LinkLost, Denied, RunnerError):  # a memory, no more
        for at in range(0, len(arrived), HASH_AT_ONCE):
            some = [one for one in arrived[at : at + HASH_AT_ONCE] if one.stamp]
            agent.ask("remember", files=[[one.path, one.sha256, *one.stamp, now_ns, True] for one in some])


def _candidates(root: Path, found: dict[str, Any], here: dict[str, int]) -> dict[tuple[int, int], str]:
    """Large files here by size and mtime, which travel with a file and stay when it is rotated."""
    candidates = {}
    for path in here:
        if path.endswith(layout.APPENDED):
            continue
        info = files.stat(str(root), path)
        if info.st_size > 0:
            candidates[info.st_size, info.st_mtime_ns] = path
    return candidates


def _digest_here(root: Path, path: str, known: digests.Digests, taken: dict[str, str], fresh: bool) -> str:
    if path not in taken:
        try:
            taken[path] = known.of(path, fresh=fresh)
        except OSError:
            taken[path] = ""
    return taken[path]


def _chunks(paths: list[str]) -> Iterator[list[str]]:
    for at in range(0, len(paths), HASH_AT_ONCE):
        yield paths[at : at + HASH_AT_ONCE]


def _size(root: Path, path: str) -> int | None:
    try:
        return files.stat(str(root), path).st_size
    except OSError:
        return None
