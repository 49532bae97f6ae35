"""A program on a pod, over the connection that is logged in: bytes in, bytes out, its stderr kept for messages.

Not here: how the connection is made (ssh.py), a program behind an ssh of its own (openssh.py).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import paramiko

_LAST_WORD_S = 0.5
_KEPT_STDERR_BYTES = 16_384


class LinkLost(Exception):
    """The connection broke or went silent; whether anything else did is unknown."""


class ChannelProgram:
    """A program on the pod: stdin and stdout as a byte stream, stderr read all the time and its end kept."""

    def __init__(self, channel: paramiko.Channel, where: str) -> None:
        self._channel, self._where = channel, where
        self._stderr = bytearray()
        self.stderr_dropped_bytes = 0
        self._drain = threading.Thread(target=self._read_stderr, daemon=True)
        self._drain.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def _read_stderr(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            while data := self._channel.recv_stderr(65_536):
                self._stderr += data
                self.stderr_dropped_bytes += max(0, len(self._stderr) - _KEPT_STDERR_BYTES)
                del self._stderr[:-_KEPT_STDERR_BYTES]

    def write(self, data: bytes) -> None:
        """Send all of it.

        Raises:
            LinkLost: the program or the connection is gone, or nothing moved for a minute.
        """
        self._channel.settimeout(60)
        try:
            self._channel.sendall(data)
        except OSError as e:
            raise LinkLost(f"{self._where}: {e or 'closed'}") from None

    def write_file(self, fd: int, offset: int, length: int) -> int:
        """Send a piece of a file; how much of it there was. Raises LinkLost as `write` does."""
        done = 0
        while done < length and (block := os.pread(fd, min(1 << 20, length - done), offset + done)):
            self.write(block)
            done += len(block)
        return done

    def feed(self, data: bytes) -> None:
        """Send all and close the program's stdin; a program that does not read is not an error."""
        with contextlib.suppress(LinkLost, OSError, EOFError):
            self.write(data)
            self._channel.shutdown_write()

    def read(self, timeout_s: float, certain: int = 0) -> bytes:
        """Some bytes; none when its stdout ended.

        Raises:
            LinkLost: nothing came for `timeout_s`.
        """
        self._channel.settimeout(timeout_s)
        try:
            return self._channel.recv(1 << 20)
        except TimeoutError:
            raise LinkLost(f"{self._where}: no answer for {timeout_s:.0f} s") from None
        except OSError as e:
            raise LinkLost(f"{self._where}: {e}") from None

    def ready(self) -> bool:
        """Whether something can be read at once."""
        return self._channel.recv_ready()

    def blocks(self, give_up: float) -> Iterator[bytes]:
        while block := self.read(max(0.1, give_up - time.monotonic())):
            yield block

    def code(self, timeout_s: float) -> int:
        """The exit code; -1 where it ended by a signal.

        Raises:
            LinkLost: the connection went first, or nothing was said for `timeout_s`.
        """
        if not self._channel.status_event.wait(timeout_s):
            raise LinkLost(f"{self._where}: no exit status after {timeout_s:.0f} s")
        self._drain.join(timeout_s)
        code = self._channel.recv_exit_status()
        if code == -1:  # paramiko's word for both ends; its thread ends with the connection
            transport = self._channel.get_transport()
            transport.join(_LAST_WORD_S)
            if not transport.is_active():
                raise LinkLost(f"{self._where}: the connection went before the program's exit status")
        return code

    def stderr(self) -> bytes:
        return bytes(self._stderr)
