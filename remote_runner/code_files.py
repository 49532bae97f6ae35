"""Which files of a project travel: what git says, `include` and `exclude`, submodules, sibling packages; how large.

    git's tracked and untracked files, submodules entered     without git: all but the usual caches and environments
      + include   ignored files, and folders beside the project under a path of their own
      - exclude, the outputs of any run (but for inputs), its data, and what never travels (LEFT_OUT)

Not here: how they are sent (upload.py).
"""

from __future__ import annotations

import fnmatch
import os
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from remote_runner import rates
from remote_runner.errors import UsageFault
from remote_runner.plan import Plan
from remote_runner.pod import files, layout
from remote_runner.settings import output_globs

# Never sent, git or not. docs/settings.md lists them for users.
LEFT_OUT = (
    *(".git", ".hg", ".svn", layout.OWN, "runs", "backups", ".venv", "venv", ".tox", ".nox", "__pycache__"),
    *(".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".ipynb_checkpoints", "node_modules"),
    *(".DS_Store", ".ssh", ".aws", ".netrc"),
)
LEFT_OUT_GLOBS = (".env*", "*.pem", "*.key", "*.p12", "id_rsa*", "id_ed25519*", "id_ecdsa*", "id_dsa*", "*.pyc")
LARGE_FILE_BYTES = 100_000_000
LARGE_BYTES = 500_000_000
_SHOWN = 10


@dataclass(frozen=True)
class File:
    """One file that travels: where it is here, and its path below the root there."""

    root: Path
    inner: str  # below `root`
    path: str
    size: int
    named: bool = False  # an `include` names it

    @property
    def source(self) -> Path:
        return self.root / self.inner


@dataclass
class Found:
    files: list[File] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)  # with the reason


def find(plan: Plan) -> Found:
    """All files that travel, by path.

    Raises:
        UsageFault: a name that is not UTF-8, or an input or include that is missing.
    """
    found = Found()
    settings = plan.settings
    away = tuple(o + "/" for o in (*plan.outputs, *(d.path for d in settings.data)))
    by_path: dict[str, File] = {}
    named = {plan.config, *_inputs(plan)}
    others = [f"{o}/*" for o in output_globs(plan.root)]
    for path in {*listed(plan.root, found.skipped), *named}:
        if path not in named and any(fnmatch.fnmatchcase(path, o) for o in others):
            continue
        if not path.startswith(away) and not _excluded(path, settings.exclude):
            _add(by_path, found, plan.root, path, path, named=path in (plan.config, *settings.inputs))
    for include in settings.include:
        for root, inner, path in _included(plan.root, include.path, include.to):
            if not path.startswith(away) and not _excluded(path, settings.exclude):
                _add(by_path, found, root, inner, path, named=True)
    found.files = [by_path[p] for p in sorted(by_path)]
    if plan.config not in by_path:
        raise UsageFault(f"{plan.config} can't be sent: a link, or left out by its name", fix="give the real file")
    return found


def _add(by_path: dict[str, File], found: Found, root: Path, inner: str, path: str, named: bool) -> None:
    if left_out(inner):
        return
    try:
        files.parts(path)
    except files.BadPath as e:
        raise UsageFault(f"can't send a file: {e}", fix="rename it, or let git ignore it") from None
    try:
        info = (root / inner).lstat()
    except OSError:
        return  # still tracked by git, and gone
    if _under_link(root, inner):
        found.skipped.append(f"{path} (a link)")
    elif stat.S_ISREG(info.st_mode):
        by_path[path] = File(root, inner, path, info.st_size, named)


def _under_link(root: Path, path: str) -> bool:
    step = root
    for part in path.split("/"):
        step = step / part
        if step.is_symlink():
            return True
    return False


def left_out(path: str) -> bool:
    """Whether any part of a path is on the list of what never travels."""
    return any(p in LEFT_OUT or any(fnmatch.fnmatchcase(p, g) for g in LEFT_OUT_GLOBS) for p in path.split("/"))


