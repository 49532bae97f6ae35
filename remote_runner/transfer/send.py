"""Files to the pod: large ones in ranges to a part there, small ones in packs, and nothing that is there already.

    what is there under this or another name  ->  stays, or is linked there
    ranges and packs over all channels        ->  hashed on both ends as they stream
    the agent follows with the digest of each part's proven prefix, and names it when it fits

Not here: who runs the requests (engine.py), the pod's side (pod/parts.py, pod/bulk.py).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from remote_runner.agent import Agent
from remote_runner.conversation import SILENCE_S, Conversation, Denied, field, printable
from remote_runner.errors import NotStarted
from remote_runner.pod import files, wire
from remote_runner.transfer import engine
from remote_runner.transfer.channels import Channels
from remote_runner.transfer.engine import Engine, Unit, Work
from remote_runner.transfer.fetch import (
    DENSE,
    PACK_BYTES,
    PACK_FILES,
    PACK_NAMES_BYTES,
    SQUEEZE_BYTES_S,
    SQUEEZE_RTT_S,
)
from remote_runner.transfer.items import PACKED_BYTES, Item
from remote_runner.transfer.part import gaps
from remote_runner.transfer.progress import Meter, Progress, silent

ASK_AT_ONCE = 1_000
AHEAD = 32  # finished parts whose answers are not read yet
TRAIL_BYTES = 64 << 20  # the agent is told of a part's progress in steps of this
FINISH_S = 300.0  # for a disk that syncs slowly; while it reads, the pod says that it is busy
_ROOM = "make room on the pod, or look at its disk"
_AGAIN = "run the command again: a file that changes while it is sent is noticed like any damage"


def send(
    agent: Agent, items: Iterable[Item], progress: Progress = silent, *, channels: Channels | None = None
) -> list[Item]:
    """Put files on the pod.

    Large files that an earlier call began go on from what arrived; what is there already does not travel.

    Returns:
        The items, each with its digest.

    Raises:
        NotStarted: a file changed while it was sent, the pod's disk refused, or bytes arrived damaged.
        LinkLost: the link broke for too long; call again.
    """
    everything = list(items)
    try:
        return _send(agent, everything, progress, channels, from_before=True)
    except Denied as e:
        if e.reason != "digest":
            raise _refused(e) from None
    # The pod threw the part away: what was there from before was not its beginning. Once more, from the start.
    try:
        return _send(agent, everything, progress, channels, from_before=False)
    except Denied as e:
        raise _refused(e) from None


def _send(
    agent: Agent, everything: list[Item], progress: Progress, channels: Channels | None, from_before: bool
) -> list[Item]:
    there, seeds = _already_there(agent, everything)
    seeds = seeds if from_before else {}
    wanted = [i for i in everything if i.path not in there]
    if not wanted:
        return everything
    meter = Meter(sum(i.size for i in wanted), len(wanted), progress)
    work = _SendWork(wanted, meter)
    with Engine(work, agent, meter.total_bytes, channels, meter) as running:
        work.squeeze = running.rtt_s >= SQUEEZE_RTT_S
        _begin(agent, work, seeds)
        if running.parallel:
            _together(agent, work, running)
        else:
            work.names_later = True
            running.begin_on_agent()
            for _ in running.watch():
                work.wait(0.2)
        if work.names_later:
            _Finisher(agent, work).all()
    _remember(agent, work)
    digest_of = {p.item.path: p.sha256 for p in work.parts} | {i.path: i.sha256 for i in work.sent}
    return [replace(i, sha256=digest_of.get(i.path) or i.sha256) for i in everything]


def _refused(denied: Denied) -> NotStarted:
    full = denied.facts.get("errno") in (errno.ENOSPC, errno.EDQUOT)
    return NotStarted(f"upload failed: {denied}", fix=_ROOM if full or denied.reason == "os" else _AGAIN)


def _already_there(agent: Agent, items: list[Item]) -> tuple[set[str], dict[str, int]]:
    there: set[str] = set()
    seeds: dict[str, int] = {}
    for at in range(0, len(items), ASK_AT_ONCE):
        rows = [[i.path, i.size, i.sha256, i.mode, i.mtime_ns] for i in items[at : at + ASK_AT_ONCE]]
        agent.send({"op": "have", "files": rows})
        answer = agent.answer(FINISH_S)
        there.update(field(answer, "done", list))
        seeds.update(field(answer, "seeds", dict))
    return there, seeds


def _begin(agent: Agent, work: _SendWork, seeds: dict[str, int]) -> None:
    """Ask for room for each large file, and what is there of it from before."""
    asked: deque[_Outgoing] = deque()
    for part in [*work.parts, None]:
        while asked and (part is None or len(asked) > AHEAD):
            first = asked.popleft()
            rows = field(agent.answer(FINISH_S), "ranges", list)
            with work.changed:
                first.begin(_checked(rows, first.item))
                work.changed.notify_all()
            work.meter.spared(first.item.size - sum(e - b for b, e in first.gaps))
        if part is not None:
            seed = part.item.path if part.item.path in seeds and part.item.path.endswith((".log", ".jsonl")) else ""
            agent.send({"op": "begin", "id": part.ident, "path": part.item.path, "size": part.item.size, "seed": seed})
            asked.append(part)


def _checked(rows: list[Any], item: Item) -> list[list[int]]:
    found = []
    at = 0
    for row in rows:
        if not (isinstance(row, list) and len(row) == 2 and all(type(n) is int for n in row) and row[0] >= at):
            raise NotStarted(f"the pod's answer about {item.path} makes no sense", fix="do not trust this pod")
        at = row[0] + row[1]
        found.append(row)
    if at > item.size:
        raise NotStarted(f"the pod's answer about {item.path} makes no sense", fix="do not trust this pod")
    return found


def _together(agent: Agent, work: _SendWork, running: Engine) -> None:
    """Bytes over the channels, digests and names over the agent, at the same time."""
    finisher = _Finisher(agent, work)
    thread = threading.Thread(target=finisher.run, name="finish", daemon=True)

    def stop() -> None:
        finisher.stopped.set()
        with work.changed:
            work.names_later = not work.all_named
            work.changed.notify_all()
        thread.join(SILENCE_S)

    running.before_agent = stop
    thread.start()
    try:
        for _ in running.watch():
            work.wait(0.2)
    finally:
        stop()


def _remember(agent: Agent, work: _SendWork) -> None:
    """Let the pod keep the digests, so that the next comparison reads nothing."""
    now = time.time_ns()
    rows = [[p.item.path, p.sha256, *p.stamp, now, True] for p in work.parts if p.stamp]
    rows += [[i.path, i.sha256, *stamp, now, True] for i, stamp in zip(work.sent, work.stamps, strict=True)]
    for at in range(0, len(rows), ASK_AT_ONCE):
        agent.ask("remember", files=rows[at : at + ASK_AT_ONCE])


class _Outgoing:
    """A large file on its way out."""

    def __init__(self, item: Item) -> None:
        self.item = item
        self.sha256 = item.sha256
        self.stamp: list[int] = []
        origin = [item.path, item.size, item.mtime_ns, item.sha256]
        self.ident = hashlib.sha256(json.dumps(origin).encode()).hexdigest()[:32]
        self.begun = self.named = False
        self.gaps: list[tuple[int, int]] = []
        self._arrived: dict[int, int] = {}  # offset -> length
        self.prefix = 0
        self.fd = -1

    def begin(self, rows: list[list[int]]) -> None:
        self.fd = os.open(self.item.source, os.O_RDONLY)
        self.check()
        self.gaps = gaps(rows, self.item.size)
        self._arrived = {row[0]: row[1] for row in rows}
        self.prefix, self.begun = 0, True
        self._advance()

    def check(self) -> None:
        """Raises NotStarted when the file is no longer what it was."""
        info = os.fstat(self.fd)
        if (info.st_size, info.st_mtime_ns) != (self.item.size, self.item.mtime_ns):
            raise NotStarted(f"{self.item.path} changed while it was sent", fix=_AGAIN)

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


class _SendWork(Work):
    """What is still to go."""

    def __init__(self, items: list[Item], meter: Meter) -> None:
        super().__init__()
        self.meter, self.squeeze = meter, False
        by_size = sorted(items, key=lambda i: -i.size)
        self.parts = [_Outgoing(i) for i in by_size if i.size > PACKED_BYTES]
        self._packs = deque(_packed(self, [i for i in by_size if i.size <= PACKED_BYTES]))
        self.sent: list[Item] = []  # small ones that are in place, with the pod's stamps of them
        self.stamps: list[list[int]] = []
        self.names_later = False  # the agent carries bytes now: parts get their names when these are through

    def _next(self) -> Unit | None:
        most = engine.range_bytes(sum(e - b for p in self.parts for b, e in p.gaps), self.streams)
        for part in self.parts:
            if part.gaps:
                begin, end = part.gaps[0]
                length = min(most, end - begin)
                part.gaps[:1] = [(begin + length, end)] if begin + length < end else []
                return _Range(self, part, begin, length)
        return self._packs.popleft() if self._packs else None

    def _complete(self) -> bool:
        return not self._packs and all(
            p.named or (p.begun and self.names_later and p.prefix == p.item.size) for p in self.parts
        )

    @property
    def all_named(self) -> bool:
        return all(p.named for p in self.parts)

    def compressed(self, path: str) -> bool:
        if path.endswith(DENSE):
            return False
        return self.squeeze or (self.meter.elapsed_s > 2 and self.meter.rate_bytes_s < SQUEEZE_BYTES_S)

    def wait(self, most_s: float) -> None:
        with self.changed:
            if not self.over:
                self.changed.wait(most_s)


def _packed(work: _SendWork, items: list[Item]) -> Iterator[_Pack]:
    for dense in (True, False):
        pack: list[Item] = []
        size = names = 0
        for one in items:
            if one.path.endswith(DENSE) != dense:
                continue
            full = len(pack) >= PACK_FILES or size + one.size > PACK_BYTES or names > PACK_NAMES_BYTES
            if pack and (full or one.durable != pack[0].durable):
                yield _Pack(work, pack)
                pack, size, names = [], 0, 0
            pack.append(one)
            size += one.size
            names += 4 * len(one.path)
        if pack:
            yield _Pack(work, pack)


class _Range:
    """A piece of a large file."""

    def __init__(self, work: _SendWork, part: _Outgoing, offset: int, length: int) -> None:
        self._work, self._part, self._offset, self._length = work, part, offset, length

    def send(self, channel: Conversation) -> None:
        squeeze = self._work.compressed(self._part.item.path)
        found, at, end = hashlib.sha256(), self._offset, self._offset + self._length
        channel.send({"op": "write", "id": self._part.ident, "offset": self._offset, "length": self._length})
        while at < end:
            block = os.pread(self._part.fd, min(wire.CHUNK_BYTES, end - at), at)
            if not block:
                raise NotStarted(f"{self._part.item.path} became shorter while it was sent", fix=_AGAIN)
            found.update(block)
            channel.send(*wire.chunk(block, squeeze))
            at += len(block)
            self._work.meter.moved(len(block))
        channel.send({"sha256": found.hexdigest()})

    def receive(self, channel: Conversation) -> None:
        channel.answer()
        with self._work.changed:
            self._part.arrived(self._offset, self._length)
            self._work.changed.notify_all()


class _Pack:
    """Small files in one request."""

    def __init__(self, work: _SendWork, items: list[Item]) -> None:
        self._work, self._items = work, items

    def send(self, channel: Conversation) -> None:
        squeeze = self._work.compressed(self._items[0].path)
        contents = [_content(i) for i in self._items]
        self._items = [
            replace(i, sha256=i.sha256 or hashlib.sha256(c).hexdigest())
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
            self._work.meter.moved(len(block))

    def receive(self, channel: Conversation) -> None:
        rows = field(channel.answer(), "rows", list)
        for one, row in zip(self._items, rows, strict=True):
            if not isinstance(row, list) or not row or not all(type(n) is int for n in row[:1]):
                raise NotStarted(f"the pod's answer about {one.path} makes no sense", fix="do not trust this pod")
            if row[0] != 0:
                said = printable(str(row[1]))[:500] if len(row) > 1 else "refused"
                fix = _AGAIN if row[0] == errno.EBADMSG else _ROOM
                raise NotStarted(f"upload of {one.path} failed: {said}", fix=fix)
            with self._work.changed:
                self._work.sent.append(one)
                self._work.stamps.append(row[1:5])
            self._work.meter.done()


def _content(one: Item) -> bytes:
    with one.source.open("rb") as f:
        data = f.read(one.size + 1)
    if len(data) != one.size:
        raise NotStarted(f"{one.path} changed while it was sent", fix=_AGAIN)
    return data


class _Finisher:
    """Follows the parts with digests, here where none was known, and on the pod; then has them named."""

    def __init__(self, agent: Agent, work: _SendWork) -> None:
        self._agent, self._work = agent, work
        self.stopped = threading.Event()
        self._asked: deque[_Outgoing | None] = deque()

    def run(self) -> None:
        """The thread; what goes wrong becomes the work's failure."""
        try:
            self.all()
        except BaseException as e:  # noqa: BLE001
            self._work.fail(e)

    def all(self) -> None:
        failed: Denied | None = None
        try:
            for part in self._work.parts:
                if not part.named and not self._one(part):
                    break
        except Denied as e:
            failed = e
        while self._asked:  # every answer is read, or the next request would get it
            try:
                self._read()
            except Denied as e:
                failed = failed or e
        if failed is not None:
            raise failed

    def _one(self, part: _Outgoing) -> bool:
        found, told, size = hashlib.sha256(), 0, part.item.size
        while told < size:
            with self._work.changed:
                while not self.stopped.is_set() and part.prefix < min(size, told + TRAIL_BYTES):
                    self._work.changed.wait(0.5)
                upto = part.prefix
            if self.stopped.is_set():
                return False
            self._agent.send({"op": "trail", "id": part.ident, "upto": upto})
            self._asked.append(None)
            if not part.item.sha256:
                _hash_file(part.fd, told, upto, found)
            told = upto
            while self._asked and self._agent.waiting():
                self._read()
        part.sha256 = part.item.sha256 or found.hexdigest()
        part.check()
        one = part.item
        facts = {"sha256": part.sha256, "mode": one.mode, "mtime_ns": one.mtime_ns, "durable": one.durable}
        self._agent.send({"op": "finish", "id": part.ident, "path": one.path, "size": one.size, **facts})
        self._asked.append(part)
        while len(self._asked) > AHEAD:
            self._read()
        return True

    def _read(self) -> None:
        part = self._asked.popleft()
        answer = self._agent.answer(FINISH_S)
        if part is not None:
            with self._work.changed:
                part.stamp = [field(answer, name, int) for name in ("size", "mtime_ns", "ctime_ns", "ino")]
                part.named = True
                part.close()
                self._work.meter.done()
                self._work.changed.notify_all()


def _hash_file(fd: int, begin: int, end: int, found: Any) -> None:
    while begin < end:
        block = os.pread(fd, min(files.BLOCK_BYTES, end - begin), begin)
        if not block:
            return
        found.update(block)
        begin += len(block)
