"""At the end of a run: whether what came home is finite. Of another trainer NaN and infinities are warnings.

Looked at are the newest complete snapshot and what is in no snapshot, since masks in buffers hold -inf and old
snapshots are history. With --require-finite one number that is none makes the run's end 7.

Not here: how a file is looked at (verify.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from remote_runner import verify
from remote_runner.pod import files, foreign

_SHOWN = 5


@dataclass(frozen=True)
class Looked:
    """What was found: one line for each file, of those that hold what is no number and of those nobody could read."""

    not_finite: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)  # for want of torch here
    others: list[str] = field(default_factory=list)  # refused for another reason: they hold code, say

    def lines(self) -> list[str]:
        """As warnings in a report."""
        found = list(self.not_finite)
        if self.unseen:
            found.append(f"not looked at for NaN, torch is not installed here: {_some(self.unseen)}")
        if self.others:
            found.append(f"not looked at for NaN, see remote-run verify: {_some(self.others)}")
        return found


def look(root: Path, outputs: Sequence[str], rules: Sequence[foreign.Rule]) -> Looked:
    """Look at the files of weights and state of a run that is home."""
    snapshots = foreign.find(str(root), outputs, list(rules)) if rules else []
    newest = next((s for s in snapshots if not s.fault), None)
    past = {path for s in snapshots if s is not newest for path, _size in s.files}
    walked = (row for top in outputs for row in files.walk(str(root), top))
    there = [p for p, _i, kind in walked if kind == "file" and p not in past and Path(p).suffix in verify.KNOWN]
    found = Looked()
    for path, verdict in zip(there, verify.verify_files([root / p for p in there]), strict=True):
        _judge(root, path, verdict, found)
    return found


def _judge(root: Path, path: str, verdict: verify.Finding, found: Looked) -> None:
    if verdict.kind == verify.NOT_FINITE:
        found.not_finite.append(verdict.problem.replace(f"{root}/", ""))
    elif verdict.kind == verify.NO_TORCH:
        found.unseen.append(path)
    elif verdict.problem:
        found.others.append(path)
    found.not_finite.extend(w.replace(f"{root}/", "") for w in verdict.warnings)


def _some(paths: list[str]) -> str:
    return ", ".join(paths[:_SHOWN]) + (f" and {len(paths) - _SHOWN} more" if paths[_SHOWN:] else "")
