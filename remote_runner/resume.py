"""Which whole snapshot a run goes on from: the pod's, the one here, or the store's.

The place whose (stage_index, step) is highest and verifies wins; ties in the order pod, here, store. Times of
files never count. What the winner replaces is preserved first; if the pod wins nothing is sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from remote_runner import backup, record, ssh
from remote_runner.agent import Agent, Denied, field, printable
from remote_runner.checkpoint import header
from remote_runner.errors import PreflightFailed, Refused, RunnerError, UsageFault
from remote_runner.hostkeys import Policy
from remote_runner.plan import Plan
from remote_runner.pod import layout, preserve
from remote_runner.ssh import LinkLost
from remote_runner.target import parse

PLACES = ("pod", "here", "store")


@dataclass(frozen=True)
class Candidate:
    """A snapshot somewhere, as its header or manifest says; not yet verified."""

    place: str
    path: str  # or the backup's id
    stage: str
    stage_index: int
    step: int
    root: str

    @property
    def rank(self) -> tuple[int, int]:
        return self.stage_index, self.step

    def __str__(self) -> str:
        return f"{self.place}: {self.stage} step {self.step} ({self.path})"


def stamp() -> str:
    """The time in the name of a folder that preserves something."""
    return time.strftime("%Y%m%d-%H%M%S")


def choose(agent: Agent, plan: Plan, store: backup.Place, tell: Callable[[str], None], only: str = "") -> Candidate:
    """Find the state to go on from.

    Args:
        only: "pod", "here" or "store" where `--from` settles it.

    Raises:
        UsageFault: no snapshot anywhere, none that verifies, or two different ones of the same step.
    """
    everything = [*_on_pod(agent, plan, tell), *_here(plan, tell), *_in_store(store)]
    found = [c for c in everything if not only or c.place == only]
    if not found:
        raise UsageFault(
            f"--resume: no snapshot of {plan.name!r} on the pod, here or in the store",
            fix="start it without --resume, or name the store that has it: --backup-to URL",
        )
    for candidate in sorted(found, key=lambda c: (-c.rank[0], -c.rank[1], PLACES.index(c.place))):
        why = _fault(agent, plan, store, candidate)
        if not why:
            _refuse_fork(candidate, found)
            others = ", ".join(f"{c.place} has step {c.step} of {c.stage}" for c in found if c.place != candidate.place)
            tell(f"resuming from {candidate}" + (f"; {others}" if others else ""))
            return candidate
        tell(f"passing over {candidate}: {why}")
    raise UsageFault(
        f"--resume: none of the {len(found)} snapshots of {plan.name!r} verifies", fix="look at them: remote-run verify"
    )


def _refuse_fork(winner: Candidate, found: list[Candidate]) -> None:
    for other in found:
        if other.rank == winner.rank and other.root and winner.root and other.root != winner.root:
            raise UsageFault(
                f"two different states of the same step: {winner} has root {winner.root[:16]}, "
                f"{other} has root {other.root[:16]}",
                fix=f"say which one counts: --from {winner.place} or --from {other.place}",
            )


def _candidate(place: str, path: str, head: dict[str, Any]) -> Candidate:
    return Candidate(
        place, path, str(head["stage"]), int(head["stage_index"]), int(head["step"]), str(head.get("root") or "")
    )


def _on_pod(agent: Agent, plan: Plan, tell: Callable[[str], None]) -> Iterator[Candidate]:
    for found in field(agent.ask("snapshots", outputs=plan.outputs), "snapshots", list):
        if isinstance(found.get("header"), dict):
            yield _candidate("pod", printable(str(found["path"])), found["header"])
        else:
            tell(f"on the pod, {printable(str(found.get('path')))}: {printable(str(found.get('why')))}")


def _here(plan: Plan, tell: Callable[[str], None]) -> Iterator[Candidate]:
    for path, head, why in layout.snapshots(str(plan.root), plan.outputs):
        if head is not None:
            yield _candidate("here", path, head)
        else:
            tell(f"here, {path}: {why}")


def _in_store(store: backup.Place) -> Iterator[Candidate]:
    for manifest in backup.manifests(store):
        if manifest.get("newest"):
            yield _candidate("store", manifest["id"], manifest["newest"])


def _fault(agent: Agent, plan: Plan, store: backup.Place, one: Candidate) -> str:
    """Why a snapshot can't be gone on from; empty when it verifies."""
    try:
        if one.place == "pod":
            agent.ask("verify", path=one.path)
        elif one.place == "here":
            header.verify_digests(plan.root / one.path)
        else:
            # a blob proves itself when it is restored; here it must at least be there whole
            manifest = _manifest(store, one)
            for entry in manifest["files"]:
                if store.store.has(store.blob(entry["sha256"])) != entry["size"]:
                    return f"{entry['path']} is not whole in the store"
    except (Denied, header.SnapshotCorrupt, OSError) as e:
        return printable(str(e))
    return ""


def _manifest(store: backup.Place, one: Candidate) -> dict[str, Any]:
    return next(m for m in backup.manifests(store) if m["id"] == one.path)


def bring_here(plan: Plan, store: backup.Place, one: Candidate, tell: Callable[[str], None]) -> None:
    """Restore the store's set into the project; what stands here is preserved first."""
    kept = preserve.preserve(str(plan.root), plan.outputs, plan.name, stamp(), move=True)
    if kept:
        tell(f"kept here as {', '.join(kept)}")
    backup.restore(store, _manifest(store, one), plan.root)


def ask_last_target(plan: Plan, here: str, policy: Policy, tell: Callable[[str], None]) -> None:
    """Before going on elsewhere: does the pod of the last attempt still train?

    Raises:
        Refused: it does.
        UsageFault: it does not answer, and the user has not said `--abandon`.
    """
    last = record.last_attempt(record.load(plan.root, plan.name))
    there = last.get("target")
    if not there or there == here or last.get("ended") or plan.options.abandon in (there, last.get("target_text")):
        return
    try:
        endpoint = ssh.resolve(parse(last["target_text"]), policy, last.get("user"), None)
        with ssh.connect(endpoint) as pod, Agent(pod, last["root"]) as agent:
            lives = bool(agent.ask("state", name=plan.name).get("supervisor_lives"))
    except (PreflightFailed, LinkLost, RunnerError) as e:
        raise UsageFault(
            f"the last attempt of {plan.name!r} went to {there}, which does not answer ({e}); it may still train there",
            fix=f"if that pod is gone, say so: --abandon {there}",
        ) from None
    if lives:
        raise Refused(
            f"{plan.name!r} still runs on {there}",
            fix=f"pause it first: remote-run pause {there} {plan.name}; or follow it: remote-run attach {there}",
        )
    tell(f"the last attempt, on {there}, is over")
