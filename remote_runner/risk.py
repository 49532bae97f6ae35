"""If the pod vanished now, what would be lost? A number at any time, and a bound that is known beforehand.

    lost now     what was done since the bytes of the last backup were read, or since the pod began
    the bound    time between two copies + time between two snapshots + time to save one + time to copy

The last copy holds the newest snapshot that was there when its reading began. That one was one snapshot interval and
one save old at most; until the next copy counts, an interval and the whole time of a copy pass. A copy that takes
longer than the interval makes the next one skip to the interval after. The time of a copy is the longest of the last
five, half as much again, and a second: the next one is not known.

The times of two snapshots are compared with each other alone (both are the pod's), the age of a backup by the clock
that made it.

Not here: how a backup is made (backup.py), how a status is shown (status_text.py).
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from remote_runner import record, settings, stores, vault
from remote_runner.agent import Agent, Denied
from remote_runner.agent import field as answer_field
from remote_runner.backup import SNAPSHOTS
from remote_runner.durations import show
from remote_runner.errors import RunnerError
from remote_runner.vault import Place

SPARE_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Risk:
    """What a run would lose. None where it is not known."""

    stage: str = ""  # of the last backup
    step: int | None = None
    backup_id: str = ""
    since_s: float | None = None  # since the bytes of that backup were read
    steps: int | None = None  # done since, where the stage is the same
    every_s: float | None = None
    snapshot_every_s: float | None = None
    save_s: float = 0.0  # of a snapshot, as far as the trainer tells
    transfer_s: float | None = None  # that a copy may take
    problem: str = ""  # why the store could not be asked

    @property
    def bound_s(self) -> float | None:
        if self.between_s is None or self.snapshot_every_s is None or self.transfer_s is None:
            return None
        return self.between_s + self.snapshot_every_s + self.save_s + self.transfer_s

    @property
    def between_s(self) -> float | None:
        """From the beginning of a copy to that of the next, where each takes as long as it may."""
        if self.every_s is None or self.transfer_s is None:
            return None
        return self.every_s * max(1, math.ceil(self.transfer_s / self.every_s))

    @property
    def overdue(self) -> bool:
        """Whether the bound is broken already: nobody copies, or can't."""
        return self.bound_s is not None and self.since_s is not None and self.since_s > self.bound_s

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "bound_s": self.bound_s}

    def lines(self) -> list[str]:
        """One or two lines for people."""
        if self.problem:
            return [f"  at risk: not known, the store can't be asked: {self.problem}"]
        if self.step is None or self.since_s is None:
            return ["  at risk: everything, there is no backup yet"]
        steps = f" and {self.steps} steps" if self.steps is not None else ""
        lines = [
            f"  at risk: {show(self.since_s)}{steps} since the last backup ({self.stage} step {self.step}, "
            f"{self.backup_id})"
        ]
        if self.bound_s is not None:
            lines.append(
                f"  bound: {show(self.bound_s)} = {show(self.between_s or 0)} between copies + "
                f"{show(self.snapshot_every_s or 0)} between snapshots + {show(self.save_s)} to save one + "
                f"{show(self.transfer_s or 0)} to copy"
            )
        elif self.transfer_s is not None and self.snapshot_every_s is None:
            lines.append("  bound: not known, two snapshots on the pod would tell how often there is one")
        if self.overdue:
            lines.append("  no copy came when it was due: follow it (remote-run attach), or let cron or the pod copy")
        return lines


def look(agent: Agent, root: Path, name: str, outputs: list[str], seen: dict[str, Any]) -> Risk:
    """Ask the store and the pod what stands where.

    Args:
        seen: the pod's answer to `state`.
    """
    try:
        manifests, every_s = _stored(root, name)
        return measure(manifests, seen, every_s, snapshot_interval_s(agent, outputs), time.time())
    except RunnerError as e:
        return Risk(problem=str(e))


