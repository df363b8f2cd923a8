"""A connection to a broker over asyncio: the I/O of `ottla.wire.connection_state`, which has all the rules.

Called by the client library, the connections between brokers, and the operator. Invariant: every request has
one outcome: a response, `ConnectionLost` or a time-out.

A fetcher sends one request after the other without end, so a request costs no task, future or timer of its
own: `send` calls back in the iteration of the event loop in which the response arrives, and all time-outs
share one timer. The records of such a response stay in the receive buffer: they are memoryviews of it until
the callback returns. The response to a `request` has a buffer of its own.
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
from ottla.wire.connection_state import ConnectionState, Event, InFlightRequest, Lost, Ready, Send
from ottla.wire.connection_state import UnsupportedApi as UnsupportedApi
from ottla.wire.framing import ConnectionLost as ConnectionLost
from ottla.wire.handshake import Prepare, SaslStep

log = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S: Final = 1.0
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of 0 s: closing the socket resets the connection, and drops unsent bytes."""

OnResponse: TypeAlias = Callable[[Any], None]
"""Called with the response, or with the exception in its place."""


class _Channel(asyncio.BufferedProtocol):
    """Passes bytes and time to the state machine, and executes its events. A request's tag is its
    callback."""

    def __init__(self, loop: asyncio.AbstractEventLoop, state: ConnectionState, timeout_s: float) -> None:
        self.loop = loop
        self.state = state
        self.opened: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.transport: asyncio.Transport | None = None
        self.timer_at = math.inf
        self._unwritten: list[OnResponse] = []
        self._timeout_s = timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._sasl_step: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asserted: uvloop's transports are no subclass of asyncio's.
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(0)  # resume_writing is called when all is written
        self._handle(self.state.begin(self.loop.time(), self._timeout_s))

    def connection_lost(self, exc: Exception | None) -> None:
        state = self.state
        self._handle(state.ended(exc))
        resolve(self.opened, ConnectionLost(str(state.lost)))
        resolve(self.ended)
        self._report_written(ConnectionLost(str(state.lost)))
        if self._timer is not None:
            self._timer.cancel()
        if self._sasl_step is not None:
            self._sasl_step.cancel()

    def when_written(self, on_written: OnResponse) -> None:
        """Call back in a later iteration: with None when all data so far is in the socket, with the exception
        if the connection is lost before."""
        assert self.transport is not None
        if self.transport.get_write_buffer_size():
            self._unwritten.append(on_written)
        else:
            self.loop.call_soon(on_written, None)

    def resume_writing(self) -> None:
        self._report_written(None)

    def _report_written(self, outcome: Exception | None) -> None:
        unwritten, self._unwritten = self._unwritten, []
        for on_written in unwritten:
            on_written(outcome)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.state.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        for event in self.state.received(nbytes):
            if isinstance(event, InFlightRequest):
                event.tag(event.response)
            else:
                self._do(event)

    def _handle(self, events: Iterable[Event]) -> None:
        for event in events:
            self._do(event)
        self.set_timer()

    def _do(self, event: Event) -> None:
        assert self.transport is not None
        if isinstance(event, InFlightRequest):
            event.tag(event.response)
        elif isinstance(event, Send):
            self.transport.write(event.data)
        elif isinstance(event, SaslStep | Prepare):
            self._sasl_step = self.loop.create_task(self._run_sasl_step(event))
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

    async def _run_sasl_step(self, step: SaslStep | Prepare) -> None:
        outcome: bytes | Exception | None = None
        try:
            if isinstance(step, Prepare):
                await step.prepare()
            else:
                outcome = await asyncio.to_thread(step.work)
        except Exception as problem:
            outcome = problem
        self._sasl_step = None
        self._handle(self.state.sasl_step_done(outcome))

    def set_timer(self) -> None:
        """Set the timer to the next deadline. An earlier timer stays: mostly its request has its response by
        then."""
        at = self.state.next_time
        if at < self.timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self.timer_at = at
            self._timer = self.loop.call_at(at, self._on_timer)

    def _on_timer(self) -> None:
        now = max(self.loop.time(), self.timer_at)  # the loop may call early by its clock's resolution
        self._timer = None
        self.timer_at = math.inf
        self._handle(self.state.expire(now))


