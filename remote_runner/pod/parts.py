"""Large files on their way in: a part, and a journal of the ranges that are proven.

    .remote-run/incoming/<id>.part     the file's size, with holes
    .remote-run/incoming/<id>.ranges   one line a range: [offset, length], appended when it is written

The id names the content's origin (path, size, times), so that a later transfer of the same file, from another
process too, finds both and sends the rest. The digest of the whole, taken from the part itself, decides; then it
gets its name in one rename.

Not here: how a range arrives (intake.py).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import time
from typing import Any, Dict, List, Union

from remote_runner.pod import files
from remote_runner.pod.session import Refusal, Session

INCOMING = ".remote-run/incoming"
OPEN_PARTS = 8
SYNC_EVERY_BYTES = 256 << 20
KEEP_S = 7 * 86_400  # a part that nobody came back for
_ID = re.compile(r"[0-9a-f]{32}")


def _path(ident: str, suffix: str) -> str:
    if not _ID.fullmatch(ident):
        raise ValueError(f"no id of a part: {ident!r}")
    return f"{INCOMING}/{ident}{suffix}"


def begin(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    """Make room for a file, or find what came of it before; with `seed`, its first bytes from a file that is here.

    Returns:
        `ranges`: [[offset, length]] that are there already.
    """
    ident, size = ask["id"], int(ask["size"])
    if "parts" not in session.state:
        _sweep(session.root)
    _close(session, ident)
    fd = files.open_write(session.root, _path(ident, ".part"))
    try:
        ranges = _journal(session.root, ident, size) if os.fstat(fd).st_size == size else []
        if not ranges:
            files.unlink(session.root, _path(ident, ".ranges"))
            os.ftruncate(fd, 0)
        os.utime(fd)  # somebody came back for it
        free = os.statvfs(session.root)
        free_bytes = free.f_bavail * free.f_frsize
        missing = size - sum(r[1] for r in ranges)
        if missing > free_bytes:
            text = f"{ask['path']}: {missing} bytes are to come, {free_bytes} are free"
            raise Refusal("os", errno=errno.ENOSPC, detail=text)
        os.ftruncate(fd, size)
        if not ranges and ask.get("seed"):
            ranges = _seed(session, fd, ident, ask["seed"], size)
    finally:
        os.close(fd)
    return {"ranges": ranges}


def _seed(session: Session, fd: int, ident: str, path: str, size: int) -> List[List[Any]]:
    """The bytes of a shorter file as the beginning of a longer one: a log that grew."""
    with contextlib.suppress(OSError):
        source = files.open_read(session.root, path)
        try:
            at = 0
            while at < size:
                block = os.pread(source, min(files.BLOCK_BYTES, size - at), at)
                if not block:
                    break
                at = write(fd, block, at)
                session.busy()
        finally:
            os.close(source)
        if at:
            note(session, ident, 0, at)
            return [[0, at]]
    return []


def _journal(root: str, ident: str, size: int) -> List[List[Any]]:
    """Ranges of a journal, sorted, those that overlap or leave the file left out; a torn last line is no range."""
    try:
        fd = files.open_read(root, _path(ident, ".ranges"))
    except OSError:
        return []
    with os.fdopen(fd, encoding="ascii", errors="replace") as f:
        return rows(f.read(), size)


def rows(text: str, size: int) -> List[List[Any]]:
    """[offset, length] of a journal's lines, sorted; see `_journal`."""
    lines = []
    for line in text.split("\n"):
        try:
            offset, length = json.loads(line)
            if offset >= 0 and length > 0 and offset + length <= size:
                lines.append([offset, length])
        except (ValueError, TypeError):
            continue
    kept: List[List[Any]] = []
    for line_row in sorted(lines):
        if not kept or line_row[0] >= kept[-1][0] + kept[-1][1]:
            kept.append(line_row)
    return kept


def opened(session: Session, ident: str) -> int:
    """The descriptor of a part, kept open by this connection as long as the part has its name."""
    known: Dict[str, int] = session.state.setdefault("parts", {})
    here = files.stat(session.root, _path(ident, ".part"))
    if ident in known and os.fstat(known[ident]).st_ino != here.st_ino:
        os.close(known.pop(ident))  # that one is a finished file now, and must not be written to
    if ident not in known:
        while len(known) >= OPEN_PARTS:
            os.close(known.pop(next(iter(known))))
        known[ident] = files.open_write(session.root, _path(ident, ".part"), create=False)
    return known[ident]


def _close(session: Session, ident: str) -> None:
    session.state.get("trails", {}).pop(ident, None)
    known = session.state.setdefault("parts", {})
    if ident in known:
        os.close(known.pop(ident))


def write(fd: int, block: Union[bytes, memoryview], at: int) -> int:
    """Write all of a block at an offset; the offset behind it."""
    view = memoryview(block)
    while view:
        done = os.pwrite(fd, view, at)
        view, at = view[done:], at + done
    return at


def note(session: Session, ident: str, offset: int, length: int) -> None:
    """Enter a range in the journal; one short append, so that several connections may."""
    fd = files.open_write(session.root, _path(ident, ".ranges"), append=True)
    try:
        files.write_all(fd, (json.dumps([offset, length]) + "\n").encode())
    finally:
        os.close(fd)


def trail(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    """Take the digest of a part as far as it is there, while the rest is under way."""
    _advance(session, ask["id"], int(ask["upto"]))
    return {}


def _advance(session: Session, ident: str, upto: int) -> Any:
    trails: Dict[str, Any] = session.state.setdefault("trails", {})
    if ident not in trails:
        trails[ident] = [hashlib.sha256(), 0]
    state = trails[ident]
    fd = opened(session, ident)
    while state[1] < upto:
        block = os.pread(fd, min(files.BLOCK_BYTES, upto - state[1]), state[1])
        if not block:
            break
        state[0].update(block)
        state[1] += len(block)
        session.busy()
        if state[1] % SYNC_EVERY_BYTES < len(block):
            os.fsync(fd)  # so that the last one is short
    return state[0]


def finish(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    """Prove a part and give it its name; one that is not what was sent is thrown away."""
    ident, path = ask["id"], ask["path"]
    part = _path(ident, ".part")
    try:
        found = _advance(session, ident, int(ask["size"])).hexdigest()
        if found != ask["sha256"]:
            for suffix in (".part", ".ranges"):
                files.unlink(session.root, _path(ident, suffix))
            raise Refusal("digest", detail=f"{path}: arrived as {found}, sent as {ask['sha256']}")
        fd = opened(session, ident)
        os.fchmod(fd, ask["mode"] & 0o777)
        os.utime(fd, ns=(ask["mtime_ns"], ask["mtime_ns"]))
        if ask["durable"]:
            os.fsync(fd)
        files.move(session.root, part, path, durable=ask["durable"])
        files.unlink(session.root, _path(ident, ".ranges"))
        return files.facts(os.fstat(fd))
    finally:
        _close(session, ident)


def _sweep(root: str) -> None:
    """Drop parts that nobody came back for."""
    with contextlib.suppress(OSError), os.scandir(os.path.join(root, INCOMING)) as entries:
        for entry in entries:
            if time.time() - entry.stat(follow_symlinks=False).st_mtime > KEEP_S:
                os.unlink(entry.path)
