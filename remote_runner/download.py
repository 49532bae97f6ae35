"""Bring a run home: everything in its outputs and its logs, each file proven before it replaces anything.

    listing  ->  same digest here: nothing moves  ->  fetch under a temporary name, hashed on both ends
             ->  content checked (snapshots, weights)  ->  placed by one rename

What fails a check is not placed; the good copy that is here stays.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from remote_runner import resume, transfer
from remote_runner.agent import Agent, Denied
from remote_runner.agent import field as answer_field
from remote_runner.checkpoint import header, snapshot
from remote_runner.errors import Unverified
from remote_runner.pod import digests, files, layout, preserve

SPARE_BYTES = 16 << 20


@dataclass
class Home:
    """What came home."""

    manifest: dict[str, dict[str, Any]] = field(default_factory=dict)  # path -> size, sha256
    fetched: int = 0
    fetched_bytes: int = 0
    unverified: dict[str, str] = field(default_factory=dict)  # path -> what is wrong
    left: list[str] = field(default_factory=list)  # links, devices, names that can't travel

    def require(self) -> None:
        """Raise Unverified when anything did not come home whole."""
        if self.unverified:
            shown = "\n".join(f"  {path}: {why}" for path, why in sorted(self.unverified.items()))
            raise Unverified(
                f"{len(self.unverified)} file(s) from the pod are not verified and were not put in place; "
                f"what was here before is untouched\n{shown}",
                fix="run the download again; if it stays so, take the last good backup: remote-run restore",
            )


def bring_home(agent: Agent, root: Path, name: str, outputs: list[str], tell: Callable[[str], None]) -> Home:
    """Download a run; may be repeated at any point and then fetches what is missing.

    Raises:
        OSError: the disk here refused.
        LinkLost: to be repeated over a new connection.
    """
    found, folders, others = transfer.listing(agent, outputs, [name])
    home = Home(left=others)
    _keep_if_newer(agent, root, name, outputs, tell)
    known = digests.Digests(str(root))
    incoming = root / layout.OWN / "incoming" / name
    arrived: list[transfer.Fetched] = []
    try:
        wanted = _differing(agent, root, found, home, known, incoming)
        limits = {path: found[path]["size"] for path in wanted}
        _room(root, sum(limits.values()) - _begun_bytes(incoming))
        for one in transfer.fetch(agent, wanted, incoming, limits, here=root):
            _take(root, one, home)
            arrived.append(one)
    finally:
        transfer.remember(agent, root, known, arrived)
    for folder in folders:
        root.joinpath(*files.parts(folder)).mkdir(parents=True, exist_ok=True)
    shutil.rmtree(incoming, ignore_errors=True)
    return home


def _take(root: Path, one: transfer.Fetched, home: Home) -> None:
    fault = _fault(one.temp, one.path)
    if fault:
        home.unverified[one.path] = fault
        one.temp.unlink()
        return
    transfer.place(root, one)
    home.manifest[one.path] = {"size": one.size, "sha256": one.sha256}
    home.fetched += 1
    home.fetched_bytes += one.size


def _fault(temp: Path, path: str) -> str:
    """What is wrong with a file's content, as far as it can prove itself; empty when nothing is."""
    try:
        if path.endswith(("-training.safetensors", "-training.previous.safetensors")):
            snapshot.verify(temp)
        elif path.endswith(".safetensors"):
            header.read(temp)
    except header.SnapshotCorrupt as e:
        return str(e).replace(str(temp), path)
    return ""


def _differing(
    agent: Agent, root: Path, found: dict[str, dict[str, Any]], home: Home, known: digests.Digests, incoming: Path
) -> list[str]:
    """Paths whose bytes are not here yet; those that are here under another name are put in place."""
    difference = transfer.compare(agent, root, found, known)
    for path, sha256 in difference.same.items():
        home.manifest[path] = {"size": found[path]["size"], "sha256": sha256}
    # linked before any is placed: placing one may take another's source away
    ready = [transfer.adopt(root, source, path, found[path], incoming) for path, source in difference.linked.items()]
    for one in ready:
        if one is not None:
            _take(root, one, home)
    return [p for p in found if p not in home.manifest and p not in home.unverified]


def _begun_bytes(incoming: Path) -> int:
    """What a broken download left here, to go on from."""
    return sum(p.stat().st_blocks * 512 for p in incoming.glob("*.part")) if incoming.is_dir() else 0


def _room(root: Path, need_bytes: int) -> None:
    free_bytes = shutil.disk_usage(root).free
    if need_bytes + SPARE_BYTES > free_bytes:
        raise Unverified(
            f"{root}: {need_bytes / 1e6:.1f} MB are to come, {free_bytes / 1e6:.1f} MB are free; nothing was fetched",
            fix="make room here, then: remote-run download",
        )


def _keep_if_newer(agent: Agent, root: Path, name: str, outputs: list[str], tell: Callable[[str], None]) -> None:
    """Nothing here that is further than the pod's state is replaced without being preserved."""
    here = layout.newest([head for _p, head, _w in layout.snapshots(str(root), outputs) if head])
    if here is None:
        return
    try:
        heads = [s.get("header") for s in answer_field(agent.ask("snapshots", outputs=outputs), "snapshots", list)]
    except Denied:
        heads = []
    there = layout.newest([h for h in heads if isinstance(h, dict)])
    if there is None or (there["stage_index"], there["step"]) < (here["stage_index"], here["step"]):
        kept = preserve.preserve(str(root), outputs, name, resume.stamp(), move=False)
        tell(f"what is here is further than the pod's state (step {here['step']}): kept as {', '.join(kept)}")
