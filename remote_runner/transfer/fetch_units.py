"""The requests of a fetch: each asks the pod for something, checks what it says, and hands it on.

Not here: which are asked for and when (fetch.py).
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from remote_runner.conversation import Conversation, Denied, field
from remote_runner.errors import Unverified
from remote_runner.pod import files, flush, layout
from remote_runner.transfer.items import PACKED_BYTES, Fetched, damaged, dress, stamp
from remote_runner.transfer.part import Part
from remote_runner.transfer.progress import Meter


class Plan(Protocol):
    """What the requests need of the fetch that they are part of (fetch.py)."""

    incoming: Path
    meter: Meter

    def compressed(self, path: str) -> bool:
        """Whether a file's bytes should be compressed on the way."""

    def begin(self, part: Part, facts: dict[str, Any] | None) -> None:
        """Take up the version that the pod has; None: it has none."""

    def lost_version(self, part: Part, generation: int) -> None:
        """The version that was begun is no longer to be had."""

    def fetch_whole(self, path: str) -> None:
        """Take up a file as a large one, whatever it was listed as."""

    def arrive(self, one: Fetched) -> None:
        """A file is here, durable."""

    def temps(self, count: int) -> list[Path]:
        """Names for files that arrive whole."""


def _of(part: Part) -> dict[str, Any]:
    return {"path": part.path, "version": part.version, "grows": part.path.endswith(layout.APPENDED)}


class Range:
    """A piece of a large file."""

    def __init__(self, plan: Plan, part: Part, offset: int, length: int) -> None:
        self._plan, self._part, self._offset, self._length = plan, part, offset, length
        self.size_bytes = length
        self._generation, self._ask = part.generation, _of(part)

    def send(self, channel: Conversation) -> None:
        squeeze = self._plan.compressed(self._part.path)
        channel.send({"op": "range", **self._ask, "offset": self._offset, "length": self._length, "squeeze": squeeze})

    def receive(self, channel: Conversation) -> None:
        at, into = self._offset, self._part.file_of(self._generation)

        def take(block: memoryview) -> None:
            nonlocal at
            if into is not None:
                into.write(at, block)
            at += len(block)
            self._plan.meter.moved(len(block))

        answer = channel.stream(self._length, self._part.path, take)
        if answer.get("ok") is not True:
            if answer.get("reason") == "changed":
                self._plan.lost_version(self._part, self._generation)
                return
            raise Denied(answer)
        if at != self._offset + self._length:
            raise damaged(self._part.path, f"{at - self._offset} bytes of a range", f"{self._length} bytes")
        if answer.get("settled") is not True:
            self._part.settled = False
        self._part.arrived(self._generation, self._offset, self._length)


class Marks:
    """The pod's digests of a large file's beginning."""

    size_bytes = 0

    def __init__(self, plan: Plan, part: Part, begin: int, upto: int) -> None:
        self._plan, self._part, self._begin, self._upto = plan, part, begin, upto
        self._generation, self._ask = part.generation, _of(part)

    def send(self, channel: Conversation) -> None:
        channel.send({"op": "prefix", **self._ask, "begin": self._begin, "upto": self._upto})

    def receive(self, channel: Conversation) -> None:
        try:
            rows = field(channel.answer(), "marks", list)
        except Denied as e:
            if e.reason != "changed":
                raise
            self._plan.lost_version(self._part, self._generation)
            return
        marks = {}
        for row in rows:
            if not (isinstance(row, list) and len(row) == 2 and type(row[0]) is int and isinstance(row[1], str)):
                raise Unverified(f"{self._part.path}: the pod's answer about it is none", fix="do not trust this pod")
            if self._begin < row[0] <= self._upto:
                marks[row[0]] = row[1][:64]
        if self._upto not in marks:
            raise Unverified(f"{self._part.path}: the pod tells no digest of it", fix="do not trust this pod")
        self._part.learn(self._generation, marks)


class Version:
    """Which version of a file there is now."""

    size_bytes = 0

    def __init__(self, plan: Plan, part: Part) -> None:
        self._plan, self._part = plan, part

    def send(self, channel: Conversation) -> None:
        channel.send({"op": "versions", "paths": [self._part.path]})

    def receive(self, channel: Conversation) -> None:
        found = field(channel.answer(), "versions", list)
        if len(found) != 1 or not isinstance(found[0], dict | None):
            raise Unverified(f"{self._part.path}: the pod's answer about it is none", fix="do not trust this pod")
        self._plan.begin(self._part, found[0])


