"""How admin calls reach brokers: any broker, the controller, coordinators, leaders or given brokers.

The functions of the API families (`topics`, `groups`, …) take an `AdminNetwork` as their first argument;
`AdminClient` binds them as methods. Error codes of responses become instances of `ottla.client.errors`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, TypeVar

from ottla.client import errors
from ottla.client.admin.fan_out import BROKER, CONTROLLER, Ask, RetryPolicy, client_error, fan_out
from ottla.client.admin_types import (
    ByPartition,
    ClusterDescription,
    Node,
    Partitions,
    Results,
    TopicPartition,
)
from ottla.client.errors import ClientError
from ottla.client.routing import Brokers
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode, KafkaError, UnencodableMessage
from ottla.protocol.types import Message
from ottla.security.acls import Operation
from ottla.wire.connection import UnsupportedApi

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

GROUP, TRANSACTION = 0, 1
"""The key types of FindCoordinator."""
_OPERATIONS_OMITTED: Final = -(2**31)
_ONLY: Final = "it"


class AdminNetwork:
    """Sends admin requests to the nodes that serve them, and retries by item until default.api.timeout.ms."""

    def __init__(self, brokers: Brokers, retry_policy: RetryPolicy) -> None:
        self._brokers = brokers
        self._retry_policy = retry_policy
        self.send_to = brokers.to
        self.version_of = brokers.version_of

    @property
    def timeout_ms(self) -> int:
        """The time that a request gives the broker for its work."""
        return self._brokers.timeout_ms

    # --- sending ---

    async def any_broker(self, request: Message, version: int | None = None) -> Any:
        """Send a request to any broker; returns its response. Raises ClientError."""
        try:
            return await self._brokers.any(request, version)
        except (KafkaError, OSError) as problem:
            raise client_error(problem, type(request).__name__) from None

    async def by_node(
        self,
        keys: Iterable[K],
        find: Callable[[Collection[K]], Any],
        ask: Ask[K, V],
        retriable: Collection[ErrorCode],
    ) -> Results[K, V]:
        """Send requests to the brokers that `find` returns; see `fan_out`."""
        return await fan_out(keys, find, ask, retriable, self._retry_policy)

    async def at_controller(
        self, keys: Iterable[K], ask: Ask[K, V], retriable: Collection[ErrorCode] = CONTROLLER
    ) -> Results[K, V]:
        """Send a request with all items to the controller."""
        return await self.by_node(keys, self.controller, ask, retriable)

    async def ask_controller(self, request: Message, read: Callable[[Any], T]) -> T:
        """Send one request to the controller. `read` converts the response, and raises KafkaError for its
        error."""

        async def ask(node: Node, _: list[str]) -> dict[str, T | ClientError]:
            return {_ONLY: read(await self.send_to(node, request))}

        return (await self.at_controller([_ONLY], ask))[_ONLY]

    async def at_brokers(
        self,
        broker_ids: Iterable[int] | None,
        ask: Callable[[Node], Any],
        retriable: Collection[ErrorCode] = BROKER,
    ) -> Results[int, Any]:
        """Call `ask` for each of these brokers, None: all live ones. `ask` raises KafkaError for a response's
        error."""
        if broker_ids is None:
            broker_ids = [node.id for node in (await self.describe_cluster()).brokers]

        async def one(node: Node, keys: list[int]) -> dict[int, Any]:
            return {node.id: await ask(node)}

        return await self.by_node(broker_ids, self.nodes, one, retriable)

    # --- look-ups ---

    async def describe_cluster(self) -> ClusterDescription:
        """The cluster's live brokers and controller. Raises ClientError."""
        try:
            return await self._brokers.describe()
        except (KafkaError, OSError, UnsupportedApi) as problem:
            raise client_error(problem, "the cluster") from None

    async def controller(self, keys: Collection[K]) -> Mapping[K, Node | ClientError]:
        """The controller, for each of the items."""
        cluster = await self.describe_cluster()
        nodes = {node.id: node for node in cluster.brokers}
        missing = errors.NotControllerError("the cluster has no controller")
        return dict.fromkeys(keys, nodes.get(cluster.controller_id, missing))

    async def nodes(self, keys: Collection[int]) -> Mapping[int, Node | ClientError]:
        """The live brokers with these ids."""
        nodes = {node.id: node for node in (await self.describe_cluster()).brokers}
        return {
            key: nodes.get(key, errors.BrokerNotAvailableError(f"broker {key} is not in the cluster"))
            for key in keys
        }

    def coordinators(self, kind: int) -> Callable[[Collection[str]], Any]:
        """A look-up of the coordinators of groups or transactional ids."""

        async def find(keys: Collection[str]) -> Mapping[str, Node | ClientError]:
            try:
                found = await self.any_broker(
                    m.FindCoordinatorRequest(key_type=kind, coordinator_keys=list(keys))
                )
            except UnencodableMessage:  # before Kafka 3.0 a request has one key
                found_each = await asyncio.gather(*(self._coordinator(kind, key) for key in keys))
                return dict(zip(keys, found_each, strict=True))
            return {
                row.key: outcome(row.error_code, row.error_message, row.key)
                or Node(row.node_id, row.host, row.port)
                for row in found.coordinators
            }

        return find

    async def _coordinator(self, kind: int, key: str) -> Node | ClientError:
        row = await self.any_broker(m.FindCoordinatorRequest(key_type=kind, key=key))
        return outcome(row.error_code, row.error_message, key) or Node(row.node_id, row.host, row.port)

    async def leaders(self, keys: Collection[TopicPartition]) -> Mapping[TopicPartition, Node | ClientError]:
        """The leaders of partitions. An unknown partition is looked up twice, since a new topic reaches the
        brokers with a delay."""
        found = await self._find_leaders(keys)
        if any(isinstance(each, errors.UnknownTopicOrPartitionError) for each in found.values()):
            await self._brokers.pause()
            found = await self._find_leaders(keys)
        return found

    async def _find_leaders(
        self, keys: Collection[TopicPartition]
    ) -> dict[TopicPartition, Node | ClientError]:
        wanted = [m.MetadataRequest.MetadataRequestTopic(name=t) for t in dict.fromkeys(t for t, _ in keys)]
        response = await self.any_broker(m.MetadataRequest(topics=wanted, allow_auto_topic_creation=False))
        nodes = {b.node_id: Node(b.node_id, b.host, b.port, b.rack) for b in response.brokers}
        topics = {topic.name: topic for topic in response.topics}
        found: dict[TopicPartition, Node | ClientError] = {}
        for tp in keys:
            topic = topics[tp.topic]
            row = next((p for p in topic.partitions if p.partition_index == tp.partition), None)
            if topic.error_code:
                found[tp] = errors.for_code(topic.error_code, str(tp))
            elif row is None:
                found[tp] = errors.UnknownTopicOrPartitionError(str(tp))
            else:
                found[tp] = nodes.get(row.leader_id) or errors.LeaderNotAvailableError(str(tp))
        return found


def outcome(code: int, message: str | None, where: object) -> ClientError | None:
    """The error of an item's code, None without an error. `where` is its text if the broker sends none."""
    return errors.for_code(code, message or str(where)) if code else None


def raise_error(code: int, message: str | None = None) -> None:
    """Raise the error of a whole response, if it has one."""
    if code:
        raise errors.for_code(code, message or None)


def by_topic(partitions: Partitions) -> dict[str, list[int]]:
    """Partition numbers by topic."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for topic, partition in partitions:
        found[topic].append(partition)
    return dict(found)


def each_partition(partitions: Partitions) -> list[TopicPartition]:
    """Partitions of an argument, in which plain tuples are allowed."""
    return [TopicPartition(*each) for each in partitions]


def by_partition(given: ByPartition[V]) -> dict[TopicPartition, V]:
    """Values by partition of an argument, in which plain tuples are allowed."""
    return {TopicPartition(*each): value for each, value in given.items()}


def operations(bits: int) -> frozenset[Operation] | None:
    """The authorized operations of a response; None if they were not requested (KIP-430)."""
    if bits == _OPERATIONS_OMITTED:
        return None
    return frozenset(operation for operation in Operation if bits >> operation & 1)