class BrokerConnection:
    """An open connection. Requests may be pipelined; the broker responds in order."""

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
        """Connect, negotiate versions and log in. `limits` are the highest versions to use, by API key;
        without `security` it is PLAINTEXT; `dial` makes the connected socket. Raises OSError (of TLS, too),
        ConnectionLost, asyncio.TimeoutError, and KafkaError when the broker rejects the login."""
        loop = asyncio.get_running_loop()
        context = login = None
        if security is not None:
            context, login = security.context(), security.login
        state = ConnectionState(f"{host}:{port}", client_id, limits=limits, login=login)
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
                connection.abort()
                raise
        return connection

    @property
    def closed(self) -> bool:
        return self._state.lost is not None

    def version_of(self, api_key: int) -> int:
        """The highest version of an API that both sides support, up to its limit; raises UnsupportedApi."""
        return self._state.version_of(api_key)

    def check_version(self, api_key: int, version: int) -> None:
        """Raises UnsupportedApi for a version of an API that either side does not support."""
        self._state.check_version(api_key, version)

    async def request(self, message: Message, *, version: int | None = None, timeout_s: float = 30) -> Any:
        """Send a request and await its response. Raises ConnectionLost, UnsupportedApi,
        asyncio.TimeoutError."""
        chosen = self.version_of(type(message).api_key) if version is None else version
        response: asyncio.Future[Any] = self._channel.loop.create_future()
        self.send(message, chosen, timeout_s, partial(resolve, response), keeps=True)
        return await response

    def send(
        self,
        message: Message,
        version: int,
        timeout_s: float,
        on_response: OnResponse,
        *,
        keeps: bool = False,
    ) -> None:
        """Send a request, and call `on_response` once with what `request` would return or raise. Without
        `keeps`, views in the response are valid during the call only. Raises ConnectionLost if the connection
        is closed."""
        channel, state = self._channel, self._state
        data = state.request(message, version, channel.loop.time(), timeout_s, on_response, keeps=keeps)
        if state.next_time < channel.timer_at:
            channel.set_timer()
        if data:
            assert channel.transport is not None
            channel.transport.write(data)

    def send_without_response(self, message: Message, version: int, on_written: OnResponse) -> None:
        """Send a request without a response: Produce with acks=0. Calls back once: with None when it is in
        the socket, where Kafka's clients count it as sent, or with the exception. Raises ConnectionLost.

        During a renewal of the login it is not held, and the broker closes the connection: acks=0 allows the
        loss.
        """
        data = self._state.request_without_response(message, version)
        assert self._channel.transport is not None
        self._channel.transport.write(data)
        self._channel.when_written(on_written)

    def abort(self) -> None:
        """As `close`, and reset the connection: bytes that the broker has not received are dropped, in the
        kernel too. For a broker that does not read, and for requests that are sent again on another
        connection."""
        transport = self._channel.transport
        if transport is not None:
            underlying = transport.get_extra_info("socket")
            if underlying is not None and underlying.fileno() >= 0:
                underlying.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            transport.abort()
        self._state.close()

    def close(self) -> None:
        """Requests in flight end with ConnectionLost at once. The connection closes in the background, once
        unsent bytes are sent; over TLS, once the broker has responded to the close_notify."""
        transport = self._channel.transport
        # From CPython 3.12 on, a TLS transport that is closed twice can no longer be aborted.
        if transport is not None and not transport.is_closing():
            transport.close()
        self._state.close()

    @property
    def ended(self) -> asyncio.Future[None]:
        """Completes when the connection is closed for good."""
        return self._channel.ended


async def close_all(connections: Iterable[BrokerConnection]) -> None:
    """Close connections and wait until all of them are closed, so that the event loop may end. Those that are
    not after 1 s are aborted."""
    closing = list(connections)
    for connection in closing:
        connection.close()
    if closing:
        await asyncio.wait([connection.ended for connection in closing], timeout=_CLOSE_TIMEOUT_S)
    for connection in closing:
        if not connection.ended.done():
            connection.abort()


def resolve(future: asyncio.Future[Any], outcome: Any = None) -> None:
    """Complete a future with a result, or with the exception if `outcome` is one; does nothing if the future
    is done, e.g. cancelled."""
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
