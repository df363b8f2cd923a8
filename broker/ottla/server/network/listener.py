"""Listening sockets and the connections they accepted.

Called by ottla.server.assembly.broker: `bind` first (the real port of a port-0 listener is registered),
`listen` before other brokers see the registration, `serve` once the broker takes requests, `stop_accepting`
and `close_all` at shutdown, `tick` about once a second for idle connections. When a connection cannot be
accepted (no file descriptor is left), the acceptor pauses for `ACCEPT_RETRY_S`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from ottla.ports.network import Network
from ottla.server.logs.page_cache_reader import PageCacheReader
from ottla.server.network.buffers import KEPT_BYTES_MAX, PLENTY_BYTES, BufferPool, RequestMemory
from ottla.server.network.channel import FrameHandler, KafkaChannel
from ottla.server.network.connection_limits import ConnectionLimits, IdleWatch
from ottla.server.network.plaintext_transport import PlaintextTransport
from ottla.server.network.secure_listeners import SecureListener

log = logging.getLogger(__name__)

ACCEPTS_PER_EVENT = 64
ACCEPT_RETRY_S = 1.0
COMPACT_S = 30.0
"""How long idle connections keep their buffers while much buffer memory is in use."""


class Endpoint(NamedTuple):
    """A listener as configured (port 0: any free one) or as bound."""

    listener: str
    host: str
    port: int


class SocketServer:
    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        network: Network,
        on_frame: FrameHandler,
        max_request_bytes: int,
        idle_max_ms: int,
        send_buffer_bytes: int = -1,
        receive_buffer_bytes: int = -1,
        backlog: int = 50,
        queued_max_bytes: int = -1,
        page_cache_reader: PageCacheReader,
        limits: ConnectionLimits | None = None,
        secure: Mapping[str, SecureListener] | None = None,
    ) -> None:
        """`queued_max_bytes` is queued.max.request.bytes, -1 for no limit; without `limits` there are none;
        `secure` has the listeners that are not PLAINTEXT, by name."""
        self._loop = loop
        self._network = network
        self._on_frame = on_frame
        self._max_request_bytes = max_request_bytes
        self._idle_watch = IdleWatch(idle_max_ms / 1000)
        self._limits = limits
        self._secure = secure or {}
        self._send_buffer_bytes = send_buffer_bytes
        self._receive_buffer_bytes = receive_buffer_bytes
        self._backlog = backlog
        self.buffers = BufferPool()
        self.page_cache_reader = page_cache_reader
        self._compacted = 0.0
        self.memory = None if queued_max_bytes <= 0 else RequestMemory(queued_max_bytes, loop.call_soon)
        self._listening: dict[str, socket.socket] = {}
        self._accepting: set[str] = set()
        self._held: dict[socket.socket, asyncio.TimerHandle] = {}
        """Accepted connections above the rate limits: served or closed later."""
        self._slowed: set[str] = set()
        """Listeners that accept no connection while one of those waits."""
        self._retries: dict[str, asyncio.TimerHandle] = {}
        """When listeners that could not accept a connection try again."""
        self._serving = False
        self.connections: dict[KafkaChannel, None] = {}
        """In the order of their admission."""
        self.accepted: dict[str, int] = {}
        """How many connections each listener has admitted so far."""

    def bind(self, endpoint: Endpoint) -> Endpoint:
        """Bind the address; returns the endpoint with its real port. Raises OSError that names the
        endpoint."""
        try:
            sock = self._network.bind(endpoint.host or None, endpoint.port)
        except OSError as e:
            raise OSError(
                e.errno,
                f"cannot listen on {endpoint.listener}://{endpoint.host}:{endpoint.port}: {e.strerror}",
            ) from e
        if self._receive_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer_bytes)
        self._listening[endpoint.listener] = sock
        self.accepted[endpoint.listener] = 0
        return endpoint._replace(port=sock.getsockname()[1])

    def listen(self) -> None:
        """Open the ports; connections wait in the backlog for `serve`. Raises OSError."""
        for sock in self._listening.values():
            sock.listen(self._backlog)

    def serve(self) -> None:
        self._serving = True
        for listener in self._listening:
            self._resume(listener)

    def _resume(self, listener: str) -> None:
        sock = self._listening.get(listener)
        if sock is not None and listener not in self._accepting and listener not in self._slowed:
            self._accepting.add(listener)
            self._loop.add_reader(sock.fileno(), self._accept, listener, sock)

    def _accept(self, listener: str, sock: socket.socket) -> None:
        limits = self._limits
        for _ in range(ACCEPTS_PER_EVENT):
            if limits is not None and not limits.has_room(listener):
                self._pause(listener, sock)
                log.debug(
                    "max.connections is reached: %s accepts no connection until one is closed", listener
                )
                return
            try:
                client, address = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as e:
                if e.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                log.error("cannot accept on %s for now: %s", listener, e)
                self._pause(listener, sock)
                self._retries[listener] = self._loop.call_later(ACCEPT_RETRY_S, self._resume, listener)
                return
            peer = (str(address[0]).removeprefix("::ffff:"), int(address[1]))
            client.setblocking(False)
            wait_ms = 0 if limits is None else limits.accepted(listener)
            if wait_ms > 0:
                self._pause(listener, sock)
                self._slowed.add(listener)
                self._hold(client, wait_ms, partial(self._admit_late, client, listener, peer))
                return
            self._admit(client, listener, peer)

    def _admit(self, client: socket.socket, listener: str, peer: tuple[str, int]) -> None:
        limits = self._limits
        if limits is not None:
            refused_ms = limits.refused_for(peer[0], listener)
            if refused_ms > 0:
                # A client that is disconnected at once reconnects at once.
                self._hold(client, refused_ms, client.close)
                return
            if not limits.admit(peer[0], listener):
                client.close()
                return
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self._send_buffer_bytes > 0:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_buffer_bytes)
        except OSError:  # the client has disconnected
            client.close()
            if limits is not None:
                limits.left(peer[0], listener)
            return
        try:
            self.adopt(client, listener, peer)
        except (OSError, ValueError):  # TLS asks the socket for its peer, which has disconnected
            client.close()
            if limits is not None:
                limits.left(peer[0], listener)
            return
        if limits is not None and limits.is_exceeded:
            self._close_longest_idle()

    def _hold(self, client: socket.socket, wait_ms: int, then: Callable[[], None]) -> None:
        """Call `then` after that time; the connection is not served meanwhile."""

        def wait_is_over() -> None:
            del self._held[client]
            then()

        self._held[client] = self._loop.call_later(wait_ms / 1000, wait_is_over)

    def _admit_late(self, client: socket.socket, listener: str, peer: tuple[str, int]) -> None:
        self._slowed.discard(listener)
        self._admit(client, listener, peer)
        self._resume(listener)

    def _pause(self, listener: str, sock: socket.socket) -> None:
        self._accepting.discard(listener)
        self._loop.remove_reader(sock.fileno())

    def _close_longest_idle(self) -> None:
        """max.connections is exceeded by a connection of the inter-broker listener: close the client
        connection that has been idle longest."""
        assert self._limits is not None
        now = self._loop.time()
        clients = (c for c in self.connections if not self._limits.is_protected(c.listener))
        longest = max(clients, key=lambda c: c.idle_for(now), default=None)
        if longest is not None:
            longest.close("max.connections is reached, and a broker connects", level=logging.INFO)

    def adopt(self, sock: socket.socket, listener: str, peer: tuple[str, int]) -> KafkaChannel:
        """Serve a connected, nonblocking socket that the limits have admitted. Raises OSError, and ValueError
        for a socket whose client has disconnected."""
        channel = KafkaChannel(
            loop=self._loop,
            listener=listener,
            peer=peer,
            max_request_bytes=self._max_request_bytes,
            buffers=self.buffers,
            memory=self.memory,
            page_cache_reader=self.page_cache_reader,
            on_frame=self._on_frame,
            on_closed=self._closed,
        )
        secure = self._secure.get(listener)
        if secure is None:
            PlaintextTransport(sock, channel, self._loop)
        else:
            secure.adopt(sock, channel)
        self.connections[channel] = None
        self.accepted[listener] = self.accepted.get(listener, 0) + 1
        self._idle_watch.watch(channel, self._loop.time())
        return channel

    def _closed(self, channel: KafkaChannel) -> None:
        del self.connections[channel]
        self._idle_watch.forget(channel)
        limits = self._limits
        if limits is not None:
            limits.left(channel.peer_host, channel.listener)
            self._accept_again()

    def _accept_again(self) -> None:
        """Resume the listeners that max.connections had stopped, if it allows."""
        if self._serving and len(self._accepting) < len(self._listening):
            for listener in self._listening:
                if self._limits is None or self._limits.has_room(listener):
                    self._resume(listener)

    def tick(self) -> None:
        """Close connections idle for `connections.max.idle.ms`; take back buffers that are mostly empty."""
        now = self._loop.time()
        for connection in self._idle_watch.idle(now):
            connection.close("idle for connections.max.idle.ms", level=logging.INFO)
        self._accept_again()  # the limit may have been raised
        lent = self.buffers.lent_bytes
        if lent >= PLENTY_BYTES or (lent > KEPT_BYTES_MAX and now - self._compacted >= COMPACT_S):
            self._compacted = now
            for connection in self.connections:
                connection.compact()

    def stop_accepting(self) -> None:
        for listener, sock in self._listening.items():
            if listener in self._accepting:
                self._loop.remove_reader(sock.fileno())
            sock.close()
        self._accepting.clear()
        self._listening.clear()
        for client, timer in self._held.items():
            timer.cancel()
            client.close()
        self._held.clear()
        for timer in self._retries.values():
            timer.cancel()

    def close_all(self) -> None:
        for connection in list(self.connections):
            connection.close()
