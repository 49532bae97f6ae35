"""What a supervisor notes of a run beside its end: what it is trained with, and what preparing it took.

Not here: how the facts are found (facts.py), the preparation itself (prepare.py); neither is to be carried through a
whole run.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from typing import Any, Dict, List

from remote_runner.pod import files, interpreter, layout, variables
from remote_runner.pod.status import Status

EVENT = "environment"
TOOK = layout.OWN + "/prepared.json"
_SECONDS = 120.0


def note(root: str, job: Dict[str, Any], status: Status) -> None:
    """Find the facts out beside the workload, which does not wait; a failure costs them, not the run."""
    if job.get("facts"):
        threading.Thread(target=_note, args=(root, job, status), name="facts", daemon=True).start()


def _note(root: str, job: Dict[str, Any], status: Status) -> None:
    command = [interpreter.of(root, job), job["zipapp"], "facts"]
    env = {**os.environ, "PATH": variables.path()}
    try:
        done = subprocess.run(
            command, cwd=root, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS
        )
        found = json.loads(done.stdout.decode())
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return  # ended with a run of a second, or a python too old to tell
    status.event(EVENT, attempt=job["attempt"], **found)


def took(root: str, job: Dict[str, Any]) -> List[Any]:
    """What the job's preparation did, for the report: [purpose, seconds] each."""
    found = files.read_json(root, TOOK)
    mine = isinstance(found, dict) and found.get("attempt") == job["attempt"]
    return list(found["steps"]) if mine else []
