"""Files to the pod: large ones in ranges to a part there, small ones in packs, and nothing that is there already.

    what is there under this or another name  ->  stays, or is linked there
    ranges and packs over all channels        ->  hashed on both ends as they stream
    the agent follows with the digest of each part's beginning, and names it when the whole of it fits

Not here: the single requests (send_units.py), who runs them (engine.py), the pod's side (pod/parts.py, pod/intake.py).
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from remote_runner.agent import Agent
from remote_runner.conversation import Denied, field
from remote_runner.errors import NotStarted
from remote_runner.pod import layout
from remote_runner.transfer import engine, packing
from remote_runner.transfer.channels import Channels
from remote_runner.transfer.engine import Engine, Unit, Work
from remote_runner.transfer.items import PACKED_BYTES, Item
from remote_runner.transfer.progress import Meter, Progress, silent
from remote_runner.transfer.send_units import AGAIN, FINISH_S, ROOM, Begin, Finish, Outgoing, Pack, Range, Trail
from remote_runner.transfer.telling import Telling

ASK_AT_ONCE = 1_000
AHEAD = 32  # parts that are begun and not named yet


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
    wanted = [i for i in everything if i.path not in there]
    if not wanted:
        return everything
    meter = Meter(sum(i.size for i in wanted), len(wanted), progress)
    plan = _Plan(wanted, set(seeds) if from_before else set(), meter)
    try:
        with Engine(plan.work, agent, meter.total_bytes, channels, meter) as running:
            plan.rtt_s = running.rtt_s
            running.begin_on_agent()
            for _ in running.watch():
                plan.wait(0.2)
    finally:
        for part in plan.parts:
            part.close()
    plan.telling.rest(agent)
    digest_of = {p.item.path: p.sha256 for p in plan.parts} | {i.path: i.sha256 for i in plan.sent}
    return [i if i.sha256 else replace(i, sha256=digest_of.get(i.path, "")) for i in everything]


def _refused(denied: Denied) -> NotStarted:
    full = denied.facts.get("errno") in (errno.ENOSPC, errno.EDQUOT)
    return NotStarted(f"upload failed: {denied}", fix=ROOM if full or denied.reason == "os" else AGAIN)


def _already_there(agent: Agent, items: list[Item]) -> tuple[set[str], dict[str, int]]:
    there: set[str] = set()
    seeds: dict[str, int] = {}
    waiting = 0
    for at in range(0, len(items) + engine.DEPTH * ASK_AT_ONCE, ASK_AT_ONCE):
        some = items[at : at + ASK_AT_ONCE]
        if some:
            agent.send({"op": "have", "files": [[i.path, i.size, i.sha256, i.mode, i.mtime_ns] for i in some]})
            waiting += 1
        if waiting and (not some or waiting == engine.DEPTH):
            answer = agent.answer(FINISH_S)
            waiting -= 1
            there.update(field(answer, "done", list))
            seeds.update(field(answer, "seeds", dict))
    return there, seeds


class _Plan:
    """What is still to go."""

    def __init__(self, items: list[Item], seeds: set[str], meter: Meter) -> None:
        self.work = Work(self._bulk, self._side, self._complete)
        self.meter, self.rtt_s = meter, 0.0
        by_size = sorted(items, key=lambda i: -i.size)
        large = [i for i in by_size if i.size > PACKED_BYTES]
        self.parts = [Outgoing(i, i.path in seeds and i.path.endswith(layout.APPENDED)) for i in large]
        small = packing.packs(by_size[len(large) :], lambda i: (i.path, i.size, i.durable))
        self._packs = deque(Pack(self, some) for some in small)
        self.sent: list[Item] = []  # small ones that are in place
        self.telling = Telling()

    def _bulk(self, most: int) -> Unit | None:
        left = sum(e - b for p in self.parts for b, e in p.gaps)
        most = min(most, engine.range_bytes(left, self.work.streams))
        for part in self.parts:
            taken = part.take(most)
            if taken is not None:
                return Range(self, part, *taken)
        return self._packs.popleft() if self._packs else None

    def _side(self) -> Unit | None:
        open_parts = 0
        for part in self.parts:
            if part.named:
                continue
            open_parts += 1
            if open_parts > AHEAD:
                break
            if not part.asked:
                part.asked = True
                return Begin(self, part)
            trail = part.to_trail()
            if trail is not None:
                return Trail(part, *trail)
            if part.begun and part.trailed == part.item.size and not part.finishing:
                part.finishing = True
                return Finish(self, part)
        return self.telling.unit()

    def _complete(self) -> bool:
        return not self._packs and all(p.named for p in self.parts)

    def compressed(self, path: str) -> bool:
        return packing.compressed(path, self.rtt_s, self.meter)

    def wait(self, most_s: float) -> None:
        with self.work.changed:
            if not self.work.over:
                self.work.changed.wait(most_s)
