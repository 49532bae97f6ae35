"""Which files belong to a run: the same relative paths on both sides.

Not here: how they are read and written (files.py).
"""

from __future__ import annotations

import os
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

from remote_runner.checkpoint import header
from remote_runner.pod import files

OWN = ".remote-run"
SUPERVISOR_LOG = OWN + "/supervisor.log"
LEASE = OWN + "/lease.json"
FOLLOWER = OWN + "/follower.json"
REQUEST = OWN + "/request.json"
JOB = OWN + "/job.json"
HOME = OWN + "/home.json"
CODE = OWN + "/code.json"
DIGESTS = OWN + "/digests.json"
VENV = OWN + "/venv"
PUSH = OWN + "/push"  # a pod that backs up by itself: what it was told, its credentials, what it says

# suffixes of runs/<name>-*, exact: exp12 and exp12-large are two runs
POD_RUN_FILES = ("-train.log", "-status.json", "-events.jsonl")
RUN_FILES = (*POD_RUN_FILES, "-run.json", "-controller.jsonl", "-report.json", "-report.html", "-code.tar.gz")
APPENDED = (".log", ".jsonl")
LATEST, PREVIOUS = "-training.safetensors", "-training.previous.safetensors"


def run_file(name: str, suffix: str) -> str:
    """`runs/<name><suffix>`."""
    return f"runs/{name}{suffix}"


def log(name: str) -> str:
    return run_file(name, "-train.log")


def status(name: str) -> str:
    return run_file(name, "-status.json")


def events(name: str) -> str:
    return run_file(name, "-events.jsonl")


def pause_file(outputs: Iterable[str]) -> str:
    """Where the contract's `.pause` lies: in the run's first output folder."""
    return next(iter(outputs)) + "/.pause"


def metrics_file(outputs: Iterable[str]) -> str:
    return next(iter(outputs)) + "/metrics.jsonl"


def listing(root: str, outputs: Iterable[str], names: Iterable[str]) -> Dict[str, List[Any]]:
    """Files, folders and what can't travel, below the outputs and among the runs' own files.

    Returns:
        `files`: [{path, size, mtime_ns, mode, ino, ctime_ns}], `folders`: [path], `others`: [path] (links,
        FIFOs, devices and names that are not UTF-8: named, never followed).
    """
    found: Dict[str, List[Any]] = {"files": [], "folders": [], "others": []}
    wanted = list(outputs) + [run_file(n, s) for n in names for s in POD_RUN_FILES]
    for top in wanted:
        for path, info, kind in files.walk(root, top):
            if path.endswith("/.pause"):
                continue
            try:
                files.parts(path)
            except files.BadPath:
                found["others"].append(path.encode("utf-8", "backslashreplace").decode())
                continue
            if kind == "file" and info is not None:
                found["files"].append({"path": path, **files.facts(info)})
            elif kind == "folder":
                found["folders"].append(path)
            else:
                found["others"].append(path)
    return found


def snapshots(root: str, outputs: Iterable[str]) -> Iterator[Tuple[str, Optional[Dict[str, Any]], str]]:
    """Each `<stage>-training[.previous].safetensors` of a run: (path, what its header says, why not)."""
    for top in outputs:
        for path, _info, kind in files.walk(root, top):
            if kind == "file" and path.endswith((LATEST, PREVIOUS)):
                try:
                    yield path, header.describe(os.path.join(root, path)), ""
                except (header.SnapshotCorrupt, OSError) as e:
                    yield path, None, str(e)


def newest(found: Iterable[Dict[str, Any]]) -> Optional[Dict[str, Any]]:
    """The snapshot with the highest (stage_index, step); times of files never count."""
    return max(found, key=lambda s: (s["stage_index"], s["step"]), default=None)
