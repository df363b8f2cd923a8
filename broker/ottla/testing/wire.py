"""One request after the other over a blocking socket: what a test asks a broker without an event loop.

Called by ottla.testing.broker. The client id is the one that faults leave alone. Versions are the caller's to
choose: the broker is always this package's own.
"""

from __future__ import annotations

import socket
import struct
from typing import Any, Final

from ottla.protocol import codec, frames
from ottla.protocol.types import Message

CLIENT_ID: Final = "ottla.testing"
_SIZE: Final = struct.Struct(">i")


class Wire:
    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        """Raises OSError."""
        self._socket = socket.create_connection((host, port), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, request: Message, version: int) -> Any:
        """The response. Raises OSError."""
        self._correlation_id += 1
        self._socket.sendall(frames.encode_request(request, version, self._correlation_id, CLIENT_ID))
        (size,) = _SIZE.unpack(self._read(_SIZE.size))
        frame = self._read(size)
        answered = frames.parse_correlation_id(frame)
        assert answered == self._correlation_id, f"answer {answered} to request {self._correlation_id}"
        offset = frames.response_body_offset(request.api_key, version, frame)
        return codec.decode(frames.RESPONSES[request.api_key], version, frame, offset)

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            if not (more := self._socket.recv(size - len(data))):
                raise ConnectionError("the broker closed the connection")
            data += more
        return bytes(data)
