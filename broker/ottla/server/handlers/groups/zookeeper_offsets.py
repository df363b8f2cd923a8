"""OffsetCommit 0 and OffsetFetch 0: offsets that clients of 0.8 keep in ZooKeeper, through a broker.

Behaviour: any broker responds; there is no coordinator and no membership. A partition that does not exist is
UNKNOWN_TOPIC_OR_PARTITION in both; so is, in a fetch, one without a committed offset, as in Kafka. The length
of metadata is checked (OFFSET_METADATA_TOO_LARGE), but metadata is not stored.

Called by `handler` for these versions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ottla.coordinators.offsets import java_length
from ottla.metadata.store import pipelined
from ottla.metadata.zookeeper_groups import ConsumerOffsets
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode, KafkaError

NOTHING = -1


class ZooKeeperOffsets:
    """Commits and fetches offsets in ZooKeeper."""

    def __init__(
        self, offsets: ConsumerOffsets, partition_exists: Callable[[str, int], bool], *, metadata_max: int
    ) -> None:
        self._offsets = offsets
        self._partition_exists = partition_exists
        self._metadata_max = metadata_max

    async def commit(self, request: m.OffsetCommitRequest) -> m.OffsetCommitResponse:
        async def store(
            row: tuple[str, m.OffsetCommitRequest.OffsetCommitRequestPartition],
        ) -> m.OffsetCommitResponse.OffsetCommitResponsePartition:
            topic, item = row
            error = await self._commit(request.group_id, topic, item)
            return m.OffsetCommitResponse.OffsetCommitResponsePartition(
                partition_index=item.partition_index, error_code=error
            )

        every = [(topic.name, item) for topic in request.topics for item in topic.partitions]
        stored = iter(await pipelined(lambda row: asyncio.ensure_future(store(row)), every))
        return m.OffsetCommitResponse(
            topics=[
                m.OffsetCommitResponse.OffsetCommitResponseTopic(
                    name=topic.name, partitions=[next(stored) for _ in topic.partitions]
                )
                for topic in request.topics
            ]
        )

    async def _commit(
        self, group: str, topic: str, item: m.OffsetCommitRequest.OffsetCommitRequestPartition
    ) -> ErrorCode:
        if not self._partition_exists(topic, item.partition_index):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if java_length(item.committed_metadata or "") > self._metadata_max:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        try:
            await self._offsets.set(group, topic, item.partition_index, item.committed_offset)
        except KafkaError as problem:
            return problem.code
        return ErrorCode.NONE

    async def fetch(self, request: m.OffsetFetchRequest) -> m.OffsetFetchResponse:
        async def look_up(
            row: tuple[str, int],
        ) -> m.OffsetFetchResponse.OffsetFetchResponsePartition:
            offset, error = await self._look_up(request.group_id, *row)
            return m.OffsetFetchResponse.OffsetFetchResponsePartition(
                partition_index=row[1], committed_offset=offset, metadata="", error_code=error
            )

        topics = request.topics or []
        every = [(topic.name, index) for topic in topics for index in topic.partition_indexes]
        found = iter(await pipelined(lambda row: asyncio.ensure_future(look_up(row)), every))
        return m.OffsetFetchResponse(
            topics=[
                m.OffsetFetchResponse.OffsetFetchResponseTopic(
                    name=topic.name, partitions=[next(found) for _ in topic.partition_indexes]
                )
                for topic in topics
            ]
        )

    async def _look_up(self, group: str, topic: str, partition: int) -> tuple[int, ErrorCode]:
        if not self._partition_exists(topic, partition):
            return NOTHING, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        try:
            offset = await self._offsets.get(group, topic, partition)
        except KafkaError as problem:
            return NOTHING, problem.code
        if offset is None:
            return NOTHING, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return offset, ErrorCode.NONE
