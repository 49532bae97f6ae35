"""Which whole snapshot a run goes on from: the pod's, the one here, or the store's.

The place whose (stage_index, step) is highest and verifies wins; ties in the order pod, here, store. Times of
files never count. What the winner replaces is preserved first; if the pod wins nothing is sent. Two states of which
neither came from the other are a fork: refused, both named, until `--from` says which one counts.

Not here: how a backup is read (vault.py), what is sent to the pod (upload.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from remote_runner import record, restoring, transfer, vault
from remote_runner.agent import Agent, Denied, printable
from remote_runner.agent import field as answer_field
from remote_runner.checkpoint import header, lineage
from remote_runner.errors import Unverified, UsageFault
from remote_runner.plan import Plan
from remote_runner.pod import foreign, layout, preserve
from remote_runner.pulling import Direct
from remote_runner.vault import Place

PLACES = ("pod", "here", "store")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A snapshot somewhere, as its header or manifest says; not yet verified."""

    place: str
    path: str
    backup_id: str = ""  # in the store
    made_unix_s: float = 0.0  # of that backup
    stage: str
    stage_index: int
    step: int
    root: str
    fingerprint: str
    lineage: Any
    rule: str = ""  # of another trainer's: what is known of it; its root was taken from its bytes just now

    @property
    def rank(self) -> tuple[int, int]:
        return self.stage_index, self.step

    @property
    def set_id(self) -> tuple[str, str]:
        """What is gone on from together: the snapshots of one place, or of one backup."""
        return self.place, self.backup_id

    def __str__(self) -> str:
        known = f"; {self.rule}" if self.rule else ""
        return f"{self.place}: {self.stage} step {self.step} ({self.backup_id or self.path}{known})"


@dataclass(frozen=True)
class Winner:
    """The state that a run goes on from."""

    candidate: Candidate
    manifest: dict[str, Any] = field(default_factory=dict, repr=False)
    # of a backup, proven and not yet in place: what came here, or what the pod fetched by itself
    fetched: list[transfer.Fetched] = field(default_factory=list, repr=False)
    on_pod: list[dict[str, Any]] = field(default_factory=list, repr=False)

    @property
    def place(self) -> str:
        return self.candidate.place

    def __str__(self) -> str:
        return str(self.candidate)


def stamp() -> str:
    """The time in the name of a folder that preserves something."""
    return time.strftime("%Y%m%d-%H%M%S")


def choose(agent: Agent, plan: Plan, store: Place, tell: Callable[[str], None], only: str = "") -> Winner:
    """Find the state to go on from, and prove it.

    Args:
        only: "pod", "here", "store" or a backup's id, where `--from` settles it.

    Raises:
        UsageFault: no snapshot anywhere, none that verifies, or a fork.
        PreflightFailed: the store can't be asked.
    """
    found = _everything(agent, plan, store, tell, only)
    if not found:
        raise UsageFault(
            f"--resume: no snapshot of {plan.name!r} {'in ' + only if only else 'on the pod, here or in the store'}",
            fix="begin it with --fresh (what an earlier start left is kept aside), or name the store that has it: "
            "--backup-to URL",
        )
    faulty: set[tuple[str, str]] = set()
    direct = Direct(agent, plan, store, tell)
    for candidate in sorted(found, key=_first_the_highest):
        if candidate.set_id in faulty and candidate.place == "store":
            continue
        try:
            winner = _proven(agent, plan, direct, candidate, found)
        except (Denied, Unverified, header.SnapshotCorrupt, OSError) as e:
            faulty.add(candidate.set_id)
            tell(f"passing over {candidate}: {printable(str(e))}")
            continue
        if not only:
            _refuse_fork(candidate, found)
        _tell_choice(candidate, found, tell)
        return winner
    raise UsageFault(
        f"--resume: none of the {len(found)} snapshots of {plan.name!r} verifies", fix="look at them: remote-run verify"
    )


def _first_the_highest(one: Candidate) -> tuple[int, int, int, bool, float]:
    """Latest before previous, where both are one state: after a pause at a boundary they are."""
    previous = one.path.endswith(layout.PREVIOUS)
    return -one.stage_index, -one.step, PLACES.index(one.place), previous, -one.made_unix_s


