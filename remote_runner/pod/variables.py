"""The environment variables of a workload: the container's own, the login's, the job's, and the contract's.

A login over SSH lacks what the image and the provider gave the container's first process, so that is read from
/proc/1/environ. (RunPod's /etc/rp_environment says the same, but cuts a value at its second `=`.)
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, Dict

from remote_runner.pod import layout

_NOT_INHERITED = (
    *("HOME", "PWD", "OLDPWD", "SHLVL", "TERM", "SHELL", "USER", "LOGNAME", "MAIL", "HOSTNAME", "_", "PATH"),
    *("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "TMPDIR", "DISPLAY", "LS_COLORS", "PS1", "NOTIFY_SOCKET"),
)
# a provider's keys to the pod itself: of no use to a workload, and it might print them
PROVIDERS_KEYS = ("RUNPOD_API_KEY", "CONTAINER_API_KEY", "VAST_API_KEY", "JUPYTER_TOKEN", "JUPYTER_PASSWORD")
_PRIVATE = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
_NOT_PREFIXES = ("SSH_", "REMOTE_RUN_", "XDG_", "DBUS_", "SYSTEMD_", "LC_")


def first_process() -> Dict[str, str]:
    """The variables of PID 1; empty where they can't be read (another user's, no /proc)."""
    try:
        with open("/proc/1/environ", "rb") as f:
            data = f.read()
    except OSError:
        return {}
    pairs = (os.fsdecode(p).split("=", 1) for p in data.split(b"\0") if b"=" in p)
    return {name: value for name, value in pairs if name}


def path(*first: str) -> str:
    """Where programs are looked for: the folders named, the container's PATH, the login's."""
    found = [*first]
    for text in (first_process().get("PATH", ""), os.environ.get("PATH", os.defpath)):
        found += [folder for folder in text.split(os.pathsep) if folder]
    return os.pathsep.join(dict.fromkeys(found))


def inherited() -> Dict[str, str]:
    """What the container's first process has and a workload may get."""
    return {
        name: value
        for name, value in first_process().items()
        if name not in _NOT_INHERITED and not name.startswith(_NOT_PREFIXES)
    }


def private(job: Dict[str, Any]) -> Dict[str, str]:
    """What must not be read in a log: the job's secrets, and what the container has under a name that says so.

    A key of the provider counts though no workload gets it: it may stand in a file of the image.
    """
    found: Dict[str, str] = {}
    if job.get("inherit_pod_env", True):
        every = {**first_process(), **os.environ}
        found = {name: value for name, value in every.items() if _PRIVATE.search(name) and name not in job["env"]}
    found.update(job.get("secrets") or {})
    return found


def of_workload(root: str, job: Dict[str, Any], segment: int, python: str) -> Dict[str, str]:
    """What the contract gives a workload (CONTRACT.md), and what makes a foreign one feel at home.

    Args:
        python: its interpreter; the folder is first on PATH, so that scripts find `python`, `torchrun`, `accelerate`.
    """
    env = inherited() if job.get("inherit_pod_env", True) else {}
    env.update(os.environ)
    env = {name: value for name, value in env.items() if name not in PROVIDERS_KEYS}
    env["PATH"] = path(os.path.dirname(python))
    env.update(_defaults(root, job, {**env, **job["env"]}))
    env.update(job["env"])
    env.update(job.get("secrets") or {})
    env["PYTHONPATH"] = os.pathsep.join([job["zipapp"], *filter(None, [job["env"].get("PYTHONPATH")])])
    env["PYTHONUNBUFFERED"] = "1"
    env["REMOTE_RUN_ID"] = job["attempt"]
    env["REMOTE_RUN_SEGMENT"] = str(segment)
    if job.get("accept"):
        env["REMOTE_RUN_ACCEPT"] = json.dumps(job["accept"])
    env["REMOTE_RUN_PYTHON"] = job["base_python"]
    env["REMOTE_RUN_VENV"] = os.path.join(root, layout.VENV)
    return env


def _defaults(root: str, job: Dict[str, Any], have: Dict[str, str]) -> Dict[str, str]:
    """What is set unless somebody has set it."""
    found: Dict[str, str] = {}
    if job.get("run_id"):
        found.update(WANDB_RUN_ID=str(job["run_id"]), WANDB_RESUME="allow")  # a resumed run is one run there too
    volume = _volume(root)
    if volume:
        found["HF_HOME"] = os.path.join(volume, ".cache", "huggingface")
    return {name: value for name, value in found.items() if name not in have}


def _volume(root: str) -> str:
    """The mount that outlives the container, where the root lies on one."""
    return "/workspace" if root.startswith("/workspace/") and os.path.ismount("/workspace") else ""
