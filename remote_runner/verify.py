"""Say whether files of weights and state are whole, complete and finite. Nothing in them is executed.

    path or folder  ->  files by suffix  ->  a Finding each

    *.safetensors   ours: every digest, the header made again, no NaN, no infinity
                    of others: structure, no NaN; an infinity is told of, by tensor, and passes
    a folder        also every file that a list of digests names (checksums.py)
    *.npy *.npz     structure, no NaN; an infinity is told of (numpy_files.py)
    *.pt *.pth …    a child process looks (checkpoint/torch_verify.py): a pickle is never opened in this one

A file that says it is ours is held to our format. In a folder, what a trainer put aside itself (`*.corrupt-<time>`,
`*.nonfinite.safetensors`) and unfinished `*.tmp` files are evidence, not results, and are passed over.

Not here: the formats (checkpoint/header.py), what is done about a bad file (download.py, resume.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remote_runner import checksums, numpy_files
from remote_runner.checkpoint import finite, header, torch_scan
from remote_runner.errors import UsageFault

SAFETENSORS = frozenset({".safetensors"})
PICKLED = frozenset({".pt", ".pth", ".ckpt", ".bin"})
KNOWN = SAFETENSORS | PICKLED | numpy_files.SUFFIXES
NOT_FINITE, NO_TORCH = "NotFinite", "NoTorch"  # kinds of a problem; also those of checkpoint/torch_verify.py
OURS = frozenset({header.FORMAT, header.WEIGHTS_FORMAT})
CHILD_TIMEOUT_S = 3600


@dataclass(frozen=True)
class Finding:
    """The verdict on one file. `problem` is "" for a good one; `about` tells a good one's kind, step and root."""

    path: Path
    problem: str = ""
    warnings: tuple[str, ...] = ()
    about: str = ""
    kind: str = ""  # of the problem, where somebody needs to know

    @property
    def good(self) -> bool:
        return not self.problem


def verify(
    paths: Sequence[Path], require: Sequence[str] = (), *, as_checkpoint: bool = False, model: str = ""
) -> list[Finding]:
    """Verify files, and all files of weights and state below folders, in the order of their names.

    Args:
        require: keys (names of tensors) that each file must have.
        as_checkpoint: hold PyTorch files of others to what a checkpoint of ours holds.
        model: `package.module:Class`, imported in the child process; a PyTorch file's weights must load into it.

    Returns: a Finding for each file; a folder without any gets one that says so.

    Raises:
        UsageFault: a path does not exist.
    """
    found: list[Finding] = []
    for path in paths:
        if not path.exists():
            raise UsageFault(f"{path}: no such file or folder", fix="give paths of snapshots, weights or their folders")
        files = _below(path) if path.is_dir() else [path]
        listed = _listed(path) if path.is_dir() else []
        if not files and not listed:
            found.append(Finding(path, "no snapshot or weights below this folder, and no list of digests in it"))
        found.extend(listed)
        found.extend(verify_files(files, require, as_checkpoint=as_checkpoint, model=model))
    return found


def _listed(folder: Path) -> list[Finding]:
    """What the lists of digests say of a folder; none where there is no list."""
    try:
        wanted = checksums.expected(folder)
    except checksums.BadList as e:
        return [Finding(folder, f"{folder / checksums.NAME}: {e}")]
    wrong = checksums.problems(folder, wanted)
    if wanted and not wrong:
        return [Finding(folder, about=f"{len(wanted)} files as listed")]
    return [Finding(folder / name, f"{folder / name}: {why}") for name, why in wrong.items()]


def verify_file(path: Path, require: Sequence[str] = (), *, as_checkpoint: bool = False, model: str = "") -> Finding:
    """Verify one file by what its suffix says it is. Never raises for what the file holds."""
    return verify_files([path], require, as_checkpoint=as_checkpoint, model=model)[0]


def verify_files(
    paths: Sequence[Path], require: Sequence[str] = (), *, as_checkpoint: bool = False, model: str = ""
) -> list[Finding]:
    """Verify files, in their order; one child process looks at all that are PyTorch's, since torch takes its time."""
    options = [word for key in require for word in ("--require", key)]
    options += ["--as", "checkpoint"] if as_checkpoint else []
    options += ["--model", model] if model else []
    pickled = [path for path in paths if path.suffix in PICKLED]
    known = dict(zip(pickled, _pickled(pickled, options), strict=True)) if pickled else {}
    return [known[path] if path in known else _by_itself(path, require) for path in paths]


def _by_itself(path: Path, require: Sequence[str]) -> Finding:
    if path.suffix in SAFETENSORS:
        return _safetensors(path, require)
    if path.suffix in numpy_files.SUFFIXES:
        return _arrays(path, require)
    known = ", ".join(sorted(KNOWN))
    return Finding(path, f"{path}: can't say what it should be; known suffixes: {known}")


def _below(folder: Path) -> list[Path]:
    files = (path for path in folder.rglob("*") if path.suffix in KNOWN and path.is_file())
    return sorted(path for path in files if ".nonfinite." not in path.name and not _other_bin(path))


def _other_bin(path: Path) -> bool:
    """Whether a `.bin` in a folder is something else: many programs call many things so."""
    if path.suffix != ".bin":
        return False
    with path.open("rb") as f:
        return f.read(2) not in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"")


