"""Workers on connections: each keeps a few requests under way and takes the next from one common list.

    Work.take() -> unit.send(channel) ... unit.receive(channel) -> the next one; a lost channel's units go back

    data connections     bulk units: ranges and packs
    the agent's own      side units: digests, names, whatever carries no bytes; with little to move, or where no data
                         connection is to be had, the bulk as well

A link that breaks is waited for as long as a channel can be opened again; then what is proven stays, and the
caller may come back later.

Not here: what the units are (fetch_units.py, send_units.py), how a channel is opened (channels.py).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Protocol, Self

from remote_runner.agent import Agent
from remote_runner.conversation import Conversation, Denied
from remote_runner.errors import RunnerError
from remote_runner.program import LinkLost
from remote_runner.transfer import channels as pool
from remote_runner.transfer.channels import Channels, NoChannel
from remote_runner.transfer.progress import Meter

DEPTH = 3  # requests under way on each connection
BULK_BYTES = 8 << 20  # from here on further connections are worth their logins
RANGE_BYTES, LEAST_RANGE_BYTES, FIRST_RANGE_BYTES = 4 << 20, 512 << 10, 1 << 20
RANGE_S = 0.4  # and no more than a connection brings in this time
FAILURES = 3  # of one worker's channels in a row, with nothing moved between
GROW_EVERY_S = 1.0
SILENT_S = 8.0  # without a byte over data connections: the agent's own begins to carry
_NEAR_S = 0.002  # no window holds back a neighbour, however busy the machine was when it was measured
_FULL_WINDOW = 0.7  # a stream at this share of what its window allows would gain from company
_LAST_ANSWERS_S = 3.0


class Unit(Protocol):
    """One request with its answer."""

    size_bytes: int  # of files that it carries

    def send(self, channel: Conversation) -> None:
        """Ask."""

    def receive(self, channel: Conversation) -> None:
        """Read the answer and do what follows from it."""


Next = Callable[[int], Unit | None]


class Work:
    """The common list.

    Args:
        bulk: the next unit that carries bytes, of a large file no more than so many; None when there is none now.
        side: the next one for the agent: one message there, one back.
        complete: whether everything has arrived where it should, units under way aside.

    All three are called under the lock, `changed`.
    """

    def __init__(self, bulk: Next, side: Callable[[], Unit | None], complete: Callable[[], bool]) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.failed: BaseException | None = None
        self.streams = 1
        self._bulk, self._side, self._complete = bulk, side, complete
        self._back: deque[Unit] = deque()
        self._under_way = 0

    def add(self, unit: Unit) -> None:
        with self.changed:
            self._back.append(unit)
            self.changed.notify_all()

    @property
    def over(self) -> bool:
        with self.changed:
            return self.failed is not None or (not self._under_way and not self._back and self._complete())

    def fail(self, error: BaseException) -> None:
        """Stop everything; the first reason counts."""
        with self.changed:
            if self.failed is None:
                self.failed = error
            self.changed.notify_all()

    def bulk(self, most_bytes: int) -> Unit | None:
        return self._back.popleft() if self._back else self._bulk(most_bytes)

    def side(self) -> Unit | None:
        return self._side()

    def take(self, following: Next, most_bytes: int, wait: bool) -> Unit | None:
        """The next unit for a worker; None when there is none now, or with `wait` when all is over."""
        with self.changed:
            while self.failed is None:
                unit = following(most_bytes)
                if unit is not None:
                    self._under_way += 1
                    return unit
                if not wait or self.over:
                    return None
                self.changed.wait(1.0)
            return None

    def done(self) -> None:
        with self.changed:
            self._under_way -= 1
            self.changed.notify_all()

    def give_back(self, units: deque[Unit]) -> None:
        with self.changed:
            self._back.extend(units)
            self._under_way -= len(units)
            self.changed.notify_all()


def range_bytes(left_bytes: int, streams: int) -> int:
    """How much to ask for at once: smaller towards the end, so that no stream is left working alone."""
    share = left_bytes // (2 * max(1, streams))
    return min(RANGE_BYTES, max(LEAST_RANGE_BYTES, share - share % 65_536))


class Pace:
    """How much one connection should be asked for at once: what it brings in a moment, or the last range is late."""

    def __init__(self) -> None:
        self.most_bytes = FIRST_RANGE_BYTES
        self._last_s = 0.0

    def done(self, size_bytes: int) -> None:
        """So much has come since the last time, or from the first request on."""
        now = time.monotonic()
        if size_bytes and self._last_s:
            moment = int(size_bytes / max(1e-3, now - self._last_s) * RANGE_S)
            self.most_bytes = min(RANGE_BYTES, max(LEAST_RANGE_BYTES, (self.most_bytes + moment) // 2))
        self._last_s = now


class Engine:
    """Workers for one piece of work, from `with` to its end.

    Args:
        channels: to use and leave open, where the work is large or some are there already; None: own ones where it is
            large. Else all goes over the agent's connection.
    """

    def __init__(self, work: Work, agent: Agent, size_bytes: int, channels: Channels | None, meter: Meter) -> None:
        self._work, self._agent, self._meter = work, agent, meter
        self._own = channels is None
        self._channels = channels if channels is not None and (channels.warm or size_bytes >= BULK_BYTES) else None
        if channels is None and size_bytes >= BULK_BYTES:
            self._channels = Channels.of(agent)
        self._agent_carries = self._channels is None
        self._threads: list[threading.Thread] = []
        self._agent_thread = threading.Thread(target=self._work_on_agent, name="transfer", daemon=True)
        self._why: Exception | None = None
        self._began_s = time.monotonic()
        self._checked = (self._began_s, 0)

    @property
    def rtt_s(self) -> float:
        return self._channels.rtt_s if self._channels else self._agent.pod.rtt_s or 0.0

    def __enter__(self) -> Self:
        if self._channels is not None:
            self._channels.meet(self._agent)
            self._more(pool.streams_for(self._channels.rtt_s))
        return self

    def begin_on_agent(self) -> None:
        """From now on the agent's connection belongs to the work, until all is over."""
        self._agent_thread.start()

    def _more(self, count: int) -> None:
        for _ in range(count):
            self._threads.append(threading.Thread(target=self._work_on_channels, name="transfer", daemon=True))
            self._threads[-1].start()
        self._work.streams = max(1, len(self._threads))

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._work.fail(value or LinkLost("over"))  # wakes and ends whoever still waits
        if self._channels is not None and (self._own or value is not None):
            self._channels.close()
        if self._agent_thread.ident is not None:
            self._agent_thread.join(_LAST_ANSWERS_S if not self._agent_carries or value is None else 0.1)
            if self._agent_thread.is_alive():
                self._agent.close()  # it is in the middle of an answer that nobody reads
        for thread in self._threads:
            thread.join(2)

    def watch(self) -> Iterator[None]:
        """Run until all is over, handing control back several times a second.

        Raises:
            LinkLost: no connection is left. Whatever made the work fail.
        """
        while not self._work.over:
            yield
            self._meter.tell()
            self._grow()
            if self._agent_carries or self._work.over:
                continue
            silent = not self._meter.moved_bytes and time.monotonic() - self._began_s > SILENT_S
            if any(t.is_alive() for t in self._threads) and not silent:
                continue
            if self._meter.moved_bytes:
                self._work.fail(LinkLost(f"{self._agent.where}: {self._why or 'no connection is left'}"))
            else:
                self._agent_carries = True
                with self._work.changed:
                    self._work.changed.notify_all()
        if self._work.failed is not None:
            raise self._work.failed
        self._meter.tell(last=True)

    def _grow(self) -> None:
        """One more stream where those that run are held back by their windows, not by the link."""
        now = time.monotonic()
        then, moved = self._checked
        alive, moved_now = sum(t.is_alive() for t in self._threads), self._meter.moved_bytes
        if self._channels is None or now - then < GROW_EVERY_S or not moved_now or not alive:
            return
        rate = (moved_now - moved) / (now - then)
        self._checked = (now, moved_now)
        if alive < pool.MOST and rate / alive > _FULL_WINDOW * pool.WINDOW_BYTES / max(self.rtt_s, _NEAR_S):
            self._more(1)

    def _for_agent(self, most_bytes: int) -> Unit | None:
        return self._work.side() or (self._work.bulk(most_bytes) if self._agent_carries else None)

    def _work_on_agent(self) -> None:
        pending: deque[Unit] = deque()
        try:
            self._serve(self._agent, self._for_agent, pending)
        except (LinkLost, Denied, RunnerError, OSError) as e:
            self._work.fail(e)
            with contextlib.suppress(IndexError):
                pending.popleft()  # its answer was read, or there is nobody to read from
        if pending and self._agent_carries:
            self._agent.close()
        with contextlib.suppress(LinkLost, RunnerError):
            for _ in pending:  # one message each: then the agent is in step for whoever comes next
                self._agent.receive(_LAST_ANSWERS_S)

    def _work_on_channels(self) -> None:
        assert self._channels is not None
        failures = 0
        while not self._work.over and failures < FAILURES:
            try:
                channel = self._channels.take()
            except NoChannel as e:
                self._why = e
                return
            before, pending = self._meter.moved_bytes, deque[Unit]()
            try:
                self._serve(channel, self._work.bulk, pending)
            except LinkLost as e:
                self._why = e
                failures = failures + 1 if self._meter.moved_bytes == before else 0
                self._channels.drop(channel)
                self._work.give_back(pending)
                continue
            except (Denied, RunnerError, OSError) as e:
                self._work.fail(e)
                self._channels.drop(channel)
                return
            if pending:
                self._channels.drop(channel)
            else:
                self._channels.give_back(channel)
            return

    def _serve(self, channel: Conversation, following: Next, pending: deque[Unit]) -> None:
        """Work until nothing is left, or the work failed; `pending` has the units whose answers were not read."""
        pace = Pace()
        while self._work.failed is None:
            while len(pending) < DEPTH:
                unit = self._work.take(following, pace.most_bytes, wait=not pending)
                if unit is None:
                    break
                pending.append(unit)
                unit.send(channel)
            if not pending:
                break
            pending[0].receive(channel)
            pace.done(pending.popleft().size_bytes)
            self._work.done()
