"""The pod's own end, after the run's: `--on-success` and `--on-failure` keep, stop or terminate it.

    exit record, lock free  ->  wait for "it is home" (`--stop-after`)  ->  ask the provider until it says yes

Nothing is terminated whose results nobody has: without a verified download or last backup it is stopped
instead, and that only where the run's files outlive a stop; else it is kept and the status says what that
costs. A new run that takes the root meanwhile cancels it all.

Not here: the provider's API (owner.py).
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict, Optional, Tuple

from remote_runner.pod import files, layout, lock, owner, probe
from remote_runner.pod.status import Status

LOOK_S = 1.0
LONGEST_PAUSE_S = 60.0
_VANISHING = ("overlay", "overlayfs", "aufs", "tmpfs", "rootfs", "")


def wanted(job: Dict[str, Any], cause: str) -> str:
    """keep | stop | terminate, as the job says for such an end; who paused a run by hand wants to go on."""
    if cause == "paused":
        return "keep"
    return str(job.get("on_success" if cause == "done" else "on_failure") or "keep")


def acknowledge(root: str, name: str, attempt: str, what: str) -> Dict[str, Any]:
    """The controller has it: `what` is "download" or "backup", verified.

    Returns:
        `action`: what the pod will do to itself; `owner`: through whom, empty where it can't; `price` if told.
    """
    files.replace_json(root, layout.HOME, {"attempt": attempt, "what": what, "unix_s": time.time()})
    job = files.read_json(root, layout.JOB) or {}
    ended = (files.read_json(root, layout.status(name)) or {}).get("exit") or {}
    who = owner.find()
    action = wanted(job, str(ended.get("cause"))) if job.get("attempt") == attempt else "keep"
    return {"action": action, "owner": who.kind if who else "", "price": job.get("price")}


def outlives_a_stop(root: str, kind: str, file_system: str) -> bool:
    """Whether the run's files are there again after a stop and a start.

    Vast keeps a stopped container's disk. RunPod keeps the volume alone, and empties the container's own disk.
    """
    return kind == "vast" or file_system not in _VANISHING


def decide(action: str, home: bool, outlives: bool) -> Tuple[str, str]:
    """What is really done, and why if it is less than was asked."""
    if action == "keep" or home:
        return action, ""
    if outlives:
        return "stop", "" if action == "stop" else "stopped, not terminated: nobody has the results yet"
    return "keep", "kept: nobody has the results yet, and they would not outlive a stop"


def main(root: str) -> int:
    """Carry out what the ended job in the root asks for; the lock is not held while waiting."""
    job = files.read_json(root, layout.JOB)
    status = files.read_json(root, layout.status(job["name"]))
    action = wanted(job, status["exit"]["cause"])
    who = owner.find()
    if who is None:
        _tell(root, job, "keep", f"no key of a provider is on this machine: it can't {action} itself", **_cost(job))
        return 0
    give_up = time.monotonic() + float(job.get("stop_after_s") or 0)
    while not _is_home(root, job) and time.monotonic() < give_up:
        if not _still_ours(root, job):
            return 0
        time.sleep(LOOK_S)
    real = os.path.realpath(root)
    done, why = decide(action, _is_home(root, job), outlives_a_stop(real, who.kind, probe.file_system(real)))
    if done == "keep":
        _tell(root, job, "keep", why, **_cost(job))
        return 0
    return _carry_out(root, job, who, done, why)


def _carry_out(root: str, job: Dict[str, Any], who: owner.Owner, action: str, why: str) -> int:
    pause_s, tries = 1.0, 0
    while True:
        if not _tell(root, job, action, why, state="asking", tries=tries):
            if not _still_ours(root, job):
                return 0
            time.sleep(LOOK_S)  # somebody holds the root: a new job, or one that will not come to be
            continue
        tries += 1
        try:
            who.do(action)
        except owner.Refused as e:
            why = str(e)
            time.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
            continue
        _tell(root, job, action, "", state="done", tries=tries)
        return 0


def _cost(job: Dict[str, Any]) -> Dict[str, Any]:
    price = job.get("price")
    return {"costs_usd_a_day": round(24 * float(price), 2)} if price else {}


def _is_home(root: str, job: Dict[str, Any]) -> bool:
    told = files.read_json(root, layout.HOME)
    return isinstance(told, dict) and told.get("attempt") == job["attempt"]


def _still_ours(root: str, job: Dict[str, Any]) -> bool:
    now = files.read_json(root, layout.JOB)
    return isinstance(now, dict) and now.get("attempt") == job["attempt"]


def _tell(root: str, job: Dict[str, Any], action: str, why: str, **more: Any) -> bool:
    """Write it into the ended run's status; False when another job has taken the root."""
    fd: Optional[int] = None
    try:
        fd = lock.acquire(root)
        status = files.read_json(root, layout.status(job["name"]))
        if not _still_ours(root, job) or not isinstance(status, dict) or status.get("attempt") != job["attempt"]:
            return False
        told = Status(root, **status)
        told.event("pod end", action=action, why=why, **more)
        told.update(pod_end={"action": action, "why": why, **more})
        return True
    except lock.Held:
        return False
    finally:
        if fd is not None:
            os.close(fd)
