"""A connection that sends requests as no decent client does: any version, any bytes, without reading.

For the workloads `raw_client`, `old_formats` and `quotas`. Belongs to the process that opens it.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any, Final

from ottla.protocol import codec, frames
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import ApiVersionsRequest
from ottla.protocol.types import Message
from ottla.simulation.cluster import PORT

CLIENT_ID: Final = "raw"
NOT_APPENDED: Final = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
    )
)
"""Errors of Produce that faults cause; the records of some are appended nevertheless."""
_SIZE: Final = struct.Struct(">i")


class ConnectionEnded(Exception):
    """The broker has closed or reset the connection, or did not respond in time."""


class RawConnection:
    """See the module. All methods raise ConnectionEnded."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, timeout_s: float, client_id: str
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._timeout_s = timeout_s
        self._client_id = client_id
        self._correlation = 0

    @classmethod
    async def open(cls, host: str, timeout_s: float, client_id: str = CLIENT_ID) -> RawConnection:
        """`timeout_s`: how long to wait for the connection and for each response."""
        try:
            async with asyncio.timeout(timeout_s):
                return cls(*await asyncio.open_connection(host, PORT), timeout_s, client_id)
        except (OSError, TimeoutError) as problem:
            raise ConnectionEnded(f"cannot connect: {problem!r}") from problem

    def frame(self, message: Message, version: int) -> bytes:
        """A whole request."""
        self._correlation += 1
        return frames.encode_request(message, version, self._correlation, self._client_id)

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def drain(self) -> None:
        """Wait until the broker has room for more."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._writer.drain()
        except (OSError, TimeoutError) as problem:
            raise ConnectionEnded(repr(problem)) from problem

    def half_close(self) -> None:
        """Send nothing more; responses are still read."""
        self._writer.write_eof()

    async def read(self) -> bytes:
        """The next frame from the broker, without its size."""
        try:
            async with asyncio.timeout(self._timeout_s):
                (size,) = _SIZE.unpack(await self._reader.readexactly(4))
                return await self._reader.readexactly(size)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as problem:
            raise ConnectionEnded(repr(problem)) from problem

    async def response(self, request: type[Message], version: int) -> Any:
        """The response to the last request."""
        frame = await self.read()
        number = frames.parse_correlation_id(frame)
        assert number == self._correlation, f"a response to request {number}, not to {self._correlation}"
        offset = frames.response_body_offset(request.api_key, version, frame)
        if request is ApiVersionsRequest and frame[offset : offset + 2] == _UNSUPPORTED:
            version = 0
        return codec.decode(frames.RESPONSES[request.api_key], version, frame, offset)

    async def call(self, message: Message, version: int) -> Any:
        """Send a request, and return its response."""
        self.write(self.frame(message, version))
        return await self.response(type(message), version)

    async def ended(self) -> bool:
        """Whether the broker closes the connection; reads what comes before."""
        try:
            async with asyncio.timeout(self._timeout_s):
                while await self._reader.read(65536):
                    pass
        except OSError:
            pass
        except TimeoutError:
            return False
        return True

    def close(self, *, abort: bool = False) -> None:
        if abort:
            self._writer.transport.abort()
        else:
            self._writer.close()


_UNSUPPORTED: Final = struct.pack(">h", ErrorCode.UNSUPPORTED_VERSION)
