"""Appends and reads of internal topics, for coordinators: partitions that this broker leads, replicated.

`ReplicatedCoordinatorLog` implements the CoordinatorLog port of `ottla.coordinators`; `append_replicated` is
also called by `transaction_markers`.
"""

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
from ottla.server.dispatch.purgatory import Purgatory
from ottla.server.logs.page_cache_reader import PageCacheReader

log = logging.getLogger(__name__)

ACKS_ALL: Final = -1

_LENGTH: Final = Struct(">i")
"""A batch's length field, the last field of LOG_OVERHEAD."""


async def stored_partitions(store: MetadataStore, topic: str) -> int | None:
    """The number of partitions of an internal topic in the store; None if the topic does not exist or its
    node cannot be decoded. Raises StoreError."""
    node = await store.get(znodes.topic_path(topic))
    if node is None:
        return None
    try:
        return len(znodes.decode_topic(topic, node[0]).partitions)
    except znodes.InvalidNode as e:
        log.error("Taking the number of partitions of %s from the settings: %s", topic, e)
        return None


def append_replicated(
    replicas: ReplicaManager,
    purgatory: Purgatory,
    key: tuple[str, int],
    batch: bytes,
    *,
    acks: int = ACKS_ALL,
    now_ms: int,
    timeout_ms: int,
    guard: object | None = None,
) -> asyncio.Future[ErrorCode]:
    """Append a batch to a partition that this broker leads. The append happens in this call; the future
    completes when `acks` is satisfied, or with REQUEST_TIMED_OUT after `timeout_ms`, or with the error of the
    append (INVALID_REQUIRED_ACKS among them)."""
    result: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

    def complete(code: ErrorCode) -> None:
        if not result.done():
            result.set_result(code)

    if acks not in (ACKS_ALL, 0, 1):
        complete(ErrorCode.INVALID_REQUIRED_ACKS)
        return result
    try:
        replica = replicas.partition(*key)
        info = replica.append_as_leader(batch, required_acks=acks, now_ms=now_ms, client=False, guard=guard)
    except KafkaError as e:
        complete(e.code)
        return result
    except OSError as e:
        log.error("append to %s-%d failed: %s", *key, e)
        complete(ErrorCode.KAFKA_STORAGE_ERROR)
        return result
    if acks != ACKS_ALL:
        complete(ErrorCode.NONE)
        return result
    required = info.last_offset + 1
    enough, error = replica.enough_replicas_for(required)
    if enough or error:
        complete(error)
    else:
        purgatory.await_replication(key, required, timeout_ms, complete)
    return result


class ReplicatedCoordinatorLog:
    """The log of one internal topic: this broker's replicas of its partitions."""

    def __init__(
        self,
        topic: str,
        replicas: ReplicaManager,
        purgatory: Purgatory,
        clock: Callable[[], int],
        page_cache_reader: PageCacheReader,
        *,
        timeout_ms: int,
        load_buffer_bytes: int,
    ) -> None:
        self.topic = topic
        self._replicas = replicas
        self._purgatory = purgatory
        self._clock = clock
        self._page_cache_reader = page_cache_reader
        self._timeout_ms = timeout_ms
        self._load_buffer_bytes = load_buffer_bytes

    def is_leader(self, partition: int) -> bool:
        replica = self._replicas.find(self.topic, partition)
        return replica is not None and replica.is_leader

    def leader_epoch(self, partition: int) -> int:
        """-1 where this broker has no replica."""
        replica = self._replicas.find(self.topic, partition)
        return -1 if replica is None else replica.leader_epoch

    def append(
        self,
        partition: int,
        batch: bytes,
        *,
        acks: int = ACKS_ALL,
        timeout_ms: int | None = None,
        guard: object | None = None,
    ) -> asyncio.Future[ErrorCode]:
        """See `append_replicated`."""
        return append_replicated(
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
        """Read from the log's start to its current end, about `load_buffer_bytes` at a time. Threads read:
        after a failover the log is probably not in the page cache."""
        replica = self._replicas.partition(self.topic, partition)
        offset = replica.log.log_start_offset
        end = replica.log.log_end_offset
        while offset < end:
            look_up = partial(replica.log.read, offset, self._load_buffer_bytes, up_to=end)
            read = await self._page_cache_reader.look_up(look_up)
            data = await asyncio.to_thread(read.to_bytes)
            if not data:
                return
            yield data
            offset = next_offset(data, offset)


def next_offset(batches: bytes, offset: int) -> int:
    """The offset after the last complete batch; at least `offset` + 1, so that reading makes progress. Raises
    KafkaError(CORRUPT_MESSAGE) if there is no complete batch.

    Only the length fields of the earlier batches are parsed: there may be thousands.
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