def without_pod(root: Path, name: str) -> Risk:
    """What is safe of a run whose pod does not answer: the store alone is asked."""
    try:
        manifests, every_s = _stored(root, name)
        return measure(manifests, {}, every_s, None, time.time())
    except RunnerError as e:
        return Risk(problem=str(e))


def _stored(root: Path, name: str) -> tuple[list[dict[str, Any]], float]:
    """All backups of a run, and how often one is made."""
    last = record.last_attempt(record.load(root, name))
    found = settings.load(root, name)
    store = stores.open_store(str(last.get("backup_to") or found.backup.to), root)
    try:
        place = Place(store=store, project=found.project or root.name, name=name, keep=found.backup.keep)
        return vault.asked(place), float(last.get("backup_every_s") or found.backup.every)
    finally:
        store.close()


def measure(
    manifests: list[dict[str, Any]],
    seen: dict[str, Any],
    every_s: float,
    snapshot_every_s: float | None,
    now_unix_s: float,
) -> Risk:
    """Put together what is known.

    Args:
        manifests: all backups of the run, the furthest last.
        seen: the pod's answer to `state`: `status` of the supervisor, `now_unix_s` by the pod's clock.
    """
    status = seen.get("status") or {}
    durable = [m for m in manifests if m.get("newest")]
    if not durable:
        return Risk(every_s=every_s, snapshot_every_s=snapshot_every_s)
    newest = durable[-1]
    # an unchanged run is as safe as its latest look shows: of equal states the youngest counts
    same = [m for m in durable if m["newest"]["root"] == newest["newest"]["root"]]
    newest = max(same, key=lambda m: float(m["unix_s"]))
    row = status.get("progress") or {}
    step, stage = int(newest["newest"]["step"]), str(newest["newest"]["stage"])
    here = row.get("step")
    since_s = max(0.0, now_unix_s - float(newest["unix_s"]))
    if status.get("started_unix_s") and seen.get("now_unix_s"):  # what a pod before this one did is lost or safe
        since_s = min(since_s, max(0.0, float(seen["now_unix_s"]) - float(status["started_unix_s"])))
    longest_s = max((float(m.get("took_s") or 0) for m in sorted(durable, key=_made)[-5:]), default=0.0)
    return Risk(
        stage=stage,
        step=step,
        backup_id=str(newest["id"]),
        since_s=since_s,
        steps=max(0, here - step) if isinstance(here, int) and row.get("stage") == stage else None,
        every_s=every_s,
        snapshot_every_s=snapshot_every_s,
        save_s=float(row.get("save_s") or 0),
        transfer_s=1.5 * longest_s + SPARE_S,
    )


def _made(manifest: dict[str, Any]) -> float:
    return float(manifest["unix_s"])


def snapshot_interval_s(agent: Agent, outputs: list[str]) -> float | None:
    """The time between the two last snapshots of the stage that saved last; None where there are not two."""
    try:
        found = answer_field(agent.ask("list", outputs=outputs, names=[]), "files", list)
        times = {str(f.get("path")): int(f.get("mtime_ns") or 0) / 1e9 for f in found}
        latest = [p for p in times if p.endswith(SNAPSHOTS[0]) and p.replace(*SNAPSHOTS) in times]
        if not latest:
            return _between(answer_field(agent.ask("snapshots", outputs=outputs), "snapshots", list), times)
    except Denied:
        return None
    path = max(latest, key=lambda p: times[p])
    return max(0.0, times[path] - times[path.replace(*SNAPSHOTS)])


def _between(rows: list[Any], times: dict[str, float]) -> float | None:
    """The same of another trainer's snapshots, files or folders, by their steps."""
    heads = [(r.get("path"), r["header"].get("step")) for r in rows if isinstance(r, dict) and r.get("header")]
    steps = {step: path for path, step in heads if isinstance(path, str) and type(step) is int}
    ends = []
    for step in sorted(steps)[-2:]:
        inside = [t for path, t in times.items() if path == steps[step] or path.startswith(f"{steps[step]}/")]
        ends += [max(inside)] if inside else []
    return max(0.0, ends[1] - ends[0]) if len(ends) == 2 else None
