"""Messages between controller and pod: a JSON header and raw bytes, both with their lengths in front.

    >I header length, >I payload length | header (JSON, UTF-8) | payload

The first thing the pod says is a marker line with the controller's own nonce: whatever a login shell printed
before it is no message. Both ends use this file.
"""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import struct
import time
import zlib
from collections import deque
from typing import Any, Deque, Dict, Iterator, Optional, Tuple, Union

from remote_runner.pod import files

MAX_HEADER_BYTES = 64 << 20  # what a controller may ask: the digests of some 300,000 files
MAX_ANSWER_BYTES = 8 << 20  # JSON unpacks to twenty times its size, and a pod may send any
MAX_PAYLOAD_BYTES = 8 << 20
CHUNK_BYTES = 1 << 20  # what one message carries of a file
BLOCK_BYTES, BLOCK_S = 256 << 10, 10  # what is read at once of it: as much as a cache holds
SQUEEZED_SHARE = 0.85  # a chunk that does not shrink to this is sent as it is
_SMALL_BYTES = 1 << 16
_LENGTHS = struct.Struct(">II")

Message = Tuple[Dict[str, Any], bytes]


class WireError(Exception):
    """The other end said something that is no message."""


def marker(nonce: str) -> bytes:
    """The line after which messages begin."""
    return f"\nremote-run-wire/1 {nonce}\n".encode()


def need(nonce: str) -> bytes:
    """The line with which a loader asks for the program's code (agent.py)."""
    return f"\nremote-run-need {nonce}\n".encode()


def head(header: Dict[str, Any], payload_bytes: int) -> bytes:
    """A message up to its payload."""
    text = json.dumps(header, separators=(",", ":")).encode()
    return _LENGTHS.pack(len(text), payload_bytes) + text


def encode(header: Dict[str, Any], payload: bytes = b"") -> bytes:
    return head(header, len(payload)) + payload


def chunk(data: bytes, squeeze: bool) -> Message:
    """The message that carries a piece of a file; compressed when asked to and when it pays."""
    if squeeze:
        small = zlib.compress(data, 1)
        if len(small) < SQUEEZED_SHARE * len(data):
            return {"data": True, "z": len(data)}, small
    return {"data": True}, data


def unpack(message: Message) -> bytes:
    """The piece of a file in a message.

    Raises:
        WireError: it unpacks to another size than it says, or to more than a message may carry.
    """
    head, payload = message
    size = head.get("z")
    if size is None:
        return payload
    if not isinstance(size, int) or not 0 <= size <= MAX_PAYLOAD_BYTES:
        raise WireError(f"a compressed piece of {size!r} bytes is beyond every limit")
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(payload, size + 1)
    except zlib.error as e:
        raise WireError(f"a compressed piece is damaged: {e}") from None
    if len(data) != size or not unpacker.eof:
        raise WireError(f"a compressed piece holds other than the {size} bytes that it announces")
    return data


class Decoder:
    """Bytes in, messages out: whole ones, or a head at once and its payload piece by piece as it comes.

    Nothing is copied but what lies across two blocks. It holds no more than a message beyond what was fed.
    """

    def __init__(self, max_header_bytes: int = MAX_HEADER_BYTES) -> None:
        self._max_header_bytes = max_header_bytes
        self._blocks: Deque[memoryview] = deque()
        self._held = 0
        self._lengths: Optional[Tuple[int, int]] = None  # of the message whose header is not there yet
        self._head: Optional[Dict[str, Any]] = None  # of the message whose payload is not taken yet
        self.left_bytes = 0  # of that payload

    def feed(self, data: bytes) -> None:
        if not data:
            return
        self._held += len(data)
        if self._blocks and len(self._blocks[-1]) + len(data) < _SMALL_BYTES:  # of crumbs no heap is made
            data = bytes(self._blocks.pop()) + data
        self._blocks.append(memoryview(data))

    def _gather(self, size: int) -> bytes:
        taken = []
        while size:
            taken.append(self._piece(size))
            size -= len(taken[-1])
        return bytes(taken[0]) if len(taken) == 1 else b"".join(taken)

    def _piece(self, most: int) -> memoryview:
        block = self._blocks.popleft()
        if len(block) > most:
            self._blocks.appendleft(block[most:])
            block = block[:most]
        self._held -= len(block)
        return block

    def begin(self) -> Optional[Dict[str, Any]]:
        """The head of the next message, once it is there; `piece` has the `left_bytes` of its payload.

        Raises:
            WireError: lengths beyond the limits, or a header that is no JSON object.
        """
        if self._lengths is None:
            if self._held < _LENGTHS.size:
                return None
            header_size, payload_size = _LENGTHS.unpack(self._gather(_LENGTHS.size))
            if header_size > self._max_header_bytes or payload_size > MAX_PAYLOAD_BYTES:
                raise WireError(f"a message of {header_size} + {payload_size} bytes is beyond every limit")
            self._lengths = header_size, payload_size
        if self._held < self._lengths[0]:
            return None
        try:
            header = json.loads(self._gather(self._lengths[0]).decode())
        except (ValueError, RecursionError) as e:
            raise WireError(f"a message header is not JSON: {e}") from None
        if not isinstance(header, dict):
            raise WireError("a message header is no JSON object")
        self.left_bytes, self._lengths = self._lengths[1], None
        return header

    def piece(self) -> memoryview:
        """What is here of the payload that was begun; empty when none is, or all of it was taken."""
        if not self.left_bytes or not self._blocks:
            return memoryview(b"")
        found = self._piece(self.left_bytes)
        self.left_bytes -= len(found)
        return found

    def rest(self) -> Optional[bytes]:
        """All that is left of the payload that was begun, or None while it is incomplete."""
        if self._held < self.left_bytes:
            return None
        size, self.left_bytes = self.left_bytes, 0
        return self._gather(size)

    def next(self) -> Optional[Message]:
        """The next whole message, or None while it is incomplete.

        Raises:
            WireError: see `begin`.
        """
        if self._head is None:
            self._head = self.begin()
        if self._head is None:
            return None
        payload = self.rest()
        if payload is None:
            return None
        header, self._head = self._head, None
        return header, payload


