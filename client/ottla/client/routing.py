"""The brokers of a cluster, for the admin client: one connection to each, opened on demand.

Called by the admin client. Invariants: responses are returned unchanged, errors of items included; a broker
that throttles the client gets no request until the throttle time is over (KIP-219). It must be used from one
event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from ottla.client import errors
from ottla.client.admin_types import ClusterDescription, Node
from ottla.client.core.stats import RequestStats, Window
from ottla.client.node_connections import BOOTSTRAP_ID, Buffers, connect_socket
from ottla.environment import environment
from ottla.protocol import messages as m
from ottla.protocol.types import Message
from ottla.security.clients import ClientSecurity
from ottla.wire.connection import BrokerConnection, ConnectionLost, UnsupportedApi, close_all


class ClusterUnreachable(errors.RetriableError):
    """None of the known brokers responded."""


class Brokers:
    """The brokers of one cluster, known by a few of their addresses."""

    def __init__(
        self,
        bootstrap: Sequence[tuple[str, int]],
        *,
        client_id: str,
        timeout_s: float = 30,
        retry_pause_s: float = 0.2,
        security: ClientSecurity | None = None,
        buffers: Buffers,
        window: Window,
    ) -> None:
        """`timeout_s`: of one request; `window`: of the metrics."""
        self._security = security
        self._dial = partial(connect_socket, buffers=buffers)
        self.stats = RequestStats(window)
        self.now = environment.get().monotonic_s
        self.timeout_s = timeout_s
        self._bootstrap = list(bootstrap)
        self._client_id = client_id
        self._retry_pause_s = retry_pause_s
        self._connections: dict[tuple[str, int], BrokerConnection] = {}
        self._opening: dict[tuple[str, int], asyncio.Lock] = {}
        self._throttled_until: dict[tuple[str, int], float] = {}
        self._known_brokers: tuple[Node, ...] = ()

    async def close(self) -> None:
        connections, self._connections = self._connections, {}
        await close_all(connections.values())

    @property
    def timeout_ms(self) -> int:
        return int(self.timeout_s * 1000)

    async def describe(self) -> ClusterDescription:
        """The live brokers and the controller."""
        response = await self.any(m.MetadataRequest(topics=[]))
        brokers = tuple(Node(b.node_id, b.host, b.port, b.rack) for b in response.brokers)
        self._known_brokers = brokers or self._known_brokers
        return ClusterDescription(response.cluster_id, response.controller_id, brokers)

    async def _connection(self, host: str, port: int) -> BrokerConnection:
        address = (host, port)
        async with self._opening.setdefault(address, asyncio.Lock()):
            known = self._connections.get(address)
            if known is None or known.closed:
                known = await BrokerConnection.open(
                    host, port, client_id=self._client_id, security=self._security, dial=self._dial
                )
                self._connections[address] = known
                self.stats.opened.record(1, self.now())
            return known

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return sum(not connection.closed for connection in list(self._connections.values()))

    async def _request(
        self, host: str, port: int, request: Message, timeout_s: float, version: int | None = None
    ) -> Any:
        now = self.now
        if (throttled_s := self._throttled_until.get((host, port), 0.0) - now()) > 0:
            if throttled_s >= timeout_s:
                raise TimeoutError(f"throttles this client for {throttled_s:.1f} s")
            timeout_s -= throttled_s
            await asyncio.sleep(throttled_s)
        connection = await self._connection(host, port)
        node_id, began = self._id_of(host, port), now()
        self.stats.sent(node_id, began)
        try:
            response = await connection.request(request, version=version, timeout_s=timeout_s)
        except OSError:
            if connection.closed:
                self.stats.closed.record(1, now())
            raise
        throttle_ms = getattr(response, "throttle_time_ms", 0)
        if throttle_ms > 0:
            self._throttled_until[host, port] = now() + throttle_ms / 1000
        self.stats.record_response(node_id, request.api_key, now() - began, throttle_ms, now())
        return response

    def _id_of(self, host: str, port: int) -> int:
        """The id of a broker, or that of the bootstrap server if the brokers are unknown."""
        ids = (node.id for node in self._known_brokers if (node.host, node.port) == (host, port))
        return next(ids, BOOTSTRAP_ID)

    async def pause(self) -> None:
        """Wait between two attempts."""
        await asyncio.sleep(self._retry_pause_s)

    async def to(self, node: Node, request: Message) -> Any:
        """Send a request to one broker. Raises OSError (with ConnectionLost and TimeoutError),
        UnsupportedApi, and KafkaError if authentication fails."""
        # Longer than the timeout in the request, so that the broker times out first.
        return await self._request(node.host, node.port, request, self.timeout_s + 5)

    async def version_of(self, node: Node, api_key: int) -> int:
        """The version in which a request would be sent to a broker. Raises as `to` does."""
        return (await self._connection(node.host, node.port)).version_of(api_key)

    async def any(self, request: Message, version: int | None = None) -> Any:
        """Send a request to the first known broker that responds, in the highest version that both sides
        support, or in the given one. Raises ClusterUnreachable if no broker responds, KafkaError if
        authentication fails, UnsupportedVersionError if the brokers that respond do not support the
        request."""
        reasons = []
        unsupported: UnsupportedApi | None = None
        others = [(node.host, node.port) for node in self._known_brokers]
        for host, port in dict.fromkeys([*self._bootstrap, *others]):
            try:
                return await self._request(host, port, request, self.timeout_s, version)
            except UnsupportedApi as problem:
                unsupported = problem
            except (OSError, ConnectionLost) as problem:
                reasons.append(f"{host}:{port}: {str(problem) or type(problem).__name__}")
        if unsupported is not None:
            raise errors.UnsupportedVersionError(str(unsupported))
        raise ClusterUnreachable("; ".join(reasons))
