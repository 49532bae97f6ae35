"""Snapshots of trainers that know nothing of this tool: a file or a folder is one, named by a glob.

Which is newest goes by the step: of its name, else of what it says inside; times of files never count. It is
complete by a rule: the file that its trainer writes last is there, everything in it is readable, and nothing
changed between two looks. That proves no content, and whoever shows it says so.

Not here: snapshots of format 1, which prove themselves (layout.py, checkpoint/header.py).
"""

from __future__ import annotations

import json
import os
import re
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from remote_runner.checkpoint import header
from remote_runner.pod import files, layout, talk

Rule = Dict[str, Any]  # glob: [str], step_regex: str, complete: str

PRESETS: Dict[str, Rule] = {
    # transformers.Trainer writes trainer_state.json after weights, optimizer and random states
    "hf": {"glob": ["**/checkpoint-*"], "step_regex": r"checkpoint-(\d+)$", "complete": "trainer_state.json"},
    "lightning": {"glob": ["**/*.ckpt"], "step_regex": r"step=(\d+)", "complete": ""},
    "torch": {"glob": ["**/*.pt", "**/*.pth"], "step_regex": r"(\d+)\.pth?$", "complete": ""},
    "numbered": {
        "glob": ["**/*.npz", "**/*.safetensors"],
        "step_regex": r"(\d+)[^/\d]*\.(?:npz|safetensors)$",
        "complete": "",
    },
}
SETTLED_NS = 2_000_000_000  # older than that, one look is two
LOOK_AGAIN_S = 0.5
_STEP_KEYS = ("global_step", "step", "iteration", "iter", "iter_num", "epoch")
_PICKLE_LIMIT_BYTES = 64 << 20
_ZIPS = (".pt", ".pth", ".ckpt", ".bin", ".npz", ".zip")


class Snapshot(NamedTuple):
    """One snapshot of a foreign trainer."""

    path: str  # below the root; a file or a folder
    step: int
    files: List[Tuple[str, int]]  # path and size of each file in it
    fault: str  # why it does not count; empty when it is complete


def find(root: str, outputs: Iterable[str], rules: List[Rule]) -> List[Snapshot]:
    """All snapshots that the rules name below the outputs, the newest first, complete or not.

    Args:
        rules: their globs are relative to the root, or begin with `**/` and count in every output. Where two rules
            name one thing the first counts; nothing inside a snapshot is a snapshot.
    """
    first = list(_candidates(root, list(outputs), rules))
    if any(_is_young(info) for _p, _r, inner in first for _f, info in inner):
        time.sleep(LOOK_AGAIN_S)
        now = {path: inner for path, _rule, inner in _candidates(root, list(outputs), rules)}
    else:
        now = {path: inner for path, _rule, inner in first}
    found = []
    for path, rule, inner in first:
        step = _step(root, path, rule, inner)
        if step is None:
            continue
        fault = _fault(root, path, rule, inner) if _same(inner, now.get(path)) else "it changes at this moment"
        found.append(Snapshot(path, step, [(p, info.st_size) for p, info in inner], fault))
    return sorted(found, key=lambda s: (-s.step, s.path))


def newest(root: str, outputs: Iterable[str], rules: List[Rule]) -> Optional[Snapshot]:
    """The complete snapshot with the highest step."""
    return next((s for s in find(root, outputs, rules) if not s.fault), None)


BY_RULE = "complete by rule, content not proven"
STAGE = "snapshot"
_LOOKED_INTO = 2  # as many as a trainer of ours keeps


