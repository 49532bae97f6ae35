"""Tell a controller how a run goes: the status when it changes, the log as it grows.

The log goes on from the byte offset that the controller has, so a lost link shows nothing twice and misses
nothing. Something is sent every few seconds even when nothing happens: silence means a dead link.
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict, Optional

from remote_runner.pod import fate, files, layout
from remote_runner.pod import status as statuses
from remote_runner.pod.session import Refusal
from remote_runner.pod.wire import CHUNK_BYTES, Wire

LOOK_EVERY_S = 0.25
BEAT_EVERY_S = 5.0
FOLLOWER_S = 60.0  # a follower that was silent for so long is gone


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
    status = statuses.read(root, name)
    tail, size = b"", _size(root, layout.log(name))
    if tail_bytes:
        begin = max(0, size - tail_bytes)
        tail = _log_part(root, name, begin)
        size = begin + len(tail)
    told = fate.of(status)
    lives = told["fate"] == "running"
    return {"status": status, "supervisor_lives": lives, **told, **_log(tail, size), "now_unix_s": time.time()}


def _log(tail: bytes, offset: int) -> Dict[str, Any]:
    """The end of the log, and the byte after it: a follower goes on from there."""
    return {"log_tail": tail.decode("utf-8", "replace"), "log_offset": offset}


def _size(root: str, path: str) -> int:
    try:
        return os.stat(os.path.join(root, path), follow_symlinks=False).st_size
    except OSError:
        return 0


def _become_follower(root: str, ask: Dict[str, Any]) -> None:
    """There is one follower: a second waits until the first has been silent for a while, or is told to take over.

    Raises:
        Refusal: another one follows; `silent_s` says since when nothing was heard of it.
    """
    before = files.read_json(root, layout.FOLLOWER)
    if isinstance(before, dict) and before.get("name") == ask["name"] and before.get("who") != ask["who"]:
        silent_s = time.time() - float(before.get("unix_s") or 0)
        if 0 <= silent_s < FOLLOWER_S and not ask.get("take_over"):
            raise Refusal("followed", who=before.get("who"), silent_s=round(silent_s, 1))
    _mark(root, ask)


def _mark(root: str, ask: Dict[str, Any]) -> None:
    files.replace_json(root, layout.FOLLOWER, {"name": ask["name"], "who": ask["who"], "unix_s": time.time()})


def _still_follower(root: str, ask: Dict[str, Any]) -> bool:
    now = files.read_json(root, layout.FOLLOWER)
    return not isinstance(now, dict) or now.get("who") == ask["who"] or now.get("name") != ask["name"]


def _leave(root: str, ask: Dict[str, Any]) -> None:
    if ask.get("who") and _still_follower(root, ask):
        files.remove(root, [layout.FOLLOWER])


def follow(root: str, wire: Wire, ask: Dict[str, Any]) -> Dict[str, Any]:
    """Stream until the run has ended or the controller says anything at all.

    Args:
        ask: `name`, `offset` of the log; `who` where this is to be the one follower (its beat is written), and
            `take_over`, to be it at once. Without `who` the log is only read.

    Returns:
        `ended`: whether the run has; then the status is its last, and all of the log was sent. `taken_over`:
        another follower came.

    Raises:
        Refusal: another one follows.
    """
    if ask.get("who"):
        _become_follower(root, ask)
    try:
        return _stream(root, wire, ask)
    except (EOFError, OSError):
        _leave(root, ask)  # detached, or the connection broke: whoever comes next need not wait
        raise


def _stream(root: str, wire: Wire, ask: Dict[str, Any]) -> Dict[str, Any]:
    name, offset = ask["name"], int(ask["offset"])
    last: Optional[Dict[str, Any]] = None
    said = 0.0
    marked = time.monotonic()
    while True:
        seen = look(root, name, 0)
        status, now = seen["status"], time.monotonic()
        part = _log_part(root, name, offset)
        offset += len(part)
        if part or status != last or now - said > BEAT_EVERY_S:
            wire.send({"follow": True, "offset": offset, **seen}, part)
            last, said = status, now
        if ask.get("who") and now - marked > BEAT_EVERY_S:
            if not _still_follower(root, ask):
                return {"ended": False, "taken_over": True}
            _mark(root, ask)
            marked = now
        ended = bool(isinstance(status, dict) and status.get("exit")) or not seen["supervisor_lives"]
        if ended and not part:
            last = look(root, name, 0)
            if last["fate"] != "running":
                _leave(root, ask)
                return {"ended": True, **last}
        if len(part) == CHUNK_BYTES:
            continue
        if wire.receive(LOOK_EVERY_S) is not None:
            return {"ended": False}