def _tell_choice(winner: Candidate, found: list[Candidate], tell: Callable[[str], None]) -> None:
    """Which one it is, and why not the others: one word for each place."""
    others = []
    for place in PLACES:
        ranked = [c for c in found if c.place == place]
        if place != winner.place and ranked:
            best = max(ranked, key=lambda c: c.rank)
            why = "the same, and further away" if best.rank == winner.rank else "behind"
            others.append(f"{place} has {best.stage} step {best.step} ({why})")
    tell(f"resuming from {winner}, the furthest that verifies" + (f"; {', '.join(others)}" if others else ""))


def _refuse_fork(winner: Candidate, found: list[Candidate]) -> None:
    """No state may be gone over that did not lead to the winner."""
    ours = {c.stage: c for c in sorted(found, key=lambda c: c.step) if c.set_id == winner.set_id}
    ours[winner.stage] = winner
    for other in found:
        mine = ours.get(other.stage)
        if mine is None or other is mine or lineage.came_from(vars(mine), vars(other)):
            continue
        if other.step == mine.step and other.root != mine.root:
            why = f"same step, roots {mine.root[:16]} and {other.root[:16]}"
        elif other.step < mine.step and other.fingerprint != mine.fingerprint:
            why = f"another identity: fingerprints {mine.fingerprint[:16]} and {other.fingerprint[:16]}"
        elif other.step < mine.step and other.lineage != mine.lineage:
            why = f"another lineage: {mine.lineage} and {other.lineage}"
        else:
            continue
        choices = " or ".join(f"--from {c.backup_id or c.place}" for c in (mine, other))
        raise UsageFault(
            f"two states of the stage {mine.stage!r} of which neither came from the other: {mine} and {other} ({why})",
            fix=f"say which one counts: {choices}; the other is preserved, not lost",
        )


# --- what there is -----------------------------------------------------------------


def _everything(agent: Agent, plan: Plan, store: Place, tell: Callable[[str], None], only: str) -> list[Candidate]:
    found: list[Candidate] = []
    if only in ("", "pod"):
        found += _on_pod(agent, plan, tell)
    if only in ("", "here"):
        found += _here(plan, tell)
    if only not in ("pod", "here"):
        found += [c for c in _in_store(store, tell) if only in ("", "store", c.backup_id)]
    return found


def _candidate(place: str, head: dict[str, Any], path: str, **more: Any) -> Candidate:
    return Candidate(
        place=place,
        path=path,
        stage=str(head["stage"]),
        stage_index=int(head["stage_index"]),
        step=int(head["step"]),
        root=str(head["root"]),
        fingerprint=str(head.get("fingerprint")),
        lineage=head.get("lineage"),
        rule=str(head.get("rule") or ""),
        **more,
    )


def _on_pod(agent: Agent, plan: Plan, tell: Callable[[str], None]) -> Iterator[Candidate]:
    for found in answer_field(agent.ask("snapshots", outputs=plan.outputs), "snapshots", list):
        path = printable(str(found.get("path")))
        head = found.get("header")
        try:
            if isinstance(head, dict):
                yield _candidate("pod", head, path)
                continue
            why = str(found.get("why"))
        except (KeyError, TypeError, ValueError) as e:
            why = f"its header lacks {e}"
        tell(f"passing over pod: {path}: {printable(why)}")


def _here(plan: Plan, tell: Callable[[str], None]) -> Iterator[Candidate]:
    outputs, rules = plan.outputs, plan.settings.rules
    own = layout.snapshots(str(plan.root), outputs)
    known = record.load(plan.root, plan.name).get("lineage")
    for path, head, why in [*own, *foreign.heads(str(plan.root), outputs, rules, known)]:
        if head is not None:
            yield _candidate("here", head, path)
        else:
            tell(f"passing over here: {path}: {why}")


def _in_store(store: Place, tell: Callable[[str], None]) -> Iterator[Candidate]:
    for manifest in vault.asked(store, tell):
        for head in vault.snapshots(manifest):
            yield _candidate(
                "store", head, str(head["path"]), backup_id=manifest["id"], made_unix_s=float(manifest["unix_s"])
            )


