"""How admin calls reach brokers: any broker, the controller, coordinators, leaders or given brokers.

The functions of the API families (`topics`, `groups`, …) take an `AdminNetwork` as their first argument;
`AdminClient` binds them as methods. Error codes of responses become instances of `ottla.client.errors`.
"""

from __future__ import annotations

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
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.types import Message
from ottla.security.acls import Operation
from ottla.wire.connection import UnsupportedApi

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

GROUP, TRANSACTION = 0, 1
"""What a coordinator is looked up for."""
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
        """Any broker's answer. Raises ClientError."""
        try:
            return await self._brokers.any(request, version)
        except (KafkaError, OSError) as problem:
            raise client_error(problem, type(request).__name__) from None

    async def by_node(
        self,
        keys: Iterable[K],
        find: Callable[[Collection[K]], Any],
        ask: Ask[K, V],
        again: Collection[ErrorCode],
    ) -> Results[K, V]:
        return await fan_out(keys, find, ask, again, self._retry_policy)

    async def at_controller(
        self, keys: Iterable[K], ask: Ask[K, V], again: Collection[ErrorCode] = CONTROLLER
    ) -> Results[K, V]:
        return await self.by_node(keys, self.controller, ask, again)

    async def ask_controller(self, request: Message, read: Callable[[Any], T]) -> T:
        """Of a request that is about one thing only. `read` raises KafkaError for what the answer has."""

        async def ask(node: Node, _: list[str]) -> dict[str, T | ClientError]:
            return {_ONLY: read(await self.send_to(node, request))}

        return (await self.at_controller([_ONLY], ask))[_ONLY]

    async def at_brokers(
        self,
        broker_ids: Iterable[int] | None,
        ask: Callable[[Node], Any],
        again: Collection[ErrorCode] = BROKER,
    ) -> Results[int, Any]:
        """Of each of these brokers, or of all that live. `ask` raises KafkaError for what an answer has."""
        if broker_ids is None:
            broker_ids = [node.id for node in (await self.describe_cluster()).brokers]

        async def one(node: Node, keys: list[int]) -> dict[int, Any]:
            return {node.id: await ask(node)}

        return await self.by_node(broker_ids, self.nodes, one, again)

    # --- finding ---

    async def describe_cluster(self) -> ClusterDescription:
        try:
            return await self._brokers.describe()
        except (KafkaError, OSError, UnsupportedApi) as problem:
            raise client_error(problem, "the cluster") from None

    async def controller(self, keys: Collection[K]) -> Mapping[K, Node | ClientError]:
        cluster = await self.describe_cluster()
        nodes = {node.id: node for node in cluster.brokers}
        missing = errors.NotControllerError("no controller is in office")
        return dict.fromkeys(keys, nodes.get(cluster.controller_id, missing))

    async def nodes(self, keys: Collection[int]) -> Mapping[int, Node | ClientError]:
        nodes = {node.id: node for node in (await self.describe_cluster()).brokers}
        return {
            key: nodes.get(key, errors.BrokerNotAvailableError(f"broker {key} is not in the cluster"))
            for key in keys
        }

    def coordinators(self, kind: int) -> Callable[[Collection[str]], Any]:
        async def find(keys: Collection[str]) -> Mapping[str, Node | ClientError]:
            found = await self.any_broker(
                m.FindCoordinatorRequest(key_type=kind, coordinator_keys=list(keys))
            )
            return {
                row.key: outcome(row.error_code, row.error_message, row.key)
                or Node(row.node_id, row.host, row.port)
                for row in found.coordinators
            }

        return find

    async def leaders(self, keys: Collection[TopicPartition]) -> Mapping[TopicPartition, Node | ClientError]:
        """What is unknown is so for good the second time: a broker hears of a new topic a moment later."""
        found = await self._led(keys)
        if any(isinstance(each, errors.UnknownTopicOrPartitionError) for each in found.values()):
            await self._brokers.pause()
            found = await self._led(keys)
        return found

    async def _led(self, keys: Collection[TopicPartition]) -> dict[TopicPartition, Node | ClientError]:
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
    """What an item's code means; `where`: what to say when the broker says nothing of it."""
    return errors.for_code(code, message or str(where)) if code else None


def refuse(code: int, message: str | None = None) -> None:
    """Raise what a code of a whole answer stands for, if it does."""
    if code:
        raise errors.for_code(code, message or None)


def by_topic(partitions: Partitions) -> dict[str, list[int]]:
    found: defaultdict[str, list[int]] = defaultdict(list)
    for topic, partition in partitions:
        found[topic].append(partition)
    return dict(found)


def each_partition(partitions: Partitions) -> list[TopicPartition]:
    """Of what users give, who may give plain tuples."""
    return [TopicPartition(*each) for each in partitions]


def by_partition(given: ByPartition[V]) -> dict[TopicPartition, V]:
    """Of what users give, who may give plain tuples."""
    return {TopicPartition(*each): value for each, value in given.items()}


def operations(bits: int) -> frozenset[Operation] | None:
    """None where they were not asked for (KIP-430)."""
    if bits == _OPERATIONS_OMITTED:
        return None
    return frozenset(operation for operation in Operation if bits >> operation & 1)
