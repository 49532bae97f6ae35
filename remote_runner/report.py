"""What became of a run: cause and evidence, last durable step, what was lost and repeated, times, proofs.

`runs/<name>-report.json`, and a short text for people. The exit code is the worst of what happened.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from remote_runner.agent import printable
from remote_runner.checkpoint import lineage
from remote_runner.durations import show
from remote_runner.pod import files, foreign, layout

_WORST_FIRST = (70, 6, 7, 8, 5, 2, 1, 75, 0)
_BY_CAUSE = {
    "done": 0,
    "paused": 75,
    "deadline": 75,
    "preempted": 75,
    "disk": 75,
    "setup": 5,
    "refused": 2,
}  # every other cause is the workload's failure: 1
TAIL_LINES = 20


@dataclass
class Report:
    """One attempt, told whole."""

    name: str
    attempt: str
    target: str
    cause: str
    evidence: str = ""
    workload_code: int | None = None
    workload_signal: int | None = None
    segment: int | None = None
    last_durable: list[dict[str, Any]] = field(default_factory=list)  # stage, step, root, newest stage last
    resumed_from: str = ""
    same_run: bool = False  # gone on with, by a trainer that proves its states, and nothing of identity or code changed
    source_sha256: dict[str, str] = field(default_factory=dict)  # of the snapshots that it went on from
    restarts: int = 0  # after a crash, by the supervisor
    steps_lost: int | None = None  # done and in no snapshot; None: unknown
    steps_lost_at_least: int = 0
    steps_repeated: int | None = None  # None: unknown
    resumable: str = ""  # what --resume would go on from, or why it can't
    gpu_contention: dict[str, Any] = field(default_factory=dict)  # empty: not measured
    interruption: dict[str, Any] | None = None
    segments: list[dict[str, Any]] = field(default_factory=list)
    phases_s: dict[str, float] = field(default_factory=dict)
    setup_s: dict[str, float] = field(default_factory=dict)  # on the pod, by what was prepared
    wall_s: float = 0.0
    backups: int = 0
    last_backup: str = ""
    fetched_files: int = 0
    fetched_bytes: int = 0
    verified_files: int = 0
    left_on_pod: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[dict[str, Any]] = field(default_factory=list)  # exit_code, message
    changes: list[str] = field(default_factory=list)  # since the run began, or the attempt before: another run, then
    hardware: str = ""
    pod_end: str = ""  # what becomes of the pod, and of its bill
    log_tail: list[str] = field(default_factory=list)
    exit_code: int = 70

    def begin(self, attempt: dict[str, Any]) -> None:
        """What the run's record knows of the attempt since its start."""
        self.resumed_from = str(attempt.get("resumed_from") or "")
        self.source_sha256 = dict(attempt.get("source_sha256") or {})
        self.hardware = str(attempt.get("hardware") or "")

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True, ensure_ascii=False)

    def settle(self) -> None:
        """Fix the exit code: the worst of the workload's end and of every problem."""
        codes = [_BY_CAUSE.get(self.cause, 1), *(int(p["exit_code"]) for p in self.problems)]
        self.exit_code = min(codes, key=_WORST_FIRST.index)

    def summary(self) -> str:
        lines = [f"{self.name}: {self.cause}" + (f" ({self.evidence})" if self.evidence else "")]
        for one in self.last_durable:
            known = one.get("rule") or "saved and verified"
            lines.append(f"  {one['stage']}: step {one['step']} {known}, root {one['root'][:16]}")
        if self.resumed_from:
            repeated = "unknown" if self.steps_repeated is None else self.steps_repeated
            same = "; the same run" if self.same_run else ""
            lines.append(f"  resumed from {self.resumed_from}; steps repeated: {repeated}{same}")
        lines += [f"  {change}" for change in self.changes]
        lines.append(
            f"  home: {self.verified_files} files verified, {self.fetched_files} of them fetched "
            f"({self.fetched_bytes / 1e6:.2f} MB)"
        )
        if self.last_backup:
            lines.append(f"  backups: {self.backups}, the last is {self.last_backup}")
        if self.left_on_pod:
            lines.append(f"  not brought home: {', '.join(self.left_on_pod[:5])}")
        phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.phases_s.items())
        lines.append(f"  time: {show(self.wall_s)} ({phases})")
        if prepared := [f"{what} {seconds:.1f} s" for what, seconds in self.setup_s.items()]:
            lines.append(f"  prepared there: {', '.join(prepared)}")
        lines += [f"  warning: {warning}" for warning in self.warnings]
        for problem in self.problems:
            lines.append(f"  problem: {problem['message']}")
        if self.exit_code not in (0, 75) and self.log_tail:
            lines += ["  last lines of its log:", *(f"    {line}" for line in self.log_tail[-TAIL_LINES:])]
        if self.resumable:
            lines.append(f"  {self.resumable}")
        return printable("\n".join(lines))


