"""One connection to a broker: requests out, responses matched by correlation id.

Called by the replica fetchers, the controller's channels, the admin client and the operator. Invariants:
every request is answered exactly once, with a response, `ConnectionLost` or a time-out; versions are
negotiated by ApiVersions before the first request (KIP-35).

A fetcher sends one request after the other for ever, so a request costs no task, future or timer of its own:
`send` calls back in the turn of the loop in which the response comes, and all time-outs share one timer. Its
answers stay in the buffer they are received into: `records` are memoryviews of that until the callback
returns. The response to a `request` has a frame of its own, for as long as it lives.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias, cast

from ottla.client.authentication import Authentication
from ottla.client.futures import resolve
from ottla.protocol import codec, frames
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.types import Message
from ottla.security.clients import ClientSecurity

_SIZE: Final = struct.Struct(">i")
_CORRELATION: Final = struct.Struct(">i")
_READ_BUFFER_BYTES: Final = 64 * 1024
_READ_BUFFER_BYTES_MAX: Final = 2 * 1024 * 1024
"""What it grows to for a fetcher, whose answers are mostly alike; a larger frame has a buffer of its own."""
_FRAME_BYTES_MAX: Final = 256 * 1024 * 1024

Answered: TypeAlias = Callable[[Any], None]
"""Takes the response, or the exception in its place."""


class ConnectionLost(ConnectionError):
    """The connection ended before the response came; whether the request took effect is not known."""


class UnsupportedApi(Exception):
    """The broker serves no version of this API that we speak."""


class _Waiting:
    """A request that was sent and not answered yet."""

    __slots__ = ("answered", "api_key", "deadline", "keeps", "version")

    def __init__(
        self, api_key: int, version: int, deadline: float, answered: Answered, *, keeps: bool
    ) -> None:
        """`keeps`: the response outlives the callback."""
        self.api_key = api_key
        self.version = version
        self.deadline = deadline
        self.answered = answered
        self.keeps = keeps

    def arrived(self, frame: memoryview, *, borrowed: bool) -> None:
        response: Any
        try:
            response = self._decoded(memoryview(bytes(frame)) if borrowed and self.keeps else frame)
        except Exception as problem:
            response = problem
        self.answered(response)

    def _decoded(self, frame: memoryview) -> Message:
        api_key, version = self.api_key, self.version
        offset = frames.response_body_offset(api_key, version, frame)
        if api_key == ApiVersionsRequest.api_key and version > 0:
            # A broker that does not know our version answers in version 0, with an error (KIP-511).
            (error,) = struct.unpack_from(">h", frame, offset)
            if error == ErrorCode.UNSUPPORTED_VERSION:
                version = 0
        return codec.decode(frames.RESPONSES[api_key], version, frame, offset)


class _Channel(asyncio.BufferedProtocol):
    """Cuts the byte stream into frames and hands them to the requests that wait for them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._pending: dict[int, _Waiting] = {}
        self._timer: asyncio.TimerHandle | None = None
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
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pending, self._pending = self._pending, {}
        for waiting in pending.values():
            waiting.answered(ConnectionLost(str(self.lost)))

    def expect(self, correlation_id: int, waiting: _Waiting) -> None:
        """The request is about to be sent."""
        self._pending[correlation_id] = waiting
        timer = self._timer
        if timer is None or waiting.deadline < timer.when():
            if timer is not None:
                timer.cancel()
            self._timer = self.loop.call_at(waiting.deadline, self._time_out)

    def _time_out(self) -> None:
        """Some request's time was over, unless it has been answered: that leaves the timer alone."""
        assert self._timer is not None
        now = max(self.loop.time(), self._timer.when())  # the loop may be early by its clock's resolution
        late = [number for number, waiting in self._pending.items() if waiting.deadline <= now]
        expired = [self._pending.pop(number) for number in late]
        self._timer = None
        if self._pending:
            earliest = min(waiting.deadline for waiting in self._pending.values())
            self._timer = self.loop.call_at(earliest, self._time_out)
        for waiting in expired:
            waiting.answered(TimeoutError())

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return memoryview(self._frame)[self._frame_filled :]
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._frame is not None:
            self._frame_filled += nbytes
            if self._frame_filled == len(self._frame):
                frame, self._frame = self._frame, None
                self._deliver(memoryview(frame), borrowed=False)
            return
        self._filled += nbytes
        self._cut()

    def _cut(self) -> None:
        """Take whole frames off the read buffer. A frame that is not whole goes on there if it may be
        borrowed, and else has a buffer of its own."""
        position = 0
        view = memoryview(self._buffer)
        while self._filled - position >= 4:
            (size,) = _SIZE.unpack_from(self._buffer, position)
            if not 4 <= size <= _FRAME_BYTES_MAX:
                self._abort(f"the broker sent a frame of {size} bytes")
                return
            position += 4
            end = position + size
            if end <= self._filled:
                self._deliver(view[position:end], borrowed=True)
                position = end
                continue
            if self._next_is_kept() or size + 4 > _READ_BUFFER_BYTES_MAX:
                self._frame = bytearray(size)
                self._frame_filled = self._filled - position
                self._frame[: self._frame_filled] = view[position : self._filled]
                position = self._filled
            else:
                position -= 4
                if size + 4 > len(view):
                    self._buffer = bytearray(min(2 * (size + 4), _READ_BUFFER_BYTES_MAX))
                break
        rest = self._filled - position
        if rest and (position or self._buffer is not view.obj):
            # Overlapping slices of one buffer are copied as memmove does.
            memoryview(self._buffer)[:rest] = view[position : self._filled]
        self._filled = rest

    def _next_is_kept(self) -> bool:
        """Answers come in the order of requests."""
        return next((waiting.keeps for waiting in self._pending.values()), True)

    def _deliver(self, frame: memoryview, *, borrowed: bool) -> None:
        (correlation_id,) = _CORRELATION.unpack_from(frame)
        waiting = self._pending.pop(correlation_id, None)
        if waiting is not None:
            waiting.arrived(frame, borrowed=borrowed)

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
        self._limits: Mapping[int, int] = {}
        self._authentication: Authentication | None = None
        self.host = host
        self.port = port

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        client_id: str = "ottla",
        timeout_s: float = 10,
        limits: Mapping[int, int] | None = None,
        security: ClientSecurity | None = None,
        dial: Callable[[str, int], Awaitable[socket.socket]] | None = None,
    ) -> BrokerConnection:
        """Connect, negotiate and log in; `limits` are the highest versions that may be used, by API key,
        without `security` it is PLAINTEXT; `dial` makes the connected socket. Raises OSError (of TLS, too),
        ConnectionLost, asyncio.TimeoutError, or KafkaError when the broker does not let us in."""
        loop = asyncio.get_running_loop()
        context = None if security is None else security.context()
        async with asyncio.timeout(timeout_s):
            where = {"host": host, "port": port} if dial is None else {"sock": await dial(host, port)}
            server_hostname = host if context else None
            _, channel = await loop.create_connection(
                partial(_Channel, loop), **where, ssl=context, server_hostname=server_hostname
            )
            connection = cls(channel, host, port, client_id)
            connection._limits = limits or {}
            try:
                await connection._negotiate(timeout_s)
                if security is not None and security.login is not None:
                    connection._authentication = Authentication(connection, security)
                    await connection._authentication.log_in()
            except BaseException:
                connection.close()
                raise
        return connection

    async def _negotiate(self, timeout_s: float) -> None:
        request = ApiVersionsRequest(client_software_name="ottla", client_software_version="0.1.0")
        response: ApiVersionsResponse = await self.request(request, version=3, timeout_s=timeout_s)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            response = await self.request(request, version=0, timeout_s=timeout_s)
        if response.error_code:
            raise KafkaError(ErrorCode(response.error_code), f"ApiVersions of {self.host}:{self.port}")
        self._versions = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}

    @property
    def closed(self) -> bool:
        return self._channel.lost is not None

    def version_of(self, api_key: int) -> int:
        """The highest version of an API that both sides speak, and may; raises UnsupportedApi."""
        ours = frames.REQUESTS[api_key]
        theirs = self._versions.get(api_key)
        if theirs is not None:
            version = min(ours.max_version, theirs[1], self._limits.get(api_key, ours.max_version))
            if version >= max(ours.min_version, theirs[0]):
                return version
        raise UnsupportedApi(
            f"{self.host}:{self.port} serves {ours.__name__} in versions {theirs}, "
            f"we speak {ours.min_version} to {ours.max_version}"
        )

    async def request(self, message: Message, *, version: int | None = None, timeout_s: float = 30) -> Any:
        """Send a request, await its response. Raises ConnectionLost, UnsupportedApi, asyncio.TimeoutError."""
        chosen = self.version_of(type(message).api_key) if version is None else version
        answer: asyncio.Future[Any] = self._channel.loop.create_future()
        self.send(message, chosen, timeout_s, partial(resolve, answer), keeps=True)
        return await answer

    def send(
        self, message: Message, version: int, timeout_s: float, answered: Answered, *, keeps: bool = False
    ) -> None:
        """Send a request, and have `answered` called, once, with what `request` would return or raise; views
        in the response are valid no longer than the call, without `keeps`. Raises ConnectionLost instead when
        the connection is closed already."""
        channel = self._channel
        if channel.lost is not None or channel.transport is None:
            raise ConnectionLost(str(channel.lost))
        authentication = self._authentication
        if authentication is not None and authentication.holds_up(
            message, version, timeout_s, answered, keeps=keeps
        ):
            return
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        frame = frames.encode_request(message, version, correlation_id, self._client_id)
        deadline = channel.loop.time() + timeout_s
        channel.expect(correlation_id, _Waiting(message.api_key, version, deadline, answered, keeps=keeps))
        channel.transport.write(frame)

    def send_unanswered(self, message: Message, version: int) -> None:
        """Send a request that no response follows: Produce with acks=0. Raises ConnectionLost.

        While a login is renewed, it is not held up and the broker ends the connection: acks=0 means that.
        """
        channel = self._channel
        if channel.lost is not None or channel.transport is None:
            raise ConnectionLost(str(channel.lost))
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        channel.transport.write(frames.encode_request(message, version, correlation_id, self._client_id))

    def abort(self) -> None:
        """As `close`, and what is not sent yet is dropped: for a broker that takes nothing any more."""
        if self._channel.transport is not None:
            self._channel.transport.abort()
        if self._channel.lost is None:
            self._channel.lost = ConnectionLost("closed by us")

    def close(self) -> None:
        """Close at once; requests in flight end with ConnectionLost."""
        if self._channel.transport is not None:
            self._channel.transport.close()
        if self._channel.lost is None:
            self._channel.lost = ConnectionLost("closed by us")
