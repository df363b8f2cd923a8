"""An internal topic as its coordinator sees it: replicated partitions behind the CoordinatorLog port."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial
from struct import Struct
from typing import Final

from ottla.metadata import znodes
from ottla.metadata.store import MetadataStore
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records import LOG_OVERHEAD, RECORD_BATCH_OVERHEAD, parse_batch_header
from ottla.replication.manager import ReplicaManager
from ottla.server.coordination.replicated_append import ACKS_ALL, append_replicated
from ottla.server.dispatch.purgatory import Purgatory
from ottla.server.logs.cold_reads import ColdReads

log = logging.getLogger(__name__)

_LENGTH: Final = Struct(">i")
"""The last field of what comes before a batch's length counts."""


async def stored_partitions(store: MetadataStore, topic: str) -> int | None:
    """How many partitions a coordinator's topic has in the store; None if there is no such topic, or its node
    makes no sense. Raises StoreError."""
    found = await store.get(znodes.topic_path(topic))
    if found is None:
        return None
    try:
        return len(znodes.decode_topic(topic, found[0]).partitions)
    except znodes.InvalidNode as e:
        log.error("the number of partitions of %s is taken from the settings: %s", topic, e)
        return None


class ReplicatedLog:
    def __init__(
        self,
        topic: str,
        replicas: ReplicaManager,
        purgatory: Purgatory,
        clock: Callable[[], int],
        cold_reads: ColdReads,
        *,
        timeout_ms: int,
        load_buffer_bytes: int,
    ) -> None:
        self.topic = topic
        self._replicas = replicas
        self._purgatory = purgatory
        self._clock = clock
        self._cold_reads = cold_reads
        self._timeout_ms = timeout_ms
        self._load_buffer_bytes = load_buffer_bytes

    def is_leader(self, partition: int) -> bool:
        replica = self._replicas.find(self.topic, partition)
        return replica is not None and replica.is_leader

    def leader_epoch(self, partition: int) -> int:
        """-1 where this broker has no replica."""
        replica = self._replicas.find(self.topic, partition)
        return -1 if replica is None else replica.leader_epoch

    async def append(
        self,
        partition: int,
        batch: bytes,
        *,
        acks: int = ACKS_ALL,
        timeout_ms: int | None = None,
        guard: object | None = None,
    ) -> ErrorCode:
        """Append, and wait for the in-sync replicas. The append itself comes before any suspension."""
        return await append_replicated(
            self._replicas,
            self._purgatory,
            (self.topic, partition),
            batch,
            acks=acks,
            now_ms=self._clock(),
            timeout_ms=self._timeout_ms if timeout_ms is None else timeout_ms,
            guard=guard,
        )

    async def read_all(self, partition: int) -> AsyncIterator[bytes | memoryview]:
        """From the log's start to its end as of now, about `load_buffer_bytes` at a time. By threads:
        after a failover nobody may have read it for long."""
        replica = self._replicas.partition(self.topic, partition)
        offset = replica.log.log_start_offset
        end = replica.log.log_end_offset
        while offset < end:
            look_up = partial(replica.log.read, offset, self._load_buffer_bytes, up_to=end)
            read = await self._cold_reads.look_up(look_up)
            data = await asyncio.to_thread(read.to_bytes)
            if not data:
                return
            yield data
            offset = next_offset(data, offset)


def next_offset(batches: bytes, offset: int) -> int:
    """The offset after the last whole batch; at least one above `offset`, so that reading goes on. Raises
    KafkaError(CORRUPT_MESSAGE) where there is none.

    Thousands of batches may lie before it: of those only the lengths are looked at.
    """
    last = at = 0
    while at + RECORD_BATCH_OVERHEAD <= len(batches):
        size = LOG_OVERHEAD + _LENGTH.unpack_from(batches, at + LOG_OVERHEAD - _LENGTH.size)[0]
        if size < RECORD_BATCH_OVERHEAD or at + size > len(batches):
            break
        last, at = at, at + size
    if not at:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"no whole batch at offset {offset}")
    return max(offset + 1, parse_batch_header(batches, last).next_offset)
