"""The pod's end of a connection: one process that answers a controller's requests, in order.

    hold      take the lock, look for running jobs       code, put, remove   bring the root up to date
    list      files of a run      hash, get              launch              become the supervisor
    follow    status and log as they grow                request             pause or stop a run

Requests come as messages (wire.py) and are answered in their order, so a controller may send many before it
reads. Whatever goes wrong with one is its answer; only a broken connection ends the process, and with it a
lock that was not handed on.
"""

from __future__ import annotations

import os
import platform
import sys
from typing import Any, Callable, Dict

from remote_runner.pod import ends, fileops, files, follow, launch, layout, lock, preserve, wire
from remote_runner.pod import hold as holding
from remote_runner.pod.session import SILENCE_S, Refusal, Session


def hold(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    """Take the lock and make sure that no job runs on this machine; nothing else has changed before."""
    taken = holding.take(session.root, ask["lease"], ask["match"], bool(ask.get("ignore_running")))
    session.lock_fd = taken.pop("fd")
    return taken


def keep(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    made = preserve.preserve(session.root, ask["outputs"], ask["name"], ask["stamp"], move=ask["move"])
    return {"preserved": made}


def start(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    if session.lock_fd is None:
        raise Refusal("no-lock", detail="launch without hold")
    status = launch.launch(session.root, ask["job"], session.lock_fd)
    os.close(session.lock_fd)  # the supervisor has it now
    session.lock_fd = None
    return {"status": status}


def state(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    """One look at a run: status, whether its supervisor lives, the end of its log."""
    return follow.look(session.root, ask["name"], ask.get("tail_bytes", 0))


def request(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    return launch.ask_supervisor(session.root, ask["name"], ask["by"], ask.get("grace_s"))


def stream(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    return follow.follow(session.root, session.wire, ask)


def runs(session: Session, _ask: Dict[str, Any]) -> Dict[str, Any]:
    """Names of the runs in this root, and who holds it."""
    found = [p[len("runs/") : -len("-status.json")] for p, _i, k in files.walk(session.root, "runs") if k == "file"]
    names = [n for n in found if files.read_json(session.root, layout.status(n)) is not None]
    return {"names": names, "lease": lock.holder(session.root)}


def job(session: Session, _ask: Dict[str, Any]) -> Dict[str, Any]:
    """Name and outputs of the last job that was launched here."""
    found = files.read_json(session.root, layout.JOB) or {}
    return {"name": found.get("name"), "outputs": found.get("outputs") or []}


def home(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    """The controller has a run's results, verified: now the pod may end itself, where it was asked to."""
    return ends.acknowledge(session.root, ask["name"], ask["attempt"], ask["what"])


_OPS: Dict[str, Callable[[Session, Dict[str, Any]], Dict[str, Any]]] = {
    "beat": lambda _session, _ask: {},
    "hold": hold,
    "list": fileops.listing,
    "snapshots": fileops.snapshots,
    "verify": fileops.verify,
    "hash": fileops.hashes,
    "get": fileops.get,
    "put": fileops.put,
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
}


def serve(root: str, nonce: str) -> int:
    """Answer until the connection ends."""
    out = os.dup(1)
    os.dup2(2, 1)  # nothing but messages may reach the controller's end of stdout
    files.write_all(out, wire.marker(nonce))
    session = Session(root, wire.Wire(0, out))
    session.wire.send({"pid": os.getpid(), "python": sys.executable, "host": platform.node()})
    while True:
        try:
            message = session.wire.receive(SILENCE_S if session.lock_fd is not None else None)
            if message is None:
                return 0
            session.wire.send(_answer(session, message[0]))
        except (EOFError, BrokenPipeError, wire.WireError):
            return 0


def _answer(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    try:
        operation = _OPS.get(str(ask.get("op")))
        if operation is None:
            raise Refusal("unknown", detail=f"no operation {ask.get('op')!r}")
        return {"ok": True, **operation(session, ask)}
    except Refusal as e:
        return {"ok": False, **e.facts}
    except BrokenPipeError:
        raise
    except OSError as e:
        named = e.filename if isinstance(e.filename, str) else ask.get("path", "")
        return {"ok": False, "reason": "os", "errno": e.errno, "detail": f"{named}: {e.strerror or e}"}
    except (ValueError, KeyError, TypeError) as e:
        return {"ok": False, "reason": "bad-request", "detail": f"{type(e).__name__}: {e}"}