def _excluded(path: str, globs: list[str]) -> bool:
    """By the path, or by a folder above it."""
    steps = path.split("/")
    above = ["/".join(steps[: n + 1]) for n in range(len(steps))]
    return any(fnmatch.fnmatchcase(step, glob.rstrip("/")) for glob in globs for step in above)


def listed(root: Path, skipped: list[str] | None = None) -> list[str]:
    """What git tracks, and what it neither tracks nor ignores; without git all files but the usual caches.

    Args:
        skipped: gets the submodules that are not checked out.
    """
    try:
        # core.quotepath is off with -z; a file that was deleted but is still tracked is sorted out later
        done = subprocess.run(
            ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        return list(_walked(root))
    if done.returncode:
        return list(_walked(root))
    found = []
    for name in (os.fsdecode(p).rstrip("/") for p in done.stdout.split(b"\0") if p):
        inner = root / name
        if not inner.is_dir() or inner.is_symlink():
            found.append(name)
        elif (inner / ".git").exists():  # a submodule, or a clone inside the project
            found += [f"{name}/{p}" for p in listed(inner, skipped)]
        elif skipped is not None:
            skipped.append(f"{name} (a submodule that is not checked out: git submodule update --init)")
    return found


def _walked(root: Path) -> Iterator[str]:
    for folder, inner, names in os.walk(root):
        here = Path(folder).relative_to(root)
        inner[:] = sorted(n for n in inner if not left_out(n))
        for name in sorted([*names, *(n for n in inner if (Path(folder) / n).is_symlink())]):
            yield (here / name).as_posix()


def _inputs(plan: Plan) -> Iterator[str]:
    for path in plan.settings.inputs:
        found = [p for p, _i, kind in files.walk(str(plan.root), path) if kind == "file"]
        if not found:
            raise UsageFault(f"the input {path!r} of the settings is not there", fix="put it there, or mend `inputs`")
        yield from found


def _included(root: Path, pattern: str, to: str) -> Iterator[tuple[Path, str, str]]:
    """What an `include` names: (root, path below it, path on the pod). Outside the project it is one folder or file."""
    if to:
        outside = (root / pattern).resolve()
        if outside.is_file():
            yield outside.parent, outside.name, to
        elif outside.is_dir():
            yield from ((outside, inner, f"{to}/{inner}") for inner in listed(outside))
        else:
            raise UsageFault(f"include: {outside} is not there", fix="put it there, or mend `include`")
        return
    some = False
    for path in sorted(root.glob(pattern)):
        inside = [path] if path.is_file() else [root / p for p in _walked_below(root, path)]
        for one in inside:
            some = True
            inner = one.relative_to(root).as_posix()
            yield root, inner, inner
    if not some:
        raise UsageFault(f"include: {pattern!r} names no file in {root}", fix="put it there, or mend `include`")


def _walked_below(root: Path, folder: Path) -> Iterator[str]:
    yield from ((folder / inner).relative_to(root).as_posix() for inner in _walked(folder))


def guard_size(found: Found, rate_bytes_s: float | None, price_usd_h: float | None) -> None:
    """Refuse to send more than anybody would want to, unasked.

    Args:
        rate_bytes_s: as measured by the last upload; None where there was none.

    Raises:
        UsageFault: above 500 MB in all or 100 MB in one file, not counting what an `include` names.
    """
    counted = [f for f in found.files if not f.named]
    total = sum(f.size for f in counted)
    large = [f for f in counted if f.size > LARGE_FILE_BYTES]
    if total <= LARGE_BYTES and not large:
        return
    lines = [f"  {f.size / 1e6:10.1f} MB  {f.path}" for f in sorted(counted, key=lambda f: -f.size)[:_SHOWN]]
    raise UsageFault(
        f"{total / 1e6:.0f} MB in {len(counted)} files would be sent, {len(large)} of them above "
        f"{LARGE_FILE_BYTES / 1e6:.0f} MB; {rates.forecast(total, rate_bytes_s, price_usd_h)}. The largest:\n"
        + "\n".join(lines),
        fix="let git ignore them, add them to `exclude`, fetch them on the pod (`data`), name them in `include`, "
        "or send all of it with --yes",
    )