class Tail:
    """What a log that is here has got since; the pod proves that it begins with what is here."""

    def __init__(self, plan: Plan, path: str, old: Path, facts: dict[str, Any]) -> None:
        self._plan, self._path, self._old, self._facts = plan, path, old, facts
        self.size_bytes = 0  # it says little of the connection
        self._version = [field(facts, name, int) for name in ("size", "mtime_ns", "ino")]
        self._have = 0

    def send(self, channel: Conversation) -> None:
        self._have = min(self._old.stat().st_size, self._version[0])
        ask = {"path": self._path, "version": self._version, "offset": self._have, "grows": True, "whole": True}
        more = {"length": self._version[0] - self._have, "squeeze": self._plan.compressed(self._path)}
        channel.send({"op": "range", **ask, **more})

    def receive(self, channel: Conversation) -> None:
        (temp,), whole = self._plan.temps(1), hashlib.sha256()
        with temp.open("wb") as f:
            with self._old.open("rb") as old:
                left = self._have
                while left and (block := old.read(min(left, files.BLOCK_BYTES))):
                    whole.update(block)
                    f.write(block)
                    left -= len(block)

            def take(block: memoryview) -> None:
                whole.update(block)
                f.write(block)
                self._plan.meter.moved(len(block))

            answer = channel.stream(self._version[0] - self._have, self._path, take)
            f.flush()
            dress(f.fileno(), field(self._facts, "mode", int), self._version[1])
            os.fsync(f.fileno())
        if answer.get("ok") is not True or answer.get("whole") != whole.hexdigest():
            temp.unlink()  # not the same log with more in it, or damaged: the whole of it settles that
            self._plan.fetch_whole(self._path)
            return
        self._plan.meter.spared(self._have)
        self._plan.arrive(
            Fetched(
                path=self._path,
                temp=temp,
                size=self._version[0],
                sha256=whole.hexdigest(),
                mode=field(self._facts, "mode", int) & 0o777,
                mtime_ns=field(self._facts, "mtime_ns", int),
                stamp=stamp(self._facts) if answer.get("settled") is True else (),
            )
        )


class Pack:
    """Small files in one request."""

    def __init__(self, plan: Plan, paths: list[str], size: int) -> None:
        self._plan, self._paths, self._most = plan, paths, size + PACKED_BYTES
        self.size_bytes = size

    def send(self, channel: Conversation) -> None:
        # small logs always: they shrink to a tenth in no time
        squeeze = self._plan.compressed(self._paths[0]) or all(p.endswith(layout.APPENDED) for p in self._paths)
        channel.send({"op": "pack", "paths": self._paths, "most": self._most, "squeeze": squeeze})

    def receive(self, channel: Conversation) -> None:
        blocks: list[memoryview] = []

        def take(block: memoryview) -> None:
            blocks.append(block)
            self._plan.meter.moved(len(block))

        answer = channel.stream(self._most, self._paths[0], take)
        if answer.get("ok") is not True:
            raise Denied(answer)
        rows = field(answer, "rows", list)
        if len(rows) != len(self._paths):
            raise Unverified(f"{channel.where} answers {len(rows)} files for {len(self._paths)}", fix="do not trust it")
        data, at = memoryview(b"".join(blocks)), 0
        came: list[tuple[str, list[Any], memoryview]] = []
        for path, row in zip(self._paths, rows, strict=True):
            if not isinstance(row, list) or not row or type(row[0]) is not int:
                raise Unverified(f"{path}: the pod's answer about it is none", fix="do not trust this pod")
            if row[0] == 0:
                content = _proven(path, row, data[at:])
                came.append((path, row, content))
                at += len(content)
            elif row[0] == errno.EFBIG:
                self._plan.fetch_whole(path)
            elif row[0] not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise Denied({"reason": "os", "errno": row[0], "detail": f"{path}: {os.strerror(row[0])}"})
        if at != len(data):
            raise Unverified(f"{channel.where} sends bytes that belong to no file", fix="do not trust this pod")
        self._keep(came)

    def _keep(self, came: list[tuple[str, list[Any], memoryview]]) -> None:
        """Write them down, make them durable together, and hand them on."""
        temps = self._plan.temps(len(came))
        for temp, (_, row, content) in zip(temps, came, strict=True):
            fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            try:
                files.write_all(fd, content)
                dress(fd, row[3], row[4])
            finally:
                os.close(fd)
        folder = os.open(self._plan.incoming, os.O_RDONLY | os.O_DIRECTORY)
        try:
            flush.together(folder, _opened(temps), len(temps))
        finally:
            os.close(folder)
        for temp, (path, (_, size, sha256, mode, mtime_ns, ctime_ns, inode, settled), _) in zip(
            temps, came, strict=True
        ):
            known = (size, mtime_ns, ctime_ns, inode) if settled else ()
            self._plan.arrive(
                Fetched(
                    path=path, temp=temp, size=size, sha256=sha256, mode=mode & 0o777, mtime_ns=mtime_ns, stamp=known
                )
            )


_ROW = (int, int, str, int, int, int, int, bool)


def _proven(path: str, row: list[Any], data: memoryview) -> memoryview:
    """The content of a file that a row tells of, at the beginning of the data."""
    if len(row) != len(_ROW) or not all(isinstance(v, k) for v, k in zip(row, _ROW, strict=True)):
        raise Unverified(f"{path}: the pod's answer about it is none", fix="do not trust this pod")
    size: int = row[1]
    content = data[: max(0, size)]
    found = hashlib.sha256(content).hexdigest()
    if len(content) != size or found != row[2]:
        raise damaged(path, found, row[2])
    return content


def _opened(paths: list[Path]) -> Iterator[int]:
    for path in paths:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            yield fd
        finally:
            os.close(fd)
