"""Topics: list, describe, create, add partitions, delete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar
from uuid import UUID

from ottla.client.admin.fan_out import CONTROLLER
from ottla.client.admin.network import AdminNetwork, operations, outcome
from ottla.client.admin_types import (
    ConfigEntry,
    CreatedTopic,
    NewPartitions,
    NewTopic,
    Node,
    PartitionDescription,
    Results,
    TopicDescription,
    TopicListing,
)
from ottla.client.errors import ClientError
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode

_RETRIABLE: Final = CONTROLLER | {ErrorCode.THROTTLING_QUOTA_EXCEEDED}
"""Retriable errors; creation and deletion of partitions have a quota (KIP-599)."""

Name = TypeVar("Name", str, UUID)


async def list_topics(network: AdminNetwork, *, internal: bool = False) -> dict[str, TopicListing]:
    """The topics that the caller may describe; `internal`: internal topics, too."""
    response = await network.any_broker(m.MetadataRequest(topics=None, allow_auto_topic_creation=False))
    return {
        t.name: TopicListing(t.name, t.topic_id, t.is_internal)
        for t in response.topics
        if internal or not t.is_internal
    }


async def describe_topics(
    network: AdminNetwork, names: Iterable[Name] | None = None, *, authorized_operations: bool = False
) -> Results[Name, TopicDescription]:
    """Describe topics by name or by id (KIP-516); None: all topics, internal ones included."""
    row = m.MetadataRequest.MetadataRequestTopic
    wanted: list[Any] | None = None
    if names is not None:
        wanted = list(dict.fromkeys(names))
        if not wanted:
            return Results({})
    by_id = bool(wanted) and isinstance(wanted[0], UUID) if wanted is not None else False
    response = await network.any_broker(
        m.MetadataRequest(
            topics=None
            if wanted is None
            else [row(name=None, topic_id=each) if by_id else row(name=each) for each in wanted],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=authorized_operations,
        )
    )
    found = {}
    for topic in response.topics:
        key = topic.topic_id if by_id else topic.name
        found[key] = outcome(topic.error_code, None, key) or _described(topic)
    return Results(found)


async def create_topics(
    network: AdminNetwork, topics: Iterable[NewTopic], *, validate_only: bool = False
) -> Results[str, CreatedTopic]:
    """Create topics. `validate_only`: only check, and return the topics as they would be created."""
    wanted = {topic.name: topic for topic in topics}

    async def ask(node: Node, names: list[str]) -> dict[str, CreatedTopic | ClientError]:
        request = m.CreateTopicsRequest(
            topics=[_creatable(wanted[name]) for name in names],
            timeout_ms=network.timeout_ms,
            validate_only=validate_only,
        )
        response = await network.send_to(node, request)
        return {
            row.name: outcome(row.error_code, row.error_message, row.name) or _created(row)
            for row in response.topics
        }

    return await network.at_controller(wanted, ask, _RETRIABLE)


async def create_topic(
    network: AdminNetwork,
    name: str,
    *,
    partitions: int = -1,
    replication_factor: int = -1,
    config: Mapping[str, str] | None = None,
    assignment: Mapping[int, Sequence[int]] | None = None,
) -> CreatedTopic:
    """Create one topic; see `NewTopic`. Raises KafkaError."""
    topic = NewTopic(name, partitions, replication_factor, config or {}, assignment)
    return (await create_topics(network, [topic]))[name]


async def delete_topics(network: AdminNetwork, names: Iterable[Name]) -> Results[Name, None]:
    """Delete topics by name or by id."""
    request, state = m.DeleteTopicsRequest, m.DeleteTopicsRequest.DeleteTopicState

    async def ask(node: Node, keys: list[Name]) -> dict[Name, ClientError | None]:
        by_id = isinstance(keys[0], UUID)
        states = [state(topic_id=key) if isinstance(key, UUID) else state(name=key) for key in keys]
        # Versions before the one with ids have a list of names instead.
        old: list[str] = [] if by_id else list(map(str, keys))
        response = await network.send_to(
            node, request(topics=states, topic_names=old, timeout_ms=network.timeout_ms)
        )
        rows = [(row.topic_id if by_id else row.name, row) for row in response.responses]
        return {key: outcome(row.error_code, row.error_message, key) for key, row in rows}

    return await network.at_controller(names, ask, _RETRIABLE)


async def delete_topic(network: AdminNetwork, name: str) -> None:
    """Delete one topic. Raises KafkaError."""
    (await delete_topics(network, [name])).raise_first()


async def create_partitions(
    network: AdminNetwork, counts: Mapping[str, int | NewPartitions], *, validate_only: bool = False
) -> Results[str, None]:
    """Add partitions to topics, up to the given total numbers."""
    request_class = m.CreatePartitionsRequest

    def row(name: str) -> m.CreatePartitionsRequest.CreatePartitionsTopic:
        given = counts[name]
        new = NewPartitions(given) if isinstance(given, int) else given
        placed = None
        if new.assignments is not None:
            placed = [
                request_class.CreatePartitionsAssignment(broker_ids=list(each)) for each in new.assignments
            ]
        return request_class.CreatePartitionsTopic(name=name, count=new.count, assignments=placed)

    async def ask(node: Node, names: list[str]) -> dict[str, ClientError | None]:
        request = request_class(
            topics=[row(name) for name in names],
            timeout_ms=network.timeout_ms,
            validate_only=validate_only,
        )
        response = await network.send_to(node, request)
        return {r.name: outcome(r.error_code, r.error_message, r.name) for r in response.results}

    return await network.at_controller(counts, ask, _RETRIABLE)


def _creatable(topic: NewTopic) -> m.CreateTopicsRequest.CreatableTopic:
    request = m.CreateTopicsRequest
    return request.CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=[request.CreatableTopicConfig(name=k, value=v) for k, v in topic.config.items()],
        assignments=[
            request.CreatableReplicaAssignment(partition_index=p, broker_ids=list(brokers))
            for p, brokers in (topic.assignment or {}).items()
        ],
    )


def _created(row: m.CreateTopicsResponse.CreatableTopicResult) -> CreatedTopic:
    config = None
    if row.configs is not None and not row.topic_config_error_code:
        config = {
            c.name: ConfigEntry(c.value, c.config_source, c.read_only, c.is_sensitive) for c in row.configs
        }
    return CreatedTopic(row.topic_id, row.num_partitions, row.replication_factor, config)


def _described(topic: Any) -> TopicDescription:
    return TopicDescription(
        topic.name,
        topic.topic_id,
        topic.is_internal,
        tuple(
            PartitionDescription(
                p.partition_index,
                p.leader_id,
                p.leader_epoch,
                tuple(p.replica_nodes),
                tuple(p.isr_nodes),
                tuple(p.offline_replicas),
            )
            for p in sorted(topic.partitions, key=lambda p: p.partition_index)
        ),
        operations(topic.topic_authorized_operations),
    )
