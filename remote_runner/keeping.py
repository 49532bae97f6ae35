"""Which of a run's checkpoints come home: all of them, the newest and the best, or those of a pattern.

    all            everything (the default up to 50 GB; beyond, the user is asked, or the newest 2 and the best come)
    newest:N       the N with the highest step in their names, and whatever is called best
    a glob         checkpoints whose path fits; everything that is no checkpoint comes in any case

What a resume takes along is settled here too: snapshots, and the rest up to 5 GB.

Not here: how they come (download.py).
"""

from __future__ import annotations

import fnmatch
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath

from remote_runner.errors import UsageFault

ASK_BYTES = 50_000_000_000
RESUME_LIMIT_BYTES = 5_000_000_000
_SUFFIXES = {".pt", ".pth", ".ckpt", ".safetensors", ".bin"}
_STEP = re.compile(r"\d+")


def is_checkpoint(path: str) -> bool:
    """Whether a file is one of a series of states, by its suffix and a number in its name or folder."""
    pure = PurePosixPath(path)
    return pure.suffix in _SUFFIXES and bool(_STEP.search(pure.stem) or _STEP.search(pure.parent.name))


def step_of(path: str) -> int:
    """The number that a checkpoint's name, or else its folder's, ends with."""
    pure = PurePosixPath(path)
    numbers = _STEP.findall(pure.stem) or _STEP.findall(pure.parent.name)
    return int(numbers[-1])


def choose(sizes: Mapping[str, int], keep: str) -> tuple[list[str], list[str]]:
    """Sort paths into those that come and those that stay.

    Raises:
        UsageFault: `newest:` without a number.
    """
    if keep == "all":
        return list(sizes), []
    series = [p for p in sizes if is_checkpoint(p)]
    if keep.startswith("newest:"):
        if not keep[7:].isdecimal() or int(keep[7:]) < 1:
            raise UsageFault(f"download.keep = {keep!r}: no number", fix="write newest:2, all, or a pattern")
        groups = sorted({step_of(p) for p in series}, reverse=True)[: int(keep[7:])]
        stay = {p for p in series if step_of(p) not in groups and "best" not in p.lower()}
    else:
        stay = {p for p in series if not fnmatch.fnmatchcase(p, keep)}
    return [p for p in sizes if p not in stay], sorted(stay)


def settle(sizes: Mapping[str, int], keep: str, ask: Callable[[str], bool] | None) -> str:
    """The rule for a download where the settings name none.

    Args:
        ask: puts a question on a terminal; None where there is none.
    """
    total = sum(sizes.values())
    if keep or total <= ASK_BYTES:
        return keep or "all"
    if ask is not None and ask(f"{len(sizes)} files, {total / 1e9:.0f} GB: bring all of them?"):
        return "all"
    return "newest:2"


def along(sizes: Iterable[tuple[str, int]], first: Callable[[str], bool], all_outputs: bool) -> list[str]:
    """What a resume takes along: the snapshots, then the smaller files up to 5 GB together; or all, if asked for."""
    room = float("inf") if all_outputs else RESUME_LIMIT_BYTES
    found = []
    for path, size in sorted(sizes, key=lambda f: (not first(f[0]), f[1])):
        if first(path) or size <= room:
            found.append(path)
            room -= size
    return found


def say_stayed(stayed: list[str], tell: Callable[[str], None]) -> None:
    """List what is beyond the limit."""
    if stayed:
        tell(
            f"{len(stayed)} files beyond {RESUME_LIMIT_BYTES / 1e9:.0f} GB do not go along (--all-outputs takes them): "
            f"{', '.join(stayed[:5])}{' …' if stayed[5:] else ''}"
        )


def say_left(sizes: Mapping[str, int], tell: Callable[[str], None]) -> None:
    """List the checkpoints that the rule leaves on the pod, each with its size."""
    if sizes:
        tell(
            f"{len(sizes)} checkpoints stay on the pod, {sum(sizes.values()) / 1e9:.2f} GB; download --keep all brings "
            "them:\n" + "\n".join(f"  {size / 1e6:10.1f} MB  {path}" for path, size in sorted(sizes.items()))
        )


def twins(paths: Iterable[str], case_blind: bool, form_blind: bool) -> dict[str, str]:
    """Paths that a disk would take for one another: all but the first of each, with the reason.

    Args:
        case_blind: the disk does not tell A from a.
        form_blind: the disk does not tell a composed letter from the same one in two parts.
    """
    seen: dict[str, str] = {}
    found = {}
    for path in sorted(paths):
        key = unicodedata.normalize("NFC", path) if form_blind else path
        key = key.casefold() if case_blind else key
        if key in seen:
            found[path] = f"this disk can't tell it from {seen[key]!r}"
        else:
            seen[key] = path
    return found


def blindness(folder: Path) -> tuple[bool, bool]:
    """What a disk does not tell apart, tried with files of ours: case, and forms of one letter."""
    probe = folder / ".remote-run-Probe-\u00e9"
    probe.touch()
    try:
        lower = folder / ".remote-run-probe-\u00e9"
        apart = folder / unicodedata.normalize("NFD", probe.name)
        return lower.exists(), apart.exists()
    finally:
        probe.unlink()