def heads(
    root: str,
    outputs: Iterable[str],
    rules: List[Rule],
    lineage: Any = None,
    tick: Callable[[], None] = lambda: None,
) -> Iterator[Tuple[str, Optional[Dict[str, Any]], str]]:
    """The newest two snapshots as `layout.snapshots` gives those of format 1: (path, what it says, why not).

    There is no header, so its `root` is a digest over all its files: two places with one root have one state.

    Args:
        lineage: of the run, where the user accepted a change (checkpoint/lineage.py); a state from before has none.
        tick: called while files are read.
    """
    complete = 0
    for snapshot in find(root, outputs, rules) if rules else []:
        if snapshot.fault:
            yield snapshot.path, None, snapshot.fault
            continue
        try:
            inner = [(path, files.digest(root, path, tick)) for path, _size in snapshot.files]
        except OSError as e:
            yield snapshot.path, None, str(e)
            continue
        content = content_root(snapshot.path, inner)
        yield (
            snapshot.path,
            {
                "stage": STAGE,
                "stage_index": 0,
                "step": snapshot.step,
                "target_steps": None,
                "root": content,
                "root_all": content,
                "fingerprint": "",
                "lineage": _lineage_at(lineage, snapshot.step),
                "rule": BY_RULE,
            },
            "",
        )
        complete += 1
        if complete == _LOOKED_INTO:
            return


def content_root(path: str, inner: Iterable[Tuple[str, str]]) -> str:
    """A digest over a snapshot's files: (path below the root, SHA-256) each."""
    import hashlib  # late, as in files.py

    named = sorted([p[len(path) :], sha256] for p, sha256 in inner)
    return hashlib.sha256(header.canonical(named)).hexdigest()


def same_content(path: str, head: Dict[str, Any], entries: Iterable[Dict[str, Any]]) -> bool:
    """Whether files by path and `sha256` hold the snapshot that a head tells of, all of it."""
    inner = [(e["path"], e["sha256"]) for e in entries if e["path"] == path or e["path"].startswith(path + "/")]
    return bool(inner) and content_root(path, inner) == head["root"]


def _lineage_at(lineage: Any, step: int) -> Any:
    while isinstance(lineage, dict) and lineage.get("step", 0) >= step:
        lineage = lineage.get("before")
    return lineage


def of_job(root: str) -> Tuple[List[Rule], Any]:
    """Rules and lineage of the last job that was launched in a root."""
    job = files.read_json(root, layout.JOB) or {}
    return list(job.get("snapshots") or []), job.get("lineage")


_Inner = List[Tuple[str, os.stat_result]]


def _candidates(root: str, outputs: List[str], rules: List[Rule]) -> Iterator[Tuple[str, Rule, _Inner]]:
    for output in outputs:
        there = list(files.walk(root, output))
        patterns = [(_regex(glob), rule) for rule in rules for glob in rule["glob"]]
        taken: List[str] = []
        for path, info, kind in there:
            if any(path.startswith(t + "/") for t in taken):
                continue
            rule = next((r for pattern, r in patterns if pattern.fullmatch(path)), None)
            if rule is None or kind not in ("file", "folder") or info is None:
                continue
            taken.append(path)
            inner = [(path, info)] if kind == "file" else _inside(there, path)
            yield path, rule, inner


def _inside(there: List[Tuple[str, Optional[os.stat_result], str]], path: str) -> _Inner:
    return [(p, i) for p, i, kind in there if kind == "file" and i is not None and p.startswith(path + "/")]


def _regex(glob: str) -> "re.Pattern[str]":
    """A path's pattern: `**/` any folders, `*` and `?` within one name."""
    found = ""
    for piece in re.split(r"(\*\*/|\*|\?)", glob):
        found += {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}.get(piece, re.escape(piece))
    return re.compile(found)


def _is_young(info: os.stat_result) -> bool:
    return time.time_ns() - max(info.st_mtime_ns, info.st_ctime_ns) < SETTLED_NS


def _same(before: _Inner, now: Optional[_Inner]) -> bool:
    def seen(inner: _Inner) -> List[Tuple[str, int, int, int]]:
        return [(path, info.st_ino, info.st_size, info.st_mtime_ns) for path, info in inner]

    return now is not None and seen(before) == seen(now)


def _step(root: str, path: str, rule: Rule, inner: _Inner) -> Optional[int]:
    found = re.search(rule["step_regex"], path) if rule["step_regex"] else None
    if found:
        return int(found.group(1))
    return _step_inside(os.path.join(root, path)) if len(inner) == 1 and inner[0][0] == path else None