def add_local_facts(report: Report, root: Path, outputs: list[str]) -> None:
    """What the files that are home tell: durable steps, segments, the end of the log."""
    best: dict[str, dict[str, Any]] = {}
    known = files.read_json(str(root), layout.run_file(report.name, "-run.json")) or {}
    own = layout.snapshots(str(root), outputs)
    others = foreign.heads(str(root), outputs, known.get("snapshots") or [], known.get("lineage"))
    for _path, head, _why in [*own, *others]:
        if head is not None and head["step"] >= best.get(head["stage"], head)["step"]:
            best[head["stage"]] = head
    said = ("stage", "step", "target_steps", "root", "rule", "lineage")
    report.last_durable = [
        {key: h[key] for key in said if key in h} for h in sorted(best.values(), key=lambda h: h["stage_index"])
    ]
    _add_changes(report, known)
    report.segments = _segments(root / layout.metrics_file(outputs))
    log = root / layout.log(report.name)
    if log.is_file():
        with log.open("rb") as f:
            f.seek(max(0, log.stat().st_size - 16_384))
            text = f.read().decode("utf-8", "replace").replace("\r", "\n")
        report.log_tail = [printable(line) for line in _last_segment(text.splitlines())[-TAIL_LINES:]]


_STARTED = re.compile(r"^\[remote-run\] \S+ segment (\d+): ")


def _last_segment(lines: list[str]) -> list[str]:
    """Lines from where the last segment began on; all of them where that lies further back."""
    begun = [(i, found.group(1)) for i, line in enumerate(lines) if (found := _STARTED.match(line))]
    return lines[next(i for i, number in begun if number == begun[-1][1]) :] if begun else lines


def _add_changes(report: Report, known: dict[str, Any]) -> None:
    """What makes it another run than the one it went on with; without any it is the same."""
    attempt = (known.get("attempts") or [{}])[-1]
    compared = attempt.get("attempt") == report.attempt  # a run on this machine has no such record
    accepted = attempt.get("accept") or {}
    report.changes = [
        f"another run since a change of {one['stage']}: {lineage.text(one['lineage'])}"
        for one in report.last_durable
        if one.get("lineage")
    ]
    if compared and "code" not in accepted and (stat := attempt.get("code_stat") or []):
        more = " …" if stat[5:] else ""
        report.changes.append(f"code changed since the attempt before: {', '.join(stat[:5])}{more}")
    if compared and "config" not in accepted and (both := attempt.get("config_changed")):
        report.changes.append(f"config changed since the attempt before: {' -> '.join(both)}")
    proven = bool(report.last_durable) and not any(one.get("rule") for one in report.last_durable)
    report.same_run = bool(report.resumed_from) and compared and proven and not report.changes


def _segments(metrics: Path) -> list[dict[str, Any]]:
    """Each uninterrupted life of the trainer: steps it logged and when; torn lines are dropped.

    `training_s` is its time in the training loop, where the trainer's rows tell (they count over all segments).
    """
    found: dict[int, dict[str, Any]] = {}
    clocks: dict[str, list[tuple[int, float]]] = {}  # stage -> (step, training seconds up to it)
    if not metrics.is_file():
        return []
    with metrics.open("rb") as f:
        for line in f:
            try:
                row = json.loads(line)
                number, step, t = int(row["segment"]), int(row["step"]), float(row["t"])
                stage = str(row["stage"])
            except (ValueError, KeyError, TypeError):
                continue
            one = found.setdefault(number, {"segment": number, "from_unix_s": t, "steps": {}})
            one["until_unix_s"] = t
            first, _ = one["steps"].get(stage, (step, step))
            one["steps"][stage] = (first, step)
            if isinstance(trained_s := row.get("training_s"), (int, float)):
                _count(one, clocks.setdefault(stage, []), stage, step, float(trained_s))
    for one in found.values():
        if since := one.pop("since_s", None):
            one["training_s"] = round(sum(until - began for began, until in since.values()), 3)
    return [found[n] for n in sorted(found)]


def _count(one: dict[str, Any], clock: list[tuple[int, float]], stage: str, step: int, trained_s: float) -> None:
    """Note how far a segment's own training time reaches in a stage: from the state that it went on from."""
    since = one.setdefault("since_s", {})
    if stage not in since:
        while clock and clock[-1][0] >= step:
            clock.pop()  # rows of steps that were lost and done again
        since[stage] = (clock[-1][1] if clock else 0.0, trained_s)
    since[stage] = (since[stage][0], trained_s)
    clock.append((step, trained_s))


def repeated_steps(segments: list[dict[str, Any]]) -> int | None:
    """Steps logged by the segment before the last that the last one had to do again; None where unknown."""
    if len(segments) < 2:
        return None
    before, last = segments[-2]["steps"], segments[-1]["steps"]
    both = [max(0, before[s][1] - last[s][0] + 1) for s in before if s in last]
    return max(both, default=0)


def save(report: Report, root: Path) -> None:
    files.replace_json(str(root), layout.run_file(report.name, "-report.json"), asdict(report))
