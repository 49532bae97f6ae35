"""The program of a data connection, and how bytes of files leave the pod over it.

    range    a piece of a large file            prefix   digests of a large file's beginning, as far as it was sent
    pack     many small files                   versions what stands at some paths

A request names the version that it wants (size, mtime, inode); another one is refused, before and after, so that
two versions of a file are never mixed. A large file is hashed once, in order, by whoever answers `prefix`; a
small one while it is sent.

Not here: bytes that come in (intake.py), which files there are (fileops.py), how a path is opened (files.py).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import time
from typing import Any, Dict, List, Tuple

from remote_runner.pod import files, intake, wire
from remote_runner.pod.session import Operations, Refusal, Session, loop

OPEN_FILES = 4  # kept open between ranges: a file that is rotated away can still be read to its end
PACKED_BYTES = 4 << 20  # the largest file of a pack
STEP_BYTES = 4 << 20  # a prefix is told of at each multiple of this, so that damage is found where it is
TRIES = 4
SETTLED_NS = 2_000_000_000


def version(info: os.stat_result) -> List[int]:
    """What tells two versions of a file apart, rotated or not: size, mtime, inode."""
    return [info.st_size, info.st_mtime_ns, info.st_ino]


def ranged(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    """Stream `length` bytes from `offset` of the version `version`; with `whole`, the digest from byte 0 as well.

    A file that `grows` (a log) may have become longer meanwhile.
    """
    fd = _opened(session, ask)
    opened_ns = time.time_ns()
    before = os.fstat(fd)
    offset, length = int(ask["offset"]), int(ask["length"])
    if offset < 0 or length < 0 or offset + length > before.st_size:
        raise Refusal("changed", **files.facts(before))
    found = hashlib.sha256() if ask.get("whole") else None
    if found is not None and not _update(session, found, fd, 0, offset):
        raise Refusal("changed", **files.facts(before))
    if found is None and not ask.get("squeeze"):
        whole = all(_plain(session, fd, at, offset + length) for at in range(offset, offset + length, PACKED_BYTES))
    else:
        whole = _chunks(session, fd, offset, length, bool(ask.get("squeeze")), found)
    _same(fd, before, whole, bool(ask.get("grows")))
    answer = {"settled": _settled(before, opened_ns), **files.facts(before)}
    if found is not None:
        answer["whole"] = found.hexdigest()
    return answer


def _plain(session: Session, fd: int, at: int, end: int) -> bool:
    return session.wire.send_file({"data": True}, fd, at, min(PACKED_BYTES, end - at))


def _chunks(session: Session, fd: int, offset: int, length: int, squeeze: bool, found: Any) -> bool:
    while length:
        block = os.pread(fd, min(length, wire.CHUNK_BYTES), offset)
        if not block:
            return False
        if found is not None:
            found.update(block)
        session.wire.send(*wire.chunk(block, squeeze))
        offset, length = offset + len(block), length - len(block)
    return True


def _update(session: Session, found: Any, fd: int, at: int, end: int) -> bool:
    """Take a piece of a file into a digest; whether there was all of it."""
    while at < end:
        block = os.pread(fd, min(files.BLOCK_BYTES, end - at), at)
        if not block:
            return False
        found.update(block)
        at += len(block)
        session.busy()
    return True


def _same(fd: int, before: os.stat_result, whole: bool, grows: bool) -> None:
    after = os.fstat(fd)
    if not whole or (version(after) != version(before) and not (grows and after.st_size >= before.st_size)):
        raise Refusal("changed", **files.facts(after))


def _settled(info: os.stat_result, opened_ns: int) -> bool:
    """Whether a later change must show in the file's times: not within a clock tick of the last one."""
    return opened_ns - info.st_mtime_ns > SETTLED_NS and opened_ns - info.st_ctime_ns > SETTLED_NS


def prefix(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    """Digests of a version's bytes from 0 on; those up to `begin` were told, and are seldom taken again.

    Returns:
        `marks`: [[end, sha256 of the bytes before it]], at each multiple of STEP_BYTES and at `upto`.
    """
    fd = _opened(session, ask)
    begun: Dict[Any, Tuple[Any, int]] = session.state.setdefault("prefixes", {})
    key = (ask["path"], *ask["version"])
    while len(begun) > OPEN_FILES:
        del begun[next(iter(begun))]
    found, at = begun.pop(key, (hashlib.sha256(), 0))
    begin, upto, marks = int(ask["begin"]), int(ask["upto"]), []
    if at != begin:
        found, at = hashlib.sha256(), 0
    before = os.fstat(fd)
    while at < upto:
        end = min(upto, at - at % STEP_BYTES + STEP_BYTES)
        if not _update(session, found, fd, at, end):
            raise Refusal("changed", **files.facts(before))
        at = end
        if at > begin:
            marks.append([at, found.hexdigest()])
    _same(fd, before, True, bool(ask.get("grows")))
    if at < int(ask["version"][0]):
        begun[key] = found, at
    return {"marks": marks}


def versions(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    """What stands at these paths: facts, or None where there is no regular file."""
    found: List[Any] = []
    for path in ask["paths"]:
        try:
            fd = files.open_read(session.root, path)
        except OSError:
            found.append(None)
            continue
        found.append(files.facts(os.fstat(fd)))
        os.close(fd)
    return {"versions": found}


def _opened(session: Session, ask: Dict[str, Any]) -> int:
    """The wanted version of a file, also where it was rotated to another name of its folder."""
    opened: Dict[Any, int] = session.state.setdefault("opened", {})
    path, want = ask["path"], list(ask["version"])
    key = (path, *want)
    if key in opened:
        return opened[key]
    for name in (path, *_same_inode(session.root, path, want[2])):
        with contextlib.suppress(FileNotFoundError):
            fd = files.open_read(session.root, name)
            info = os.fstat(fd)
            if version(info) == want or (ask.get("grows") and info.st_ino == want[2] and info.st_size >= want[0]):
                while len(opened) >= OPEN_FILES:
                    os.close(opened.pop(next(iter(opened))))
                opened[key] = fd
                return fd
            os.close(fd)
    raise Refusal("changed")


def _same_inode(root: str, path: str, inode: int) -> List[str]:
    folder = "/".join(files.parts(path)[:-1])
    with contextlib.suppress(OSError), os.scandir(os.path.join(root, folder)) as entries:
        return [f"{folder}/{e.name}" for e in entries if e.inode() == inode and e.is_file(follow_symlinks=False)]
    return []


def pack(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    """Stream small files, one behind the other; the answer says where each begins and what it is.

    Each row of the answer is [0, size, sha256, mode, mtime_ns, ctime_ns, inode, settled], or [errno] for a file
    that can't be read; EFBIG marks one that has outgrown a pack, or what is left of the `most` bytes of this one.
    """
    rows: List[List[Any]] = []
    waiting: List[bytes] = []
    held, left, squeeze = 0, int(ask["most"]), bool(ask.get("squeeze"))
    with files.Folders(session.root) as folders:
        for path in ask["paths"]:
            try:
                data, row = _whole(folders, path, min(left, PACKED_BYTES))
            except OSError as e:
                rows.append([e.errno or errno.EIO])
                continue
            rows.append(row)
            waiting.append(data)
            left, held = left - len(data), held + len(data)
            if held >= wire.CHUNK_BYTES:
                _send_all(session, waiting, squeeze)
                held = 0
    _send_all(session, waiting, squeeze)
    return {"rows": rows}


def _send_all(session: Session, waiting: List[bytes], squeeze: bool) -> None:
    data = b"".join(waiting)
    waiting.clear()
    for at in range(0, len(data), wire.MAX_PAYLOAD_BYTES):
        session.wire.send(*wire.chunk(data[at : at + wire.MAX_PAYLOAD_BYTES], squeeze))


def _whole(folders: files.Folders, path: str, most: int) -> Tuple[bytes, List[Any]]:
    """A small file's bytes in one consistent reading, as far as one can be had."""
    fd = folders.open_read(path)
    try:
        for attempt in range(TRIES):
            opened_ns = time.time_ns()
            info = os.fstat(fd)
            if info.st_size > most:
                raise OSError(errno.EFBIG, "too large for a pack", path)
            data = _read(fd, info.st_size)
            still = version(os.fstat(fd)) == version(info)
            if still or attempt == TRIES - 1:
                break
            time.sleep(0.02)
        settled = still and _settled(info, opened_ns)
        facts = [info.st_mode & 0o777, info.st_mtime_ns, info.st_ctime_ns, info.st_ino, settled]
        return data, [0, len(data), hashlib.sha256(data).hexdigest(), *facts]
    finally:
        os.close(fd)


def _read(fd: int, size: int) -> bytes:
    data = os.pread(fd, size, 0)
    while len(data) < size:
        block = os.pread(fd, size - len(data), len(data))
        if not block:
            break
        data += block
    return data


OPERATIONS: Operations = {
    "versions": versions,
    "range": ranged,
    "prefix": prefix,
    "pack": pack,
    "puts": intake.puts,
    "write": intake.write,
}
_F_SETPIPE_SZ = 1031


def serve(session: Session) -> int:
    """A data connection: nothing but bytes, answered in order until it ends."""
    with contextlib.suppress(OSError):  # where sshd gave us a pipe: fewer, larger reads on its side
        fcntl.fcntl(1, _F_SETPIPE_SZ, wire.CHUNK_BYTES)
    return loop(session, OPERATIONS)
