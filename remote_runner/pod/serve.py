"""The pod's end of a connection: one process that answers a controller's requests, in order.

    hold      take the lock, look for running jobs       code, put, remove   bring the root up to date
    list      files of a run      hash, get              launch              become the supervisor
    follow    status and log as they grow                request             pause or stop a run

Requests come as messages (wire.py) and are answered in their order, so a controller may send many before it
reads. Whatever goes wrong with one is its answer; only a broken connection ends the process, and with it a
lock that was not handed on.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import time
from typing import Any, Callable, Dict, Optional

from remote_runner.pod import files, follow, launch, layout, lock, preserve, procs, wire

SILENCE_S = 120.0  # a holder that hears nothing for so long lets go
BUSY_EVERY_S = 5.0


class Refusal(Exception):
    """A request that is understood and not granted; `facts` tell why."""

    def __init__(self, reason: str, **facts: Any) -> None:
        super().__init__(reason)
        self.facts = {"reason": reason, **facts}


class Session:
    """One connection: the root, the wire, and the lock while this process holds it."""

    def __init__(self, root: str, connection: wire.Wire) -> None:
        self.root, self.wire = root, connection
        self.lock_fd: Optional[int] = None
        self._said_s = time.monotonic()

    def busy(self) -> None:
        """Say now and then that a long request is being worked on: silence would mean a dead link."""
        if time.monotonic() - self._said_s > BUSY_EVERY_S:
            self.wire.send({"busy": True})
            self._said_s = time.monotonic()


def hold(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    """Take the lock and make sure that no job runs on this machine; nothing else has changed before."""
    try:
        fd = lock.acquire(session.root)
    except lock.Held:
        raise Refusal("held", lease=lock.holder(session.root)) from None
    try:
        running = procs.jobs(ask["match"])
    except procs.CannotLook as e:
        os.close(fd)
        raise Refusal("cannot-look", detail=str(e)) from None
    if running and not ask.get("ignore_running"):
        os.close(fd)
        raise Refusal("running", processes=running)
    session.lock_fd = fd
    lease = {**ask["lease"], "since": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())}
    files.replace_json(session.root, layout.LEASE, lease)
    return {"running": running}


def listing(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    return layout.listing(session.root, ask["outputs"], ask["names"])


def snapshots(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    found = layout.snapshots(session.root, ask["outputs"])
    return {"snapshots": [{"path": path, "header": head, "why": why} for path, head, why in found]}


def hashes(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    return {"sha256": {path: _hash(session, path) for path in ask["paths"]}}


def _hash(session: Session, path: str) -> Optional[str]:
    try:
        return files.digest(session.root, path, session.busy)
    except OSError:
        return None  # not there, or gone since it was listed


def get(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    """Stream a file from `offset` to the size it has now; its digest is known when its last byte left."""
    fd = files.open_read(session.root, ask["path"])
    try:
        before = os.fstat(fd)
        os.lseek(fd, ask["offset"], os.SEEK_SET)
        left = max(0, min(before.st_size - ask["offset"], ask.get("length", before.st_size)))
        found = hashlib.sha256()
        while left:
            block = os.read(fd, min(left, wire.CHUNK_BYTES))
            if not block:
                break
            found.update(block)
            left -= len(block)
            session.wire.send({"data": True}, block)
        after = os.fstat(fd)
        whole = left == 0 and after.st_size >= before.st_size
        changed = (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size)
        return {"sha256": found.hexdigest(), "whole": whole, "changed": changed, **files.facts(before)}
    finally:
        os.close(fd)


def put(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    """Receive a file; it gets its name only when its digest is the announced one."""
    left, found = int(ask["size"]), hashlib.sha256()

    def block() -> bytes:
        nonlocal left
        message = session.wire.receive(SILENCE_S)
        if message is None:
            raise EOFError("the controller went silent in the middle of a file")
        left -= len(message[1])
        return message[1]

    def fill(fd: int) -> None:
        while left > 0:
            data = block()
            found.update(data)
            files.write_all(fd, data)
        os.utime(fd, ns=(ask["mtime_ns"], ask["mtime_ns"]))
        if found.hexdigest() != ask["sha256"]:
            raise Refusal("digest", detail=f"{ask['path']}: arrived as {found.hexdigest()}, sent as {ask['sha256']}")

    try:
        files.replace(session.root, ask["path"], fill, ask["mode"], durable=ask["durable"])
    except (OSError, ValueError, Refusal):
        while left > 0:  # what is on its way belongs to this file, not to the next request
            block()
        raise
    return {}


def code(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    """Which of the announced files differ here; `done` drops what the last upload had and this one lacks."""
    want: Dict[str, str] = ask["files"]
    differ = [path for path in want if _hash(session, path) != want[path]]
    if not ask["done"]:
        return {"need": differ}
    if differ:
        raise Refusal("digest", detail=f"{len(differ)} files differ after the upload, {differ[0]} first")
    last = files.read_json(session.root, layout.CODE) or {}
    removed = files.remove(session.root, [p for p in last.get("files", {}) if p not in want])
    files.replace_json(session.root, layout.CODE, {"files": want})
    return {"removed": removed}


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


_OPS: Dict[str, Callable[[Session, Dict[str, Any]], Dict[str, Any]]] = {
    "beat": lambda _session, _ask: {},
    "hold": hold,
    "list": listing,
    "snapshots": snapshots,
    "hash": hashes,
    "get": get,
    "put": put,
    "code": code,
    "remove": lambda session, ask: {"removed": files.remove(session.root, ask["paths"])},
    "preserve": keep,
    "launch": start,
    "state": state,
    "request": request,
    "follow": stream,
    "runs": runs,
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
