"""Who holds a root and which trainers run on a machine, for a dry run: nothing is written, no lock is taken.

Runs from source over stdin, with the modules that trainers.py needs beside it. A held root is seen by its lease,
whose holder lives; a start asks the kernel's lock itself (hold.py).
"""

from __future__ import annotations

import contextlib
import json
from typing import Any, Dict

from remote_runner.pod import procs, trainers


def look(lease: str, match: Any) -> Dict[str, Any]:
    """What `hold.take` would refuse for, as its refusal says it; empty where nothing is in the way.

    Args:
        lease: the path of the lease. match: patterns of trainers.
    """
    with contextlib.suppress(OSError, ValueError), open(lease, encoding="utf-8") as f:
        held = json.load(f)
        who = held.get("holder") or {}
        if procs.alive(who.get("pid"), who.get("start")):
            return {"reason": "held", "lease": held}
    try:
        running = trainers.jobs(match)
    except procs.CannotLook as e:
        return {"reason": "cannot-look", "detail": str(e)}
    return {"reason": "running", "processes": running} if running else {}


def say(nonce: str, ask: Dict[str, Any]) -> None:
    """Between marks of the controller's own, since a login shell may have talked before."""
    print(f"\n<{nonce}>{json.dumps(look(**ask))}</{nonce}>", flush=True)
