"""The requests of an upload: each asks the pod for something, or brings it bytes, and reads what it says.

Not here: which are made and when (send.py), the pod's side (pod/parts.py, pod/intake.py).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from dataclasses import replace
from typing import Any, Protocol

from remote_runner.conversation import Conversation, field, printable
from remote_runner.errors import NotStarted
from remote_runner.pod import files, wire
from remote_runner.transfer.engine import Work
from remote_runner.transfer.items import Item, stamp
from remote_runner.transfer.part_file import gaps
from remote_runner.transfer.progress import Meter
from remote_runner.transfer.telling import Telling

FINISH_S = 300.0  # for a disk that syncs slowly; while it reads, the pod says that it is busy
TRAIL_BYTES = 32 << 20  # a part is hashed in steps of this, here and there
ROOM = "make room on the pod, or look at its disk"
AGAIN = "run the command again: a file that changes while it is sent is noticed like any damage"
_DISTRUST = "do not trust this pod"


class Plan(Protocol):
    """What the requests need of the upload that they are part of (send.py)."""

    work: Work
    meter: Meter
    sent: list[Item]
    telling: Telling

    def compressed(self, path: str) -> bool:
        """Whether a file's bytes should be compressed on the way."""


class Outgoing:
    """A large file on its way out."""

    def __init__(self, item: Item, seeded: bool) -> None:
        self.item, self.seeded = item, seeded
        self.sha256 = item.sha256
        self.found = hashlib.sha256()  # of what was trailed
        origin = [item.path, item.size, item.mtime_ns, item.sha256]
        self.ident = hashlib.sha256(json.dumps(origin).encode()).hexdigest()[:32]
        self.asked = self.begun = self.finishing = self.named = False
        self.gaps: list[tuple[int, int]] = []
        self.trailed = 0  # as far as the pod was asked to hash it
        self.prefix = 0  # there without a gap
        self._arrived: dict[int, int] = {}  # offset -> length
        self.fd = -1

    def begin(self, rows: list[list[int]]) -> None:
        self.fd = os.open(self.item.source, os.O_RDONLY)
        self.check()
        self.gaps = gaps(rows, self.item.size)
        self._arrived = {row[0]: row[1] for row in rows}
        self.begun = True
        self._advance()

    def check(self) -> None:
        """Raises NotStarted when the file is no longer what it was."""
        info = os.fstat(self.fd)
        if (info.st_size, info.st_mtime_ns) != (self.item.size, self.item.mtime_ns):
            raise NotStarted(f"{self.item.path} changed while it was sent", fix=AGAIN)

    def take(self, most: int) -> tuple[int, int] | None:
        """The next range to send: offset and length."""
        if not self.gaps:
            return None
        begin, end = self.gaps[0]
        length = min(most, end - begin)
        self.gaps[:1] = [(begin + length, end)] if begin + length < end else []
        return begin, length

    def to_trail(self) -> tuple[int, int] | None:
        """What both ends should hash next: from where and up to where."""
        upto = min(self.item.size, self.trailed + TRAIL_BYTES)
        if not self.begun or self.trailed == upto or self.prefix < upto:
            return None
        begin, self.trailed = self.trailed, upto
        return begin, upto

    def arrived(self, offset: int, length: int) -> None:
        self._arrived[offset] = length
        self._advance()

    def _advance(self) -> None:
        while self.prefix in self._arrived:
            self.prefix += self._arrived.pop(self.prefix)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Begin:
    """Asks for room for a large file, and what is there of it from before."""

    size_bytes = 0

    def __init__(self, plan: Plan, part: Outgoing) -> None:
        self._plan, self._part = plan, part

    def send(self, channel: Conversation) -> None:
        one = self._part.item
        seed = one.path if self._part.seeded else ""
        channel.send({"op": "begin", "id": self._part.ident, "path": one.path, "size": one.size, "seed": seed})

    def receive(self, channel: Conversation) -> None:
        rows = _ranges(field(channel.answer(FINISH_S), "ranges", list), self._part.item)
        with self._plan.work.changed:
            self._part.begin(rows)
            self._plan.work.changed.notify_all()
        self._plan.meter.spared(sum(length for _, length in rows))


def _ranges(rows: list[Any], item: Item) -> list[list[int]]:
    at = 0
    for row in rows:
        if not (isinstance(row, list) and len(row) == 2 and all(type(n) is int for n in row) and row[0] >= at):
            raise NotStarted(f"the pod's answer about {item.path} makes no sense", fix=_DISTRUST)
        at = row[0] + row[1]
    if at > item.size:
        raise NotStarted(f"the pod's answer about {item.path} makes no sense", fix=_DISTRUST)
    return rows


