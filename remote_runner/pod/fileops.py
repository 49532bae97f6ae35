"""Requests about files: what is there, what its digests are, bytes out, bytes in.

Not here: how a path is opened and a file replaced (files.py), which files belong to a run (layout.py).
"""

from __future__ import annotations

import hashlib
import os
import time
from typing import Any, Dict, Optional

from remote_runner.checkpoint import header
from remote_runner.pod import files, layout, wire
from remote_runner.pod.session import SILENCE_S, Refusal, Session

SETTLED_NS = 2_000_000_000


def listing(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    return layout.listing(session.root, ask["outputs"], ask["names"])


def snapshots(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    found = layout.snapshots(session.root, ask["outputs"])
    return {"snapshots": [{"path": path, "header": head, "why": why} for path, head, why in found]}


def verify(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    """Prove a snapshot against the digests it carries."""
    files.parts(ask["path"])
    found = header.verify_digests(os.path.join(session.root, ask["path"]), lambda *_: session.busy())
    return {"stage": found["stage"], "step": found["step"], "root": found["root"]}


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
    opened_ns = time.time_ns()
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
        # times tell of a later change only when they are older than a clock tick: not for a file just written
        settled = opened_ns - before.st_ctime_ns > SETTLED_NS
        answer = {"sha256": found.hexdigest(), "whole": whole, "changed": changed, "settled": settled}
        return {**answer, **files.facts(before)}
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


def remove(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    return {"removed": files.remove(session.root, ask["paths"])}