def _step_inside(path: str) -> Optional[int]:
    """The step that a PyTorch file holds under a usual name, read from its pickle's opcodes; nothing is executed."""
    import pickletools
    import zipfile

    try:
        with zipfile.ZipFile(path) as packed:
            name = next((n for n in packed.namelist() if n.endswith("/data.pkl")), None)
            if name is None or packed.getinfo(name).file_size > _PICKLE_LIMIT_BYTES:
                return None
            data = packed.read(name)
        found: Dict[str, int] = {}
        key = ""
        for opcode, value, _at in pickletools.genops(data):
            if opcode.name in ("BINPUT", "LONG_BINPUT", "MEMOIZE", "PUT"):
                continue
            if key and isinstance(value, int) and opcode.name in ("BININT", "BININT1", "BININT2", "LONG1"):
                found.setdefault(key, value)
            key = value if isinstance(value, str) and value in _STEP_KEYS and "UNICODE" in opcode.name else ""
    except (OSError, ValueError, zipfile.BadZipFile, IndexError):
        return None
    return next((found[k] for k in _STEP_KEYS if k in found), None)


def _fault(root: str, path: str, rule: Rule, inner: _Inner) -> str:
    if not inner:
        return "an empty folder"
    last = rule["complete"]
    if last and f"{path}/{last}" not in [p for p, _i in inner]:
        return f"{last} is missing, which its trainer writes last"
    for name, info in inner:
        fault = _unreadable(os.path.join(root, name), info.st_size)
        if fault:
            return f"{name}: {fault}"
    return ""


def _unreadable(path: str, size: int) -> str:
    """Why a file is surely broken: its structure, by its suffix. Empty says nothing of its content."""
    import zipfile

    try:
        if path.endswith(".safetensors"):
            header.read(path)
        elif path.endswith(".json"):
            with open(path, "rb") as f:
                json.loads(f.read().decode())
        elif path.endswith(_ZIPS):
            with open(path, "rb") as f:
                begins = f.read(4)
            if begins[:2] == b"PK":
                with zipfile.ZipFile(path) as packed:  # its directory stands at its end
                    packed.infolist()
            elif begins[:1] != b"\x80":  # torch's older format is a row of pickles
                return "neither a zip archive nor a pickle"
        elif size == 0 and path.endswith((".npy", ".gguf", ".h5", ".msgpack")):
            return "empty"
    except (OSError, ValueError, zipfile.BadZipFile, header.SnapshotCorrupt) as e:
        return str(e) or type(e).__name__
    return ""


def finished(root: str, job: Dict[str, Any], row: Dict[str, Any]) -> bool:
    """Whether a foreign trainer that ended with 0 has done all it was to do, as far as anything tells.

    Args:
        row: the last progress: `step` and `target_steps` where known.
    """
    if job.get("done_file") and os.path.exists(os.path.join(root, job["done_file"])):
        return True
    if row.get("stage") == talk.EPOCH:
        return False
    step, target = row.get("step"), row.get("target_steps")
    return isinstance(step, int) and isinstance(target, int) and step >= target


def newest_path(root: str, job: Dict[str, Any]) -> Optional[str]:
    """Where the newest complete snapshot lies, of format 1 or by the job's rules; relative to the root."""
    ranked = [(h["stage_index"], h["step"], path) for path, h, _why in layout.snapshots(root, job["outputs"]) if h]
    if ranked:
        return max(ranked)[2]
    found = newest(root, job["outputs"], job.get("snapshots") or [])
    return found.path if found is not None else None


def tell_newest(root: str, job: Dict[str, Any]) -> str:
    """One clause: what a foreign run could go on from."""
    if not job.get("snapshots"):
        return ""
    found = newest(root, job["outputs"], job["snapshots"])
    if found is None:
        return "no complete snapshot is there"
    return f"its newest complete snapshot is {found.path} (step {found.step}); what came after it is lost"
