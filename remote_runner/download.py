"""Bring a run home: everything in its outputs and its logs, each file proven before it replaces anything.

    listing  ->  which checkpoints come (keeping.py)  ->  same digest here: nothing moves
             ->  fetch under a temporary name, hashed on both ends  ->  content checked (snapshots, weights)
             ->  placed by one rename

What fails a check is not placed; the good copy that is here stays. A file that was written to while it was read is
fetched again. What is here and further than the pod's state, or of another lineage, is preserved before anything
of it is replaced.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from remote_runner import keeping, rates, resume, transfer
from remote_runner.agent import Agent, Denied
from remote_runner.agent import field as answer_field
from remote_runner.checkpoint import header, lineage, snapshot
from remote_runner.durations import show
from remote_runner.errors import Unverified
from remote_runner.pod import digests, files, layout, preserve

AGAIN = 3  # how often what changes meanwhile is fetched
HASH_AT_ONCE = 64
_PROVING = ("-training.safetensors", "-training.previous.safetensors")
SPARE_BYTES = 16 << 20


@dataclass
class Home:
    """What came home."""

    manifest: dict[str, dict[str, Any]] = field(default_factory=dict)  # path -> size, sha256
    fetched: int = 0
    fetched_bytes: int = 0
    unverified: dict[str, str] = field(default_factory=dict)  # path -> what is wrong
    left: list[str] = field(default_factory=list)  # links, devices, names that can't travel or that two would share
    stayed: list[str] = field(default_factory=list)  # checkpoints that the rule leaves on the pod

    def require(self) -> None:
        """Raise Unverified when anything did not come home whole."""
        if self.unverified:
            shown = "\n".join(f"  {path}: {why}" for path, why in sorted(self.unverified.items()))
            raise Unverified(
                f"{len(self.unverified)} file(s) from the pod are not verified and were not put in place; "
                f"what was here before is untouched\n{shown}",
                fix="run the download again; if it stays so, take the last good backup: remote-run restore",
            )


def bring_home(
    agent: Agent,
    root: Path,
    name: str,
    outputs: list[str],
    tell: Callable[[str], None],
    keep: str = "",
    ask: Callable[[str], bool] | None = None,
    price_usd_h: float | None = None,
    channels: transfer.Channels | None = None,
) -> Home:
    """Download a run; may be repeated at any point and then fetches what is missing.

    Args:
        keep: which checkpoints come (keeping.py); empty: all, beyond 50 GB as `ask` says.
        price_usd_h: of the pod, where it is known.
        channels: data connections that are there, or on their way.

    Raises:
        OSError: the disk here refused.
        LinkLost: to be repeated over a new connection.
    """
    found, folders, others = transfer.listing(agent, outputs, [name])
    home = Home(left=others)
    found = _without_twins(found, root, home)
    sizes = {path: int(entry["size"]) for path, entry in found.items()}
    chosen, home.stayed = keeping.choose(sizes, keeping.settle(sizes, keep, ask))
    keeping.say_left({path: sizes[path] for path in home.stayed}, tell)
    found = {path: found[path] for path in chosen}
    _keep_if_newer(agent, root, name, outputs, tell)
    known = digests.Digests(str(root))
    incoming = root / layout.OWN / "incoming" / name
    with transfer.Placing(root, known) as placing:
        wanted = _differing(agent, root, found, home, known, incoming, placing)
        need_bytes = sum(sizes[p] for p in wanted)
        rates.announce(root, "down", need_bytes, len(wanted), price_usd_h, tell)
        _room(root, need_bytes - _begun_bytes(incoming))
        for attempt in range(1, AGAIN + 1):
            began = time.monotonic()
            before = home.fetched_bytes
            facts = found if attempt == 1 else None
            limits = {p: sizes[p] for p in wanted}
            for one in transfer.fetch(agent, wanted, incoming, limits, here=root, facts=facts, channels=channels):
                _take(placing, one, home)
            took_s = time.monotonic() - began
            rates.remember(root, "down", home.fetched_bytes - before, took_s)
            _say_rate(home.fetched_bytes - before, took_s, tell)
            wanted = _changed_meanwhile(agent, wanted, home)
            if not wanted:
                break
            tell(f"{len(wanted)} files were written to while they came; fetching them again ({attempt})")
    for folder in folders:
        root.joinpath(*files.parts(folder)).mkdir(parents=True, exist_ok=True)
    shutil.rmtree(incoming, ignore_errors=True)
    return home


def _without_twins(found: dict[str, dict[str, Any]], root: Path, home: Home) -> dict[str, dict[str, Any]]:
    """Leave out names that the disk here would mix up; each is told of by name."""
    case_blind, form_blind = keeping.blindness(root)
    doubled = keeping.twins(found, case_blind, form_blind)
    home.unverified.update(doubled)
    return {path: entry for path, entry in found.items() if path not in doubled}


def _say_rate(size_bytes: int, took_s: float, tell: Callable[[str], None]) -> None:
    if size_bytes > rates.ANNOUNCE_BYTES:
        tell(f"{size_bytes / 1e9:.1f} GB in {show(took_s)}, {size_bytes / 1e6 / max(took_s, 1e-3):.0f} MB/s")


def _changed_meanwhile(agent: Agent, paths: list[str], home: Home) -> list[str]:
    """Files that may have come half old, half new: written in place while they were read.

    One that proves itself, or that only grows, can't have; one that is gone was whole.
    """
    doubtful = [p for p in paths if p in home.manifest and not p.endswith((*_PROVING, *layout.APPENDED))]
    found = []
    for at in range(0, len(doubtful), HASH_AT_ONCE):
        part = doubtful[at : at + HASH_AT_ONCE]
        there = answer_field(agent.ask("hash", paths=part), "sha256", dict)
        found += [p for p in part if there.get(p) not in (None, home.manifest[p]["sha256"])]
    return found


def _take(placing: transfer.Placing, one: transfer.Fetched, home: Home) -> None:
    """Put a file in place, where its content proves itself."""
    fault = _fault(one.temp, one.path)
    if fault:
        home.unverified[one.path] = fault
        one.temp.unlink()
        return
    placing.place(one)
    home.manifest[one.path] = {"size": one.size, "sha256": one.sha256}
    home.fetched += 1
    home.fetched_bytes += one.size


def _fault(temp: Path, path: str) -> str:
    """What is wrong with a file's content, as far as it can prove itself; empty when nothing is."""
    try:
        if path.endswith(_PROVING):
            snapshot.verify(temp)
        elif path.endswith(".safetensors"):
            header.read(temp)
    except header.SnapshotCorrupt as e:
        return str(e).replace(str(temp), path)
    return ""


