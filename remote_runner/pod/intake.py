"""Bytes of files that come to the pod over a data connection.

    write    a piece of a large file, to a part (parts.py), whose digest is taken in order by whoever trails it
    puts     many small files: hashed, written aside, made durable together, and each given its name in one rename

Not here: how bytes leave (bulk.py).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from typing import Any, Callable, Dict, Iterator, List, Optional, Set

from remote_runner.pod import files, flush, parts
from remote_runner.pod.session import SILENCE_S, Refusal, Session, fault


class _Inlet:
    """The bytes of a request that carries some: read to its end, whatever happens, or the next would be misread."""

    def __init__(self, session: Session, left: int) -> None:
        self._session, self._left = session, left
        self._ahead: Iterator[memoryview] = iter(())
        self._kept = memoryview(b"")

    def piece(self, most: int) -> memoryview:
        """Some bytes, no more than `most`."""
        while not self._kept:
            self._kept = next(self._ahead, memoryview(b""))
            if not self._kept:
                self._ahead = self._session.wire.pieces(SILENCE_S)
                continue
            self._left -= len(self._kept)
            if self._left < 0:
                raise EOFError("more than was announced")
        found, self._kept = self._kept[:most], self._kept[most:]
        return found

    def drain(self) -> None:
        self._kept = memoryview(b"")
        while self._left > 0:
            self.piece(self._left)
            self._kept = memoryview(b"")

    def all(self, size: int) -> bytes:
        """The next `size` bytes."""
        found: List[memoryview] = []
        while size:
            found.append(self.piece(size))
            size -= len(found[-1])
        return b"".join(found)


def write(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    """Receive a piece of a part, and enter it in the part's journal."""
    offset, left = int(ask["offset"]), int(ask["length"])
    inlet, at = _Inlet(session, left), offset
    failed: Optional[Exception] = None
    fd = -1
    try:
        fd = parts.opened(session, ask["id"])
    except (OSError, ValueError) as e:
        failed = e
    while left:
        block = inlet.piece(left)
        left -= len(block)
        try:
            if failed is None:
                at = parts.write(fd, block, at)
        except OSError as e:
            failed = e
    if failed is not None:
        raise failed
    parts.note(session, ask["id"], offset, at - offset)
    return {}


def puts(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    """Receive small files; each gets its name only when its digest is the announced one.

    Each row of the answer is [0, size, mtime_ns, ctime_ns, inode], or [errno, what is wrong].
    """
    wanted: List[Dict[str, Any]] = ask["files"]
    inlet = _Inlet(session, sum(f["size"] for f in wanted))
    try:
        with files.Folders(session.root, create=True) as folders:
            return {"rows": _puts(folders, inlet, wanted, bool(ask["durable"]))}
    finally:
        inlet.drain()


def _puts(folders: files.Folders, inlet: _Inlet, wanted: List[Dict[str, Any]], durable: bool) -> List[List[Any]]:
    rows: List[List[Any]] = [[] for _ in wanted]
    held: Dict[int, int] = {}  # number -> descriptor
    used: Set[int] = set()
    incoming, _ = folders.of(parts.INCOMING + "/x")

    def aside(number: int, one: Dict[str, Any]) -> None:
        held[number] = _aside(incoming, number, one, inlet.all(int(one["size"])))

    def name(number: int, one: Dict[str, Any]) -> None:
        folder, last = folders.of(one["path"])
        rows[number] = [0, *_name(held[number], incoming, number, folder, last)]
        used.add(folder)

    try:
        well = _each(rows, list(range(len(wanted))), wanted, aside)
        if durable and well:
            flush.together(incoming, (held[number] for number in well), len(well))
        _each(rows, well, wanted, name)
    finally:
        for fd in held.values():
            os.close(fd)
    for number, row in enumerate(rows):
        if row[0]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(_temp(number), dir_fd=incoming)
    for folder in used if durable else ():
        os.fsync(folder)
    return rows


def _each(
    rows: List[List[Any]], numbers: List[int], wanted: List[Dict[str, Any]], do: Callable[[int, Dict[str, Any]], None]
) -> List[int]:
    """Those with which it went well; what went wrong with another is its row."""
    well = []
    for number in numbers:
        try:
            do(number, wanted[number])
            well.append(number)
        except OSError as e:
            rows[number] = [e.errno or errno.EIO, fault(e, wanted[number])["detail"]]
        except (Refusal, ValueError) as e:
            rows[number] = [errno.EBADMSG, str(e)]
    return well


def _temp(number: int) -> str:
    return f"{os.getpid()}-{number}.whole"


def _aside(incoming: int, number: int, one: Dict[str, Any], data: bytes) -> int:
    found = hashlib.sha256(data).hexdigest()
    if found != one["sha256"]:
        raise Refusal(f"{one['path']}: arrived as {found}, sent as {one['sha256']}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    fd = os.open(_temp(number), flags, 0o600, dir_fd=incoming)
    try:
        files.write_all(fd, data)
        os.fchmod(fd, one["mode"] & 0o777)
        os.utime(fd, ns=(one["mtime_ns"], one["mtime_ns"]))
    except BaseException:
        os.close(fd)
        raise
    return fd


def _name(fd: int, incoming: int, number: int, folder: int, name: str) -> List[int]:
    """Rename it; its stamps under its name."""
    os.replace(_temp(number), name, src_dir_fd=incoming, dst_dir_fd=folder)
    now = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if now.st_ino != os.fstat(fd).st_ino:
        raise OSError(errno.EAGAIN, "replaced by somebody else", name)
    return [now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino]
