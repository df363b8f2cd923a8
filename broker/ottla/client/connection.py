"""One connection to a broker: requests out, responses matched by correlation id.

Called by the replica fetchers, the controller's channels, the admin client and the operator. Invariants:
a frame is received into a buffer of its own (so `records` in a response may be memoryviews of it for as long
as the response lives); every request's future is settled exactly once, with a response, `ConnectionLost` or
a time-out; versions are negotiated by ApiVersions before the first request (KIP-35).
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any, Final, TypeVar, cast

from ottla.protocol import codec, frames
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.types import Message

_SIZE: Final = struct.Struct(">i")
_CORRELATION: Final = struct.Struct(">i")
_READ_BUFFER_BYTES: Final = 64 * 1024
_FRAME_BYTES_MAX: Final = 256 * 1024 * 1024

R = TypeVar("R", bound=Message)


class ConnectionLost(ConnectionError):
    """The connection ended before the response came; whether the request took effect is not known."""


class UnsupportedApi(Exception):
    """The broker serves no version of this API that we speak."""


class _Channel(asyncio.BufferedProtocol):
    """Cuts the byte stream into frames and settles the futures that wait for them."""

    def __init__(self) -> None:
        self.pending: dict[int, asyncio.Future[memoryview]] = {}
        self.transport: asyncio.Transport | None = None
        self.lost: BaseException | None = None
        self._buffer = bytearray(_READ_BUFFER_BYTES)
        self._filled = 0
        self._frame: bytearray | None = None
        self._frame_filled = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asserted: uvloop's transports are no subclass of asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = exc or ConnectionLost("the broker closed the connection")
        for future in self.pending.values():
            if not future.done():
                future.set_exception(ConnectionLost(str(self.lost)))
        self.pending.clear()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return memoryview(self._frame)[self._frame_filled :]
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._frame is not None:
            self._frame_filled += nbytes
            if self._frame_filled == len(self._frame):
                frame, self._frame = self._frame, None
                self._deliver(frame)
            return
        self._filled += nbytes
        self._cut()

    def _cut(self) -> None:
        """Take whole frames off the read buffer; give a frame that is not whole a buffer of its own."""
        position = 0
        while self._filled - position >= 4:
            (size,) = _SIZE.unpack_from(self._buffer, position)
            if not 4 <= size <= _FRAME_BYTES_MAX:
                self._abort(f"the broker sent a frame of {size} bytes")
                return
            position += 4
            end = position + size
            if end <= self._filled:
                self._deliver(self._buffer[position:end])
                position = end
                continue
            self._frame = bytearray(size)
            self._frame_filled = self._filled - position
            self._frame[: self._frame_filled] = memoryview(self._buffer)[position : self._filled]
            position = self._filled
        rest = self._filled - position
        if rest and position:
            self._buffer[:rest] = self._buffer[position : self._filled]
        self._filled = rest

    def _deliver(self, frame: bytearray) -> None:
        (correlation_id,) = _CORRELATION.unpack_from(frame)
        future = self.pending.pop(correlation_id, None)
        if future is not None and not future.done():
            future.set_result(memoryview(frame))

    def _abort(self, reason: str) -> None:
        assert self.transport is not None
        self.lost = ConnectionLost(reason)
        self.transport.abort()


class BrokerConnection:
    """A negotiated connection. Requests may be pipelined; the broker answers them in order."""

    def __init__(self, channel: _Channel, host: str, port: int, client_id: str) -> None:
        self._channel = channel
        self._client_id = client_id
        self._next_correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {}
        self.host = host
        self.port = port

    @classmethod
    async def open(
        cls, host: str, port: int, *, client_id: str = "ottla", timeout_s: float = 10
    ) -> BrokerConnection:
        """Connect and negotiate. Raises OSError, ConnectionLost or asyncio.TimeoutError."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout_s):
            _, channel = await loop.create_connection(_Channel, host, port)
            connection = cls(channel, host, port, client_id)
            try:
                await connection._negotiate()
            except BaseException:
                connection.close()
                raise
        return connection

    async def _negotiate(self) -> None:
        request = ApiVersionsRequest(client_software_name="ottla", client_software_version="0.1.0")
        response = await self._exchange(request, 3, ApiVersionsResponse)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            response = await self._exchange(request, 0, ApiVersionsResponse)
        if response.error_code:
            raise KafkaError(ErrorCode(response.error_code), f"ApiVersions of {self.host}:{self.port}")
        self._versions = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}

    @property
    def closed(self) -> bool:
        return self._channel.lost is not None

    def version_of(self, api_key: int) -> int:
        """The highest version of an API that both sides speak; raises UnsupportedApi."""
        ours = frames.REQUESTS[api_key]
        theirs = self._versions.get(api_key)
        if theirs is not None:
            version = min(ours.max_version, theirs[1])
            if version >= max(ours.min_version, theirs[0]):
                return version
        raise UnsupportedApi(
            f"{self.host}:{self.port} serves {ours.__name__} in versions {theirs}, "
            f"we speak {ours.min_version} to {ours.max_version}"
        )

    async def request(self, message: Message, *, version: int | None = None, timeout_s: float = 30) -> Any:
        """Send a request, await its response. Raises ConnectionLost, UnsupportedApi, asyncio.TimeoutError."""
        api_key = type(message).api_key
        chosen = self.version_of(api_key) if version is None else version
        async with asyncio.timeout(timeout_s):
            return await self._exchange(message, chosen, frames.RESPONSES[api_key])

    async def _exchange(self, message: Message, version: int, response_type: type[R]) -> R:
        channel = self._channel
        if channel.lost is not None or channel.transport is None:
            raise ConnectionLost(str(channel.lost))
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        future: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        channel.pending[correlation_id] = future
        channel.transport.write(frames.encode_request(message, version, correlation_id, self._client_id))
        try:
            frame = await future
        finally:
            channel.pending.pop(correlation_id, None)
        api_key = type(message).api_key
        offset = frames.response_body_offset(api_key, version, frame)
        if api_key == ApiVersionsRequest.api_key and version > 0:
            # A broker that does not know our version answers in version 0, with an error (KIP-511).
            (error,) = struct.unpack_from(">h", frame, offset)
            if error == ErrorCode.UNSUPPORTED_VERSION:
                version = 0
        return codec.decode(response_type, version, frame, offset)

    def close(self) -> None:
        """Close at once; requests in flight end with ConnectionLost."""
        if self._channel.transport is not None:
            self._channel.transport.close()
        if self._channel.lost is None:
            self._channel.lost = ConnectionLost("closed by us")
