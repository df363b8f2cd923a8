"""Where replicas are and who leads: reassignments (KIP-455) and preferred leaders (KIP-460)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ottla.client.admin.base import Family
from ottla.client.admin_types import Reassignment, TopicPartition
from ottla.client.routing import error_of, raise_first
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode, KafkaError


class Replicas(Family):
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
