"""Requests about files: what is there, what its digests are, what need not travel.

Not here: bytes in and out (bulk.py, parts.py), how a path is opened and a file replaced (files.py), which files
belong to a run (layout.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from typing import Any, Dict, List, Optional

from remote_runner.checkpoint import header
from remote_runner.pod import digests, files, foreign, layout, wire
from remote_runner.pod.session import Refusal, Session

PAGE_ROWS = 2_000


def memory(session: Session) -> digests.Digests:
    """The digests that this root remembers."""
    if "digests" not in session.state:
        session.state["digests"] = digests.Digests(session.root)
    found: digests.Digests = session.state["digests"]
    return found


def listing(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    return layout.listing(session.root, ask["outputs"], ask["names"])


def scan(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    """The same in pages, each file with the digest that is remembered of it: no answer grows with the tree.

    Rows are ["f", path, size, mtime_ns, ctime_ns, inode, mode, sha256 or ""], ["d", path] and ["o", path].
    """
    now_ns = time.time_ns()  # before any is looked at: what changes meanwhile is not old enough
    found = layout.listing(session.root, ask["outputs"], ask["names"])
    known = memory(session)
    rows: List[List[Any]] = []

    def page(least: int) -> None:
        while len(rows) >= least:
            text = json.dumps(rows[:PAGE_ROWS], separators=(",", ":")).encode()
            session.wire.send(*wire.chunk(text, squeeze=True))
            del rows[:PAGE_ROWS]

    for one in found.pop("files"):
        path, stamp = one["path"], (one["size"], one["mtime_ns"], one["ctime_ns"], one["ino"])
        rows.append(["f", path, *stamp, one["mode"], known.recall(path, stamp, now_ns) or ""])
        page(PAGE_ROWS)
    rows += [["d", path] for path in found["folders"]]
    rows += [["o", path] for path in found["others"]]
    page(1)
    return {}


def snapshots(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    """Those of format 1, and those that the last job's rules name."""
    found = list(layout.snapshots(session.root, ask["outputs"]))
    found += foreign.heads(session.root, ask["outputs"], *foreign.of_job(session.root), session.busy)
    return {"snapshots": [{"path": path, "header": head, "why": why} for path, head, why in found]}


def verify(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    """Prove a snapshot against the digests it carries."""
    files.parts(ask["path"])
    found = header.verify_digests(os.path.join(session.root, ask["path"]), lambda *_: session.busy())
    return {"stage": found["stage"], "step": found["step"], "root": found["root"]}


def hashes(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    """Digests of files, None for one that is not there; `fresh` believes no memory."""
    found = {path: _hash(session, path, bool(ask.get("fresh"))) for path in ask["paths"]}
    memory(session).save()
    return {"sha256": found}


def _hash(session: Session, path: str, fresh: bool = False) -> Optional[str]:
    try:
        return memory(session).of(path, session.busy, fresh)
    except OSError:
        return None  # not there, or gone since it was listed


def have(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    """Which of these files need not travel, because their bytes are here: at their place, or under another name.

    Each is [path, size, sha256, mode, mtime_ns]; those from elsewhere are linked, or copied where files are
    appended to. The answer names what is in place now, and `seeds`: sizes of logs that may be beginnings.
    """
    done: List[str] = []
    seeds: Dict[str, int] = {}
    for path, size, sha256, mode, mtime_ns in ask["files"]:
        with contextlib.suppress(OSError):
            info = files.stat(session.root, path)
            if sha256 and info.st_size == size and _hash(session, path) == sha256:
                _dress(session.root, path, mode, mtime_ns)
                done.append(path)
                continue
            if path.endswith(layout.APPENDED) and 0 < info.st_size < size:
                seeds[path] = info.st_size
        if sha256 and size and _from_elsewhere(session, path, sha256, mode, mtime_ns):
            done.append(path)
    return {"done": done, "seeds": seeds}


def _dress(root: str, path: str, mode: int, mtime_ns: int) -> None:
    fd = files.open_read(root, path)
    try:
        os.fchmod(fd, mode & 0o777)
        os.utime(fd, ns=(mtime_ns, mtime_ns))
    finally:
        os.close(fd)


def _from_elsewhere(session: Session, path: str, sha256: str, mode: int, mtime_ns: int) -> bool:
    for other in memory(session).holders(sha256):
        if other == path or other.endswith(layout.APPENDED) or _hash(session, other) != sha256:
            continue
        with contextlib.suppress(OSError):
            files.link(session.root, other, path)
            return True
    return False


def remember(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    """Digests that are known since the bytes travelled; written down when no `more` are to come.

    Each is [path, sha256, size, mtime_ns, ctime_ns, inode, taken_ns, ours].
    """
    for path, sha256, size, mtime_ns, ctime_ns, inode, taken_ns, ours in ask["files"]:
        files.parts(path)
        memory(session).put(path, (size, mtime_ns, ctime_ns, inode), sha256, taken_ns, bool(ours))
    if not ask.get("more"):
        memory(session).save()
    return {}


def code(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    """Which of the announced files differ here; `done` drops what an upload sent and this one lacks.

    What stood here already with the announced bytes was not sent by us: it may be brought up to date while it still
    has them, and is never dropped. Nor is what has other bytes now than we sent.

    Raises:
        Refusal: a file stands there that we did not send, with other content: it is not touched.
    """
    want: Dict[str, str] = ask["files"]
    differ = [path for path in want if _hash(session, path, fresh=ask["done"]) != want[path]]
    memory(session).save()
    known = files.read_json(session.root, layout.CODE) or {}
    last: Dict[str, str] = known.get("files", {})
    same: Dict[str, str] = known.get("same", {})  # not sent by us, but with bytes that we had
    if not ask["done"]:
        there = [p for p in differ if p not in last and os.path.lexists(os.path.join(session.root, p))]
        strange = [p for p in there if p not in same or _hash(session, p, fresh=True) != same[p]]
        if strange:
            raise Refusal("foreign", detail=f"{', '.join(strange[:3])}: there already, and not sent by us")
        last = {**last, **{path: want[path] for path in differ}}  # ours from now on, whole or not
        same = {**same, **want}
        same = {path: sha256 for path, sha256 in same.items() if path not in last}
        files.replace_json(session.root, layout.CODE, {"files": last, "same": same})
        return {"need": differ}
    if differ:
        raise Refusal("digest", detail=f"{len(differ)} files differ after the upload, {differ[0]} first")
    gone = [p for p in last if p not in want and _is_plain(os.path.join(session.root, p))]
    changed = [p for p in gone if _hash(session, p, fresh=True) != last[p]]
    removed = files.remove(session.root, [p for p in gone if p not in changed])
    files.replace_json(session.root, layout.CODE, {"files": {p: want[p] for p in want if p in last}, "same": same})
    return {"removed": removed, "changed": changed}


def _is_plain(path: str) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)  # a link that took the place of a file is not ours
    except OSError:
        return False


def remove(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    return {"removed": files.remove(session.root, ask["paths"])}
