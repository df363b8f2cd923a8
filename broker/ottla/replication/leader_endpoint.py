"""A follower's requests to its leader other than Fetch: the start, end and leader epochs of the leader's log.

Called by `fetcher`. Each function sends one request, and raises what `BrokerConnection.request` raises.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode
from ottla.replication.follower import FollowerFetch, Retry
from ottla.replication.requests import PartitionKey
from ottla.wire.connection import BrokerConnection

LIST_OFFSETS_MAX = 7
EpochEnd = m.OffsetForLeaderEpochResponse.EpochEndOffset


async def leader_offset(
    connection: BrokerConnection,
    follower: FollowerFetch,
    timestamp: int,
    *,
    replica_id: int,
    timeout_s: float,
) -> int | Retry:
    """The leader's log start or end offset; `timestamp` is the special position of ListOffsets."""
    partition = follower.partition
    request = m.ListOffsetsRequest(
        replica_id=replica_id,
        topics=[
            m.ListOffsetsRequest.ListOffsetsTopic(
                name=partition.topic,
                partitions=[
                    m.ListOffsetsRequest.ListOffsetsPartition(
                        partition_index=partition.partition,
                        current_leader_epoch=follower.leader_epoch,
                        timestamp=timestamp,
                    )
                ],
            )
        ],
    )
    version = min(connection.version_of(m.ListOffsetsRequest.api_key), LIST_OFFSETS_MAX)
    response: m.ListOffsetsResponse = await connection.request(request, version=version, timeout_s=timeout_s)
    row = response.topics[0].partitions[0]
    return row.offset if row.error_code == ErrorCode.NONE else Retry(ErrorCode.of(row.error_code))


async def epoch_ends(
    connection: BrokerConnection, followers: Iterable[FollowerFetch], *, replica_id: int, timeout_s: float
) -> dict[PartitionKey, EpochEnd]:
    """The end offset of each follower's latest epoch in the leader's log (KIP-101)."""
    topics: dict[str, m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic] = {}
    for follower in followers:
        partition = follower.partition
        assert partition.log.latest_epoch is not None
        topic = topics.setdefault(
            partition.topic, m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=partition.topic)
        )
        topic.partitions.append(
            m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
                partition=partition.partition,
                current_leader_epoch=follower.leader_epoch,
                leader_epoch=partition.log.latest_epoch,
            )
        )
    if not topics:
        return {}
    request = m.OffsetForLeaderEpochRequest(replica_id=replica_id, topics=list(topics.values()))
    version = connection.version_of(m.OffsetForLeaderEpochRequest.api_key)
    response: m.OffsetForLeaderEpochResponse = await connection.request(
        request, version=version, timeout_s=timeout_s
    )
    return {(topic.topic, end.partition): end for topic in response.topics for end in topic.partitions}
