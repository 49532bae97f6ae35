"""Data connections: several TCP connections side by side, since one fills a long link to a third at most.

    take()  ->  one that is warm, or a new one:  ssh (openssh.py), paramiko where there is no ssh
            ->  python3 reads pod/bulk.py and what it needs from stdin  ->  marker  ->  messages

At most eight log in at a time; a server that drops logins is asked again with jitter, and then done without.

Not here: what is moved over them (engine.py), the connection that everything else uses (ssh.py).
"""

from __future__ import annotations

import contextlib
import random
import secrets
import tempfile
import threading
import time
from collections import deque
from concurrent.futures import Future
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Self

from remote_runner import hostkeys, openssh, ssh, zipapp
from remote_runner.agent import Agent, python_command
from remote_runner.conversation import Conversation, Program
from remote_runner.errors import NotStarted, RunnerError
from remote_runner.program import LinkLost
from remote_runner.ssh import Endpoint

LOGINS_AT_ONCE = 8  # with the control connection's one less than where sshd begins to drop them
TRIES = 4
MOST = 8
WINDOW_BYTES = 2 << 20  # OpenSSH's, fixed: what one connection has under way
LAN_S, _FAR_S = 0.01, 0.1  # a busy machine takes some milliseconds to connect to its neighbour
_HOPELESS = (  # another try would end the same way
    *("Permission denied", "Host key verification failed", "Too many authentication failures"),
    *("terminating,", "Bad owner or permissions", "Bad SSH2", "command-line line"),
)

_LOADER = """
import os,sys,json,zlib,types
root,size,nonce=sys.argv[1:]
data=b''
while len(data)<int(size):
    block=os.read(0,int(size)-len(data))
    if not block: sys.exit(1)
    data+=block
for name,text in json.loads(zlib.decompress(data).decode()):
    module=sys.modules[name]=types.ModuleType(name)
    above,_,last=name.rpartition('.')
    if above: setattr(sys.modules[above],last,module)
    exec(compile(text,name,'exec'),module.__dict__)
    if last=='session': session=module.begun(root,nonce)
sys.exit(module.serve(session))
"""


class NoChannel(Exception):
    """No further data connection is to be had; whoever has one goes on without."""


def streams_for(rtt_s: float) -> int:
    """How many connections to begin with: what a link of 1 Gbit/s needs at this round-trip time."""
    return 2 if rtt_s < LAN_S else 4 if rtt_s < _FAR_S else MOST


