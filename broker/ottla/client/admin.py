"""The admin client: what the operator asks of a cluster, as coroutines.

Called by the operator and by tools. Requests that only the controller or a group's coordinator can answer
are sent there, and sent again after a change of either. Errors are `KafkaError` with Kafka's code, or
`ClusterUnreachable` when no broker answers. Not for the data path.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ottla.client.admin_types import (
    ClusterDescription,
    ConfigEntry,
    GroupDescription,
    Node,
    PartitionDescription,
    Reassignment,
    TopicDescription,
    TopicPartition,
)
from ottla.client.connection import BrokerConnection, ConnectionLost, UnsupportedApi
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.types import Message

TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
_SET, _DELETE = 0, 1
_LATEST, _EARLIEST = -1, -2
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


class AdminClient:
    """One client of one cluster. Not safe for use from several event loops."""

    def __init__(
        self,
        bootstrap: Sequence[tuple[str, int]],
        *,
        client_id: str = "ottla-admin",
        timeout_s: float = 30,
        retry_pause_s: float = 0.2,
    ) -> None:
        self._bootstrap = list(bootstrap)
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._retry_pause_s = retry_pause_s
        self._connections: dict[tuple[str, int], BrokerConnection] = {}

    async def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # ---- the cluster and its topics

    async def describe_cluster(self) -> ClusterDescription:
        """The live brokers and the controller."""
        response = await self._ask_any(m.MetadataRequest(topics=[]))
        brokers = tuple(Node(b.node_id, b.host, b.port, b.rack) for b in response.brokers)
        return ClusterDescription(response.cluster_id, response.controller_id, brokers)

    async def describe_topics(self, names: Iterable[str] | None = None) -> dict[str, TopicDescription]:
        """Topics by name, all of them when no names are given; a name that does not exist is left out."""
        wanted = None if names is None else [m.MetadataRequest.MetadataRequestTopic(name=n) for n in names]
        response = await self._ask_any(m.MetadataRequest(topics=wanted, allow_auto_topic_creation=False))
        return {
            t.name: TopicDescription(
                t.name,
                t.topic_id,
                t.is_internal,
                tuple(
                    PartitionDescription(
                        p.partition_index,
                        p.leader_id,
                        p.leader_epoch,
                        tuple(p.replica_nodes),
                        tuple(p.isr_nodes),
                        tuple(p.offline_replicas),
                    )
                    for p in sorted(t.partitions, key=lambda p: p.partition_index)
                ),
            )
            for t in response.topics
            if not t.error_code
        }

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        config: Mapping[str, str] | None = None,
        assignment: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        """Create a topic; -1 leaves the number to the broker's defaults (KIP-464).

        With `assignment`, the brokers of each partition, preferred leader first, and both numbers left out.
        """
        configs = [
            m.CreateTopicsRequest.CreatableTopicConfig(name=k, value=v) for k, v in (config or {}).items()
        ]
        topic = m.CreateTopicsRequest.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            configs=configs,
            assignments=[
                m.CreateTopicsRequest.CreatableReplicaAssignment(partition_index=p, broker_ids=list(brokers))
                for p, brokers in (assignment or {}).items()
            ],
        )
        response = await self._ask_controller(
            m.CreateTopicsRequest(topics=[topic], timeout_ms=self._timeout_ms)
        )
        _raise_first((t.error_code, t.error_message) for t in response.topics)

    async def delete_topic(self, name: str) -> None:
        request = m.DeleteTopicsRequest(
            topics=[m.DeleteTopicsRequest.DeleteTopicState(name=name)], timeout_ms=self._timeout_ms
        )
        response = await self._ask_controller(request)
        _raise_first((t.error_code, t.error_message) for t in response.responses)

    async def create_partitions(
        self, topic: str, count: int, *, assignments: Sequence[Sequence[int]] | None = None
    ) -> None:
        """Grow a topic to `count` partitions; `assignments` has the brokers of each new one."""
        grown = m.CreatePartitionsRequest
        placed = None
        if assignments is not None:
            placed = [grown.CreatePartitionsAssignment(broker_ids=list(brokers)) for brokers in assignments]
        request = grown(
            topics=[grown.CreatePartitionsTopic(name=topic, count=count, assignments=placed)],
            timeout_ms=self._timeout_ms,
        )
        response = await self._ask_controller(request)
        _raise_first((t.error_code, t.error_message) for t in response.results)

    # ---- configuration

    async def describe_topic_configs(self, topics: Iterable[str]) -> dict[str, dict[str, ConfigEntry]]:
        """The settings of topics, those that are not the topic's own included (see `ConfigEntry.source`)."""
        return await self._describe_configs(TOPIC_RESOURCE, topics)

    async def describe_broker_configs(self, broker_id: int) -> dict[str, ConfigEntry]:
        node = await self._node(broker_id)
        found = await self._describe_configs(BROKER_RESOURCE, [str(broker_id)], node)
        return found.get(str(broker_id), {})

    async def _describe_configs(
        self, kind: int, names: Iterable[str], node: Node | None = None
    ) -> dict[str, dict[str, ConfigEntry]]:
        resources = [
            m.DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=None
            )
            for name in names
        ]
        if not resources:
            return {}
        request = m.DescribeConfigsRequest(resources=resources)
        response = await (self._ask(node, request) if node else self._ask_any(request))
        _raise_first((r.error_code, r.error_message) for r in response.results)
        return {
            r.resource_name: {c.name: ConfigEntry(c.value, c.config_source, c.read_only) for c in r.configs}
            for r in response.results
        }

    async def alter_topic_config(
        self, topic: str, *, set_values: Mapping[str, str] | None = None, delete: Iterable[str] = ()
    ) -> None:
        """Change single settings of a topic; those in `delete` go back to the default (KIP-339)."""
        alterable = m.IncrementalAlterConfigsRequest.AlterableConfig
        changes = [alterable(name=k, config_operation=_SET, value=v) for k, v in (set_values or {}).items()]
        changes += [alterable(name=k, config_operation=_DELETE, value=None) for k in delete]
        resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name=topic, configs=changes
        )
        response = await self._ask_any(m.IncrementalAlterConfigsRequest(resources=[resource]))
        _raise_first((r.error_code, r.error_message) for r in response.responses)

    # ---- replicas and leaders

    async def alter_partition_reassignments(
        self, targets: Mapping[TopicPartition, Sequence[int] | None]
    ) -> dict[TopicPartition, KafkaError]:
        """Start (or, with None, cancel) moves; what was refused comes back with its error."""
        by_topic: dict[str, list[Any]] = defaultdict(list)
        for (topic, partition), replicas in targets.items():
            by_topic[topic].append(
                m.AlterPartitionReassignmentsRequest.ReassignablePartition(
                    partition_index=partition, replicas=None if replicas is None else list(replicas)
                )
            )
        request = m.AlterPartitionReassignmentsRequest(
            timeout_ms=self._timeout_ms,
            topics=[
                m.AlterPartitionReassignmentsRequest.ReassignableTopic(name=t, partitions=p)
                for t, p in by_topic.items()
            ],
        )
        response = await self._ask_controller(request)
        return {
            TopicPartition(t.name, p.partition_index): _error(p.error_code, p.error_message)
            for t in response.responses
            for p in t.partitions
            if p.error_code
        }

    async def list_partition_reassignments(self) -> dict[TopicPartition, Reassignment]:
        """The moves under way."""
        response = await self._ask_controller(
            m.ListPartitionReassignmentsRequest(topics=None, timeout_ms=self._timeout_ms)
        )
        return {
            TopicPartition(t.name, p.partition_index): Reassignment(
                tuple(p.replicas), tuple(p.adding_replicas), tuple(p.removing_replicas)
            )
            for t in response.topics
            for p in t.partitions
        }

    async def elect_preferred_leaders(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Give leadership to the first replica of each partition where it is in sync; all when None."""
        wanted = None
        if partitions is not None:
            by_topic: dict[str, list[int]] = defaultdict(list)
            for topic, partition in partitions:
                by_topic[topic].append(partition)
            wanted = [
                m.ElectLeadersRequest.TopicPartitions(topic=t, partitions=p) for t, p in by_topic.items()
            ]
        request = m.ElectLeadersRequest(election_type=0, topic_partitions=wanted, timeout_ms=self._timeout_ms)
        response = await self._ask_controller(request)
        fine = (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)
        _raise_first(
            (p.error_code, p.error_message)
            for t in response.replica_election_results
            for p in t.partition_result
            if p.error_code not in fine
        )

    # ---- groups and offsets

    async def list_groups(self) -> dict[str, str]:
        """Group ids and their states, over all brokers."""
        groups: dict[str, str] = {}
        for node in (await self.describe_cluster()).brokers:
            response = await self._ask(node, m.ListGroupsRequest())
            _raise_first([(response.error_code, None)])
            groups.update({g.group_id: g.group_state for g in response.groups})
        return groups

    async def describe_group(self, group_id: str) -> GroupDescription:
        """State and size of a group; a group that never was is Dead, as Kafka has it."""
        node, response = await self._ask_coordinator(group_id, m.DescribeGroupsRequest(groups=[group_id]))
        group = response.groups[0]
        return GroupDescription(group.group_id, group.group_state, len(group.members), node)

    async def group_offsets(self, group_id: str) -> dict[TopicPartition, int]:
        """What a group has committed."""
        wanted = m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_id, topics=None)
        _, response = await self._ask_coordinator(group_id, m.OffsetFetchRequest(groups=[wanted]))
        return {
            TopicPartition(t.name, p.partition_index): p.committed_offset
            for t in response.groups[0].topics
            for p in t.partitions
            if p.committed_offset >= 0
        }

    async def delete_group(self, group_id: str) -> None:
        await self._ask_coordinator(group_id, m.DeleteGroupsRequest(groups_names=[group_id]))

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The high watermarks; a partition without a leader is left out."""
        return await self._offsets(partitions, _LATEST)

    async def start_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._offsets(partitions, _EARLIEST)

    async def _offsets(
        self, partitions: Iterable[TopicPartition], timestamp: int
    ) -> dict[TopicPartition, int]:
        wanted = list(partitions)
        topics = await self.describe_topics({t for t, _ in wanted})
        nodes = {node.id: node for node in (await self.describe_cluster()).brokers}
        leaders = {(t.name, p.partition): p.leader for t in topics.values() for p in t.partitions}
        by_node: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for topic, partition in wanted:
            leader = leaders.get((topic, partition), -1)
            if leader in nodes:
                by_node[leader][topic].append(partition)
        found: dict[TopicPartition, int] = {}
        asked = m.ListOffsetsRequest
        for node_id, by_topic in by_node.items():
            request = asked(
                replica_id=-1,
                topics=[
                    asked.ListOffsetsTopic(
                        name=topic,
                        partitions=[
                            asked.ListOffsetsPartition(partition_index=p, timestamp=timestamp)
                            for p in indexes
                        ],
                    )
                    for topic, indexes in by_topic.items()
                ],
            )
            response = await self._ask(nodes[node_id], request)
            for t in response.topics:
                for p in t.partitions:
                    if not p.error_code:
                        found[TopicPartition(t.name, p.partition_index)] = p.offset
        return found

    # ---- whom to ask

    @property
    def _timeout_ms(self) -> int:
        return int(self._timeout_s * 1000)

    async def _connection(self, host: str, port: int) -> BrokerConnection:
        known = self._connections.get((host, port))
        if known is None or known.closed:
            known = await BrokerConnection.open(host, port, client_id=self._client_id)
            self._connections[host, port] = known
        return known

    async def _ask(self, node: Node, request: Message) -> Any:
        connection = await self._connection(node.host, node.port)
        return await connection.request(request, timeout_s=self._timeout_s + 5)

    async def _ask_any(self, request: Message) -> Any:
        """The first known broker that answers; raises ClusterUnreachable when none does."""
        reasons = []
        for host, port in self._bootstrap:
            try:
                connection = await self._connection(host, port)
                return await connection.request(request, timeout_s=self._timeout_s)
            except (OSError, ConnectionLost, TimeoutError, UnsupportedApi) as error:
                reasons.append(f"{host}:{port}: {error or type(error).__name__}")
        raise ClusterUnreachable("; ".join(reasons))

    async def _node(self, broker_id: int) -> Node:
        for node in (await self.describe_cluster()).brokers:
            if node.id == broker_id:
                return node
        raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker_id} is not in the cluster")

    async def _ask_controller(self, request: Message) -> Any:
        """Ask the controller, following it where it goes until the time is over."""
        async with asyncio.timeout(self._timeout_s):
            while True:
                cluster = await self.describe_cluster()
                node = next((b for b in cluster.brokers if b.id == cluster.controller_id), None)
                if node is not None:
                    try:
                        response = await self._ask(node, request)
                    except (OSError, ConnectionLost):
                        response = None
                    if response is not None and not _moved(response):
                        return response
                await asyncio.sleep(self._retry_pause_s)

    async def _ask_coordinator(self, group_id: str, request: Message) -> tuple[Node, Any]:
        """Ask the group's coordinator; raises KafkaError for an error of the group as a whole."""
        async with asyncio.timeout(self._timeout_s):
            while True:
                found = await self._ask_any(m.FindCoordinatorRequest(key_type=0, coordinator_keys=[group_id]))
                coordinator = found.coordinators[0]
                if not coordinator.error_code:
                    node = Node(coordinator.node_id, coordinator.host, coordinator.port)
                    try:
                        response = await self._ask(node, request)
                    except (OSError, ConnectionLost):
                        response = None
                    if response is not None and not _moved(response):
                        _raise_first((code, None) for code in _codes(response))
                        return node, response
                elif coordinator.error_code not in _MOVED:
                    raise _error(coordinator.error_code, coordinator.error_message)
                await asyncio.sleep(self._retry_pause_s)


def _codes(response: Any) -> list[int]:
    """The error codes of a response's first level, wherever this API keeps them."""
    codes = [getattr(response, "error_code", 0)]
    for name in ("topics", "responses", "results", "groups"):
        codes += [getattr(item, "error_code", 0) for item in getattr(response, name, None) or ()]
    return codes


def _moved(response: Any) -> bool:
    return any(code in _MOVED for code in _codes(response))


def _error(code: int, detail: str | None) -> KafkaError:
    return KafkaError(ErrorCode(code), detail or "")


def _raise_first(errors: Iterable[tuple[int, str | None]]) -> None:
    for code, detail in errors:
        if code:
            raise _error(code, detail)
