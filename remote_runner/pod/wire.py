"""Messages between controller and pod: a JSON header and raw bytes, both with their lengths in front.

    >I header length, >I payload length | header (JSON, UTF-8) | payload

The first thing the pod says is a marker line with the controller's own nonce: whatever a login shell printed
before it is no message. Both ends use this file.
"""

from __future__ import annotations

import json
import os
import select
import struct
import time
import zlib
from typing import Any, Dict, Optional, Tuple

MAX_HEADER_BYTES = 64 << 20  # what a controller may ask: the digests of some 300,000 files
MAX_ANSWER_BYTES = 8 << 20  # JSON unpacks to twenty times its size, and a pod may send any
MAX_PAYLOAD_BYTES = 8 << 20
CHUNK_BYTES = 1 << 20  # what one message carries of a file
SQUEEZED_SHARE = 0.85  # a chunk that does not shrink to this is sent as it is
_LENGTHS = struct.Struct(">II")

Message = Tuple[Dict[str, Any], bytes]


class WireError(Exception):
    """The other end said something that is no message."""


def marker(nonce: str) -> bytes:
    """The line after which messages begin."""
    return f"\nremote-run-wire/1 {nonce}\n".encode()


def encode(header: Dict[str, Any], payload: bytes = b"") -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    return _LENGTHS.pack(len(text), len(payload)) + text + payload


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
    """Bytes in, messages out; never holds more than one message beyond what was fed."""

    def __init__(self, max_header_bytes: int = MAX_HEADER_BYTES) -> None:
        self._buffer, self._max_header_bytes = bytearray(), max_header_bytes

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> Optional[Message]:
        """The next whole message, or None while it is incomplete.

        Raises:
            WireError: lengths beyond the limits, or a header that is no JSON object.
        """
        if len(self._buffer) < _LENGTHS.size:
            return None
        header_size, payload_size = _LENGTHS.unpack_from(self._buffer)
        if header_size > self._max_header_bytes or payload_size > MAX_PAYLOAD_BYTES:
            raise WireError(f"a message of {header_size} + {payload_size} bytes is beyond every limit")
        end = _LENGTHS.size + header_size + payload_size
        if len(self._buffer) < end:
            return None
        middle = _LENGTHS.size + header_size
        try:
            header = json.loads(self._buffer[_LENGTHS.size : middle].decode())
        except (ValueError, RecursionError) as e:
            raise WireError(f"a message header is not JSON: {e}") from None
        if not isinstance(header, dict):
            raise WireError("a message header is no JSON object")
        with memoryview(self._buffer) as view:  # a slice of a bytearray would be copied twice
            payload = bytes(view[middle:end])
        del self._buffer[:end]
        return header, payload


class Wire:
    """The pod's end: two file descriptors."""

    def __init__(self, in_fd: int, out_fd: int) -> None:
        self._in, self._out, self._decoder = in_fd, out_fd, Decoder()

    def send(self, header: Dict[str, Any], payload: bytes = b"") -> None:
        view = memoryview(encode(header, payload))
        while view:
            view = view[os.write(self._out, view) :]

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
            left = None if give_up is None else max(0.0, give_up - time.monotonic())
            if not select.select([self._in], [], [], left)[0]:
                return None
            data = os.read(self._in, 1 << 20)
            if not data:
                raise EOFError
            self._decoder.feed(data)
