"""Tell a controller how a run goes: the status when it changes, the log as it grows.

The log goes on from the byte offset that the controller has, so a lost link shows nothing twice and misses
nothing. Something is sent every few seconds even when nothing happens: silence means a dead link.
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict, Optional

from remote_runner.pod import files, layout
from remote_runner.pod.launch import supervisor_lives
from remote_runner.pod.wire import CHUNK_BYTES, Wire

LOOK_EVERY_S = 0.25
BEAT_EVERY_S = 5.0


def _log_part(root: str, name: str, offset: int) -> bytes:
    try:
        fd = files.open_read(root, layout.log(name))
    except OSError:
        return b""
    try:
        return os.pread(fd, CHUNK_BYTES, offset)
    finally:
        os.close(fd)


def look(root: str, name: str, tail_bytes: int) -> Dict[str, Any]:
    """The run's status, whether its supervisor lives, and the last bytes of its log."""
    status = files.read_json(root, layout.status(name))
    tail = ""
    if tail_bytes:
        size = _size(root, layout.log(name))
        tail = _log_part(root, name, max(0, size - tail_bytes)).decode("utf-8", "replace")
    lives = isinstance(status, dict) and supervisor_lives(status)
    return {"status": status, "supervisor_lives": lives, "log_tail": tail, "now_unix_s": time.time()}


def _size(root: str, path: str) -> int:
    try:
        return os.stat(os.path.join(root, path), follow_symlinks=False).st_size
    except OSError:
        return 0


def follow(root: str, wire: Wire, ask: Dict[str, Any]) -> Dict[str, Any]:
    """Stream until the run has ended or the controller says anything at all.

    Args:
        ask: `name`, `offset` of the log, `who` follows (written as the follower's beat).

    Returns:
        `ended`: whether the run has; then the status is its last, and all of the log was sent.
    """
    name, offset = ask["name"], int(ask["offset"])
    last: Optional[Dict[str, Any]] = None
    said = marked = 0.0
    while True:
        seen = look(root, name, 0)
        status, now = seen["status"], time.monotonic()
        part = _log_part(root, name, offset)
        offset += len(part)
        if part or status != last or now - said > BEAT_EVERY_S:
            wire.send({"follow": True, "offset": offset, **seen}, part)
            last, said = status, now
        if ask.get("who") and now - marked > BEAT_EVERY_S:
            files.replace_json(root, layout.FOLLOWER, {"name": name, "who": ask["who"], "unix_s": time.time()})
            marked = now
        ended = bool(isinstance(status, dict) and status.get("exit")) or not seen["supervisor_lives"]
        if ended and not part:
            return {"ended": True, **look(root, name, 0)}
        if len(part) == CHUNK_BYTES:
            continue
        if wire.receive(LOOK_EVERY_S) is not None:
            return {"ended": False}
