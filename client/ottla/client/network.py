"""A client's connections to the brokers of its cluster: one for each broker and channel, opened on demand.

Called by `network_loop` alone, in the event loop. Invariants: each request gets one outcome, a response or an
exception, in a later turn of the event loop; after a failed connection the client waits for
reconnect.backoff.ms, doubled up to its maximum, before it connects to that broker again; after a throttled
response the broker is not `ready` until throttle_time_ms is over (KIP-219).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ottla.client.core.backoff import Uniform, backoff_s
from ottla.client.core.cluster import Cluster
from ottla.client.core.config import ClientConfig
from ottla.client.core.stats import RequestStats
from ottla.client.core.types import ANY_NODE, Node, UnsentRequest
from ottla.client.errors import UnsupportedVersionError
from ottla.client.node_connections import (
    BOOTSTRAP_ID,
    Bootstrap,
    Buffers,
    NodeConnection,
    OnResponse,
    connect_socket,
    name_of,
)
from ottla.protocol.errors import KafkaError
from ottla.wire.connection import BrokerConnection, ConnectionLost, UnsupportedApi, close_all

log = logging.getLogger(__name__)

_IDLE_CHECK_S_MAX: Final = 30.0


class RequestNotSent(ConnectionLost):
    """The request was not sent to any broker."""


class Network:
    """The connections of a client. Use: `send`, and `close` at the end."""

    def __init__(
        self, cluster: Cluster, config: ClientConfig, *, uniform: Uniform, changed: Callable[[], None]
    ) -> None:
        """`changed` is called when a connection was opened or lost. Raises ConfigError."""
        self._cluster = cluster
        self._config = config
        self._uniform = uniform
        self._changed = changed
        self._security = config.security()
        self._rebootstraps = config.metadata_recovery_strategy == "rebootstrap"
        self._buffers = Buffers(config.send_buffer_bytes, config.receive_buffer_bytes)
        self._loop = asyncio.get_running_loop()
        self._node_connections: dict[tuple[int, str], NodeConnection] = {}
        self._bootstrap = Bootstrap(
            config.bootstrap_servers,
            canonical=config.client_dns_lookup == "resolve_canonical_bootstrap_servers_only",
        )
        self._idle_timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.stats = RequestStats(config.window)

    def now(self) -> float:
        return self._loop.time()

    # --- sending ---

    def ready(self, node_id: int, channel: str = "") -> bool:
        """Whether a request to this node would be sent at once; if not, a connection is opened."""
        conn = self._node_connection(node_id, channel)
        if conn is None:
            return False
        if conn.open:
            return self._loop.time() >= conn.throttled_until
        self._connect(conn)
        return False

    def ready_time(self, node_id: int, now: float, channel: str = "") -> float:
        """When to call `ready` again if nothing changes before; infinite while a connection is being
        opened."""
        conn = self._node_connection(node_id, channel)
        if conn is None or conn.opening is not None:
            return math.inf
        return max(conn.throttled_until if conn.open else conn.not_before, now)

    def authentication_error(self, node_id: int, channel: str = "") -> KafkaError | None:
        """The authentication error of the last attempt to connect; retrying does not help."""
        conn = self._node_connections.get((node_id, channel))
        return None if conn is None else conn.authentication_error

    def version_of(self, node_id: int, api_key: int, channel: str = "") -> int | None:
        """The version in which a request would be sent to a node; None if it is unknown. Raises
        UnsupportedApi."""
        conn = self._node_connections.get((node_id, channel))
        if conn is None or conn.connection is None or not conn.open:
            return None
        return conn.connection.version_of(api_key)

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return sum(conn.open for conn in list(self._node_connections.values()))

    def send(self, unsent: UnsentRequest, on_response: OnResponse) -> None:
        """Send a request, once there is a connection; `on_response` gets the response or the exception."""
        now = self._loop.time()
        conn = self._choose(now) if unsent.node_id == ANY_NODE else self._connection_for(unsent)
        if conn is None:
            target = "any broker" if unsent.node_id == ANY_NODE else f"broker {unsent.node_id}"
            self._call_later(
                on_response,
                RequestNotSent(f"no connection to {target}: all addresses are in reconnect backoff"),
            )
        elif conn.open:
            self._send(conn, unsent, on_response, unsent.timeout_s)
        elif self._connect(conn):
            conn.waiting.append((unsent, on_response, now + unsent.timeout_s))
        else:
            self._call_later(
                on_response,
                conn.authentication_error or RequestNotSent(f"{name_of(conn.node)} cannot be reached"),
            )

    def _connection_for(self, unsent: UnsentRequest) -> NodeConnection | None:
        return self._node_connection(unsent.node_id, unsent.channel)

    def _call_later(self, on_response: OnResponse, problem: Exception) -> None:
        self._loop.call_soon(on_response, problem)

    def _send(
        self, conn: NodeConnection, unsent: UnsentRequest, on_response: OnResponse, timeout_s: float
    ) -> None:
        connection = conn.connection
        assert connection is not None
        message = unsent.message
        conn.used_at = self._loop.time()
        try:
            version = _version(connection, unsent)
        except (UnsupportedApi, UnsupportedVersionError) as problem:
            self._call_later(on_response, problem)
            return
        self.stats.sent(conn.node.id, conn.used_at)
        conn.in_flight += 1
        try:
            if unsent.expects_response:
                connection.send(
                    message,
                    version,
                    timeout_s,
                    partial(self._on_received, conn, connection, message.api_key, conn.used_at, on_response),
                    keeps=unsent.keeps,
                )
            else:
                connection.send_without_response(
                    message, version, partial(self._on_written, conn, on_response)
                )
        except Exception as problem:
            conn.in_flight -= 1
            self._call_later(on_response, problem)

    def _on_written(self, conn: NodeConnection, on_response: OnResponse, outcome: Any) -> None:
        conn.in_flight -= 1
        on_response(outcome)

    def _on_received(
        self,
        conn: NodeConnection,
        connection: BrokerConnection,
        api_key: int,
        sent_at: float,
        on_response: OnResponse,
        response: Any,
    ) -> None:
        conn.in_flight -= 1
        if isinstance(response, TimeoutError | ConnectionLost):
            # As Kafka's clients: a connection that times out is closed, since the broker may have been
            # replaced.
            if isinstance(response, TimeoutError):
                response = TimeoutError(f"{name_of(conn.node)} did not respond in time")
            if conn.connection is connection:
                self._lost(conn, connection)
        else:
            throttle_ms = getattr(response, "throttle_time_ms", 0)
            now = self._loop.time()
            if throttle_ms > 0:
                conn.throttled_until = now + throttle_ms / 1000
            self.stats.record_response(conn.node.id, api_key, now - sent_at, throttle_ms, now)
        on_response(response)

    def _lost(self, conn: NodeConnection, connection: BrokerConnection) -> None:
        log.info("connection to %s lost", name_of(conn.node))
        self.stats.closed.record(1, self._loop.time())
        conn.connection = None
        connection.abort()
        conn.not_before = self._loop.time() + self._reconnect_backoff_s(conn)
        self._cluster.invalidate()
        self._loop.call_soon(self._changed)

    # --- choosing a node ---

    def _node_connection(self, node_id: int, channel: str) -> NodeConnection | None:
        """The connection to a known node; a changed address replaces it."""
        node = self._cluster.nodes.get(node_id)
        if node is None:
            return self._node_connections.get((node_id, channel)) if node_id <= BOOTSTRAP_ID else None
        return self._at(node, channel)

    def _at(self, node: Node, channel: str = "") -> NodeConnection:
        conn = self._node_connections.get((node.id, channel))
        if conn is not None and (
            conn.node is node or (conn.node.host, conn.node.port) == (node.host, node.port)
        ):
            return conn
        if conn is not None:
            self._drop(conn, ConnectionLost(f"{name_of(conn.node)} has moved to {node.host}:{node.port}"))
        conn = self._node_connections[node.id, channel] = NodeConnection(node)
        return conn

    def _choose(self, now: float) -> NodeConnection | None:
        """The least loaded node: idle connections, then other open ones, then nodes that may be connected
        to."""
        known = list(self._cluster.nodes.values())
        conns = [self._at(node) for node in known or self._bootstrap.nodes]
        if not conns:
            return None
        first = int(self._uniform(0, len(conns))) % len(conns)
        best: tuple[tuple[int, int], NodeConnection] | None = None
        for conn in conns[first:] + conns[:first]:
            if conn.open and now >= conn.throttled_until:
                rank = (0, conn.in_flight)
            elif conn.opening is not None:
                rank = (2, len(conn.waiting))
            elif now >= conn.not_before:
                rank = (1 if not conn.failures else 3, conn.failures)
            else:
                continue
            if best is None or rank < best[0]:
                best = rank, conn
        if best is not None:
            return best[1]
        if known and self._rebootstraps:
            log.info("no known broker can be reached: rebootstrapping from bootstrap.servers")
            self._cluster.nodes = {}
            return self._choose(now)
        return None

    def any_time(self, now: float) -> float:
        """When a request to any node can be sent."""
        known = list(self._cluster.nodes.values())
        conns = [self._at(node) for node in known or self._bootstrap.nodes]
        if known and self._rebootstraps and not any(conn.may_send(now) for conn in conns):
            return now
        return min((conn.not_before for conn in conns), default=now)

    # --- connecting ---

    def _connect(self, conn: NodeConnection) -> bool:
        """Start to open a connection unless that is in progress; False if it is not allowed now."""
        if conn.opening is not None:
            return True
        if self._closed or self._loop.time() < conn.not_before:
            return False
        if conn.connection is not None:
            # It was closed while no request was in flight.
            self._lost(conn, conn.connection)
            return False
        conn.opening = self._loop.create_task(self._open(conn))
        return True

    async def _open(self, conn: NodeConnection) -> None:
        node, config = conn.node, self._config
        least_ms, most_ms = (
            config.socket_connection_setup_timeout_ms,
            config.socket_connection_setup_timeout_max_ms,
        )
        timeout_s = backoff_s(conn.setup_failures, least_ms, most_ms, self._uniform)
        problem: Exception | None = None
        try:
            if node.id <= BOOTSTRAP_ID:
                node = await self._bootstrap.named(node)
            conn.connection = await BrokerConnection.open(
                node.host,
                node.port,
                client_id=config.client_id,
                timeout_s=timeout_s,
                security=self._security,
                dial=partial(connect_socket, buffers=self._buffers, first=conn.setup_failures),
            )
        except Exception as error:  # of the network, TLS, authentication, or the key store
            problem = error
        finally:
            conn.opening = None
        if problem is None:
            conn.failures = conn.setup_failures = 0
            conn.authentication_error = None
            conn.used_at = self._loop.time()
            self.stats.opened.record(1, conn.used_at)
            self._watch_idle()
            waiting, conn.waiting = conn.waiting, []
            for unsent, on_response, deadline in waiting:
                left_s = deadline - self._loop.time()
                if left_s > 0 and conn.open:
                    self._send(conn, unsent, on_response, left_s)
                else:
                    on_response(TimeoutError(f"no connection to {name_of(node)} in time"))
        else:
            self._on_open_failed(conn, problem)
        self._changed()

    def _on_open_failed(self, conn: NodeConnection, problem: Exception) -> None:
        log.warning("cannot connect to %s: %s", name_of(conn.node), problem or type(problem).__name__)
        conn.setup_failures += isinstance(problem, TimeoutError)
        conn.not_before = self._loop.time() + self._reconnect_backoff_s(conn)
        conn.authentication_error = problem if isinstance(problem, KafkaError) else None
        self._cluster.invalidate()
        waiting, conn.waiting = conn.waiting, []
        for _, on_response, _ in waiting:
            on_response(
                conn.authentication_error
                or RequestNotSent(f"{name_of(conn.node)}: {problem or type(problem).__name__}")
            )

    def _reconnect_backoff_s(self, conn: NodeConnection) -> float:
        config = self._config
        pause_s = backoff_s(
            conn.failures, config.reconnect_backoff_ms, config.reconnect_backoff_max_ms, self._uniform
        )
        conn.failures += 1
        return pause_s

    # --- closing ---

    def _watch_idle(self) -> None:
        """Start the timer that closes connections idle for connections.max.idle.ms."""
        max_idle_ms = self._config.connections_max_idle_ms
        if self._idle_timer is None and max_idle_ms >= 0:
            pause_s = min(max_idle_ms / 1000, _IDLE_CHECK_S_MAX)
            self._idle_timer = self._loop.call_later(pause_s, self._close_idle)

    def _close_idle(self) -> None:
        self._idle_timer = None
        latest = self._loop.time() - self._config.connections_max_idle_ms / 1000
        for conn in self._node_connections.values():
            if conn.connection is not None and not conn.in_flight and conn.used_at <= latest:
                conn.connection.close()
                conn.connection = None
                self.stats.closed.record(1, self._loop.time())
        if any(conn.connection for conn in self._node_connections.values()):
            self._watch_idle()

    def _drop(self, conn: NodeConnection, problem: Exception) -> None:
        if conn.opening is not None:
            conn.opening.cancel()
        if conn.connection is not None:
            conn.connection.close()
        waiting, conn.waiting = conn.waiting, []
        for _, on_response, _ in waiting:
            self._call_later(on_response, problem)

    async def close(self) -> None:
        """Close all connections; requests in flight fail with ConnectionLost."""
        self._closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        conns = list(self._node_connections.values())
        opening = [conn.opening for conn in conns if conn.opening is not None]
        for conn in conns:
            self._drop(conn, ConnectionLost("the client was closed"))
        if opening:
            await asyncio.gather(*opening, return_exceptions=True)
        await close_all(conn.connection for conn in conns if conn.connection is not None)


def _version(connection: BrokerConnection, unsent: UnsentRequest) -> int:
    """The version to send a request in. Raises UnsupportedApi, UnsupportedVersionError."""
    message = unsent.message
    if unsent.version is not None:
        connection.check_version(message.api_key, unsent.version)
        return unsent.version
    version = connection.version_of(message.api_key)
    if unsent.version_max is not None:
        version = min(version, unsent.version_max)
    if version < unsent.version_min:
        name = type(message).__name__.removesuffix("Request")
        raise UnsupportedVersionError(
            f"{connection.host}:{connection.port} serves {name} up to version {version}; "
            f"version {unsent.version_min} is needed"
        )
    return version
