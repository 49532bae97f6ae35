"""If the pod vanished now, what would be lost? A number at any time, and a bound that is known beforehand.

    lost now     what was done since the bytes of the last backup were read
    the bound    time between two copies + time between two snapshots + time that a copy takes

The times of two snapshots are compared with each other alone (both are the pod's), the age of a backup by the clock
that made it.

Not here: how a backup is made (backup.py), how a status is shown (status_text.py).
"""

from __future__ import annotations

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
    transfer_s: float | None = None
    problem: str = ""  # why the store could not be asked

    @property
    def bound_s(self) -> float | None:
        if self.every_s is None or self.snapshot_every_s is None or self.transfer_s is None:
            return None
        return self.every_s + self.snapshot_every_s + self.transfer_s

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
                f"  bound: {show(self.bound_s)} = {show(self.every_s or 0)} between copies + "
                f"{show(self.snapshot_every_s or 0)} between snapshots + {show(self.transfer_s or 0)} to copy"
            )
        return lines


def look(agent: Agent, root: Path, name: str, outputs: list[str], status: dict[str, Any]) -> Risk:
    """Ask the store and the pod what stands where."""
    last = record.last_attempt(record.load(root, name))
    try:
        found = settings.load(root, name)
        to = str(last.get("backup_to") or found.backup.to)
        store = stores.open_store(to, root)
        try:
            place = Place(store=store, project=found.project or root.name, name=name, keep=found.backup.keep)
            manifests = vault.asked(place)
        finally:
            store.close()
        every_s = float(last.get("backup_every_s") or found.backup.every)
        return measure(manifests, status, every_s, snapshot_interval_s(agent, outputs), time.time())
    except RunnerError as e:
        return Risk(problem=str(e))


def measure(
    manifests: list[dict[str, Any]],
    status: dict[str, Any],
    every_s: float,
    snapshot_every_s: float | None,
    now_unix_s: float,
) -> Risk:
    """Put together what is known.

    Args:
        manifests: all backups of the run, the furthest last.
        status: the supervisor's.
    """
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
    return Risk(
        stage=stage,
        step=step,
        backup_id=str(newest["id"]),
        since_s=max(0.0, now_unix_s - float(newest["unix_s"])),
        steps=max(0, here - step) if isinstance(here, int) and row.get("stage") == stage else None,
        every_s=every_s,
        snapshot_every_s=snapshot_every_s,
        transfer_s=max((float(m.get("took_s") or 0) for m in durable[-5:]), default=None),
    )


def snapshot_interval_s(agent: Agent, outputs: list[str]) -> float | None:
    """The time between the two last snapshots of the stage that saved last; None where there are not two."""
    try:
        found = answer_field(agent.ask("list", outputs=outputs, names=[]), "files", list)
    except Denied:
        return None
    times = {str(f.get("path")): int(f.get("mtime_ns") or 0) / 1e9 for f in found}
    latest = [p for p in times if p.endswith(SNAPSHOTS[0]) and p.replace(*SNAPSHOTS) in times]
    if not latest:
        return None
    path = max(latest, key=lambda p: times[p])
    return max(0.0, times[path] - times[path.replace(*SNAPSHOTS)])
