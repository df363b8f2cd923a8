"""Reads the partitions of one topic from given offsets on, without a group.

Called by `ottla consume`. One Fetch to each leader is on its way; records come as the brokers answer, in
order within a partition. Invariants: no record twice and none left out, whatever leaders do meanwhile; one
answer a leader is held in memory.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ottla.client.admin_types import Node
from ottla.client.connection import ConnectionLost
from ottla.client.routing import Brokers, ClusterUnreachable, error_of
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records import Record, decode_batch, iter_batches

_CONSUMER: Final = -1
_READ_UNCOMMITTED: Final = 0
_WITH_TOPIC_NAMES: Final = 12
"""Later versions of Fetch name topics by id; a reader of one topic gains nothing by that."""


@dataclass(frozen=True, slots=True)
class ReadRecord:
    partition: int
    record: Record


class Reader:
    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        positions: Mapping[int, int],
        *,
        max_wait_ms: int = 500,
        max_bytes: int = 4 * 1024 * 1024,
    ) -> None:
        self.topic = topic
        self.positions = dict(positions)
        """The next offset to read, by partition; a partition taken out is not read on."""
        self._brokers = brokers
        self._max_wait_ms = max_wait_ms
        self._max_bytes = max_bytes

    async def read(self) -> AsyncGenerator[list[ReadRecord], None]:
        """What each round of fetches brings, empty rounds included; ends when no partition is left.

        Raises KafkaError for what waiting does not mend: an offset out of range, an unknown topic.
        """
        while self.positions:
            leaders = await self._leaders()
            by_leader: dict[Node, list[int]] = defaultdict(list)
            for partition in self.positions:
                if (leader := leaders.get(partition)) is not None:
                    by_leader[leader].append(partition)
            rounds = await asyncio.gather(*(self._fetch(node, asked) for node, asked in by_leader.items()))
            yield [record for answer in rounds for record in answer]
            if not by_leader:
                await self._brokers.pause()

    async def _leaders(self) -> dict[int, Node | None]:
        try:
            return await self._brokers.leaders(self.topic)
        except ClusterUnreachable:
            await self._brokers.pause()
            return {}

    async def _fetch(self, leader: Node, partitions: list[int]) -> list[ReadRecord]:
        asked = m.FetchRequest.FetchPartition
        request = m.FetchRequest(
            replica_id=_CONSUMER,
            max_wait_ms=self._max_wait_ms,
            min_bytes=1,
            max_bytes=self._max_bytes,
            isolation_level=_READ_UNCOMMITTED,
            topics=[
                m.FetchRequest.FetchTopic(
                    topic=self.topic,
                    partitions=[
                        asked(
                            partition=partition,
                            fetch_offset=self.positions[partition],
                            partition_max_bytes=self._max_bytes,
                        )
                        for partition in partitions
                    ],
                )
            ],
        )
        try:
            response = await self._brokers.to(leader, request, version_max=_WITH_TOPIC_NAMES)
        except (ConnectionLost, OSError, TimeoutError):
            self._brokers.forget_leaders(self.topic)
            await self._brokers.pause()
            return []
        return [
            record
            for topic in response.responses
            for partition in topic.partitions
            for record in self._take(partition)
        ]

    def _take(self, answer: Any) -> list[ReadRecord]:
        partition = answer.partition_index
        if answer.error_code:
            code = ErrorCode.of(answer.error_code)
            if not code.retriable or code is ErrorCode.OFFSET_OUT_OF_RANGE:
                detail = f"{self.topic}-{partition} at offset {self.positions[partition]}"
                raise error_of(code, detail)
            self._brokers.forget_leaders(self.topic)
            return []
        records: list[ReadRecord] = []
        data = answer.records or b""
        for at, header in iter_batches(data):
            if not header.is_control:
                # A batch may begin before the offset that was asked for.
                wanted = self.positions[partition]
                found = decode_batch(data, at)
                records += [ReadRecord(partition, record) for record in found if record.offset >= wanted]
            self.positions[partition] = header.next_offset
        return records
