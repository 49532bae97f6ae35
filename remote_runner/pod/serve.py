"""The pod's end of a connection: one process that answers a controller's requests, in order.

    hold      take the lock, look for running jobs       code, remove        bring the root up to date
    list      files of a run                             launch              become the supervisor
    hash      digests             range, pack            bytes out           (bulk.py)
    have      what need not come  puts, begin .. finish  bytes in            (bulk.py, parts.py)
    pull      blobs in, straight from a store (pull.py)  pulled              they get their names
    follow    status and log as they grow                request             pause or stop a run

Requests come as messages (wire.py) and are answered in their order, so a controller may send many before it
reads. Whatever goes wrong with one is its answer; only a broken connection ends the process, and with it a
lock that was not handed on. What only a run needs is loaded when it is asked for: from a zipapp each module is
compiled anew at every start, and a transfer waits for it.
"""

from __future__ import annotations

import os
from typing import Any, Dict

from remote_runner.pod import bulk, fileops, files, layout, parts
from remote_runner.pod.session import Operations, Refusal, Session


def hold(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    """Take the lock and make sure that no job runs on this machine; nothing else has changed before."""
    from remote_runner.pod import hold as holding

    taken = holding.take(session.root, ask["lease"], ask["match"], bool(ask.get("ignore_running")))
    session.lock_fd = taken.pop("fd")
    return taken


def keep(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    from remote_runner.pod import preserve

    made = preserve.preserve(session.root, ask["outputs"], ask["name"], ask["stamp"], move=ask["move"])
    return {"preserved": made}


def start(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    from remote_runner.pod import launch

    if session.lock_fd is None:
        raise Refusal("no-lock", detail="launch without hold")
    status = launch.launch(session.root, ask["job"], session.lock_fd, secrets=ask.get("secrets") or {})
    os.close(session.lock_fd)  # the supervisor has it now
    session.lock_fd = None
    return {"status": status}


def state(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    """One look at a run: status, whether its supervisor lives, the end of its log."""
    from remote_runner.pod import follow

    return follow.look(session.root, ask["name"], ask.get("tail_bytes", 0))


def request(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    from remote_runner.pod import launch

    return launch.ask_supervisor(session.root, ask["name"], ask["by"], ask.get("grace_s"))


def stream(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    from remote_runner.pod import follow

    return follow.follow(session.root, session.wire, ask)


def runs(session: Session, _ask: Dict[str, Any]) -> Dict[str, Any]:
    """Names of the runs in this root, and who holds it."""
    from remote_runner.pod import lock
    from remote_runner.pod.status import read as read_status

    ending = layout.status("")[len("runs/") :]
    paths = [p for p, _i, k in files.walk(session.root, "runs") if k == "file" and p.endswith(ending)]
    found = [p[len("runs/") : -len(ending)] for p in paths]
    names = [n for n in found if read_status(session.root, n) is not None]
    return {"names": names, "lease": lock.holder(session.root)}


def job(session: Session, _ask: Dict[str, Any]) -> Dict[str, Any]:
    """Name and outputs of the last job that was launched here."""
    found = files.read_json(session.root, layout.JOB) or {}
    return {"name": found.get("name"), "outputs": found.get("outputs") or []}


def home(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    """The controller has a run's results, verified: now the pod may end itself, where it was asked to."""
    from remote_runner.pod import ends

    return ends.acknowledge(session.root, ask["name"], ask["attempt"], ask["what"])


def push(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    """Start the program that backs the run up from the pod itself."""
    from remote_runner.pod import pusher

    return pusher.start(session, ask)


def pull(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    from remote_runner.pod import pull as pulling

    return pulling.pull(session, ask)


def pulled(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    from remote_runner.pod import pull as pulling

    return pulling.pulled(session, ask)


OPERATIONS: Operations = {
    "beat": lambda _session, _ask: {},
    "hold": hold,
    "list": fileops.listing,
    "scan": fileops.scan,
    "snapshots": fileops.snapshots,
    "verify": fileops.verify,
    "hash": fileops.hashes,
    "have": fileops.have,
    "remember": fileops.remember,
    **bulk.OPERATIONS,
    "begin": parts.begin,
    "trail": parts.trail,
    "finish": parts.finish,
    "code": fileops.code,
    "remove": fileops.remove,
    "preserve": keep,
    "launch": start,
    "state": state,
    "request": request,
    "follow": stream,
    "runs": runs,
    "job": job,
    "home": home,
    "push": push,
    "pull": pull,
    "pulled": pulled,
}
