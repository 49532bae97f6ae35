"""What is run before the workload's command, in order: its environment, its set-up, its data, a probe.

One program runs the others, each with its talk in the run's log; the first that fails ends it, and so the run. The
supervisor starts it like any other program, so the deadline and a stop hold here too.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from typing import Any, Dict, Iterator, List, Tuple

from remote_runner.pod import environment, files, interpreter, layout, noting, variables, workload


def command(root: str, job: Dict[str, Any]) -> List[str]:
    """How a job is prepared; empty where nothing is to be done."""
    return [job["base_python"], job["zipapp"], "prepare", root] if any(True for _ in steps(root, job)) else []


SAYS = "[remote-run] set-up: "  # begins a line for people who watch


def steps(root: str, job: Dict[str, Any]) -> Iterator[Tuple[str, List[str]]]:
    """The commands, each with what it is for; one is made when the one before has ended."""
    own = [job["base_python"], job["zipapp"]]
    if job.get("environment") and not (job.get("python") and environment.kind(root, job) == "image"):
        yield "the workload's Python", [*own, "environment", root]
    if job.get("project_setup"):
        yield " ".join(job["project_setup"]), list(job["project_setup"])
    if job.get("data"):
        yield "data sets", [*own, "data", root]
    if job.get("environment") and (job.get("probe") or shutil.which("nvidia-smi", path=variables.path())):
        yield "a try of it", [interpreter.of(root, job), job["zipapp"], "probe", *(job.get("probe") or [])]


def main(root: str) -> int:
    """Run the steps of the job that lies in a root."""
    job = files.read_json(root, layout.JOB)
    took: List[Tuple[str, float]] = []
    try:
        return _all(root, job, took)
    finally:
        with contextlib.suppress(OSError):
            files.replace_json(root, noting.TOOK, {"attempt": job["attempt"], "steps": took})


def _all(root: str, job: Dict[str, Any], took: List[Tuple[str, float]]) -> int:
    for purpose, words in steps(root, job):
        began = time.monotonic()
        words = workload.argv(root, job, words)
        env = variables.of_workload(root, job, 0, interpreter.of(root, job))
        print(SAYS + purpose, flush=True)
        code = subprocess.run(words, cwd=root, env=env, stdin=subprocess.DEVNULL).returncode
        took.append((purpose, round(time.monotonic() - began, 2)))
        if code:
            return code if code > 0 else 128 - code
    return 0
