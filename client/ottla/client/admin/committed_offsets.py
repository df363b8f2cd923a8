"""Committed offsets of groups: list, alter, delete (KIP-396, KIP-496, KIP-709)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from ottla.client import errors
from ottla.client.admin.fan_out import COORDINATOR
from ottla.client.admin.network import (
    GROUP,
    AdminNetwork,
    by_partition,
    by_topic,
    each_partition,
    outcome,
    raise_error,
)
from ottla.client.admin_types import ByPartition, Node, OffsetToCommit, Partitions, Results, TopicPartition
from ottla.client.errors import ClientError
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode, UnencodableMessage

_ZOOKEEPER_PARTITIONS: Final = 5000
"""Partitions of one request; brokers allow at most 10,000."""
_COMMIT_RETRIABLE: Final = COORDINATOR | {ErrorCode.REBALANCE_IN_PROGRESS}


async def list_group_offsets(
    network: AdminNetwork, groups: Mapping[str, Partitions | None], *, require_stable: bool = False
) -> Results[str, dict[TopicPartition, OffsetToCommit | None]]:
    """The committed offsets of groups in these partitions (None without one); for None as the partitions, in
    all partitions with an offset. `require_stable`: without partitions that have a pending offset of a
    transaction. As in Kafka's client, partitions with an error are not in the result."""
    request = m.OffsetFetchRequest
    row = request.OffsetFetchRequestTopics

    def wanted(group: str) -> list[Any] | None:
        partitions = groups[group]
        if partitions is None:
            return None
        return [row(name=t, partition_indexes=p) for t, p in by_topic(partitions).items()]

    async def ask(
        node: Node, share: list[str]
    ) -> dict[str, dict[TopicPartition, OffsetToCommit | None] | ClientError]:
        rows = [request.OffsetFetchRequestGroup(group_id=group, topics=wanted(group)) for group in share]
        try:
            response = await network.send_to(node, request(groups=rows, require_stable=require_stable))
        except UnencodableMessage:  # before Kafka 3.0 a request has one group
            return dict(
                zip(share, await asyncio.gather(*(of_group(node, group) for group in share)), strict=True)
            )
        return {
            group.group_id: outcome(group.error_code, None, group.group_id) or _committed(group)
            for group in response.groups
        }

    async def of_group(node: Node, group: str) -> dict[TopicPartition, OffsetToCommit | None] | ClientError:
        partitions = groups[group]
        topics = None if partitions is None else by_topic(partitions)
        old = request.OffsetFetchRequestTopic
        named = None if topics is None else [old(name=t, partition_indexes=p) for t, p in topics.items()]
        message = request(group_id=group, topics=named, require_stable=require_stable)
        response = await network.send_to(node, message)
        return outcome(response.error_code, None, group) or _committed(response)

    return await network.by_node(groups, network.coordinators(GROUP), ask, COORDINATOR)


async def group_offsets(network: AdminNetwork, group_id: str) -> dict[TopicPartition, int]:
    """The committed offsets of one group. Raises KafkaError."""
    found = (await list_group_offsets(network, {group_id: None}))[group_id]
    return {tp: committed.offset for tp, committed in found.items() if committed is not None}


async def zookeeper_group_offsets(
    network: AdminNetwork, group_id: str, partitions: Partitions
) -> dict[TopicPartition, int]:
    """The offsets that a group of Kafka 0.8 has committed to ZooKeeper (OffsetFetch 0). Raises
    ClientError."""
    wanted = list(dict.fromkeys(each_partition(partitions)))
    row = m.OffsetFetchRequest.OffsetFetchRequestTopic
    found: dict[TopicPartition, int] = {}
    for start in range(0, len(wanted), _ZOOKEEPER_PARTITIONS):
        share = by_topic(wanted[start : start + _ZOOKEEPER_PARTITIONS])
        topics = [row(name=topic, partition_indexes=numbers) for topic, numbers in share.items()]
        response = await network.any_broker(m.OffsetFetchRequest(group_id=group_id, topics=topics), version=0)
        found |= {
            TopicPartition(topic.name, partition.partition_index): partition.committed_offset
            for topic in response.topics
            for partition in topic.partitions
            if not partition.error_code and partition.committed_offset >= 0
        }
    return found


