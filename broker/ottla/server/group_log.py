"""`__consumer_offsets` as the group coordinator sees it: replicated partitions behind its GroupLog port."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records import iter_batches
from ottla.replication.manager import ReplicaManager
from ottla.server.cold_reads import ColdReads
from ottla.server.handlers.auto_create import OFFSETS_TOPIC
from ottla.server.purgatory import Purgatory

log = logging.getLogger(__name__)

ACKS_ALL = -1


class ReplicatedGroupLog:
    def __init__(
        self,
        replicas: ReplicaManager,
        purgatory: Purgatory,
        clock: Callable[[], int],
        cold_reads: ColdReads,
        *,
        commit_timeout_ms: int,
        load_buffer_bytes: int,
    ) -> None:
        self._replicas = replicas
        self._purgatory = purgatory
        self._clock = clock
        self._cold_reads = cold_reads
        self._commit_timeout_ms = commit_timeout_ms
        self._load_buffer_bytes = load_buffer_bytes

    def is_leader(self, partition: int) -> bool:
        replica = self._replicas.find(OFFSETS_TOPIC, partition)
        return replica is not None and replica.is_leader

    async def append(self, partition: int, batch: bytes) -> ErrorCode:
        """Append, and wait for the in-sync replicas. The append itself comes before any suspension."""
        try:
            replica = self._replicas.partition(OFFSETS_TOPIC, partition)
            info = replica.append_as_leader(batch, required_acks=ACKS_ALL, now_ms=self._clock(), client=False)
        except KafkaError as e:
            return e.code
        except OSError as e:
            log.error("append to %s-%d failed: %s", OFFSETS_TOPIC, partition, e)
            return ErrorCode.KAFKA_STORAGE_ERROR
        required = info.last_offset + 1
        enough, error = replica.enough_replicas_for(required)
        if enough or error:
            return error
        settled: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def settle(code: ErrorCode) -> None:
            if not settled.done():
                settled.set_result(code)

        self._purgatory.await_replication(
            (OFFSETS_TOPIC, partition), required, self._commit_timeout_ms, settle
        )
        return await settled

    async def read_all(self, partition: int) -> AsyncIterator[bytes | memoryview]:
        """From the log's start to its end as of now, about `offsets.load.buffer.size` at a time. By threads:
        after a failover nobody may have read it for long."""
        replica = self._replicas.partition(OFFSETS_TOPIC, partition)
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
    """The offset after the last whole batch; at least one above `offset`, so that reading goes on."""
    for _, header in iter_batches(batches):
        offset = max(offset + 1, header.next_offset)
    return offset