class Wire:
    """The pod's end: two file descriptors."""

    def __init__(self, in_fd: int, out_fd: int) -> None:
        self._in, self._out, self._decoder = in_fd, out_fd, Decoder()
        self._socket = _socket_of(in_fd)

    def send(self, header: Dict[str, Any], payload: Union[bytes, memoryview] = b"") -> None:
        files.write_all(self._out, head(header, len(payload)))
        files.write_all(self._out, payload)

    def send_file(self, header: Dict[str, Any], fd: int, offset: int, length: int) -> bool:
        """A message with a piece of a file, which never enters this process.

        Returns:
            Whether the file had all of it; what it lacked was sent as zeros.
        """
        files.write_all(self._out, head(header, length))
        while length:
            try:
                sent = os.sendfile(self._out, fd, offset, length)
            except OSError as e:
                if e.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSOCK, errno.EOPNOTSUPP):
                    raise
                block = os.pread(fd, min(length, CHUNK_BYTES), offset)
                files.write_all(self._out, block)
                sent = len(block)
            if not sent:
                break
            offset, length = offset + sent, length - sent
        whole = not length
        while length:
            fill = min(length, CHUNK_BYTES)
            files.write_all(self._out, bytes(fill))
            length -= fill
        return whole

    def receive(self, timeout_s: Optional[float] = None) -> Optional[Message]:
        """The next message; None when nothing came for `timeout_s`.

        Raises:
            EOFError: the controller closed the connection.
        """
        give_up = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            message = self._decoder.next()
            if message is not None:
                return message
            if not self._more(None if give_up is None else max(0.0, give_up - time.monotonic())):
                return None

    def _more(self, timeout_s: Optional[float], certain: int = 0) -> bool:
        """Take in what is there; of `certain` bytes, which are on their way, a whole block."""
        if not select.select([self._in], [], [], timeout_s)[0]:
            return False
        if self._socket is not None and certain:
            data = self._socket.recv(min(certain, BLOCK_BYTES), socket.MSG_WAITALL)
        else:
            data = os.read(self._in, 1 << 20)
        if not data:
            raise EOFError
        self._decoder.feed(data)
        return True

    def pieces(self, timeout_s: float) -> Iterator[memoryview]:
        """The payload of a message that carries a piece of a file, as it comes.

        Raises:
            EOFError: the controller closed the connection, or went silent in the middle of a file.
        """
        head = self._decoder.begin()
        while head is None:
            self._must(timeout_s)
            head = self._decoder.begin()
        if head.get("z") is not None:
            payload = self._decoder.rest()
            while payload is None:
                self._must(timeout_s)
                payload = self._decoder.rest()
            yield memoryview(unpack((head, payload)))
            return
        while self._decoder.left_bytes:
            found = self._decoder.piece()
            if found:
                yield found
            else:
                self._must(timeout_s, self._decoder.left_bytes)

    def _must(self, timeout_s: float, certain: int = 0) -> None:
        if not self._more(timeout_s, certain):
            raise EOFError("the controller went silent in the middle of a file")


def _socket_of(fd: int) -> Optional[socket.socket]:
    """sshd gives a program one end of a pair of sockets: that can be asked for whole blocks. Else None."""
    try:
        found = socket.socket(fileno=os.dup(fd))
    except OSError:
        return None
    if found.type != socket.SOCK_STREAM:
        found.close()
        return None
    # a whole block is waited for no longer than this; what came of it until then is taken
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", BLOCK_S, 0))
    return found
