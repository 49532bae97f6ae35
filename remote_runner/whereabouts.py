"""Where a run is now: the address that was typed, or the one that this project remembers for its name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from remote_runner import record, settings
from remote_runner.errors import UsageFault
from remote_runner.pod import layout


@dataclass(frozen=True)
class Where:
    """A target to connect to, a run's name where one was given, and the host key it must have."""

    target: str
    name: str | None
    host_key: str = ""


def of(start: Path, target: str, name: str | None, at: str) -> Where:
    """Read `HOST:PORT [NAME]`, `NAME`, or `NAME --at HOST:PORT`.

    A run that moved to a new address keeps its pod's host key: another machine there is not taken for it.

    Raises:
        UsageFault: `--at` for a run that this project does not know, or two addresses.
    """
    root = settings.find_root(start.absolute())
    known = (root / layout.run_file(target, "-run.json")).is_file() if "/" not in target else False
    if not at:
        if known and name is None:
            last = record.last_attempt(record.load(root, target))
            return Where(str(last.get("target_text") or last.get("target") or target), target)
        return Where(target, name)
    if name is not None or not known:
        raise UsageFault(
            f"--at wants the name of a run of this project, not {target!r}", fix="remote-run attach NAME --at HOST:PORT"
        )
    last = record.last_attempt(record.load(root, target))
    return Where(at, target, str(last.get("host_key") or ""))


def moved(root: Path, name: str, target_text: str, endpoint: str) -> None:
    """Remember a run's new address, once its pod has answered there."""
    found = record.load(root, name)
    last = record.last_attempt(found)
    if last:
        last.update(target=endpoint, target_text=target_text)
        record.save(root, name, found)