def _differing(
    agent: Agent,
    root: Path,
    found: dict[str, dict[str, Any]],
    home: Home,
    known: digests.Digests,
    incoming: Path,
    placing: transfer.Placing,
) -> list[str]:
    """Paths whose bytes are not here yet; those that are here under another name are put in place."""
    difference = transfer.compare(agent, root, found, known)
    for path, sha256 in difference.same.items():
        home.manifest[path] = {"size": found[path]["size"], "sha256": sha256}
    # linked before any is placed: placing one may take another's source away
    ready = [transfer.adopt(root, source, path, found[path], incoming) for path, source in difference.linked.items()]
    for one in ready:
        if one is not None:
            _take(placing, one, home)
    return [p for p in found if p not in home.manifest and p not in home.unverified]


def _begun_bytes(incoming: Path) -> int:
    """What a broken download left here, to go on from."""
    return sum(p.stat().st_blocks * 512 for p in incoming.glob("*.part")) if incoming.is_dir() else 0


def _room(root: Path, need_bytes: int) -> None:
    free_bytes = shutil.disk_usage(root).free
    if need_bytes + SPARE_BYTES > free_bytes:
        raise Unverified(
            f"{root}: {need_bytes / 1e6:.1f} MB are to come (and {SPARE_BYTES >> 20} MiB stay free), "
            f"{free_bytes / 1e6:.1f} MB are free; nothing was fetched",
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
    ahead = there is None or (there["stage_index"], there["step"]) < (here["stage_index"], here["step"])
    other = there is not None and _is_other(here, there)
    if ahead or other:
        kept = preserve.preserve(str(root), outputs, name, resume.stamp(), move=False)
        why = "further than the pod's state" if ahead else "of another lineage than the pod's state"
        tell(f"what is here (step {here['step']}) is {why}: kept as {', '.join(kept)}")


def _is_other(here: dict[str, Any], there: dict[str, Any]) -> bool:
    """Whether the pod's state did not come from the one here: another identity or lineage, or a fork."""
    if here["stage"] != there["stage"] or lineage.came_from(there, here):
        return False
    if here["step"] == there["step"]:
        return bool(here["root"] != there["root"])
    return bool(here["fingerprint"] != there.get("fingerprint") or here["lineage"] != there.get("lineage"))
