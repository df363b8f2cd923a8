"""One connection to a broker over asyncio: the shell of `core.connection`, which has all the rules.

Called by the replica fetchers, the controller's channels, the admin client and the operator. Invariant: every
request is answered exactly once, with a response, `ConnectionLost` or a time-out.

A fetcher sends one request after the other for ever, so a request costs no task, future or timer of its own:
`send` calls back in the turn of the loop in which the response comes, and all time-outs share one timer. Its
answers stay in the buffer they are received into: `records` are memoryviews of that until the callback
returns. The response to a `request` has a frame of its own, for as long as it lives.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias, cast

from ottla.protocol.types import Message
from ottla.security.clients import ClientSecurity
from ottla.wire.connection_state import Answer, Connection, Event, Lost, Ready, Send
from ottla.wire.connection_state import UnsupportedApi as UnsupportedApi
from ottla.wire.framing import ConnectionLost as ConnectionLost
from ottla.wire.futures import resolve
from ottla.wire.handshake import Login, SaslStep

log = logging.getLogger(__name__)

_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER for no time: closing the socket resets the connection, and drops what is unsent."""

Answered: TypeAlias = Callable[[Any], None]
"""Takes the response, or the exception in its place."""


class _Channel(asyncio.BufferedProtocol):
    """Carries bytes and time to the state machine, and does what it says. A request's tag is its callback."""

    def __init__(self, loop: asyncio.AbstractEventLoop, state: Connection, timeout_s: float) -> None:
        self.loop = loop
        self.state = state
        self.opened: asyncio.Future[None] = loop.create_future()
        self.transport: asyncio.Transport | None = None
        self.rings_at = math.inf
        self._timeout_s = timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._proving: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asserted: uvloop's transports are no subclass of asyncio's.
        self.transport = cast(asyncio.Transport, transport)
        self._handle(self.state.begin(self.loop.time(), self._timeout_s))

    def connection_lost(self, exc: Exception | None) -> None:
        state = self.state
        self._handle(state.ended(exc))
        resolve(self.opened, ConnectionLost(str(state.lost)))
        if self._timer is not None:
            self._timer.cancel()
        if self._proving is not None:
            self._proving.cancel()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.state.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        for event in self.state.received(nbytes):
            if isinstance(event, Answer):
                event.tag(event.response)
            else:
                self._do(event)

    def _handle(self, events: Iterable[Event]) -> None:
        for event in events:
            self._do(event)
        self.set_timer()

    def _do(self, event: Event) -> None:
        assert self.transport is not None
        if isinstance(event, Answer):
            event.tag(event.response)
        elif isinstance(event, Send):
            self.transport.write(event.data)
        elif isinstance(event, SaslStep):
            self._proving = self.loop.create_task(self._prove(event))
        elif isinstance(event, Ready):
            resolve(self.opened)
        else:
            assert isinstance(event, Lost)
            self._lose(event.problem)

    def _lose(self, problem: Exception) -> None:
        assert self.transport is not None
        if self.opened.done():
            log.warning("%s: %s", self.state.where, problem or type(problem).__name__)
        resolve(self.opened, problem)
        self.transport.abort()

    async def _prove(self, step: SaslStep) -> None:
        outcome: bytes | Exception | None
        try:
            outcome = await asyncio.to_thread(step.work)
        except Exception as problem:
            outcome = problem
        self._proving = None
        self._handle(self.state.proved(outcome))

    def set_timer(self) -> None:
        """Ring in time; a timer that will ring too early is left alone: mostly its request is answered."""
        at = self.state.next_time
        if at < self.rings_at:
            if self._timer is not None:
                self._timer.cancel()
            self.rings_at = at
            self._timer = self.loop.call_at(at, self._ring)

    def _ring(self) -> None:
        now = max(self.loop.time(), self.rings_at)  # the loop may be early by its clock's resolution
        self._timer = None
        self.rings_at = math.inf
        self._handle(self.state.expire(now))


class BrokerConnection:
    """A negotiated connection. Requests may be pipelined; the broker answers them in order."""

    def __init__(self, channel: _Channel, host: str, port: int) -> None:
        self._channel = channel
        self._state = channel.state
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
        context = login = None
        if security is not None:
            context = security.context()
            if security.login is not None and security.mechanism is not None:
                login = Login(security.mechanism, security.login)
        state = Connection(f"{host}:{port}", client_id, limits=limits, login=login)
        async with asyncio.timeout(timeout_s):
            where = {"host": host, "port": port} if dial is None else {"sock": await dial(host, port)}
            server_hostname = host if context else None
            _, channel = await loop.create_connection(
                partial(_Channel, loop, state, timeout_s),
                **where,
                ssl=context,
                server_hostname=server_hostname,
            )
            connection = cls(channel, host, port)
            try:
                await channel.opened
            except BaseException:
                connection.close()
                raise
        return connection

    @property
    def closed(self) -> bool:
        return self._state.lost is not None

    def version_of(self, api_key: int) -> int:
        """The highest version of an API that both sides speak, and may; raises UnsupportedApi."""
        return self._state.version_of(api_key)

    def check_version(self, api_key: int, version: int) -> None:
        """Raises UnsupportedApi for a version of an API that is not spoken on both sides."""
        self._state.check_version(api_key, version)

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
        channel, state = self._channel, self._state
        data = state.request(message, version, channel.loop.time(), timeout_s, answered, keeps=keeps)
        if state.next_time < channel.rings_at:
            channel.set_timer()
        if data:
            assert channel.transport is not None
            channel.transport.write(data)

    def send_unanswered(self, message: Message, version: int) -> None:
        """Send a request that no response follows: Produce with acks=0. Raises ConnectionLost.

        While a login is renewed, it is not held up and the broker ends the connection: acks=0 means that.
        """
        data = self._state.unanswered(message, version)
        assert self._channel.transport is not None
        self._channel.transport.write(data)

    def abort(self) -> None:
        """As `close`, and what the broker has not received yet is dropped, in the kernel too: the connection
        is reset. For a broker that takes nothing any more, and for requests that are sent again elsewhere."""
        transport = self._channel.transport
        if transport is not None:
            underlying = transport.get_extra_info("socket")
            if underlying is not None and underlying.fileno() >= 0:
                underlying.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            transport.abort()
        self._state.close()

    def close(self) -> None:
        """Close at once; requests in flight end with ConnectionLost."""
        if self._channel.transport is not None:
            self._channel.transport.close()
        self._state.close()
