"""ListOffsets, versions 0 to 9, and OffsetForLeaderEpoch, versions 0 to 4.

Behaviour: special timestamps are -1 latest (the high watermark, or the last stable offset for
read_committed), -2 earliest, -3 the record with the largest timestamp (from version 7), -4 earliest local
(from version 8: the same as earliest, there is no tiered storage), -5 last tiered (from version 9: none, not
found). A timestamp after the last record is no error: timestamp and offset are -1. Version 0 returns a list
of segment start offsets, newest first, of segments last modified before the timestamp.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.replication.manager import ReplicaManager
from ottla.replication.offsets import offset_for_leader_epoch, offset_for_time
from ottla.replication.partition import Partition
from ottla.server.dispatch.dispatcher import Request, Route
from ottla.server.logs.page_cache_reader import MISSES_MAX, ManyPageMisses, PageCacheReader
from ottla.storage.log_config import INT64_MAX
from ottla.storage.nonblocking_reads import PageCacheMiss

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
_SPECIAL_FROM = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
CONSUMER_REPLICA_ID = -1
DEBUGGING_REPLICA_ID = -2
LEADER_EPOCH_FROM = 4


class ListOffsetsHandler:
    def __init__(
        self, replicas: ReplicaManager, clock: Callable[[], int], page_cache_reader: PageCacheReader
    ) -> None:
        self._replicas = replicas
        self._page_cache_reader = page_cache_reader
        self._clock = clock

    def routes(self) -> list[Route]:
        return [
            Route(m.ListOffsetsRequest, self.list_offsets, _list_offsets_error),
            Route(m.OffsetForLeaderEpochRequest, self.offset_for_leader_epoch, _leader_epoch_error),
        ]

    def list_offsets(self, request: Request) -> None:
        # Lookups by timestamp read indexes and logs that may not be in the page cache.
        self._page_cache_reader.run_lookup(
            partial(self._list_offsets, request), request.respond, request.fail
        )

    def _list_offsets(self, request: Request) -> m.ListOffsetsResponse:
        message = request.decode(m.ListOffsetsRequest)
        # A follower (or a debugging consumer, -2) sees beyond the high watermark.
        isolation = message.isolation_level if message.replica_id == CONSUMER_REPLICA_ID else None
        response = m.ListOffsetsResponse()
        if request.abandoned:
            return response
        misses: list[PageCacheMiss] = []
        occurrences = Counter(
            (topic.name, p.partition_index) for topic in message.topics for p in topic.partitions
        )
        for topic in message.topics:
            results: list[m.ListOffsetsResponse.ListOffsetsPartitionResponse] = []
            response.topics.append(
                m.ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=results)
            )
            for requested in topic.partitions:
                result = m.ListOffsetsResponse.ListOffsetsPartitionResponse(
                    partition_index=requested.partition_index
                )
                results.append(result)
                if request.version and occurrences[topic.name, requested.partition_index] > 1:
                    result.error_code = ErrorCode.INVALID_REQUEST
                    continue
                try:
                    replica = self._replicas.partition(topic.name, requested.partition_index)
                    if request.version == 0:
                        result.old_style_offsets = self._before(replica, requested, message.replica_id)
                    else:
                        leader_only = message.replica_id != DEBUGGING_REPLICA_ID
                        self._find(replica, requested, isolation, request.version, result, leader_only)
                except KafkaError as e:
                    result.error_code = e.code
                except PageCacheMiss as miss:
                    # Its traceback would refer to this list, and keep its descriptor open until a collection.
                    misses.append(miss.with_traceback(None))
                    if len(misses) == MISSES_MAX:
                        raise ManyPageMisses(misses) from None
        if misses:
            raise ManyPageMisses(misses)
        return response

    def _find(
        self,
        replica: Partition,
        requested: m.ListOffsetsRequest.ListOffsetsPartition,
        isolation: int | None,
        version: int,
        result: m.ListOffsetsResponse.ListOffsetsPartitionResponse,
        leader_only: bool,
    ) -> None:
        timestamp = requested.timestamp
        if timestamp < LATEST_TIERED or version < _SPECIAL_FROM.get(timestamp, 0):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp} in version {version}")
        if timestamp == EARLIEST_LOCAL:
            timestamp = EARLIEST
        if timestamp == LATEST_TIERED:
            return
        found = offset_for_time(
            replica, timestamp, isolation, requested.current_leader_epoch, leader_only=leader_only
        )
        if found is not None:
            result.timestamp = found.timestamp
            result.offset = found.offset
            if version >= LEADER_EPOCH_FROM:
                result.leader_epoch = found.leader_epoch

    def _before(
        self, replica: Partition, requested: m.ListOffsetsRequest.ListOffsetsPartition, replica_id: int
    ) -> list[int]:
        """The offsets of version 0; for a consumer, the high watermark replaces all offsets after it."""
        if not replica.is_leader and replica_id != DEBUGGING_REPLICA_ID:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{replica!r} is not the leader")
        count = max(requested.max_num_offsets, 0)
        now_ms = self._clock()
        log = replica.log
        if requested.timestamp == EARLIEST:
            offsets = log.segment_starts_before(INT64_MAX, now_ms)[-1:][:count]
        else:
            timestamp = INT64_MAX if requested.timestamp == LATEST else requested.timestamp
            offsets = log.segment_starts_before(timestamp, now_ms)[:count]
        high_watermark = replica.high_watermark
        if replica_id != CONSUMER_REPLICA_ID or all(offset <= high_watermark for offset in offsets):
            return offsets
        return [high_watermark, *(offset for offset in offsets if offset <= high_watermark)]

    def offset_for_leader_epoch(self, request: Request) -> None:
        message = request.decode(m.OffsetForLeaderEpochRequest)
        response = m.OffsetForLeaderEpochResponse()
        for topic in message.topics:
            results: list[m.OffsetForLeaderEpochResponse.EpochEndOffset] = []
            response.topics.append(
                m.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(
                    topic=topic.topic, partitions=results
                )
            )
            for requested in topic.partitions:
                result = m.OffsetForLeaderEpochResponse.EpochEndOffset(partition=requested.partition)
                results.append(result)
                try:
                    replica = self._replicas.partition(topic.topic, requested.partition)
                except KafkaError as e:
                    result.error_code = e.code
                    continue
                error, epoch, end_offset = offset_for_leader_epoch(
                    replica, requested.current_leader_epoch, requested.leader_epoch
                )
                result.error_code = error
                if not error:
                    result.leader_epoch = epoch
                    result.end_offset = end_offset
        request.respond(response)


def _list_offsets_error(
    message: m.ListOffsetsRequest, version: int, code: ErrorCode, detail: str | None
) -> m.ListOffsetsResponse:
    return m.ListOffsetsResponse(
        topics=[
            m.ListOffsetsResponse.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    m.ListOffsetsResponse.ListOffsetsPartitionResponse(
                        partition_index=p.partition_index, error_code=code
                    )
                    for p in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )


def _leader_epoch_error(
    message: m.OffsetForLeaderEpochRequest, version: int, code: ErrorCode, detail: str | None
) -> m.OffsetForLeaderEpochResponse:
    return m.OffsetForLeaderEpochResponse(
        topics=[
            m.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    m.OffsetForLeaderEpochResponse.EpochEndOffset(partition=p.partition, error_code=code)
                    for p in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )
