"""Bytes of files, in the four shapes in which they travel; the program of a data connection.

    range   a piece of a large file, out          write   a piece of a large file, in, to a part (parts.py)
    pack    many small files, out                 puts    many small files, in, each under its name at once

Every piece is hashed while it streams. A request names the version that it wants (size, mtime, inode); another
one is refused, before and after, so that two versions of a file are never mixed.

Not here: which files there are (fileops.py), how a path is opened and replaced (files.py).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import time
from typing import Any, Callable, Dict, List, Set

from remote_runner.pod import files, parts, wire
from remote_runner.pod.session import SILENCE_S, Operations, Refusal, Session, fault, greet, loop

OPEN_FILES = 4  # kept open between ranges: a file that is rotated away can still be read to its end
PACKED_BYTES = 4 << 20  # the largest file of a pack
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
    offset, left = int(ask["offset"]), int(ask["length"])
    if offset < 0 or left < 0 or offset + left > before.st_size:
        raise Refusal("changed", **files.facts(before))
    found, whole = hashlib.sha256(), hashlib.sha256() if ask.get("whole") else None
    at = 0
    while whole is not None and at < offset:
        block = os.pread(fd, min(files.BLOCK_BYTES, offset - at), at)
        if not block:
            raise Refusal("changed", **files.facts(before))
        whole.update(block)
        at += len(block)
        session.busy()
    while left:
        block = os.pread(fd, min(left, wire.CHUNK_BYTES), offset)
        if not block:
            break
        found.update(block)
        if whole is not None:
            whole.update(block)
        session.wire.send(*wire.chunk(block, bool(ask.get("squeeze"))))
        offset, left = offset + len(block), left - len(block)
    after = os.fstat(fd)
    if left or (version(after) != version(before) and not (ask.get("grows") and after.st_size >= before.st_size)):
        raise Refusal("changed", **files.facts(after))
    answer = {"sha256": found.hexdigest(), "settled": _settled(before, opened_ns), **files.facts(before)}
    if whole is not None:
        answer["whole"] = whole.hexdigest()
    return answer


def _settled(info: os.stat_result, opened_ns: int) -> bool:
    """Whether a later change must show in the file's times: not within a clock tick of the last one."""
    return opened_ns - info.st_mtime_ns > SETTLED_NS and opened_ns - info.st_ctime_ns > SETTLED_NS


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
    waiting = bytearray()
    left = int(ask["most"])
    for path in ask["paths"]:
        try:
            data, row = _whole(session.root, path, min(left, PACKED_BYTES))
            left -= len(data)
        except OSError as e:
            rows.append([e.errno or errno.EIO])
            continue
        rows.append(row)
        waiting += data
        while len(waiting) >= wire.CHUNK_BYTES:
            session.wire.send(*wire.chunk(bytes(waiting[: wire.CHUNK_BYTES]), bool(ask.get("squeeze"))))
            del waiting[: wire.CHUNK_BYTES]
    if waiting:
        session.wire.send(*wire.chunk(bytes(waiting), bool(ask.get("squeeze"))))
    return {"rows": rows}


def _whole(root: str, path: str, most: int) -> Any:
    """A small file's bytes in one consistent reading, as far as one can be had."""
    fd = files.open_read(root, path)
    try:
        for attempt in range(TRIES):
            opened_ns = time.time_ns()
            info = os.fstat(fd)
            if info.st_size > most:
                raise OSError(errno.EFBIG, "too large for a pack", path)
            data = b""
            while len(data) < info.st_size:
                block = os.pread(fd, info.st_size - len(data), len(data))
                if not block:
                    break
                data += block
            still = version(os.fstat(fd)) == version(info)
            if still or attempt == TRIES - 1:
                break
            time.sleep(0.02)
        settled = still and _settled(info, opened_ns)
        facts = [info.st_mode & 0o777, info.st_mtime_ns, info.st_ctime_ns, info.st_ino, settled]
        return data, [0, len(data), hashlib.sha256(data).hexdigest(), *facts]
    finally:
        os.close(fd)


class _Inlet:
    """The bytes of a request that carries some: read to its end, whatever happens, or the next would be misread."""

    def __init__(self, session: Session, left: int) -> None:
        self._session, self._left, self._buffer = session, left, bytearray()

    def read(self, most: int) -> bytes:
        while not self._buffer:
            message = self._session.wire.receive(SILENCE_S)
            if message is None:
                raise EOFError("the controller went silent in the middle of a file")
            data = wire.unpack(message)
            if not data or len(data) > self._left:
                raise EOFError("more or less than was announced")
            self._left -= len(data)
            if len(data) <= most:
                return data
            self._buffer += data
        taken = bytes(self._buffer[:most])
        del self._buffer[:most]
        return taken

    def copy(self, size: int, sink: Callable[[bytes], None]) -> None:
        """Hand `size` bytes on; what the sink refuses is still read."""
        failed = None
        while size:
            block = self.read(min(size, wire.CHUNK_BYTES))
            size -= len(block)
            try:
                if failed is None:
                    sink(block)
            except OSError as e:
                failed = e
        if failed is not None:
            raise failed


def puts(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    """Receive small files; each gets its name only when its digest is the announced one.

    Each row of the answer is [0, size, mtime_ns, ctime_ns, inode], or [errno, what is wrong].
    """
    inlet = _Inlet(session, sum(f["size"] for f in ask["files"]))
    rows: List[List[Any]] = []
    folders: Set[str] = set()
    for one in ask["files"]:
        try:
            rows.append([0, *_put(session.root, one, ask["durable"], inlet)])
            folders.add(os.path.dirname(one["path"]))
        except OSError as e:
            rows.append([e.errno or errno.EIO, fault(e, one)["detail"]])
        except (Refusal, ValueError) as e:
            rows.append([errno.EBADMSG, str(e)])
    for folder in sorted(folders) if ask["durable"] else ():
        files.sync_folder(session.root, folder)
    return {"rows": rows}


def _put(root: str, one: Dict[str, Any], durable: bool, inlet: _Inlet) -> List[int]:
    left, found = int(one["size"]), hashlib.sha256()
    info: List[os.stat_result] = []

    def fill(fd: int) -> None:
        nonlocal left

        def sink(block: bytes) -> None:
            found.update(block)
            files.write_all(fd, block)

        size, left = left, 0
        inlet.copy(size, sink)
        os.utime(fd, ns=(one["mtime_ns"], one["mtime_ns"]))
        if found.hexdigest() != one["sha256"]:
            raise Refusal(f"{one['path']}: arrived as {found.hexdigest()}, sent as {one['sha256']}")
        info.append(os.fstat(fd))

    try:
        files.replace(root, one["path"], fill, one["mode"], durable=durable, sync_folder=False)
    except BaseException:
        inlet.copy(left, lambda _: None)
        raise
    now = files.stat(root, one["path"])
    if now.st_ino != info[0].st_ino:
        raise OSError(errno.EAGAIN, "replaced by somebody else", one["path"])
    return [now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino]


def write(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    """Receive a piece of a part; it counts when its digest, which comes last, is the announced one."""
    offset, length = int(ask["offset"]), int(ask["length"])
    inlet, found, at = _Inlet(session, length), hashlib.sha256(), offset

    def sink(block: bytes) -> None:
        nonlocal at
        found.update(block)
        at = parts.write(fd, block, at)

    fd = parts.opened(session, ask["id"])
    failed = None
    try:
        inlet.copy(length, sink)
    except OSError as e:
        failed = e
    last = session.wire.receive(SILENCE_S)
    if last is None:
        raise EOFError("the controller went silent in the middle of a file")
    if failed is not None:
        raise failed
    if last[0].get("sha256") != found.hexdigest():
        raise Refusal("digest", detail=f"a range arrived as {found.hexdigest()}, sent as {last[0].get('sha256')}")
    parts.note(session, ask["id"], offset, length, found.hexdigest())
    return {}


OPERATIONS: Operations = {"versions": versions, "range": ranged, "pack": pack, "puts": puts, "write": write}
_F_SETPIPE_SZ = 1031


def serve(root: str, nonce: str) -> int:
    """A data connection: nothing but bytes, answered in order until it ends."""
    with contextlib.suppress(OSError):  # where sshd gave us a pipe: fewer, larger reads on its side
        fcntl.fcntl(1, _F_SETPIPE_SZ, wire.CHUNK_BYTES)
    session = Session(root, greet(nonce))
    session.wire.send({"pid": os.getpid()})
    return loop(session, OPERATIONS)