class Channels:
    """The data connections to one root on one pod; those that were given back stay warm until the end.

    Args:
        where: the pod.
        root: the folder there.
        host_keys: lines as in a known_hosts file, without the host: what the pod may show.
        rtt_s: one round trip to it, None until `meet`.
    """

    def __init__(self, where: Endpoint, root: str, host_keys: list[str], rtt_s: float | None = None) -> None:
        self._where, self._root, self._host_keys, self._rtt_s = where, root, host_keys, rtt_s
        self._lock = threading.Lock()
        self._logins = threading.BoundedSemaphore(LOGINS_AT_ONCE)
        self._warm: deque[Conversation] = deque()
        self._coming: deque[Future[Conversation]] = deque()
        self._open: set[Conversation] = set()
        self._closed = threading.Event()
        self._folder = tempfile.TemporaryDirectory(prefix="remote-run-ssh-")
        openssh.prepare(Path(self._folder.name), host_keys)

    @classmethod
    def of(cls, agent: Agent) -> Self:
        """To the pod of a connection that is there."""
        rtt_s = agent.pod.rtt_s if agent.pod.rtt_s is not None else _ask_rtt_s(agent)
        return cls(agent.pod.endpoint, str(agent.root), [agent.pod.host_key_line()], rtt_s)

    @classmethod
    def ahead(cls, where: Endpoint, root: PurePosixPath) -> Self:
        """Begin to open some beside the control connection, so that both are there at the same time.

        Only to a pod whose host key is known; to another one none is opened before its key was looked at.
        """
        known = hostkeys.known(hostkeys.name_of(where.host, where.port), where.policy)
        lines = [f"{entry.kind} {entry.key}" for entry in known if not entry.revoked]
        made = cls(where, str(root), lines)
        if lines and openssh.available() and not any(entry.revoked for entry in known):
            made._begin(streams_for(0.0))
        return made

    def expect(self, rtt_s: float) -> None:
        """Open as many ahead as the distance asks for, now that it is measured."""
        with self._lock:
            begun = len(self._coming)
        if begun:
            self._begin(streams_for(rtt_s) - begun)

    def _begin(self, count: int) -> None:
        for _ in range(count):
            future: Future[Conversation] = Future()
            with self._lock:
                self._coming.append(future)
            threading.Thread(target=self._open_into, args=(future,), name="login", daemon=True).start()

    def meet(self, agent: Agent) -> None:
        """Take from the control connection what only it knows: the pod's proven key, and how far away it is."""
        if self._rtt_s is None:
            self._rtt_s = agent.pod.rtt_s if agent.pod.rtt_s is not None else _ask_rtt_s(agent)
            self._host_keys = [agent.pod.host_key_line()]
            openssh.prepare(Path(self._folder.name), self._host_keys)

    @property
    def warm(self) -> bool:
        """Whether one is there that nobody uses."""
        with self._lock:
            return bool(self._warm)

    @property
    def rtt_s(self) -> float:
        return self._rtt_s or 0.0

    def _open_into(self, future: Future[Conversation]) -> None:
        try:
            future.set_result(self._opened())
        except Exception as e:  # noqa: BLE001
            future.set_exception(e)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all of them, also under the hands of whoever uses one."""
        self._closed.set()
        with self._lock:
            doomed, self._open = self._open, set()
            self._warm.clear()
        for channel in doomed:
            channel.close()
        self._folder.cleanup()

    def take(self) -> Conversation:
        """A connection for one thread.

        Raises:
            NoChannel: none could be had.
        """
        with self._lock:
            if self._warm:
                return self._warm.pop()
            coming = self._coming.popleft() if self._coming else None
        if coming is not None:
            with contextlib.suppress(Exception):
                return coming.result()
        return self._opened()

    def _opened(self) -> Conversation:
        why: Exception = LinkLost("not tried")
        for attempt in range(TRIES):
            if attempt and self._closed.wait(random.uniform(0.2, 0.6) * 2**attempt):  # noqa: S311
                break
            try:
                with self._logins:
                    if self._closed.is_set():
                        break
                    channel = self._new()
            except (LinkLost, RunnerError) as e:
                why = e
                if any(words in str(e) for words in _HOPELESS):
                    break
                continue
            with self._lock:
                if not self._closed.is_set():
                    self._open.add(channel)
                    return channel
            channel.close()
        raise NoChannel(str(why)) from None

    def give_back(self, channel: Conversation) -> None:
        """Keep a connection that has nothing under way for whoever comes next."""
        with self._lock:
            if channel in self._open:
                self._warm.append(channel)

    def drop(self, channel: Conversation) -> None:
        with self._lock:
            self._open.discard(channel)
        channel.close()

    def _new(self) -> Conversation:
        program, nonce = zipapp.bulk_program(), secrets.token_hex(16)
        command = python_command(_LOADER, self._root, str(len(program)), nonce)
        where = str(self._where)
        opened: Program
        if openssh.available():
            opened = openssh.Process(openssh.argv(self._where, Path(self._folder.name), command), where)
        else:
            opened = _OwnTransport(self._where, self._host_keys, command)
        try:
            opened.write(program)
            return Conversation(opened, where, nonce)
        except BaseException:
            opened.close()
            raise


class _OwnTransport:
    """A program over a paramiko connection of its own, which ends with it."""

    def __init__(self, where: Endpoint, host_keys: list[str], command: str) -> None:
        self._pod = ssh.connect(where)
        if self._pod.host_key_line() not in host_keys:
            self._pod.close()
            raise NotStarted(f"{where}: another machine answers", fix="do not trust this address")
        try:
            self._program = self._pod.open(command)
        except LinkLost:
            self._pod.close()
            raise
        self.write, self.write_file, self.read = self._program.write, self._program.write_file, self._program.read
        self.ready, self.stderr = self._program.ready, self._program.stderr

    def close(self) -> None:
        with contextlib.suppress(LinkLost):
            self._program.close()
        self._pod.close()


def _ask_rtt_s(agent: Agent) -> float:
    began = time.monotonic()
    agent.ask("beat")
    return time.monotonic() - began