async def alter_group_offsets(
    network: AdminNetwork, group_id: str, offsets: ByPartition[int | OffsetToCommit], *, live: bool = False
) -> Results[TopicPartition, None]:
    """Commit offsets for a group without members (else UNKNOWN_MEMBER_ID); a missing group is created.

    `live` rewinds a group with members: the coordinator stores all of the offsets or none, and removes the
    members, in one step. Members get the error at their next heartbeat, lose their partitions, join again
    and read from these offsets; their earlier commits are rejected. Only Ottla's brokers support it. Other
    brokers change nothing in a group with members (UnsupportedVersionError for all partitions), and commit
    for a group without members as without `live`.
    """
    request = m.OffsetCommitRequest
    rows: defaultdict[str, list[Any]] = defaultdict(list)
    wanted = by_partition(offsets)
    for tp, given in wanted.items():
        offset, metadata, epoch = OffsetToCommit(given) if isinstance(given, int) else given
        rows[tp.topic].append(
            request.OffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=offset,
                committed_metadata=metadata,
                committed_leader_epoch=epoch,
            )
        )
    topics = [request.OffsetCommitRequestTopic(name=t, partitions=p) for t, p in rows.items()]
    message = request(group_id=group_id, topics=topics, remove_members=live)

    def read(response: m.OffsetCommitResponse) -> dict[TopicPartition, ClientError | None]:
        found = _results(response, _COMMIT_RETRIABLE)
        if live and any(isinstance(error, errors.UnknownMemberIdError) for error in found.values()):
            raise errors.UnsupportedVersionError(
                f"group {group_id} has members, and its coordinator does not support a rewind with members"
            )
        return found

    return await _send_to_coordinator(network, group_id, wanted, message, read, _COMMIT_RETRIABLE)


async def delete_group_offsets(
    network: AdminNetwork, group_id: str, partitions: Partitions
) -> Results[TopicPartition, None]:
    """Delete committed offsets of a group in topics that no member subscribes to (else
    GROUP_SUBSCRIBED_TO_TOPIC)."""
    wanted = list(dict.fromkeys(each_partition(partitions)))
    request = m.OffsetDeleteRequest
    row = request.OffsetDeleteRequestPartition
    topics = [
        request.OffsetDeleteRequestTopic(name=t, partitions=[row(partition_index=p) for p in numbers])
        for t, numbers in by_topic(wanted).items()
    ]

    def read(response: m.OffsetDeleteResponse) -> dict[TopicPartition, ClientError | None]:
        raise_error(response.error_code)
        return _results(response)

    message = request(group_id=group_id, topics=topics)
    return await _send_to_coordinator(network, group_id, wanted, message, read, COORDINATOR)


async def _send_to_coordinator(
    network: AdminNetwork,
    group_id: str,
    partitions: Iterable[TopicPartition],
    request: Any,
    read: Callable[[Any], dict[TopicPartition, ClientError | None]],
    retriable: Iterable[ErrorCode],
) -> Results[TopicPartition, None]:
    """Send one request about one group; an error of the group is the error of each partition."""
    wanted = list(partitions)
    if not wanted:
        return Results({})

    async def ask(
        node: Node, share: list[str]
    ) -> dict[str, dict[TopicPartition, ClientError | None] | ClientError]:
        return {group_id: read(await network.send_to(node, request))}

    found = await network.by_node([group_id], network.coordinators(GROUP), ask, frozenset(retriable))
    problem = found.errors.get(group_id)
    if problem is not None:
        return Results(dict.fromkeys(wanted, problem))
    missing = errors.UnknownServerError("the response has no result for this partition")
    return Results({tp: found[group_id].get(tp, missing) for tp in wanted})


def _committed(group: Any) -> dict[TopicPartition, OffsetToCommit | None]:
    return {
        TopicPartition(t.name, p.partition_index): None
        if p.committed_offset < 0
        else OffsetToCommit(p.committed_offset, p.metadata or "", p.committed_leader_epoch)
        for t in group.topics
        for p in t.partitions
        if not p.error_code
    }


def _results(response: Any, of_group: Iterable[ErrorCode] = ()) -> dict[TopicPartition, ClientError | None]:
    """The results of a response by partition. Raises errors in `of_group`, which concern the whole group."""
    found = {
        tp: outcome(p.error_code, None, tp)
        for t in response.topics
        for p in t.partitions
        for tp in [TopicPartition(t.name, p.partition_index)]
    }
    for error in found.values():
        if isinstance(error, errors.BrokerError) and error.code in of_group:
            raise error
    return found
