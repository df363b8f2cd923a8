"""DeleteRecords 0 to 2 (KIP-107): raises the log start offset of partitions.

Behaviour: leaders only; -1 means the high watermark, an offset above it is OFFSET_OUT_OF_RANGE;
POLICY_VIOLATION unless cleanup.policy contains `delete`; INVALID_TOPIC_EXCEPTION for internal topics. The
response waits until the replicas on all live brokers have followed, or until the request's timeout, and has
the low watermark (the lowest log start offset of the replicas). The next maintenance deletes segments below
it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ottla.metadata.cache import MetadataCache
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import DeleteRecordsRequest, DeleteRecordsResponse
from ottla.protocol.topics import INTERNAL_TOPICS
from ottla.replication.delete_records import delete_records, low_watermark
from ottla.replication.manager import ReplicaManager
from ottla.server.dispatch.dispatcher import Request, Route

_UNKNOWN: Final = -1
_POLL_S: Final = 0.02
"""Polling keeps the fetch path free of a check for waiting requests, which are rare."""

PartitionKey = tuple[str, int]


@dataclass(slots=True)
class _Outcome:
    """One partition's result; `wanted` is the offset that the low watermark has to reach, None when done."""

    error: ErrorCode
    low_watermark: int
    wanted: int | None = None


class DeleteRecordsHandler:
    def __init__(
        self, replicas: ReplicaManager, cache: MetadataCache, loop_time: Callable[[], float]
    ) -> None:
        """`loop_time` is a monotonic clock in seconds."""
        self._replicas = replicas
        self._cache = cache
        self._time = loop_time

    def routes(self) -> list[Route]:
        return [Route(DeleteRecordsRequest, self.handle, _error)]

    async def handle(self, request: Request) -> DeleteRecordsResponse:
        message = request.decode(DeleteRecordsRequest)
        deadline_s = self._time() + message.timeout_ms / 1000
        outcomes = {
            (topic.name, partition.partition_index): self._delete(
                (topic.name, partition.partition_index), partition.offset
            )
            for topic in message.topics
            for partition in topic.partitions
        }
        while (  # noqa: ASYNC110 (see _POLL_S)
            self._update(outcomes) and self._time() < deadline_s and not request.abandoned
        ):
            await asyncio.sleep(min(_POLL_S, max(0.0, deadline_s - self._time())))
        return _response(outcomes)

    def _delete(self, key: PartitionKey, offset: int) -> _Outcome:
        topic, partition = key
        try:
            if partition not in (self._cache.partitions(topic) or ()):
                return _Outcome(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _UNKNOWN)
            if topic in INTERNAL_TOPICS:
                return _Outcome(ErrorCode.INVALID_TOPIC_EXCEPTION, _UNKNOWN)
            replica = self._replicas.partition(topic, partition)
            wanted = delete_records(replica, offset)
            # REQUEST_TIMED_OUT until the replicas have followed.
            return _Outcome(ErrorCode.REQUEST_TIMED_OUT, low_watermark(replica, self._cache.is_alive), wanted)
        except KafkaError as error:
            return _Outcome(error.code, _UNKNOWN)

    def _update(self, outcomes: dict[PartitionKey, _Outcome]) -> bool:
        """Update the outcomes that are not done; whether any still waits."""
        waiting = False
        for (topic, partition), outcome in outcomes.items():
            if outcome.wanted is None:
                continue
            try:
                replica = self._replicas.partition(topic, partition)
                if not replica.is_leader:
                    raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            except KafkaError as error:
                outcome.error, outcome.low_watermark, outcome.wanted = error.code, _UNKNOWN, None
                continue
            reached = low_watermark(replica, self._cache.is_alive)
            if reached >= outcome.wanted:
                outcome.error, outcome.low_watermark, outcome.wanted = ErrorCode.NONE, reached, None
            else:
                waiting = True
        return waiting


def _response(outcomes: dict[PartitionKey, _Outcome]) -> DeleteRecordsResponse:
    by_topic: dict[str, list[DeleteRecordsResponse.DeleteRecordsPartitionResult]] = defaultdict(list)
    for (topic, partition), outcome in outcomes.items():
        by_topic[topic].append(
            DeleteRecordsResponse.DeleteRecordsPartitionResult(
                partition_index=partition,
                low_watermark=outcome.low_watermark,
                error_code=outcome.error,
            )
        )
    row = DeleteRecordsResponse.DeleteRecordsTopicResult
    return DeleteRecordsResponse(
        topics=[row(name=topic, partitions=results) for topic, results in by_topic.items()]
    )


def _error(
    message: DeleteRecordsRequest, version: int, code: ErrorCode, detail: str | None
) -> DeleteRecordsResponse:
    return _response(
        {
            (topic.name, partition.partition_index): _Outcome(code, _UNKNOWN)
            for topic in message.topics
            for partition in topic.partitions
        }
    )
