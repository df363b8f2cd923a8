"""Writes records to one topic, a batch for each partition at a time, each batch exactly once.

Called by `ottla produce`. Idempotent (KIP-98), with acks of all in-sync replicas: a batch is sent again under
its own sequence numbers until it is confirmed or the time is up. Invariant: one batch a partition is on its
way, so order within a partition is the order of the calls.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ottla.client.connection import ConnectionLost
from ottla.client.partitioning import partition_for_key
from ottla.client.routing import Brokers, ClusterUnreachable, raise_first
from ottla.protocol import messages as m
from ottla.protocol.compression import Codec
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records import Record, build_batch

_ALL_IN_SYNC: Final = -1
_SEQUENCES: Final = 0x80000000


@dataclass(frozen=True, slots=True)
class NewRecord:
    value: bytes | None
    key: bytes | None = None
    timestamp_ms: int = 0
    headers: Sequence[tuple[str, bytes | None]] = ()
    partition: int | None = None
    """Where it must go; else by its key, and without one round the partitions, a call's records together."""


@dataclass(slots=True)
class _Producer:
    id: int = -1
    epoch: int = -1
    sequences: dict[int, int] = field(default_factory=lambda: defaultdict(int))


class Writer:
    """Use: `await open()`, then `await write(records)` as often as wanted."""

    def __init__(self, brokers: Brokers, topic: str, *, codec: Codec = Codec.NONE) -> None:
        self.topic = topic
        self.partitions = 0
        self._brokers = brokers
        self._codec = codec
        self._producer = _Producer()
        self._next_keyless = 0

    async def open(self) -> None:
        """Look the topic up, and become a producer. Raises KafkaError, ClusterUnreachable."""
        self.partitions = len(await self._brokers.leaders(self.topic))
        response = await self._brokers.any(m.InitProducerIdRequest(transactional_id=None))
        raise_first([(response.error_code, None)])
        self._producer = _Producer(response.producer_id, response.producer_epoch)

    async def write(self, records: Sequence[NewRecord]) -> dict[int, int]:
        """Write all of them; returns the offset of the first one in each partition that got some.

        Raises KafkaError when a batch is refused, TimeoutError when it was not confirmed in time; what went
        to other partitions may be written nevertheless.
        """
        by_partition: dict[int, list[Record]] = defaultdict(list)
        keyless = self._next_keyless
        self._next_keyless = (keyless + 1) % self.partitions
        for record in records:
            partition = record.partition
            if partition is None:
                partition = keyless if record.key is None else partition_for_key(record.key, self.partitions)
            elif partition not in range(self.partitions):
                raise KafkaError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"{self.topic} has partitions 0 to {self.partitions - 1}, not {partition!r}",
                )
            by_partition[partition].append(
                Record(0, record.timestamp_ms, record.key, record.value, list(record.headers))
            )
        written = await asyncio.gather(
            *(self._deliver(partition, batch) for partition, batch in by_partition.items()),
            return_exceptions=True,
        )
        for outcome in written:
            if isinstance(outcome, BaseException):
                raise outcome
        return dict(
            zip(by_partition, (int(offset) for offset in written if isinstance(offset, int)), strict=True)
        )

    async def _deliver(self, partition: int, records: list[Record]) -> int:
        sequence = self._producer.sequences[partition]
        batch = build_batch(
            records,
            codec=self._codec,
            producer_id=self._producer.id,
            producer_epoch=self._producer.epoch,
            base_sequence=sequence,
        )
        # Taken also when it fails: what was perhaps written must not share a number with what comes next.
        self._producer.sequences[partition] = (sequence + len(records)) % _SEQUENCES
        async with asyncio.timeout(self._brokers.timeout_s):
            while True:
                try:
                    return await self._send(partition, batch)
                except KafkaError as error:
                    if not error.code.retriable:
                        raise
                except (ConnectionLost, ClusterUnreachable, OSError):
                    # Somebody else may lead by now.
                    self._brokers.forget_leaders(self.topic)
                await self._brokers.pause()

    async def _send(self, partition: int, batch: bytes) -> int:
        leader = (await self._brokers.leaders(self.topic)).get(partition)
        if leader is None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{self.topic}-{partition}")
        data = m.ProduceRequest.PartitionProduceData(index=partition, records=batch)
        request = m.ProduceRequest(
            acks=_ALL_IN_SYNC,
            timeout_ms=self._brokers.timeout_ms,
            topic_data=[m.ProduceRequest.TopicProduceData(name=self.topic, partition_data=[data])],
        )
        response = await self._brokers.to(leader, request)
        answer = response.responses[0].partition_responses[0]
        if answer.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            return -1
        if answer.error_code:
            self._brokers.forget_leaders(self.topic)
            raise_first([(answer.error_code, answer.error_message or f"{self.topic}-{partition}")])
        offset: int = answer.base_offset
        return offset