def _safetensors(path: Path, require: Sequence[str]) -> Finding:
    counts: dict[str, tuple[int, int]] = {}

    def look(entry: header.Entry, at: int, block: memoryview) -> None:
        nans, infinities = finite.count(entry.dtype, block)
        if nans or infinities:
            before = counts.get(entry.name, (0, 0))
            counts[entry.name] = (before[0] + nans, before[1] + infinities)

    try:
        about, names, ours = _read(path, look)
    except header.SnapshotCorrupt as wrong:
        return Finding(path, _code_in(path) or str(wrong))
    except OSError as wrong:
        return Finding(path, f"{path}: {wrong.strerror}")
    missing = [key for key in require if key not in names]
    if missing:
        return Finding(path, f"{path}: lacks {', '.join(missing)}")
    warnings = []
    for name, (nans, infinities) in sorted(counts.items()):
        if nans:
            return Finding(path, f"{path}: {name} holds {nans} NaN", kind=NOT_FINITE)
        if ours:
            return Finding(path, f"{path}: {name} holds {infinities} infinities", kind=NOT_FINITE)
        warnings.append(f"{path}: {name} holds {infinities} infinities")
    return Finding(path, "", tuple(warnings), about)


def _arrays(path: Path, require: Sequence[str]) -> Finding:
    try:
        found = list(numpy_files.arrays(path, count=True))
    except numpy_files.Damaged as wrong:
        return Finding(path, f"{path}: {wrong}")
    except OSError as wrong:
        return Finding(path, f"{path}: {wrong.strerror}")
    if missing := [key for key in require if key not in {a.name for a in found}]:
        return Finding(path, f"{path}: lacks {', '.join(missing)}")
    for one in found:
        if one.nans:
            return Finding(path, f"{path}: {one.name or 'the array'} holds {one.nans} NaN", kind=NOT_FINITE)
    told = [f"{path}: {a.name or 'the array'} holds {a.infinities} infinities" for a in found if a.infinities]
    return Finding(path, "", tuple(told), f"NumPy, {len(found)} arrays")


def _code_in(path: Path) -> str:
    """What a pickle that only calls itself safetensors would run, from its bytes alone; "" when it is no pickle."""
    try:
        torch_scan.refuse_renamed_pickle(path)
    except torch_scan.CheckpointRefused as wrong:
        return str(wrong)
    return ""


def _read(path: Path, look: header.Look) -> tuple[str, set[str], bool]:
    """Read a file once, proving what it offers to prove. Returns what it is, its names, and whether it is ours."""
    fd = header.open_regular(path)
    try:
        head = header.read(path, fd)
        names = {e.name for e in head.entries}
        kind = head.metadata.get("format")
        if kind == header.FORMAT:
            told = header.verify_digests(path, look)
            text = f"snapshot of {told['stage']}, step {told['step']}/{told['target_steps']}, root {told['root'][:12]}"
            return text, names, True
        try:
            digests = header.digests_in(head)
        except header.SnapshotCorrupt as wrong:
            raise header.SnapshotCorrupt(f"{path}: {wrong}") from None
        for entry, digest in header.digest_tensors(fd, head, look):
            if digests and digests[entry.name] != digest:
                raise header.SnapshotCorrupt(f"{path}: the bytes of {entry.name} are not those that were saved")
        ours = kind in OURS
        return f"{'weights' if ours else 'safetensors'}, {len(names)} tensors", names, ours
    finally:
        os.close(fd)


def _pickled(paths: Sequence[Path], options: Sequence[str]) -> list[Finding]:
    """What a child process says of PyTorch files; those that it did not get to are given to one of their own."""
    command = [sys.executable, "-m", "remote_runner.checkpoint.torch_verify", *options, "--", *map(str, paths)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_TIMEOUT_S)
        out, how = (
            done.stdout,
            f"ended with {done.returncode}: {(done.stderr.strip().splitlines() or ['no output'])[-1]}",
        )
    except subprocess.TimeoutExpired as late:
        out = late.stdout.decode("utf-8", "replace") if isinstance(late.stdout, bytes) else str(late.stdout or "")
        how = f"took more than {CHILD_TIMEOUT_S} s"
    found = [_said(path, told) for path, told in zip(paths, _objects(out), strict=False)]
    left = paths[len(found) :]
    if not left:
        return found
    if not found:  # the first ended it
        found, left = [Finding(left[0], f"{left[0]}: the process that reads it {how[:300]}")], left[1:]
    return found + (_pickled(left, options) if left else [])


def _said(path: Path, told: dict[str, Any]) -> Finding:
    if told.get("ok") is not True:
        return Finding(path, str(told.get("error", f"{path}: not good")), kind=str(told.get("kind") or ""))
    warnings = tuple(f"{path}: {text}" for text in told.get("warnings", []))
    about = (
        f"checkpoint, step {told.get('step')}, {told.get('tensors')} tensors, keys {', '.join(told.get('keys', []))}"
    )
    prefix = told.get("prefix")
    return Finding(path, "", warnings, about + (f", names carry the prefix {prefix!r}" if prefix else ""))


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The objects at the beginning of an output, a line each."""
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            return
        if not isinstance(value, dict):
            return
        yield value
