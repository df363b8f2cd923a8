"""The admin client: what the operator asks of a cluster, as coroutines.

Called by the operator and by tools; `routing` knows whom to ask. Errors are `KafkaError` with Kafka's code,
or `ClusterUnreachable` when no broker answers. Not for the data path.
"""

from __future__ import annotations

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
from ottla.client.routing import Brokers, error_of, raise_first
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode, KafkaError

TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
_SET, _DELETE = 0, 1
_LATEST, _EARLIEST = -1, -2


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
        self._brokers = Brokers(
            bootstrap, client_id=client_id, timeout_s=timeout_s, retry_pause_s=retry_pause_s
        )

    async def close(self) -> None:
        await self._brokers.close()

    # ---- the cluster and its topics

    async def describe_cluster(self) -> ClusterDescription:
        """The live brokers and the controller."""
        return await self._brokers.describe()

    async def describe_topics(self, names: Iterable[str] | None = None) -> dict[str, TopicDescription]:
        """Topics by name, all of them when no names are given; a name that does not exist is left out."""
        wanted = None if names is None else [m.MetadataRequest.MetadataRequestTopic(name=n) for n in names]
        response = await self._brokers.any(m.MetadataRequest(topics=wanted, allow_auto_topic_creation=False))
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
        response = await self._brokers.controller(
            m.CreateTopicsRequest(topics=[topic], timeout_ms=self._brokers.timeout_ms)
        )
        raise_first((t.error_code, t.error_message) for t in response.topics)

    async def delete_topic(self, name: str) -> None:
        request = m.DeleteTopicsRequest(
            topics=[m.DeleteTopicsRequest.DeleteTopicState(name=name)], timeout_ms=self._brokers.timeout_ms
        )
        response = await self._brokers.controller(request)
        raise_first((t.error_code, t.error_message) for t in response.responses)

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
            timeout_ms=self._brokers.timeout_ms,
        )
        response = await self._brokers.controller(request)
        raise_first((t.error_code, t.error_message) for t in response.results)

    # ---- configuration

    async def describe_topic_configs(self, topics: Iterable[str]) -> dict[str, dict[str, ConfigEntry]]:
        """The settings of topics, those that are not the topic's own included (see `ConfigEntry.source`)."""
        return await self._describe_configs(TOPIC_RESOURCE, topics)

    async def describe_broker_configs(self, broker_id: int) -> dict[str, ConfigEntry]:
        node = await self._brokers.node(broker_id)
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
        response = await (self._brokers.to(node, request) if node else self._brokers.any(request))
        raise_first((r.error_code, r.error_message) for r in response.results)
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
        response = await self._brokers.any(m.IncrementalAlterConfigsRequest(resources=[resource]))
        raise_first((r.error_code, r.error_message) for r in response.responses)

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
            timeout_ms=self._brokers.timeout_ms,
            topics=[
                m.AlterPartitionReassignmentsRequest.ReassignableTopic(name=t, partitions=p)
                for t, p in by_topic.items()
            ],
        )
        response = await self._brokers.controller(request)
        return {
            TopicPartition(t.name, p.partition_index): error_of(p.error_code, p.error_message)
            for t in response.responses
            for p in t.partitions
            if p.error_code
        }

    async def list_partition_reassignments(self) -> dict[TopicPartition, Reassignment]:
        """The moves under way."""
        response = await self._brokers.controller(
            m.ListPartitionReassignmentsRequest(topics=None, timeout_ms=self._brokers.timeout_ms)
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
        request = m.ElectLeadersRequest(
            election_type=0, topic_partitions=wanted, timeout_ms=self._brokers.timeout_ms
        )
        response = await self._brokers.controller(request)
        fine = (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)
        raise_first(
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
            response = await self._brokers.to(node, m.ListGroupsRequest())
            raise_first([(response.error_code, None)])
            groups.update({g.group_id: g.group_state for g in response.groups})
        return groups

    async def describe_group(self, group_id: str) -> GroupDescription:
        """State and size of a group; a group that never was is Dead, as Kafka has it."""
        node, response = await self._brokers.coordinator(group_id, m.DescribeGroupsRequest(groups=[group_id]))
        group = response.groups[0]
        return GroupDescription(group.group_id, group.group_state, len(group.members), node)

    async def group_offsets(self, group_id: str) -> dict[TopicPartition, int]:
        """What a group has committed."""
        wanted = m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_id, topics=None)
        _, response = await self._brokers.coordinator(group_id, m.OffsetFetchRequest(groups=[wanted]))
        return {
            TopicPartition(t.name, p.partition_index): p.committed_offset
            for t in response.groups[0].topics
            for p in t.partitions
            if p.committed_offset >= 0
        }

    async def delete_group(self, group_id: str) -> None:
        await self._brokers.coordinator(group_id, m.DeleteGroupsRequest(groups_names=[group_id]))

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
            response = await self._brokers.to(nodes[node_id], request)
            for t in response.topics:
                for p in t.partitions:
                    if not p.error_code:
                        found[TopicPartition(t.name, p.partition_index)] = p.offset
        return found
