"""Take a root for one job: the lock, the lease that says whose it is, and a look at what runs here already.

Nothing outside `.remote-run/` changes. Refused, the lock is free again.
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict, Optional

from remote_runner.pod import fate, files, layout, lock, owner, procs, trainers
from remote_runner.pod.session import Refusal


def take(root: str, lease: Dict[str, Any], match: Any, ignore_running: bool) -> Dict[str, Any]:
    """Hold the root and make sure that no job runs on this machine.

    Args:
        lease: who takes it, since when, for what; kept beside the lock.
        match: patterns of trainers (trainers.py).
        ignore_running: go on although trainers run; they are reported.

    Returns:
        `fd`: the lock. `running`: trainers that were passed over. `gpu`: who uses the GPU. `died`: the last job
        here, when it has left no exit record. `owner`: the provider through which the machine can stop itself.

    Raises:
        Refusal: held, running, or nobody can tell.
    """
    fd = _acquire(root)
    try:
        since = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
        lock.write_lease(root, {**lease, "since": since}, os.getpid())
        try:
            running = trainers.jobs(match)
        except procs.CannotLook as e:
            if not ignore_running:
                raise Refusal("cannot-look", detail=str(e)) from None
            running = []
        if running and not ignore_running:
            raise Refusal("running", processes=running)
        who = owner.find()
        found = {"running": running, "gpu": trainers.gpu_use(), "died": _died(root)}
        return {"fd": fd, "owner": who.kind if who else "", **found}
    except BaseException:
        os.close(fd)
        raise


def _acquire(root: str) -> int:
    for again in (True, True, False):
        try:
            return lock.acquire(root)
        except lock.Held:
            lease = lock.holder(root)
            who = (lease or {}).get("holder") or {}
            if again and not procs.alive(who.get("pid"), who.get("start")):
                continue  # no job: the end of one writes its last word (ends.py)
            raise Refusal("held", lease=lease) from None
    raise AssertionError("unreachable")


def _died(root: str) -> Optional[Dict[str, Any]]:
    job = files.read_json(root, layout.JOB)
    if not isinstance(job, dict) or "name" not in job:
        return None
    status = files.read_json(root, layout.status(str(job["name"])))
    told = fate.of(status)
    if not isinstance(status, dict) or told["fate"] not in ("gone", "restarted"):
        return None
    return {"name": job["name"], "attempt": status.get("attempt"), **told}
