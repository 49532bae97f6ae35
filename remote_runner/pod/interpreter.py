"""Which Python a run's programs get: its environment's, the one named, the set-up's, the image's, the one we run in.

Not here: how an environment is made (environment.py); what is here is all that a supervisor needs of it.
"""

from __future__ import annotations

import os
from typing import Any, Dict

from remote_runner.pod import files, layout

MADE = layout.OWN + "/environment.json"


def made(root: str, job: Dict[str, Any]) -> Dict[str, Any]:
    """The environment that was made for this job; empty where it has none."""
    found = files.read_json(root, MADE)
    return found if isinstance(found, dict) and job.get("environment") and found.get("python") else {}


def of(root: str, job: Dict[str, Any]) -> str:
    """The workload's interpreter."""
    found = made(root, job)
    used = found.get("python") if found.get("kind") != "image" else None  # more than the image's own
    own = os.path.join(root, layout.VENV, "bin", "python")  # by a set-up of the project's
    used = used or job.get("python") or (own if os.path.exists(own) else found.get("python"))
    return str(used or job["base_python"])
