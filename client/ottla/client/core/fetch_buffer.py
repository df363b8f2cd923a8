"""The fetch buffer: fetched data that `poll` has not returned yet, in the order of its arrival.

Filled by `fetcher`, emptied by `Consumer`. Invariants: records of a partition are returned in order, once,
starting at its position, which moves with them; data that was fetched before a seek, or for a partition that
is not assigned any more, is dropped; data of paused partitions stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from ottla.client import errors
from ottla.client.core.assigned import Assigned, AssignedPartition
from ottla.client.core.decoding import PartitionData
from ottla.client.core.types import ConsumerRecord, TopicPartition

Deserialize: TypeAlias = Callable[[ConsumerRecord], ConsumerRecord]
"""Replaces the bytes of key and value by deserialized values. Raises ClientError."""


class _Chunk:
    """The rest of one response for one partition."""

    __slots__ = ("batch", "data", "era", "next", "size", "state")

    def __init__(self, state: AssignedPartition, data: PartitionData, size: int) -> None:
        self.state = state
        self.era = state.era
        self.data = data
        self.size = size
        self.batch: list[ConsumerRecord] = []
        self.next = 0


class FetchBuffer:
    """Kafka's FetchBuffer and FetchCollector."""

    def __init__(self, assigned: Assigned, deserialize: Deserialize | None) -> None:
        self._assigned = assigned
        self._deserialize = deserialize
        self._chunks: deque[_Chunk] = deque()
        self.bytes = 0
        self.freed = False
        """Whether memory was freed since this was last set to False: the fetcher may fetch more."""
        self.problems: deque[Exception] = deque()
        """Errors that `take` raises."""

    def drop_obsolete(self) -> None:
        """Free data that is never returned; `take` frees it only after all data before it."""
        kept: deque[_Chunk] = deque()
        for chunk in self._chunks:
            if self._is_current(chunk):
                kept.append(chunk)
            else:
                self._free(chunk)
        self._chunks = kept

    def add(self, state: AssignedPartition, data: PartitionData, size: int) -> None:
        self._chunks.append(_Chunk(state, data, size))
        state.buffered_bytes += size
        self.bytes += size

    @property
    def ready(self) -> bool:
        """Whether `take` would return records or raise."""
        return bool(self.problems) or any(
            chunk.state.fetchable or not self._is_current(chunk) for chunk in self._chunks
        )

    def take(self, records_max: int) -> dict[TopicPartition, list[ConsumerRecord]]:
        """The next records; positions move behind them. Raises ClientError: once for a fetch error, and
        repeatedly for a record that cannot be deserialized."""
        taken: dict[TopicPartition, list[ConsumerRecord]] = {}
        if self.problems:
            raise self.problems.popleft()
        paused: list[_Chunk] = []
        left = records_max
        try:
            while left > 0 and self._chunks:
                chunk = self._chunks[0]
                state = chunk.state
                if not self._is_current(chunk):
                    self._free(self._chunks.popleft())
                elif not state.fetchable:
                    chunk.data.detach()
                    paused.append(self._chunks.popleft())
                elif chunk.next == len(chunk.batch) and not self._decode_next(chunk):
                    self._free(self._chunks.popleft())
                else:
                    records = chunk.batch[chunk.next : chunk.next + left]
                    if records:
                        self._return_records(chunk, records, taken)
                        left -= len(records)
        except errors.ClientError:
            if not taken:
                raise
        finally:
            self._chunks.extendleft(reversed(paused))
        return taken

    def _is_current(self, chunk: _Chunk) -> bool:
        state = chunk.state
        return chunk.era == state.era and self._assigned.get(state.tp) is state

    def _free(self, chunk: _Chunk) -> None:
        self.freed = True
        self.bytes -= chunk.size
        if chunk.era == chunk.state.era:
            chunk.state.buffered_bytes -= chunk.size

    def _decode_next(self, chunk: _Chunk) -> bool:
        """Decode the next batch; False at the end."""
        batch = chunk.data.next_batch()
        if batch is None:
            return False
        chunk.batch, chunk.next = batch, 0
        if not batch:
            chunk.state.position = chunk.data.next_offset
        return True

    def _return_records(
        self,
        chunk: _Chunk,
        records: list[ConsumerRecord],
        taken: dict[TopicPartition, list[ConsumerRecord]],
    ) -> None:
        state = chunk.state
        given = taken.get(state.tp)
        deserialize = self._deserialize
        if deserialize is None:
            chunk.next += len(records)
            if given is None:
                taken[state.tp] = records
            else:
                given += records
        else:
            if given is None:
                given = []
            try:
                for record in records:
                    given.append(deserialize(record))
                    chunk.next += 1
            finally:
                # Records before one that cannot be deserialized are returned; that one is tried again by the
                # next call.
                if given:
                    taken[state.tp] = given
                    state.position = given[-1].offset + 1
                    state.epoch = chunk.data.epoch
        if chunk.next < len(chunk.batch):
            state.position = records[-1].offset + 1
        else:
            state.position = chunk.data.next_offset
        state.epoch = chunk.data.epoch
