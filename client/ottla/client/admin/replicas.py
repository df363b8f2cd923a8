"""Partition reassignments (KIP-455) and leader elections (KIP-183, KIP-460)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from ottla.client import errors
from ottla.client.admin.network import AdminNetwork, by_partition, by_topic, outcome, raise_error
from ottla.client.admin_types import (
    ByPartition,
    ElectionType,
    Node,
    Partitions,
    Reassignment,
    Results,
    TopicPartition,
)
from ottla.client.errors import ClientError
from ottla.protocol import messages as m

_IGNORED: Final = (errors.ElectionNotNeededError, errors.PreferredLeaderNotAvailableError)


async def alter_partition_reassignments(
    network: AdminNetwork, targets: ByPartition[Sequence[int] | None]
) -> Results[TopicPartition, None]:
    """Start reassignments to these replicas, the preferred leader first; None cancels a reassignment."""
    request = m.AlterPartitionReassignmentsRequest
    placed = by_partition(targets)

    async def ask(node: Node, share: list[TopicPartition]) -> dict[TopicPartition, ClientError | None]:
        rows: defaultdict[str, list[Any]] = defaultdict(list)
        for tp in share:
            wanted = placed[tp]
            replicas = None if wanted is None else list(wanted)
            row = request.ReassignablePartition(partition_index=tp.partition, replicas=replicas)
            rows[tp.topic].append(row)
        response = await network.send_to(
            node,
            request(
                timeout_ms=network.timeout_ms,
                topics=[request.ReassignableTopic(name=t, partitions=p) for t, p in rows.items()],
            ),
        )
        raise_error(response.error_code, response.error_message)
        return {
            tp: outcome(p.error_code, p.error_message, tp)
            for t in response.responses
            for p in t.partitions
            for tp in [TopicPartition(t.name, p.partition_index)]
        }

    return await network.at_controller(placed, ask)


async def list_partition_reassignments(
    network: AdminNetwork, partitions: Partitions | None = None
) -> dict[TopicPartition, Reassignment]:
    """The reassignments in progress of these partitions; None: of all. Raises KafkaError."""
    request = m.ListPartitionReassignmentsRequest
    row = request.ListPartitionReassignmentsTopics
    wanted = None
    if partitions is not None:
        wanted = [row(name=t, partition_indexes=p) for t, p in by_topic(partitions).items()]

    def read(response: Any) -> dict[TopicPartition, Reassignment]:
        raise_error(response.error_code, response.error_message)
        return {
            TopicPartition(t.name, p.partition_index): Reassignment(
                tuple(p.replicas), tuple(p.adding_replicas), tuple(p.removing_replicas)
            )
            for t in response.topics
            for p in t.partitions
        }

    message = request(topics=wanted, timeout_ms=network.timeout_ms)
    return await network.ask_controller(message, read)


async def elect_leaders(
    network: AdminNetwork, election_type: ElectionType, partitions: Partitions | None = None
) -> Results[TopicPartition, None]:
    """Elect leaders of these partitions; None: of all that need an election. ELECTION_NOT_NEEDED is an error
    of partitions that are named."""
    request = m.ElectLeadersRequest
    wanted = None
    if partitions is not None:
        rows = by_topic(partitions).items()
        wanted = [request.TopicPartitions(topic=t, partitions=p) for t, p in rows]

    def read(response: Any) -> dict[TopicPartition, ClientError | None]:
        raise_error(response.error_code)
        return {
            tp: outcome(p.error_code, p.error_message, tp)
            for t in response.replica_election_results
            for p in t.partition_result
            for tp in [TopicPartition(t.topic, p.partition_id)]
        }

    message = request(election_type=election_type, topic_partitions=wanted, timeout_ms=network.timeout_ms)
    return Results(await network.ask_controller(message, read))


async def elect_preferred_leaders(network: AdminNetwork, partitions: Partitions | None = None) -> None:
    """Elect the preferred leaders of these partitions, None: of all, where they are in sync. Raises
    KafkaError for any other failure."""
    for error in (await elect_leaders(network, ElectionType.PREFERRED, partitions)).errors.values():
        if not isinstance(error, _IGNORED):
            raise error
