"""Whom to ask: connections to a cluster's brokers, and the way to the controller, a coordinator, a leader.

Called by the admin client. One connection a broker, opened when it is needed.
Invariants: a request for the controller or a coordinator follows it where it goes until the time is over;
what the brokers answer is handed on, errors of items included. Not safe for use from several event loops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final

from ottla.client.admin_types import ClusterDescription, Node
from ottla.client.connection import BrokerConnection, ConnectionLost, UnsupportedApi
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.types import Message
from ottla.security.clients import ClientSecurity

_MOVED: Final = frozenset(
    {
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)


class ClusterUnreachable(Exception):
    """None of the known brokers answered."""


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
    ) -> None:
        self._security = security
        self.timeout_s = timeout_s
        self._bootstrap = list(bootstrap)
        self._client_id = client_id
        self._retry_pause_s = retry_pause_s
        self._connections: dict[tuple[str, int], BrokerConnection] = {}
        self._leaders: dict[str, dict[int, Node | None]] = {}

    async def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    @property
    def timeout_ms(self) -> int:
        return int(self.timeout_s * 1000)

    async def describe(self) -> ClusterDescription:
        """The live brokers and the controller."""
        response = await self.any(m.MetadataRequest(topics=[]))
        brokers = tuple(Node(b.node_id, b.host, b.port, b.rack) for b in response.brokers)
        return ClusterDescription(response.cluster_id, response.controller_id, brokers)

    async def _connection(self, host: str, port: int) -> BrokerConnection:
        known = self._connections.get((host, port))
        if known is None or known.closed:
            known = await BrokerConnection.open(
                host, port, client_id=self._client_id, security=self._security
            )
            self._connections[host, port] = known
        return known

    async def pause(self) -> None:
        """What lies between two attempts."""
        await asyncio.sleep(self._retry_pause_s)

    async def to(self, node: Node, request: Message, *, version_max: int | None = None) -> Any:
        """Ask one broker, in no version above `version_max`. Raises OSError, ConnectionLost, TimeoutError."""
        connection = await self._connection(node.host, node.port)
        version = connection.version_of(type(request).api_key)
        if version_max is not None:
            version = min(version, version_max)
        # What a broker was given as time for the work itself must not end here first.
        return await connection.request(request, version=version, timeout_s=self.timeout_s + 5)

    async def any(self, request: Message) -> Any:
        """The first known broker that answers; raises ClusterUnreachable when none does."""
        reasons = []
        for host, port in self._bootstrap:
            try:
                connection = await self._connection(host, port)
                return await connection.request(request, timeout_s=self.timeout_s)
            except (OSError, ConnectionLost, TimeoutError, UnsupportedApi) as error:
                reasons.append(f"{host}:{port}: {error or type(error).__name__}")
        raise ClusterUnreachable("; ".join(reasons))

    async def node(self, broker_id: int) -> Node:
        for node in (await self.describe()).brokers:
            if node.id == broker_id:
                return node
        raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker_id} is not in the cluster")

    async def leaders(self, topic: str) -> dict[int, Node | None]:
        """Each partition's leader, or None; remembered until `forget_leaders`. Raises KafkaError."""
        known = self._leaders.get(topic)
        if known is not None:
            return known
        wanted = [m.MetadataRequest.MetadataRequestTopic(name=topic)]
        response = await self.any(m.MetadataRequest(topics=wanted, allow_auto_topic_creation=False))
        raise_first((entry.error_code, topic) for entry in response.topics)
        nodes = {b.node_id: Node(b.node_id, b.host, b.port, b.rack) for b in response.brokers}
        found = {p.partition_index: nodes.get(p.leader_id) for p in response.topics[0].partitions}
        if all(found.values()):
            self._leaders[topic] = found
        return found

    def forget_leaders(self, topic: str) -> None:
        self._leaders.pop(topic, None)

    async def controller(self, request: Message) -> Any:
        """Ask the controller, following it where it goes until the time is over."""
        async with asyncio.timeout(self.timeout_s):
            while True:
                cluster = await self.describe()
                node = next((b for b in cluster.brokers if b.id == cluster.controller_id), None)
                if node is not None:
                    try:
                        response = await self.to(node, request)
                    except (OSError, ConnectionLost):
                        response = None
                    if response is not None and not _moved(response):
                        return response
                await self.pause()

    async def coordinator(self, group_id: str, request: Message) -> tuple[Node, Any]:
        """Ask the group's coordinator; raises KafkaError for an error of the group as a whole."""
        async with asyncio.timeout(self.timeout_s):
            while True:
                found = await self.any(m.FindCoordinatorRequest(key_type=0, coordinator_keys=[group_id]))
                coordinator = found.coordinators[0]
                if not coordinator.error_code:
                    node = Node(coordinator.node_id, coordinator.host, coordinator.port)
                    try:
                        response = await self.to(node, request)
                    except (OSError, ConnectionLost):
                        response = None
                    if response is not None and not _moved(response):
                        raise_first((code, None) for code in _codes(response))
                        return node, response
                elif coordinator.error_code not in _MOVED:
                    raise error_of(coordinator.error_code, coordinator.error_message)
                await self.pause()


def _codes(response: Any) -> list[int]:
    """The error codes of a response's first level, wherever this API keeps them."""
    codes = [getattr(response, "error_code", 0)]
    for name in ("topics", "responses", "results", "groups"):
        codes += [getattr(item, "error_code", 0) for item in getattr(response, name, None) or ()]
    return codes


def _moved(response: Any) -> bool:
    return any(code in _MOVED for code in _codes(response))


def error_of(code: int, detail: str | None) -> KafkaError:
    return KafkaError(ErrorCode(code), detail or "")


def raise_first(errors: Iterable[tuple[int, str | None]]) -> None:
    for code, detail in errors:
        if code:
            raise error_of(code, detail)