# --- proving one -------------------------------------------------------------------


def _proven(agent: Agent, plan: Plan, direct: Direct, one: Candidate, found: list[Candidate]) -> Winner:
    """Prove a snapshot, and of every other stage in its set the newest that there is.

    Raises:
        Denied, Unverified, SnapshotCorrupt, OSError: what is wrong with it.
    """
    if one.place == "store":
        return _proven_backup(plan, direct, one)

    def prove(candidate: Candidate) -> None:
        if candidate.rule:
            return
        if one.place == "pod":
            agent.ask("verify", path=candidate.path)
        else:
            header.verify_digests(plan.root / candidate.path)

    prove(one)
    stages = {c.stage for c in found if c.set_id == one.set_id} - {one.stage}
    for stage in sorted(stages):
        ranked = sorted((c for c in found if c.set_id == one.set_id and c.stage == stage), key=lambda c: -c.step)
        for number, candidate in enumerate(ranked):
            try:
                prove(candidate)
                break
            except (Denied, header.SnapshotCorrupt, OSError):
                if number == len(ranked) - 1:
                    raise
    return Winner(one)


def _proven_backup(plan: Plan, direct: Direct, one: Candidate) -> Winner:
    """By the pod itself where it reaches the store, else by way of this machine."""
    store = direct.place
    manifest = next((m for m in vault.manifests(store) if m["id"] == one.backup_id), None)
    if manifest is None:
        raise Unverified(f"the backup {one.backup_id} was pruned meanwhile", fix="run the command again")
    if strays := vault.strays(manifest, plan.outputs, plan.name):
        raise Unverified(
            f"the backup {one.backup_id} names {strays[0]}, which is none of this run's places", fix="take another"
        )
    entry = next((e for e in manifest["files"] if e["path"] == one.path), None)
    if entry is None and not one.rule:
        raise Unverified(f"the backup {one.backup_id} names no file {one.path}", fix="take another backup")
    if one.rule and not foreign.same_content(one.path, {"root": one.root}, manifest["files"]):
        raise Unverified(f"{one.path} in {one.backup_id} is not what its manifest says", fix="take another backup")
    if on_pod := direct.bring(manifest):
        if entry is not None and not one.rule:
            _is_the_state(one, direct.head(entry))
        return Winner(one, manifest, on_pod=on_pod)
    fetched = restoring.fetch(store, manifest, restoring.incoming(plan.root, plan.name))
    if not one.rule:
        _is_the_state(one, header.verify_digests(next(f.temp for f in fetched if f.path == one.path)))
    return Winner(one, manifest, fetched)


def _is_the_state(one: Candidate, head: dict[str, Any]) -> None:
    if (head.get("stage"), head.get("step"), head.get("root")) != (one.stage, one.step, one.root):
        raise Unverified(f"{one.path} in {one.backup_id} is not the state that its manifest names", fix="take another")


def bring_here(plan: Plan, winner: Winner, tell: Callable[[str], None]) -> None:
    """Put the store's set in place in the project; what stands here is preserved first, the record of it stays.

    Where the pod has fetched it, the place here stays empty until the next download: no set is mixed from two states.
    """
    known = record.load(plan.root, plan.name)
    kept = preserve.preserve(str(plan.root), plan.outputs, plan.name, stamp(), move=True)
    if kept:
        tell(f"kept here as {', '.join(kept)}")
    if winner.fetched:
        restoring.put_in_place(winner.fetched, winner.manifest, plan.root)
    if known:
        record.save(plan.root, plan.name, known)


def preserve_here(plan: Plan, journal: record.Journal, tell: Callable[[str], None]) -> None:
    """Keep links and copies of what stands here before a recovery: its download will replace it."""
    root = str(plan.root)
    kept = preserve.preserve(root, plan.outputs, plan.name, stamp(), move=False)
    if kept:
        journal.event("preserved", folders=kept, sha256=preserve.digests(root, plan.outputs, plan.settings.rules))
        tell(f"kept here as {', '.join(kept)}")
