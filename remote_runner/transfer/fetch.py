"""Files from the pod to here: large ones in ranges, small ones in packs, logs by their new tails.

    versions asked for  ->  ranges and packs over all channels  ->  hashed on both ends as they stream
                        ->  the digest of a large file follows its proven prefix  ->  yielded, durable, not yet named

Not here: which files differ (compare.py), who runs the requests (engine.py), how one gets its name (items.py).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import queue
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from remote_runner.agent import Agent
from remote_runner.conversation import Conversation, Denied, field, piece
from remote_runner.errors import Unverified
from remote_runner.pod import files, layout
from remote_runner.transfer import engine
from remote_runner.transfer.channels import Channels
from remote_runner.transfer.engine import Engine, Unit, Work
from remote_runner.transfer.items import PACKED_BYTES, Fetched, stamp
from remote_runner.transfer.part import Part
from remote_runner.transfer.progress import Meter, Progress, silent

PACK_FILES, PACK_BYTES, PACK_NAMES_BYTES = 256, 1 << 20, 48 << 10
GROWTH_BYTES = 64 << 20  # what a file may have grown to since it was listed: twice its size and this
TRIES = 5  # versions of one file, before it is said to change too fast
TAIL_BYTES = 64 << 10  # a log that is here to this length is fetched by its tail
ASK_VERSIONS = 500
SQUEEZE_RTT_S, SQUEEZE_BYTES_S = 0.06, 30e6
DENSE = (".safetensors", ".pt", ".pth", ".npz", ".gz", ".zip", ".zst", ".png", ".jpg")  # never compressed


def fetch(
    agent: Agent,
    paths: list[str],
    incoming: Path,
    limits: dict[str, int],
    progress: Progress = silent,
    *,
    here: Path | None = None,
    channels: Channels | None = None,
) -> Iterator[Fetched]:
    """Bring files here, each proven by digest, under temporary names, in the order in which they arrive.

    A file that is gone since it was listed is passed over: a trainer rotates its snapshots while we read. What an
    earlier call got of a large file is in `incoming` and is not fetched again.

    Args:
        incoming: a folder of ours for the temporary files; what it holds of other files is removed.
        limits: the size announced for each path; a file that grew is fetched to the size it has now, but a
            pod can't fill the disk here: twice that and 64 MiB is the end.
        here: where earlier versions lie; logs that only grew are fetched by their tails.
        channels: data connections to use; else own ones are opened where there is much to move.

    Raises:
        Unverified: the bytes that came are not the ones that the pod hashed, or more than announced.
        Denied: the pod can't read a file that is there.
        LinkLost: the link broke for too long; call again.
        OSError: the disk here refused. After an error the agent may be out of step: close it.
    """
    if not paths:
        return
    incoming.mkdir(parents=True, exist_ok=True)
    with _alone(incoming) as folder:
        for left in folder.glob("*.whole"):
            left.unlink()
        meter = Meter(sum(limits[p] for p in paths), len(paths), progress)
        work = _FetchWork(paths, folder, limits, meter)
        stopped = threading.Event()
        with Engine(work, agent, meter.total_bytes, channels, meter) as running:
            work.squeeze = running.rtt_s >= SQUEEZE_RTT_S
            closer = threading.Thread(target=work.close_parts, args=(stopped,), name="digest", daemon=True)
            try:
                _ask_versions(agent, work, here)
                _sweep(folder, work)
                closer.start()
                if not running.parallel:
                    running.begin_on_agent()
                for _ in running.watch():
                    yield from work.arrived(0.05)
                yield from work.arrived(0)
            finally:
                stopped.set()
                with work.changed:
                    work.changed.notify_all()
                if closer.is_alive():
                    closer.join(5)
                for part in work.parts:
                    part.close()


@contextlib.contextmanager
def _alone(incoming: Path) -> Iterator[Path]:
    """The folder itself, or where another process works in it, one of our own that can't be resumed."""
    fd = os.open(incoming, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with tempfile.TemporaryDirectory(prefix=f"{incoming.name}.", dir=incoming.parent) as own:
                yield Path(own)
        else:
            yield incoming
    finally:
        os.close(fd)


def _ask_versions(agent: Agent, work: _FetchWork, here: Path | None) -> None:
    """Begin large files and tails with the versions that the pod has now."""
    tails = [p for p in work.small if here and p.endswith(layout.APPENDED) and _size(here, p) >= TAIL_BYTES]
    tails += [p.path for p in work.parts if here and p.path.endswith(layout.APPENDED) and _size(here, p.path) > 0]
    asked = [*(p.path for p in work.parts), *(t for t in tails if t in work.small)]
    found: dict[str, Any] = {}
    for at in range(0, len(asked), ASK_VERSIONS):
        some = asked[at : at + ASK_VERSIONS]
        found.update(zip(some, field(agent.ask("versions", paths=some), "versions", list), strict=True))
    for path in tails:
        facts = found[path]
        if here and facts and _size(here, path) < field(facts, "size", int):
            work.begin_tail(path, here / path, facts)
    for part in [*work.parts]:
        work.begin(part, found[part.path])


def _size(root: Path, path: str) -> int:
    try:
        return files.stat(str(root), path).st_size
    except OSError:
        return -1


def _sweep(folder: Path, work: _FetchWork) -> None:
    """Parts of versions that nobody wants any more."""
    present = [p for p in folder.iterdir() if p.suffix in (".part", ".ranges")]
    with work.changed:
        wanted = {p.temp.stem for p in work.parts if p.begun}
    for path in present:
        if path.stem not in wanted:
            path.unlink()


class _FetchWork(Work):
    """What is still to come."""

    def __init__(self, paths: list[str], incoming: Path, limits: dict[str, int], meter: Meter) -> None:
        super().__init__()
        self.incoming, self.limits, self.meter = incoming, limits, meter
        self.squeeze = False
        self._arrived: queue.Queue[Fetched] = queue.Queue(maxsize=20_000)
        by_size = sorted(paths, key=lambda p: -limits[p])
        self.parts = [self._part(p) for p in by_size if limits[p] > PACKED_BYTES]
        self.small = dict.fromkeys(p for p in by_size if limits[p] <= PACKED_BYTES)
        self._packs: deque[_Pack] | None = None
        self._closing = deque(self.parts)
        self._left_to_close = len(self.parts)
        self._number = 0

    def _part(self, path: str) -> Part:
        return Part(path, self.incoming, 2 * self.limits[path] + GROWTH_BYTES, self.changed)

    # --- the list ---------------------------------------------------------

    def _next(self) -> Unit | None:
        left = sum(p.left_bytes for p in self.parts)
        most = engine.range_bytes(left, self.streams)
        for part in self.parts:
            taken = part.take(most) if part.begun else None
            if taken is not None:
                return _Range(self, part, *taken)
        if self._packs is None:
            self._packs = deque(self._packed())
        return self._packs.popleft() if self._packs else None

    def _packed(self) -> Iterator[_Pack]:
        """Small files in packs, what compresses apart from what does not."""
        for dense in (True, False):
            pack: list[str] = []
            size = names = 0
            for path in self.small:
                if path.endswith(DENSE) != dense:
                    continue
                if pack and (
                    len(pack) >= PACK_FILES or size + self.limits[path] > PACK_BYTES or names > PACK_NAMES_BYTES
                ):
                    yield _Pack(self, pack, size)
                    pack, size, names = [], 0, 0
                pack.append(path)
                size += self.limits[path]
                names += 4 * len(path)
            if pack:
                yield _Pack(self, pack, size)

    def _complete(self) -> bool:
        return not self._left_to_close and self._packs is not None and not self._packs

    # --- what happens to files ---------------------------------------------

    def compressed(self, path: str) -> bool:
        if path.endswith(DENSE):
            return False
        return self.squeeze or (self.meter.elapsed_s > 2 and self.meter.rate_bytes_s < SQUEEZE_BYTES_S)

    def begin(self, part: Part, facts: dict[str, Any] | None) -> None:
        if facts is None:
            part.drop()
            return
        if part.generation > 2 * TRIES:
            raise Unverified(
                f"{part.path} changes faster than it can be fetched ({TRIES} versions were begun)",
                fix="run the command again when the run has ended",
            )
        self.meter.spared(part.begin(facts))

    def begin_tail(self, path: str, old: Path, facts: dict[str, Any]) -> None:
        """Fetch a log by what is new in it."""
        self.small.pop(path, None)
        for part in [p for p in self.parts if p.path == path]:
            self.parts.remove(part)
            self._closing.remove(part)
            self._left_to_close -= 1
        self.add(_Tail(self, path, old, facts))

    def fetch_whole(self, path: str, facts: dict[str, Any] | None) -> None:
        """Take up a file as a large one, whatever it was listed as."""
        with self.changed:
            part = self._part(path)
            self.parts.append(part)
            self._closing.append(part)
            self._left_to_close += 1
            if facts is None:
                self.add(_Version(self, part))
            else:
                self.begin(part, facts)

    def lost_version(self, part: Part, generation: int) -> None:
        with self.changed:
            if part.generation == generation:
                part.forget()
                self.add(_Version(self, part))

    def temp(self) -> Path:
        with self.changed:
            self._number += 1
            return self.incoming / f"{self._number}.whole"

    def arrive(self, one: Fetched) -> None:
        while self.failed is None:
            with contextlib.suppress(queue.Full):
                self._arrived.put(one, timeout=0.5)
                self.meter.done()
                return

    def arrived(self, wait_s: float) -> Iterator[Fetched]:
        with contextlib.suppress(queue.Empty):
            if wait_s:
                yield self._arrived.get(timeout=wait_s)
            while True:
                yield self._arrived.get_nowait()

    def close_parts(self, stopped: threading.Event) -> None:
        """The thread that takes the digests of large files as they grow."""
        while not stopped.is_set():
            with self.changed:
                part = self._closing.popleft() if self._closing else None
                if part is None:
                    self.changed.wait(0.5)
                    continue
            try:
                done = part.digest(stopped)
            except OSError as e:
                self.fail(e)
                return
            if done is not None:
                self.arrive(done)
            with self.changed:
                self._left_to_close -= 1
                self.changed.notify_all()


def _data(channel: Conversation, path: str, most: int) -> Iterator[bytes | dict[str, Any]]:
    """The pieces of an answer, then the answer itself; never more than `most` bytes."""
    while True:
        message = channel.receive()
        if "data" not in message[0]:
            yield message[0]
            return
        block = piece(message, f"{path} from {channel.where}")
        most -= len(block)
        if most < 0:
            raise Unverified(f"{path}: the pod sends more than could be", fix="do not trust this pod")
        yield block


class _Range:
    """A piece of a large file."""

    def __init__(self, work: _FetchWork, part: Part, offset: int, length: int) -> None:
        self._work, self._part, self._offset, self._length = work, part, offset, length
        self._generation, self._version = part.generation, part.version

    def send(self, channel: Conversation) -> None:
        ask = {"path": self._part.path, "version": self._version, "offset": self._offset, "length": self._length}
        grows = self._part.path.endswith(layout.APPENDED)
        squeeze = self._work.compressed(self._part.path)
        channel.send({"op": "range", **ask, "squeeze": squeeze, "grows": grows})

    def receive(self, channel: Conversation) -> None:
        found, at = hashlib.sha256(), self._offset
        path = self._part.path
        for block in _data(channel, path, self._length):
            if isinstance(block, dict):
                answer = block
                break
            found.update(block)
            self._part.write(self._generation, at, block)
            at += len(block)
            self._work.meter.moved(len(block))
        if answer.get("ok") is not True:
            if answer.get("reason") == "changed":
                self._work.lost_version(self._part, self._generation)
                return
            raise Denied(answer)
        if at != self._offset + self._length or answer.get("sha256") != found.hexdigest():
            raise _damaged(path, found.hexdigest(), answer)
        if answer.get("settled") is not True:
            self._part.settled = False
        self._part.prove(self._generation, self._offset, self._length, found.hexdigest())


class _Version:
    """Which version of a file there is now."""

    def __init__(self, work: _FetchWork, part: Part) -> None:
        self._work, self._part = work, part

    def send(self, channel: Conversation) -> None:
        channel.send({"op": "versions", "paths": [self._part.path]})

    def receive(self, channel: Conversation) -> None:
        (facts,) = field(channel.answer(), "versions", list)
        self._work.begin(self._part, facts)


class _Tail:
    """What a log that is here has got since; the pod proves that it begins with what is here."""

    def __init__(self, work: _FetchWork, path: str, old: Path, facts: dict[str, Any]) -> None:
        self._work, self._path, self._old, self._facts = work, path, old, facts
        self._version = [field(facts, name, int) for name in ("size", "mtime_ns", "ino")]
        self._have = 0

    def send(self, channel: Conversation) -> None:
        self._have = min(self._old.stat().st_size, self._version[0])
        ask = {"path": self._path, "version": self._version, "offset": self._have, "grows": True, "whole": True}
        channel.send({"op": "range", **ask, "length": self._version[0] - self._have, "squeeze": self._work.squeeze})

    def receive(self, channel: Conversation) -> None:
        temp, whole = self._work.temp(), hashlib.sha256()
        with temp.open("wb") as f:
            with self._old.open("rb") as old:
                left = self._have
                while left and (block := old.read(min(left, files.BLOCK_BYTES))):
                    whole.update(block)
                    f.write(block)
                    left -= len(block)
            for found in _data(channel, self._path, self._version[0] - self._have):
                if isinstance(found, dict):
                    answer = found
                    break
                whole.update(found)
                f.write(found)
                self._work.meter.moved(len(found))
            f.flush()
            os.fsync(f.fileno())
        if answer.get("ok") is not True or answer.get("whole") != whole.hexdigest():
            temp.unlink()  # not the same log with more in it, or damaged: the whole of it settles that
            self._work.fetch_whole(self._path, None)
            return
        self._work.meter.spared(self._have)
        self._work.arrive(
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


class _Pack:
    """Small files in one request."""

    def __init__(self, work: _FetchWork, paths: list[str], size: int) -> None:
        self._work, self._paths, self._most = work, paths, size + PACKED_BYTES

    def send(self, channel: Conversation) -> None:
        # small logs always: they shrink to a tenth in no time
        squeeze = self._work.compressed(self._paths[0]) or all(p.endswith(layout.APPENDED) for p in self._paths)
        channel.send({"op": "pack", "paths": self._paths, "most": self._most, "squeeze": squeeze})

    def receive(self, channel: Conversation) -> None:
        data = bytearray()
        for block in _data(channel, self._paths[0], self._most):
            if isinstance(block, dict):
                answer = block
                break
            data += block
            self._work.meter.moved(len(block))
        if answer.get("ok") is not True:
            raise Denied(answer)
        rows = field(answer, "rows", list)
        if len(rows) != len(self._paths):
            raise Unverified(f"{channel.where} answers {len(rows)} files for {len(self._paths)}", fix="do not trust it")
        at = 0
        for path, row in zip(self._paths, rows, strict=True):
            if not isinstance(row, list) or not row or not isinstance(row[0], int):
                raise Unverified(f"{path}: the pod's answer about it is none", fix="do not trust this pod")
            if row[0] == 0:
                at = self._one(path, row, data, at)
            elif row[0] == errno.EFBIG:
                self._work.fetch_whole(path, None)
            elif row[0] not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise Denied({"reason": "os", "errno": row[0], "detail": f"{path}: {os.strerror(row[0])}"})
        if at != len(data):
            raise Unverified(f"{channel.where} sends bytes that belong to no file", fix="do not trust this pod")

    def _one(self, path: str, row: list[Any], data: bytearray, at: int) -> int:
        kinds = (int, int, str, int, int, int, int, bool)
        if len(row) != len(kinds) or not all(isinstance(v, k) for v, k in zip(row, kinds, strict=True)):
            raise Unverified(f"{path}: the pod's answer about it is none", fix="do not trust this pod")
        size: int = row[1]
        sha256, mode, mtime_ns, ctime_ns, inode, settled = row[2:]
        content = bytes(data[at : at + size]) if size >= 0 else b""
        found = hashlib.sha256(content).hexdigest()
        if len(content) != size or found != sha256:
            raise _damaged(path, found, {"sha256": sha256})
        temp = self._work.temp()
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            files.write_all(fd, content)
            os.fsync(fd)
        finally:
            os.close(fd)
        known = (size, mtime_ns, ctime_ns, inode) if settled else ()
        self._work.arrive(
            Fetched(path=path, temp=temp, size=size, sha256=found, mode=mode & 0o777, mtime_ns=mtime_ns, stamp=known)
        )
        return at + size


def _damaged(path: str, found: str, answer: dict[str, Any]) -> Unverified:
    return Unverified(
        f"{path}: arrived as {found}, but the pod read {str(answer.get('sha256'))[:64]!r}",
        fix="run the command again; if it stays so, do not trust this pod or the network to it",
    )