class Range:
    """A piece of a large file."""

    def __init__(self, plan: Plan, part: Outgoing, offset: int, length: int) -> None:
        self._plan, self._part, self._offset, self._length = plan, part, offset, length
        self.size_bytes = length

    def send(self, channel: Conversation) -> None:
        part, at, end = self._part, self._offset, self._offset + self._length
        squeeze = self._plan.compressed(part.item.path)
        channel.send({"op": "write", "id": part.ident, "offset": self._offset, "length": self._length})
        while at < end:
            size = min(wire.CHUNK_BYTES, end - at)
            if squeeze:
                block = os.pread(part.fd, size, at)
                channel.send(*wire.chunk(block, True))
                whole = len(block) == size
            else:
                whole = channel.send_file({"data": True}, part.fd, at, size)
            if not whole:
                raise NotStarted(f"{part.item.path} became shorter while it was sent", fix=AGAIN)
            at += size
            self._plan.meter.moved(size)

    def receive(self, channel: Conversation) -> None:
        channel.answer()
        with self._plan.work.changed:
            self._part.arrived(self._offset, self._length)
            self._plan.work.changed.notify_all()


class Trail:
    """Has the pod hash what came of a large file, and does so here where its digest is not known."""

    size_bytes = 0

    def __init__(self, part: Outgoing, begin: int, upto: int) -> None:
        self._part, self._begin, self._upto = part, begin, upto

    def send(self, channel: Conversation) -> None:
        channel.send({"op": "trail", "id": self._part.ident, "upto": self._upto})
        if not self._part.item.sha256:
            _hash_file(self._part.fd, self._begin, self._upto, self._part.found)

    def receive(self, channel: Conversation) -> None:
        channel.answer(FINISH_S)


class Finish:
    """Has the pod prove a large file and give it its name."""

    size_bytes = 0

    def __init__(self, plan: Plan, part: Outgoing) -> None:
        self._plan, self._part = plan, part

    def send(self, channel: Conversation) -> None:
        part, one = self._part, self._part.item
        part.sha256 = one.sha256 or part.found.hexdigest()
        part.check()
        facts = {"sha256": part.sha256, "mode": one.mode, "mtime_ns": one.mtime_ns, "durable": one.durable}
        channel.send({"op": "finish", "id": part.ident, "path": one.path, "size": one.size, **facts})

    def receive(self, channel: Conversation) -> None:
        answer = channel.answer(FINISH_S)
        self._plan.telling.add(self._part.item.path, self._part.sha256, stamp(answer))
        with self._plan.work.changed:
            self._part.named = True
            self._part.close()
            self._plan.meter.done()
            self._plan.work.changed.notify_all()


def _hash_file(fd: int, begin: int, end: int, found: Any) -> None:
    while begin < end:
        block = os.pread(fd, min(files.BLOCK_BYTES, end - begin), begin)
        if not block:
            return
        found.update(block)
        begin += len(block)


class Pack:
    """Small files in one request."""

    def __init__(self, plan: Plan, items: list[Item]) -> None:
        self._plan, self._items = plan, items
        self.size_bytes = sum(i.size for i in items)

    def send(self, channel: Conversation) -> None:
        squeeze = self._plan.compressed(self._items[0].path)
        contents = [_content(i) for i in self._items]
        self._items = [
            i if i.sha256 else replace(i, sha256=hashlib.sha256(c).hexdigest())
            for i, c in zip(self._items, contents, strict=True)
        ]
        rows = [
            {"path": i.path, "size": i.size, "sha256": i.sha256, "mode": i.mode, "mtime_ns": i.mtime_ns}
            for i in self._items
        ]
        channel.send({"op": "puts", "files": rows, "durable": self._items[0].durable})
        data = b"".join(contents)
        for at in range(0, len(data), wire.CHUNK_BYTES):
            block = data[at : at + wire.CHUNK_BYTES]
            channel.send(*wire.chunk(block, squeeze))
            self._plan.meter.moved(len(block))

    def receive(self, channel: Conversation) -> None:
        rows = field(channel.answer(FINISH_S), "rows", list)
        if len(rows) != len(self._items):
            raise NotStarted(f"{channel.where} answers {len(rows)} files for {len(self._items)}", fix=_DISTRUST)
        for one, row in zip(self._items, rows, strict=True):
            if not isinstance(row, list) or not row or type(row[0]) is not int:
                raise NotStarted(f"the pod's answer about {one.path} makes no sense", fix=_DISTRUST)
            if row[0] != 0:
                said = printable(str(row[1]))[:500] if len(row) > 1 else "refused"
                raise NotStarted(f"upload of {one.path} failed: {said}", fix=_fix(row[0]))
        with self._plan.work.changed:
            self._plan.sent.extend(self._items)
        for one, row in zip(self._items, rows, strict=True):
            self._plan.telling.add(one.path, one.sha256, row[1:5])
        self._plan.meter.done(len(rows))


def _fix(code: int) -> str:
    return AGAIN if code == errno.EBADMSG else ROOM


def _content(one: Item) -> bytes:
    with one.source.open("rb", buffering=0) as f:
        data = f.read(one.size + 1)
    if len(data) != one.size:
        raise NotStarted(f"{one.path} changed while it was sent", fix=AGAIN)
    return data
