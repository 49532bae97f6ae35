"""A TCP relay that misbehaves: closes the first connections, is slow, goes silent without closing, and comes back."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

CHUNK_BYTES = 65_536


class Relay:
    """A port on loopback that leads to another one.

    Args:
        close_first: how many connections are accepted and closed at once.
        bytes_s: the most that one connection passes on each way; 0: all that comes.
        cut_first_after: how many bytes from the server the first connection passes on before it is cut; 0: all.
    """

    def __init__(self, to_port: int, close_first: int = 0, bytes_s: float = 0, cut_first_after: int = 0) -> None:
        self._to_port, self._left, self._bytes_s, self._cut_after = to_port, close_first, bytes_s, cut_first_after
        self._open = threading.Event()
        self._open.set()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self.accepted = 0
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def freeze(self) -> None:
        """Pass nothing on from now; connections stay open."""
        self._open.clear()

    def thaw(self) -> None:
        self._open.set()

    def close(self) -> None:
        self._open.set()
        for one in [self._server, *self._sockets]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                self.accepted += 1
                if self._left > 0:
                    self._left -= 1
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._to_port))
                self._sockets += [client, server]
                limit = self._cut_after if self.accepted == 1 else 0
                for ends in ((client, server, 0), (server, client, limit)):
                    threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, limit: int) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while (not limit or passed < limit) and (data := source.recv(CHUNK_BYTES)):
                self._open.wait()
                data = data[: limit - passed] if limit else data
                passed += len(data)
                if self._bytes_s:
                    time.sleep(len(data) / self._bytes_s)
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def to(port: int, close_first: int = 0, bytes_s: float = 0, cut_first_after: int = 0) -> Iterator[Relay]:
    relay = Relay(port, close_first, bytes_s, cut_first_after)
    try:
        yield relay
    finally:
        relay.close()
