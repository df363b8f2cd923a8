"""What lies in the logs: offsets by time, the start that can be moved, the folders."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ottla.client.admin.base import Family
from ottla.client.admin_types import LogDirDescription, Node, ReplicaInfo, TopicPartition
from ottla.client.routing import error_of, raise_first
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode, KafkaError

_LATEST, _EARLIEST = -1, -2


class Logs(Family):
    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The high watermarks; a partition without a leader is left out."""
        return {tp: found.offset for tp, found in (await self._offsets(partitions, _LATEST)).items()}

    async def start_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The earliest offset of each."""
        return {tp: found.offset for tp, found in (await self._offsets(partitions, _EARLIEST)).items()}

    async def offsets_for_time(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """The first offset with that timestamp or a later one; a partition without one is left out."""
        found = await self._offsets(partitions, timestamp_ms)
        return {tp: answer.offset for tp, answer in found.items() if answer.offset >= 0}

    async def _offsets(
        self, partitions: Iterable[TopicPartition], timestamp: int
    ) -> dict[TopicPartition, m.ListOffsetsResponse.ListOffsetsPartitionResponse]:
        asked = m.ListOffsetsRequest

        def request(of_leader: Mapping[str, list[int]]) -> m.ListOffsetsRequest:
            return asked(
                replica_id=-1,
                topics=[
                    asked.ListOffsetsTopic(
                        name=topic,
                        partitions=[
                            asked.ListOffsetsPartition(partition_index=p, timestamp=timestamp)
                            for p in indexes
                        ],
                    )
                    for topic, indexes in of_leader.items()
                ],
            )

        return {
            TopicPartition(topic.name, answer.partition_index): answer
            for response in await self._ask_leaders(partitions, request)
            for topic in response.topics
            for answer in topic.partitions
            if not answer.error_code
        }

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete what is before an offset (-1: all there is); returns the offsets that are left (KIP-107)."""
        wanted = m.DeleteRecordsRequest

        def request(of_leader: Mapping[str, list[int]]) -> m.DeleteRecordsRequest:
            return wanted(
                timeout_ms=self._brokers.timeout_ms,
                topics=[
                    wanted.DeleteRecordsTopic(
                        name=topic,
                        partitions=[
                            wanted.DeleteRecordsPartition(
                                partition_index=p, offset=before[TopicPartition(topic, p)]
                            )
                            for p in indexes
                        ],
                    )
                    for topic, indexes in of_leader.items()
                ],
            )

        responses = await self._ask_leaders(before, request)
        results = [(t.name, p) for response in responses for t in response.topics for p in t.partitions]
        raise_first((p.error_code, f"{topic}-{p.partition_index}") for topic, p in results)
        starts = {TopicPartition(topic, p.partition_index): p.low_watermark for topic, p in results}
        if missing := sorted(set(before) - set(starts)):
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{missing[0].topic}-{missing[0].partition}")
        return starts

    async def _ask_leaders(
        self, partitions: Iterable[TopicPartition], request: Callable[[Mapping[str, list[int]]], Any]
    ) -> list[Any]:
        """What each leader answers about its share; what does not exist or has no leader is left out."""
        wanted = list(partitions)
        by_leader: dict[Node, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        leaders: dict[str, dict[int, Node | None]] = {}
        for topic in {topic for topic, _ in wanted}:
            self._brokers.forget_leaders(topic)
            try:
                leaders[topic] = await self._brokers.leaders(topic)
            except KafkaError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                leaders[topic] = {}
        for topic, partition in wanted:
            if (leader := leaders[topic].get(partition)) is not None:
                by_leader[leader][topic].append(partition)
        return [await self._brokers.to(leader, request(share)) for leader, share in by_leader.items()]

    async def describe_log_dirs(self) -> dict[int, tuple[LogDirDescription, ...]]:
        """The log directories of every live broker (KIP-113)."""
        nodes = (await self._brokers.describe()).brokers
        return {node.id: await self._log_dirs(node) for node in nodes}

    async def _log_dirs(self, node: Node) -> tuple[LogDirDescription, ...]:
        response = await self._brokers.to(node, m.DescribeLogDirsRequest(topics=None))
        raise_first([(response.error_code, None)])
        return tuple(
            LogDirDescription(
                directory.log_dir,
                error_of(directory.error_code, directory.log_dir) if directory.error_code else None,
                directory.total_bytes,
                directory.usable_bytes,
                {
                    TopicPartition(topic.name, p.partition_index): ReplicaInfo(
                        p.partition_size, p.offset_lag, p.is_future_key
                    )
                    for topic in directory.topics
                    for p in topic.partitions
                },
            )
            for directory in response.results
        )
