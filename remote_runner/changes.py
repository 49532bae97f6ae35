"""What is not as it was at the attempt before, told as a diff stat; and what of it the user accepts by name.

    --accept-change KEY    a trainer with the contract judges its own keys (checkpoint/lineage.py)
                           `code`, and `config` of a trainer without the contract, are compared here

Without the option a change of code is shown and recorded, and that is all. With it, old and new stand in the lineage
of every state that comes after.

Not here: how the code is kept (archive.py), where forks are refused (resume.py).
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from remote_runner import archive, record
from remote_runner.checkpoint import header, lineage
from remote_runner.errors import UsageFault
from remote_runner.plan import Plan
from remote_runner.resume import Winner
from remote_runner.upload import Code

CODE, CONFIG = "code", "config"
_SHOWN = 8  # files in the talk; the record has them all
_LONGEST_CHARS = 200  # of a changed config, before digests stand for it
_COUNTED_BYTES = 500_000  # lines of larger files are not counted


@dataclass(frozen=True)
class Changes:
    """What differs from the attempt before."""

    files: list[str] = field(default_factory=list)  # of the code, without the config
    stat: list[str] = field(default_factory=list)  # one line for each
    code: tuple[str, str] | None = None  # digests of all of it, old and new
    config: tuple[str, str] | None = None  # its changed lines, old and new
    accept: dict[str, list[Any] | None] = field(default_factory=dict)  # what the trainer is told
    lineage: Any = None  # of the run from here on, where its trainer keeps none itself

    @property
    def fields(self) -> dict[str, Any]:
        """For the record of the attempt."""
        kept = {"code_changed": self.files, "code_stat": self.stat, "accept": self.accept}
        return {**kept, "config_changed": list(self.config) if self.config else None}


def refuse_unknown(plan: Plan, compared: bool = True) -> None:
    """A key that nobody could judge, or a change where nothing goes on.

    Args:
        compared: whether the code is compared with that of the attempt before.

    Raises:
        UsageFault: naming it.
    """
    keys = plan.options.accept
    if not keys:
        return
    if not plan.options.resume:
        raise UsageFault("--accept-change is for going on with a run", fix="add --resume, or leave it out")
    if not compared and (ours := [k for k in keys if k in (CODE, CONFIG)]):
        raise UsageFault(
            f"--accept-change {ours[0]}: runs on this machine keep no record of it", fix="name the trainer's own keys"
        )
    strange = [k for k in keys if k not in (CODE, CONFIG)]
    if strange and plan.settings.pause != "contract":
        raise UsageFault(
            f"--accept-change {strange[0]}: {plan.config} belongs to the trainer, and which of its keys are the run's "
            "identity only a trainer with the contract can say",
            fix=f"--accept-change {CONFIG} accepts what was changed in the file, --accept-change {CODE} the code",
        )


def look(plan: Plan, code: Code, winner: Winner | None) -> Changes:
    """Compare with the attempt before; nothing where none is gone on with.

    Args:
        winner: the state that is gone on from.
    """
    before = record.load(plan.root, plan.name)
    if winner is None or not before.get("code"):
        return Changes(accept=dict.fromkeys(plan.options.accept), lineage=winner and winner.candidate.lineage)
    old = {p: d for p, d in before["code"].items() if p != before.get("config")}
    new = {i.path: i.sha256 for i in code.items if i.path != plan.config}
    files = sorted(p for p in {*old, *new} if old.get(p) != new.get(p))
    digests = (_digest(old), _digest(new)) if files else None
    config = None
    if plan.settings.pause != "contract":
        config = _lines(str(before.get("config_text") or ""), _read(plan.root / plan.config))
    known: dict[str, tuple[str, str] | None] = {CODE: digests, CONFIG: config}
    accept: dict[str, list[Any] | None] = {}
    for key in plan.options.accept:
        both = known.get(key)
        if both is not None or key not in known:
            accept[key] = list(both) if both else None
    return Changes(
        files=files,
        stat=_stat(plan, files, old, {i.path: i.source for i in code.items}),
        code=digests,
        config=config,
        accept=accept,
        lineage=_lineage(winner, accept, before.get("lineage")) if plan.settings.pause != "contract" else None,
    )


def tell(plan: Plan, found: Changes, say: Callable[[str], None]) -> None:
    """Say what was changed, and what became of each key that was accepted."""
    for key, changed, stat in ((CODE, found.files, found.stat), (CONFIG, found.config, _arrow(found.config))):
        if not changed:
            if key in plan.options.accept and (key != CONFIG or plan.settings.pause != "contract"):
                say(f"--accept-change {key}: nothing of it was changed")
            continue
        how = "accepted: another run from here on" if key in found.accept else "recorded"
        say(f"the {key} is not that of the attempt before ({how}): {', '.join(stat[:_SHOWN])}"
            + (" …" if stat[_SHOWN:] else ""))  # fmt: skip


def _arrow(both: tuple[str, str] | None) -> list[str]:
    return [f"{both[0]} -> {both[1]}"] if both else []


def _digest(files: Mapping[str, str]) -> str:
    return hashlib.sha256(header.canonical(dict(files))).hexdigest()


def _lineage(winner: Winner, accept: Mapping[str, list[Any] | None], last: Any) -> Any:
    """Args: last: of the attempt before; where it began at this very state and left none of its own, it still holds."""
    one = winner.candidate
    holds = isinstance(last, dict) and (last.get("root"), last.get("step")) == (one.root, one.step)
    changes = [{"key": key, "old": both[0], "new": both[1]} for key, both in accept.items() if both]
    state = {"step": one.step, "fingerprint": one.fingerprint, "lineage": last if holds else one.lineage}
    return lineage.after(changes, state, one.root)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _lines(old: str, new: str) -> tuple[str, str] | None:
    """The lines that differ, old and new; digests where they are many."""
    if old == new:
        return None
    rows = _rows(old, new)
    gone, come = ("; ".join(r[1:].strip() for r in rows if r[0] == sign) for sign in "-+")
    if len(gone) + len(come) > _LONGEST_CHARS:
        return hashlib.sha256(old.encode()).hexdigest(), hashlib.sha256(new.encode()).hexdigest()
    return gone, come


def _stat(plan: Plan, files: list[str], old: Mapping[str, str], now: Mapping[str, Path]) -> list[str]:
    """`train.py +3 -1` for each file, as far as the archive of the attempt before has what it was."""
    kept = archive.contents(plan.root, plan.name, set(files), _COUNTED_BYTES) if files else {}
    found = []
    for path in files:
        word = " (new)" if path not in old else " (gone)" if path not in now else ""
        before = kept.get(path) if path in old else b""
        after = _small(now[path]) if path in now else b""
        found.append(path + word + _counted(before, after))
    return found


def _counted(old: bytes | None, new: bytes | None) -> str:
    if old is None or new is None or b"\0" in old[:8192] + new[:8192]:
        return ""
    rows = _rows(old.decode("utf-8", "replace"), new.decode("utf-8", "replace"))
    return f" +{sum(r[0] == '+' for r in rows)} -{sum(r[0] == '-' for r in rows)}"


def _rows(old: str, new: str) -> list[str]:
    """The lines that went and came, each after its sign, and marks of where."""
    return list(difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm=""))[2:]


def _small(path: Path) -> bytes | None:
    try:
        return path.read_bytes() if path.stat().st_size <= _COUNTED_BYTES else None
    except OSError:
        return None
