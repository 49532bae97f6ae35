"""Files from the pod to here: large ones in ranges, small ones in packs, logs by their new tails.

    versions asked for  ->  ranges and packs over all channels
                        ->  the digest of a large file follows its beginning, here and on the pod (part.py)
                        ->  yielded: proven, durable, not yet named

Not here: the single requests (fetch_units.py), which files differ (compare.py), who runs the requests (engine.py),
how a file gets its name (items.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from remote_runner.agent import Agent
from remote_runner.conversation import field
from remote_runner.errors import Unverified
from remote_runner.pod import files, layout
from remote_runner.transfer import engine, packing
from remote_runner.transfer.channels import Channels
from remote_runner.transfer.engine import Engine, Unit, Work
from remote_runner.transfer.fetch_units import Marks, Pack, Range, Tail, Version
from remote_runner.transfer.items import PACKED_BYTES, Fetched
from remote_runner.transfer.part import Part
from remote_runner.transfer.progress import Meter, Progress, silent
from remote_runner.transfer.telling import Telling

GROWTH_BYTES = 64 << 20  # what a file may have grown to since it was listed: twice its size and this
TRIES = 5  # versions of one file, before it is said to change too fast
TAIL_BYTES = 64 << 10  # a log that is here to this length is fetched by its tail
ASK_VERSIONS = 500


def fetch(
    agent: Agent,
    paths: list[str],
    incoming: Path,
    limits: dict[str, int],
    progress: Progress = silent,
    *,
    here: Path | None = None,
    facts: dict[str, dict[str, Any]] | None = None,
    channels: Channels | None = None,
) -> Iterator[Fetched]:
    """Bring files here, each proven by digest, under temporary names, in the order in which they arrive.

    A file that is gone since it was listed is passed over: a trainer rotates its snapshots while we read. What an
    earlier call got of a large file is in `incoming` and is not fetched again. Until the end the agent is in use: ask
    it nothing meanwhile.

    Args:
        incoming: a folder of ours for the temporary files; what it holds of other files is removed.
        limits: the size announced for each path; a file that grew is fetched to the size it has now, but a
            pod can't fill the disk here: twice that and 64 MiB is the end.
        here: where earlier versions lie; logs that only grew are fetched by their tails.
        facts: what the pod's listing says of them; else it is asked.
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
        plan = _Plan(paths, folder, limits, meter)
        stopped = threading.Event()
        with Engine(plan.work, agent, meter.total_bytes, channels, meter) as running:
            plan.rtt_s = running.rtt_s
            closer = threading.Thread(target=plan.close_parts, args=(stopped,), name="digest", daemon=True)
            try:
                _begin(agent, plan, here, facts)
                _sweep(folder, plan)
                closer.start()
                running.begin_on_agent()
                for _ in running.watch():
                    yield from plan.arrived(0.05)
                yield from plan.arrived(0)
            finally:
                stopped.set()
                with plan.work.changed:
                    plan.work.changed.notify_all()
                if closer.is_alive():
                    closer.join(5)
                for part in plan.parts:
                    part.close()
        plan.telling.rest(agent)


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


def _begin(agent: Agent, plan: _Plan, here: Path | None, facts: dict[str, dict[str, Any]] | None) -> None:
    """Begin large files and tails with the versions that the pod has."""
    tails = [p for p in plan.small if here and p.endswith(layout.APPENDED) and _size(here, p) >= TAIL_BYTES]
    tails += [p.path for p in plan.parts if here and p.path.endswith(layout.APPENDED) and _size(here, p.path) > 0]
    asked = [*(p.path for p in plan.parts), *(t for t in tails if t in plan.small)]
    found: dict[str, Any] = dict(facts) if facts is not None else {}
    for at in range(0, len(asked) if facts is None else 0, ASK_VERSIONS):
        some = asked[at : at + ASK_VERSIONS]
        found.update(zip(some, field(agent.ask("versions", paths=some), "versions", list), strict=True))
    for path in tails:
        if here and found[path] and _size(here, path) < field(found[path], "size", int):
            plan.begin_tail(path, here / path, found[path])
    for part in [*plan.parts]:
        plan.begin(part, found[part.path])


