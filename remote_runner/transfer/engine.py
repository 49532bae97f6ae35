"""Workers on channels: each keeps a few requests under way and takes the next from one common list.

    Work.take() -> unit.send(channel) ... unit.receive(channel) -> the next one; a lost channel's units go back

A link that breaks is waited for as long as a channel can be opened again; then what is proven stays, and the
caller may come back later. With little to move, the one worker uses the agent's own connection.

Not here: what the units are (fetch.py, send.py), how a channel is opened (channels.py).
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
from remote_runner.ssh import LinkLost
from remote_runner.transfer import channels as pool
from remote_runner.transfer.channels import Channels, NoChannel
from remote_runner.transfer.progress import Meter

DEPTH = 3  # requests under way on each channel: two round trips of 4 MiB at an eighth of 1 Gbit/s
BULK_BYTES = 8 << 20  # from here on further connections are worth their logins
RANGE_BYTES, LEAST_RANGE_BYTES = 4 << 20, 512 << 10
FAILURES = 3  # of one worker's channels in a row, with nothing moved between
GROW_EVERY_S = 1.0
_FULL_WINDOW = 0.7  # a stream at this share of what its window allows would gain from company


class Unit(Protocol):
    """One request with its answer."""

    def send(self, channel: Conversation) -> None:
        """Ask."""

    def receive(self, channel: Conversation) -> None:
        """Read the answer and do what follows from it."""


class Work:
    """The common list. A subclass says what is next and when all is done; each is called under the lock."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.failed: BaseException | None = None
        self.streams = 1
        self._back: deque[Unit] = deque()
        self._under_way = 0

    def _next(self) -> Unit | None:
        """The next unit; None when there is none now."""
        raise NotImplementedError

    def _complete(self) -> bool:
        """Whether everything has arrived where it should, units under way aside."""
        raise NotImplementedError

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

    def take(self, wait: bool) -> Unit | None:
        """The next unit for a worker; None when there is none now, or with `wait` when all is over."""
        with self.changed:
            while self.failed is None:
                unit = self._back.popleft() if self._back else self._next()
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


class Engine:
    """Workers for one piece of work, from `with` to its end.

    Args:
        channels: to use and leave open; None: own ones where the work is large, else the agent's connection.
    """

    def __init__(self, work: Work, agent: Agent, size_bytes: int, channels: Channels | None, meter: Meter) -> None:
        self._work, self._agent, self._meter = work, agent, meter
        self._own = channels is None
        self._channels = channels
        if channels is None and size_bytes >= BULK_BYTES:
            self._channels = Channels.of(agent)
        self._threads: list[threading.Thread] = []
        self._moved_any = False
        self._why: Exception | None = None
        self._agent_busy = False
        self.before_agent: Callable[[], None] = lambda: None  # frees the agent for the bytes
        self._checked = (time.monotonic(), 0)

    @property
    def rtt_s(self) -> float:
        return self._channels.rtt_s if self._channels else self._agent.pod.rtt_s or 0.0

    @property
    def parallel(self) -> bool:
        """Whether bytes go over connections of their own, so that the agent may be asked meanwhile."""
        return self._channels is not None

    def __enter__(self) -> Self:
        if self._channels is not None:
            self._channels.meet(self._agent)
            self._more(pool.streams_for(self._channels.rtt_s))
        return self

    def _more(self, count: int) -> None:
        for _ in range(count):
            self._threads.append(threading.Thread(target=self._work_on_channels, name="transfer", daemon=True))
            self._threads[-1].start()
        self._work.streams = max(1, len(self._threads))

    def begin_on_agent(self) -> None:
        """The one-connection way: from now on the agent's connection carries the bytes."""
        self._agent_busy = True
        self._threads.append(threading.Thread(target=self._work_on_agent, name="transfer", daemon=True))
        self._threads[-1].start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._work.fail(value or LinkLost("over"))  # wakes and ends whoever still waits
        if self._channels is not None and (self._own or value is not None):
            self._channels.close()
        if self._agent_busy and value is not None:
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
            if not any(t.is_alive() for t in self._threads) and not self._work.over:
                if self.parallel and not self._moved_any and not self._agent_busy:
                    self.before_agent()
                    self.begin_on_agent()
                    continue
                self._work.fail(LinkLost(f"{self._agent.where}: {self._why or 'no connection is left'}"))
        if self._work.failed is not None:
            raise self._work.failed
        self._meter.tell(last=True)

    def _grow(self) -> None:
        """One more stream where those that run are held back by their windows, not by the link."""
        now = time.monotonic()
        then, moved = self._checked
        alive = sum(t.is_alive() for t in self._threads)
        if self._channels is None or now - then < GROW_EVERY_S or not self._moved_any or not alive:
            return
        rate = (self._meter.moved_bytes - moved) / (now - then)
        self._checked = (now, self._meter.moved_bytes)
        if alive < pool.MOST and rate / alive > _FULL_WINDOW * pool.WINDOW_BYTES / max(self.rtt_s, pool.LAN_S):
            self._more(1)

    def _work_on_agent(self) -> None:
        try:
            self._serve(self._agent)
            self._agent_busy = False
        except (LinkLost, Denied, RunnerError, OSError) as e:
            self._work.fail(e)

    def _work_on_channels(self) -> None:
        assert self._channels is not None
        failures = 0
        while not self._work.over and failures < FAILURES:
            try:
                channel = self._channels.take()
            except NoChannel as e:
                self._why = e
                return
            before = self._meter.moved_bytes
            try:
                self._serve(channel)
                self._channels.give_back(channel)
                return
            except LinkLost as e:
                self._why = e
                failures = failures + 1 if self._meter.moved_bytes == before else 0
                self._channels.drop(channel)
            except (Denied, RunnerError, OSError) as e:
                self._work.fail(e)
                self._channels.drop(channel)
                return

    def _serve(self, channel: Conversation) -> None:
        pending: deque[Unit] = deque()
        try:
            while True:
                while len(pending) < DEPTH and (unit := self._work.take(wait=not pending)) is not None:
                    pending.append(unit)
                    unit.send(channel)
                if not pending:
                    return
                pending[0].receive(channel)
                self._moved_any = True
                pending.popleft()
                self._work.done()
                if pending and self._work.failed is not None:
                    raise LinkLost("given up")
        finally:
            with contextlib.suppress(IndexError):
                self._work.give_back(pending)
