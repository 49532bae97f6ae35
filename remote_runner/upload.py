"""Send the code, changed files only, and with --resume the run's files.

Code is what git tracks and what it neither tracks nor ignores; never `.git`, `.env*`, keys, other runs'
outputs, or anything through a link. Without git: all files but the usual caches and environments.
SHA-256 of everything is taken before, and the pod compares it after, on its own disk.
"""

from __future__ import annotations

import fnmatch
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from remote_runner import transfer
from remote_runner.agent import Agent, Denied
from remote_runner.agent import field as answer_field
from remote_runner.errors import NotStarted, UsageFault
from remote_runner.plan import Plan
from remote_runner.pod import digests, files, foreign, layout
from remote_runner.transfer import Item

# Never sent, git or not. docs/settings.md lists them for users.
LEFT_OUT = (
    *(".git", ".hg", ".svn", layout.OWN, "runs", "backups", ".venv", "venv", ".tox", ".nox", "__pycache__"),
    *(".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".ipynb_checkpoints", "node_modules"),
    *(".DS_Store", ".ssh", ".aws", ".netrc"),
)
LEFT_OUT_GLOBS = (".env*", "*.pem", "*.key", "*.p12", "id_rsa*", "id_ed25519*", "id_ecdsa*", "id_dsa*", "*.pyc")
_KEY_START = b"-----BEGIN "
RESUME_LIMIT_BYTES = 5_000_000_000


@dataclass
class Code:
    """What will be sent, and what stays here although it is in the project."""

    items: list[Item] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(i.size for i in self.items)


def collect(plan: Plan) -> Code:
    """The project's code with digests.

    Raises:
        UsageFault: a name that is not UTF-8, or an input that is missing.
    """
    code = Code()
    outputs = tuple(o + "/" for o in plan.outputs)
    wanted = {*listed(plan.root), plan.config, *_inputs(plan)}
    known = digests.Digests(str(plan.root))
    for path in sorted(wanted):
        if path.startswith(outputs) or left_out(path):
            continue
        try:
            files.parts(path)
        except files.BadPath as e:
            raise UsageFault(f"can't send a file: {e}", fix="rename it, or let git ignore it") from None
        try:
            if _is_key(plan.root / path):
                code.skipped.append(f"{path} (a private key)")
                continue
            code.items.append(transfer.item(plan.root, path, durable=False, known=known))
        except OSError:
            if (plan.root / path).is_symlink() or _under_link(plan.root, path):
                code.skipped.append(f"{path} (a link)")
    known.save()
    if plan.config not in [i.path for i in code.items]:
        raise UsageFault(f"{plan.config} can't be sent: a link, or left out by its name", fix="give the real file")
    return code


def left_out(path: str) -> bool:
    """Whether any part of a path is on the list of what never travels."""
    return any(p in LEFT_OUT or any(fnmatch.fnmatchcase(p, g) for g in LEFT_OUT_GLOBS) for p in path.split("/"))


def listed(root: Path) -> list[str]:
    """What git tracks, and what it neither tracks nor ignores; without git all files but the usual caches."""
    try:
        # core.quotepath is off with -z; a file that was deleted but is still tracked is sorted out by its open
        done = subprocess.run(
            ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        return list(_walked(root))
    if done.returncode:
        return list(_walked(root))
    return [os.fsdecode(p) for p in done.stdout.split(b"\0") if p]


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


def _is_key(path: Path) -> bool:
    if not stat.S_ISREG(path.lstat().st_mode):
        return False
    with path.open("rb") as f:
        head = f.read(64)
    return head.startswith(_KEY_START) and b"PRIVATE KEY" in head


def _under_link(root: Path, path: str) -> bool:
    step = root
    for part in path.split("/"):
        step = step / part
        if step.is_symlink():
            return True
    return False


def send_code(agent: Agent, code: Code, tell: Callable[[str], None]) -> list[str]:
    """Bring the pod's copy of the code up to date.

    Returns:
        The files that travelled; those of the last upload that are gone here were removed there.

    Raises:
        NotStarted: the pod's disk refused, or what lies there is not what was sent.
    """
    digests = {i.path: i.sha256 for i in code.items}
    try:
        need = set(answer_field(agent.ask("code", files=digests, done=False), "need", list))
        transfer.send(agent, [i for i in code.items if i.path in need])
        removed = agent.ask("code", files=digests, done=True).get("removed", [])
    except Denied as e:
        raise NotStarted(
            f"upload of the code failed: {e}", fix="run the command again; look at the pod's disk"
        ) from None
    if code.skipped:
        tell(f"left here: {', '.join(code.skipped[:10])}{' …' if len(code.skipped) > 10 else ''}")
    tell(f"code: {len(digests)} files, {len(need)} sent, {len(removed)} removed")
    return sorted(need)


def run_files(plan: Plan) -> list[Item]:
    """All files of the run here: outputs, logs and events, snapshots first, with the digests that are remembered.

    Beyond 5 GB together only the snapshots and small files go, unless all outputs were asked for.
    """
    names = [layout.run_file(plan.name, s) for s in ("-train.log", "-events.jsonl")]
    found = [
        (path, info.st_size)
        for top in [*plan.outputs, *names]
        for path, info, kind in files.walk(str(plan.root), top)
        if kind == "file" and info is not None and not path.endswith("/.pause")
    ]
    known = digests.Digests(str(plan.root))
    best = foreign.newest(str(plan.root), plan.outputs, plan.settings.rules) if plan.settings.rules else None
    newest = {path for path, _size in best.files} if best else set()

    def first(path: str) -> bool:
        return "-training." in path or path in newest

    found.sort(key=lambda f: (not first(f[0]), f[1]))
    room = float("inf") if plan.options.all_outputs else RESUME_LIMIT_BYTES
    chosen = []
    for path, size in found:
        if first(path) or size <= room:
            chosen.append(transfer.item(plan.root, path, known=known, hashed=False))
            room -= size
    return chosen


def send_run(agent: Agent, plan: Plan, tell: Callable[[str], None]) -> list[Item]:
    """Send the run's files for a resume.

    Raises:
        NotStarted: the pod's disk refused, or bytes arrived damaged.
    """
    items = run_files(plan)
    tell(f"run files: {len(items)} files, {sum(i.size for i in items) / 1e6:.1f} MB")
    return transfer.send(agent, items)