def _size(root: Path, path: str) -> int:
    try:
        return files.stat(str(root), path).st_size
    except OSError:
        return -1


def _sweep(folder: Path, plan: _Plan) -> None:
    """Parts of versions that nobody wants any more."""
    present = [p for p in folder.iterdir() if p.suffix in (".part", ".ranges")]
    with plan.work.changed:
        wanted = {p.temp.stem for p in plan.parts if p.begun and p.temp}
    for path in present:
        if path.stem not in wanted:
            path.unlink()


class _Plan:
    """What is still to come."""

    def __init__(self, paths: list[str], incoming: Path, limits: dict[str, int], meter: Meter) -> None:
        self.work = Work(self._bulk, self._side, self._complete)
        self.incoming, self.limits, self.meter = incoming, limits, meter
        self.rtt_s, self.telling = 0.0, Telling()
        self._arrived: queue.Queue[Fetched] = queue.Queue(maxsize=20_000)
        by_size = sorted(paths, key=lambda p: -limits[p])
        self.parts = [self._part(p) for p in by_size if limits[p] > PACKED_BYTES]
        self.small = dict.fromkeys(p for p in by_size if limits[p] <= PACKED_BYTES)
        self._packs: deque[Pack] | None = None
        self._closing = deque(self.parts)
        self._left_to_close = len(self.parts)
        self._number = 0

    def _part(self, path: str) -> Part:
        return Part(path, self.incoming, 2 * self.limits[path] + GROWTH_BYTES, self.work.changed)

    # --- the lists --------------------------------------------------------

    def _bulk(self, most: int) -> Unit | None:
        most = min(most, engine.range_bytes(sum(p.left_bytes for p in self.parts), self.work.streams))
        for part in self.parts:
            taken = part.take(most) if part.begun else None
            if taken is not None:
                self.work.changed.notify_all()  # the pod may be asked for more marks
                return Range(self, part, *taken)
        if self._packs is None:
            some = packing.packs(self.small, lambda path: (path, self.limits[path], False))
            self._packs = deque(Pack(self, paths, sum(self.limits[p] for p in paths)) for paths in some)
            self.small = {}  # of 100,000 files each list is memory
        return self._packs.popleft() if self._packs else None

    def _side(self) -> Unit | None:
        for part in self.parts:
            told = part.to_tell()
            if told is not None:
                return Marks(self, part, *told)
        return self.telling.unit()

    def _complete(self) -> bool:
        return not self._left_to_close and self._packs is not None and not self._packs

    # --- what happens to files ---------------------------------------------

    def compressed(self, path: str) -> bool:
        return packing.compressed(path, self.rtt_s, self.meter)

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
        self.work.add(Tail(self, path, old, facts))

    def fetch_whole(self, path: str) -> None:
        """Take up a file as a large one, whatever it was listed as."""
        with self.work.changed:
            part = self._part(path)
            self.parts.append(part)
            self._closing.append(part)
            self._left_to_close += 1
            self.work.add(Version(self, part))

    def lost_version(self, part: Part, generation: int) -> None:
        with self.work.changed:
            if part.generation == generation:
                part.forget()
                self.work.add(Version(self, part))

    def temps(self, count: int) -> list[Path]:
        with self.work.changed:
            self._number += count
            last = self._number
        return [self.incoming / f"{number}.whole" for number in range(last - count, last)]

    def arrive(self, one: Fetched) -> None:
        if one.stamp:
            self.telling.add(one.path, one.sha256, one.stamp)
        while self.work.failed is None:
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
            with self.work.changed:
                part = self._closing.popleft() if self._closing else None
                if part is None:
                    self.work.changed.wait(0.5)
                    continue
            try:
                done = part.digest(stopped)
            except (OSError, Unverified) as e:
                self.work.fail(e)
                return
            if done is not None:
                self.arrive(done)
            with self.work.changed:
                self._left_to_close -= 1
                self.work.changed.notify_all()
