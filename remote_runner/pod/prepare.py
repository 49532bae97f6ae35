"""What is run before the workload's command, in order: its environment, its set-up, its data, a probe.

One program runs the others, each with its talk in the run's log; the first that fails ends it, and so the run. The
supervisor starts it like any other program, so the deadline and a stop hold here too.
"""

from __future__ import annotations

import shutil
import subprocess
from typing import Any, Dict, Iterator, List

from remote_runner.pod import environment, files, layout, variables, workload


def command(root: str, job: Dict[str, Any]) -> List[str]:
    """How a job is prepared; empty where nothing is to be done."""
    return [job["base_python"], job["zipapp"], "prepare", root] if any(True for _ in steps(root, job)) else []


def steps(root: str, job: Dict[str, Any]) -> Iterator[List[str]]:
    """The commands; each is made when the one before has ended."""
    own = [job["base_python"], job["zipapp"]]
    if job.get("environment") and not (job.get("python") and environment.kind(root, job) == "image"):
        yield [*own, "environment", root]
    if job.get("project_setup"):
        yield list(job["project_setup"])
    if job.get("data"):
        yield [*own, "data", root]
    if job.get("environment") and (job.get("probe") or shutil.which("nvidia-smi", path=variables.path())):
        yield [workload.python(root, job), job["zipapp"], "probe", *(job.get("probe") or [])]


def main(root: str) -> int:
    """Run the steps of the job that lies in a root."""
    job = files.read_json(root, layout.JOB)
    for words in steps(root, job):
        words = workload.argv(root, job, words)
        env = variables.of_workload(root, job, 0, workload.python(root, job))
        print("[remote-run] $ " + " ".join(words), flush=True)
        code = subprocess.run(words, cwd=root, env=env, stdin=subprocess.DEVNULL).returncode
        if code:
            return code if code > 0 else 128 - code
    return 0
