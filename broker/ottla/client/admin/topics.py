"""Topics: describe, create, grow, delete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ottla.client.admin.base import Family
from ottla.client.admin_types import PartitionDescription, TopicDescription
from ottla.client.routing import raise_first
from ottla.protocol import messages as m


class Topics(Family):
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
        """The topic and its records. Raises KafkaError."""
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
