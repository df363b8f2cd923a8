"""A client's connections to the brokers of its cluster: one for each broker and channel, made when needed.

Called by `driver` alone, in the event loop. Invariants: every request that is sent is answered once, in a
later turn of the loop, with the response or an exception; a broker that cannot be reached is left alone for a
while (reconnect.backoff.ms, doubling to its maximum); after a throttled answer nothing is `ready` there until
the time is over (KIP-219).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from ottla.client.core.backoff import Uniform, backoff_s
from ottla.client.core.cluster import Cluster
from ottla.client.core.config import ClientConfig
from ottla.client.core.request_stats import RequestStats
from ottla.client.core.types import ANY_NODE, Node, Outgoing
from ottla.client.dialing import Buffers, dial
from ottla.client.errors import UnsupportedVersionError
from ottla.client.peers import BOOTSTRAP_ID, Answered, Bootstrap, Peer, name_of
from ottla.protocol.errors import KafkaError
from ottla.wire.connection import BrokerConnection, ConnectionLost, UnsupportedApi

log = logging.getLogger(__name__)

_IDLE_CHECK_S_MAX: Final = 30.0


class NotSent(ConnectionLost):
    """No broker has received the request."""


class Network:
    """Use: `send`, and `close` at the end."""

    def __init__(
        self, cluster: Cluster, config: ClientConfig, *, uniform: Uniform, changed: Callable[[], None]
    ) -> None:
        """`changed` is called when a connection was made or lost. Raises ConfigError."""
        self._cluster = cluster
        self._config = config
        self._uniform = uniform
        self._changed = changed
        self._security = config.security()
        self._starts_over = config.metadata_recovery_strategy == "rebootstrap"
        self._buffers = Buffers(config.send_buffer_bytes, config.receive_buffer_bytes)
        self._loop = asyncio.get_running_loop()
        self._peers: dict[tuple[int, str], Peer] = {}
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
        """Whether a request to this node would go out at once; if not, a connection is made meanwhile."""
        peer = self._peer(node_id, channel)
        if peer is None:
            return False
        if peer.open:
            return self._loop.time() >= peer.throttled_until
        self._connect(peer)
        return False

    def ready_time(self, node_id: int, now: float, channel: str = "") -> float:
        """When it is worth while to ask `ready` again, without news; infinite while a connection is made."""
        peer = self._peer(node_id, channel)
        if peer is None or peer.opening is not None:
            return math.inf
        return max(peer.throttled_until if peer.open else peer.not_before, now)

    def refused(self, node_id: int, channel: str = "") -> KafkaError | None:
        """Why a broker does not let us in; nothing that time would mend."""
        peer = self._peers.get((node_id, channel))
        return None if peer is None else peer.refused

    def version_of(self, node_id: int, api_key: int, channel: str = "") -> int | None:
        """The version that a node would be asked in; None while that is not known. Raises UnsupportedApi."""
        peer = self._peers.get((node_id, channel))
        if peer is None or peer.connection is None or not peer.open:
            return None
        return peer.connection.version_of(api_key)

    @property
    def connections(self) -> int:
        """How many are open."""
        return sum(peer.open for peer in list(self._peers.values()))

    def send(self, outgoing: Outgoing, answered: Answered) -> None:
        """Send a request, once there is a connection; `answered` gets what comes of it."""
        now = self._loop.time()
        peer = self._choose(now) if outgoing.node_id == ANY_NODE else self._of(outgoing)
        if peer is None:
            where = "any broker" if outgoing.node_id == ANY_NODE else f"broker {outgoing.node_id}"
            self._later(answered, NotSent(f"no address of {where} that may be tried now"))
        elif peer.open:
            self._send(peer, outgoing, answered, outgoing.timeout_s)
        elif self._connect(peer):
            peer.waiting.append((outgoing, answered, now + outgoing.timeout_s))
        else:
            self._later(answered, peer.refused or NotSent(f"{name_of(peer.node)} cannot be reached"))

    def _of(self, outgoing: Outgoing) -> Peer | None:
        return self._peer(outgoing.node_id, outgoing.channel)

    def _later(self, answered: Answered, problem: Exception) -> None:
        self._loop.call_soon(answered, problem)

    def _send(self, peer: Peer, outgoing: Outgoing, answered: Answered, timeout_s: float) -> None:
        connection = peer.connection
        assert connection is not None
        message = outgoing.message
        peer.used_at = self._loop.time()
        try:
            version = _version(connection, outgoing)
        except (UnsupportedApi, UnsupportedVersionError) as problem:
            self._later(answered, problem)
            return
        try:
            self.stats.sent(peer.node.id, peer.used_at)
            if not outgoing.answers:
                connection.send_without_response(message, version)
                self._loop.call_soon(answered, None)
                return
            peer.in_flight += 1
            connection.send(
                message,
                version,
                timeout_s,
                partial(self._arrived, peer, connection, message.api_key, peer.used_at, answered),
                keeps=outgoing.keeps,
            )
        except Exception as problem:
            if outgoing.answers:
                peer.in_flight -= 1
            self._later(answered, problem)

    def _arrived(
        self,
        peer: Peer,
        connection: BrokerConnection,
        api_key: int,
        sent_at: float,
        answered: Answered,
        response: Any,
    ) -> None:
        peer.in_flight -= 1
        if isinstance(response, TimeoutError | ConnectionLost):
            # Kafka's clients give a connection up whose broker is silent: another one may be there by now.
            if isinstance(response, TimeoutError):
                response = TimeoutError(f"{name_of(peer.node)} did not answer in time")
            if peer.connection is connection:
                self._lost(peer, connection)
        else:
            throttle_ms = getattr(response, "throttle_time_ms", 0)
            now = self._loop.time()
            if throttle_ms > 0:
                peer.throttled_until = now + throttle_ms / 1000
            self.stats.answered(peer.node.id, api_key, now - sent_at, throttle_ms, now)
        answered(response)

    def _lost(self, peer: Peer, connection: BrokerConnection) -> None:
        log.info("lost the connection to %s", name_of(peer.node))
        self.stats.closed.record(1, self._loop.time())
        peer.connection = None
        connection.abort()
        peer.not_before = self._loop.time() + self._reconnect_backoff_s(peer)
        self._cluster.invalidate()
        self._loop.call_soon(self._changed)

    # --- choosing ---

    def _peer(self, node_id: int, channel: str) -> Peer | None:
        """That of a node which is known; an address that has changed makes a new one."""
        node = self._cluster.nodes.get(node_id)
        if node is None:
            return self._peers.get((node_id, channel)) if node_id <= BOOTSTRAP_ID else None
        return self._at(node, channel)

    def _at(self, node: Node, channel: str = "") -> Peer:
        peer = self._peers.get((node.id, channel))
        if peer is not None and (
            peer.node is node or (peer.node.host, peer.node.port) == (node.host, node.port)
        ):
            return peer
        if peer is not None:
            self._drop(peer, ConnectionLost(f"{name_of(peer.node)} has moved to {node.host}:{node.port}"))
        peer = self._peers[node.id, channel] = Peer(node)
        return peer

    def _choose(self, now: float) -> Peer | None:
        """The least busy broker: connected and idle before connected before one that may be tried."""
        known = list(self._cluster.nodes.values())
        peers = [self._at(node) for node in known or self._bootstrap.nodes]
        if not peers:
            return None
        first = int(self._uniform(0, len(peers))) % len(peers)
        best: tuple[tuple[int, int], Peer] | None = None
        for peer in peers[first:] + peers[:first]:
            if peer.open and now >= peer.throttled_until:
                rank = (0, peer.in_flight)
            elif peer.opening is not None:
                rank = (2, len(peer.waiting))
            elif now >= peer.not_before:
                rank = (1 if not peer.failures else 3, peer.failures)
            else:
                continue
            if best is None or rank < best[0]:
                best = rank, peer
        if best is not None:
            return best[1]
        if known and self._starts_over:
            log.info("no known broker can be reached: starting over from bootstrap.servers")
            self._cluster.nodes = {}
            return self._choose(now)
        return None

    def any_time(self, now: float) -> float:
        """When a request for any node has somebody to go to."""
        known = list(self._cluster.nodes.values())
        peers = [self._at(node) for node in known or self._bootstrap.nodes]
        if known and self._starts_over and not any(peer.may_be_asked(now) for peer in peers):
            return now
        return min((peer.not_before for peer in peers), default=now)

    # --- connecting ---

    def _connect(self, peer: Peer) -> bool:
        """Whether a connection is being made."""
        if peer.opening is not None:
            return True
        if self._closed or self._loop.time() < peer.not_before:
            return False
        if peer.connection is not None:
            # It was closed while nothing was on its way.
            self._lost(peer, peer.connection)
            return False
        peer.opening = self._loop.create_task(self._open(peer))
        return True

    async def _open(self, peer: Peer) -> None:
        node, config = peer.node, self._config
        least_ms, most_ms = (
            config.socket_connection_setup_timeout_ms,
            config.socket_connection_setup_timeout_max_ms,
        )
        timeout_s = backoff_s(peer.setup_failures, least_ms, most_ms, self._uniform)
        problem: Exception | None = None
        try:
            if node.id <= BOOTSTRAP_ID:
                node = await self._bootstrap.named(node)
            peer.connection = await BrokerConnection.open(
                node.host,
                node.port,
                client_id=config.client_id,
                timeout_s=timeout_s,
                security=self._security,
                dial=partial(dial, buffers=self._buffers, first=peer.setup_failures),
            )
        except Exception as error:  # of the network, of TLS, of a login, of a key store that has gone
            problem = error
        finally:
            peer.opening = None
        if problem is None:
            peer.failures = peer.setup_failures = 0
            peer.refused = None
            peer.used_at = self._loop.time()
            self.stats.opened.record(1, peer.used_at)
            self._watch_idle()
            waiting, peer.waiting = peer.waiting, []
            for outgoing, answered, deadline in waiting:
                left_s = deadline - self._loop.time()
                if left_s > 0 and peer.open:
                    self._send(peer, outgoing, answered, left_s)
                else:
                    answered(TimeoutError(f"no connection to {name_of(node)} in time"))
        else:
            self._not_opened(peer, problem)
        self._changed()

    def _not_opened(self, peer: Peer, problem: Exception) -> None:
        log.warning("cannot connect to %s: %s", name_of(peer.node), problem or type(problem).__name__)
        peer.setup_failures += isinstance(problem, TimeoutError)
        peer.not_before = self._loop.time() + self._reconnect_backoff_s(peer)
        peer.refused = problem if isinstance(problem, KafkaError) else None
        self._cluster.invalidate()
        waiting, peer.waiting = peer.waiting, []
        for _, answered, _ in waiting:
            answered(peer.refused or NotSent(f"{name_of(peer.node)}: {problem or type(problem).__name__}"))

    def _reconnect_backoff_s(self, peer: Peer) -> float:
        config = self._config
        pause_s = backoff_s(
            peer.failures, config.reconnect_backoff_ms, config.reconnect_backoff_max_ms, self._uniform
        )
        peer.failures += 1
        return pause_s

    # --- closing ---

    def _watch_idle(self) -> None:
        """Close connections that nobody used for connections.max.idle.ms."""
        max_idle_ms = self._config.connections_max_idle_ms
        if self._idle_timer is None and max_idle_ms >= 0:
            pause_s = min(max_idle_ms / 1000, _IDLE_CHECK_S_MAX)
            self._idle_timer = self._loop.call_later(pause_s, self._close_idle)

    def _close_idle(self) -> None:
        self._idle_timer = None
        latest = self._loop.time() - self._config.connections_max_idle_ms / 1000
        for peer in self._peers.values():
            if peer.connection is not None and not peer.in_flight and peer.used_at <= latest:
                peer.connection.close()
                peer.connection = None
                self.stats.closed.record(1, self._loop.time())
        if any(peer.connection for peer in self._peers.values()):
            self._watch_idle()

    def _drop(self, peer: Peer, problem: Exception) -> None:
        if peer.opening is not None:
            peer.opening.cancel()
        if peer.connection is not None:
            peer.connection.close()
        waiting, peer.waiting = peer.waiting, []
        for _, answered, _ in waiting:
            self._later(answered, problem)

    def _tasks(self) -> Iterator[asyncio.Task[None]]:
        for peer in self._peers.values():
            if peer.opening is not None:
                yield peer.opening

    async def close(self) -> None:
        """Close all connections; what is on its way ends with ConnectionLost."""
        self._closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        opening = list(self._tasks())
        for peer in self._peers.values():
            self._drop(peer, ConnectionLost("closed by us"))
        await asyncio.gather(*opening, return_exceptions=True)


def _version(connection: BrokerConnection, outgoing: Outgoing) -> int:
    """In which a request goes out. Raises UnsupportedApi, UnsupportedVersionError."""
    message = outgoing.message
    if outgoing.version is not None:
        connection.check_version(message.api_key, outgoing.version)
        return outgoing.version
    version = connection.version_of(message.api_key)
    if outgoing.version_max is not None:
        version = min(version, outgoing.version_max)
    if version < outgoing.version_min:
        name = type(message).__name__.removesuffix("Request")
        raise UnsupportedVersionError(
            f"{connection.host}:{connection.port} serves {name} up to version {version}; "
            f"version {outgoing.version_min} is needed"
        )
    return version
