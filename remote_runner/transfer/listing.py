"""What the pod says it has of a run, and whether that can be.

Not here: which of it differs from what is here (compare.py), which names this disk would mix up (keeping.py).
"""

from __future__ import annotations

import json
from typing import Any

from remote_runner.agent import Agent
from remote_runner.conversation import Denied, piece, printable
from remote_runner.errors import Unverified
from remote_runner.pod import files

MOST_ROWS = 1_000_000
_FIX = "do not trust this pod"


def listing(
    agent: Agent, outputs: list[str], names: list[str]
) -> tuple[dict[str, dict[str, Any]], list[str], list[str]]:
    """What the pod has of a run: files by path, folders, and what can't travel; every path checked.

    Each file's entry has size, mtime_ns, ctime_ns, ino, mode, and sha256 where the pod remembers it (else "").

    Raises:
        Unverified: a path that leaves the run's places, or two that can't both stand anywhere.
    """
    found: dict[str, dict[str, Any]] = {}
    folders: list[str] = []
    others: list[str] = []
    tops = (*outputs, "runs")
    agent.send({"op": "scan", "outputs": outputs, "names": names})
    while True:
        message = agent.receive()
        if "data" not in message[0]:
            break
        for row in _rows(piece(message, agent.where)):
            kind, path = row[0], row[1]
            if len(found) + len(folders) + len(others) >= MOST_ROWS:
                raise Unverified(f"the pod lists more than {MOST_ROWS} files", fix=_FIX)
            if kind == "o":
                others.append(printable(path))
                continue
            _plain(path, tops)
            if kind == "d":
                folders.append(path)
            elif path in found:
                raise Unverified(f"the pod lists {printable(path)!r} twice", fix=_FIX)
            else:
                found[path] = _facts(path, row)
    if message[0].get("ok") is not True:
        raise Denied(message[0])
    _standing_together(found, folders)
    return found, folders, others


def _rows(page: bytes) -> list[list[Any]]:
    try:
        rows = json.loads(page.decode())
    except (ValueError, RecursionError):
        rows = None
    if not isinstance(rows, list) or not all(_is_row(row) for row in rows):
        raise Unverified("the pod's listing can't be read", fix=_FIX)
    return rows


def _is_row(row: Any) -> bool:
    if not isinstance(row, list) or len(row) < 2 or not isinstance(row[1], str):
        return False
    if row[0] == "f":
        numbers = row[2:7]
        return len(row) == 8 and all(type(n) is int for n in numbers) and isinstance(row[7], str) and row[2] >= 0
    return row[0] in ("d", "o") and len(row) == 2


def _facts(path: str, row: list[Any]) -> dict[str, Any]:
    _, _, size, mtime_ns, ctime_ns, inode, mode, sha256 = row
    return {
        "path": path,
        "size": size,
        "mtime_ns": mtime_ns,
        "ctime_ns": ctime_ns,
        "ino": inode,
        "mode": mode & 0o777,
        "sha256": sha256,
    }


def _plain(path: str, tops: tuple[str, ...]) -> None:
    try:
        files.parts(path)
    except files.BadPath as e:
        raise Unverified(f"the pod's listing: {printable(str(e))}", fix=_FIX) from None
    if not any(path == t or path.startswith(t + "/") for t in tops):
        raise Unverified(f"the pod's listing names {path!r}, which is none of this run's places", fix=_FIX)


def _standing_together(found: dict[str, Any], folders: list[str]) -> None:
    """No file may be another's folder."""
    known = set(folders)
    for path in found:
        if path in known or any(above in found for above in _above(path)):
            raise Unverified(f"the pod lists {path!r} as a file and as a folder", fix=_FIX)


def _above(path: str) -> list[str]:
    pieces = path.split("/")
    return ["/".join(pieces[:n]) for n in range(1, len(pieces))]
