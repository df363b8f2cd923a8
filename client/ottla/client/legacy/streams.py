"""`KafkaStream`: the iterator over messages that a connector gives to each consuming thread.

The event loop of `consumer_fetcher` adds chunks of records; one thread of the application iterates.
Invariants: a message counts as consumed when the iterator has returned it, and commits have these offsets;
after `clear` no message is returned that was queued before, so that a partition has one reader when it moves
to another consumer.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from ottla.client.core.types import ConsumerRecord, TopicPartition
from ottla.client.legacy.encoders import Decoder
from ottla.client.legacy.errors import ConsumerTimeoutError


class MessageAndMetadata:
    """A message with its topic, partition and offset. Key and message are decoded at each access."""

    __slots__ = ("_key_decoder", "_record", "_value_decoder")

    def __init__(
        self, record: ConsumerRecord, key_decoder: Decoder[Any], value_decoder: Decoder[Any]
    ) -> None:
        self._record = record
        self._key_decoder = key_decoder
        self._value_decoder = value_decoder

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._record.topic

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self._record.partition

    @property
    def offset(self) -> int:
        """The message's offset in the partition."""
        return self._record.offset

    @property
    def timestamp_ms(self) -> int:
        """Milliseconds since the epoch; -1 in messages of producers before 0.10."""
        return self._record.timestamp_ms

    @property
    def key(self) -> Any:
        """The decoded key. Raises what the key decoder raises."""
        return self._key_decoder.from_bytes(self._record.key)

    @property
    def message(self) -> Any:
        """The decoded value. Raises what the value decoder raises."""
        return self._value_decoder.from_bytes(self._record.value)

    def __repr__(self) -> str:
        record = self._record
        return f"MessageAndMetadata({record.topic}-{record.partition} at offset {record.offset})"


class PartitionTopicInfo:
    """The consumed offset of a partition that is assigned to a stream; a new object for each assignment."""

    __slots__ = ("consumed_offset", "stream", "tp")

    def __init__(self, tp: TopicPartition, stream: KafkaStream, consumed_offset: int | None) -> None:
        self.tp = tp
        self.stream = stream
        self.consumed_offset = consumed_offset
        """The offset of the next message to consume; None while it is not known."""


class KafkaStream:
    """A blocking iterator over the messages of one or more partitions, for one thread. It ends when the
    connector is shut down. It can be iterated again after a ConsumerTimeoutError."""

    def __init__(
        self,
        *,
        chunks_max: int,
        timeout_ms: int,
        key_decoder: Decoder[Any],
        value_decoder: Decoder[Any],
    ) -> None:
        """`timeout_ms`: consumer.timeout.ms; -1: no time-out."""
        self._chunks_max = chunks_max
        self._timeout_s = None if timeout_ms < 0 else timeout_ms / 1000
        self._key_decoder = key_decoder
        self._value_decoder = value_decoder
        self._changed = threading.Condition()
        self._chunks: deque[tuple[PartitionTopicInfo, Sequence[ConsumerRecord]]] = deque()
        self._current: tuple[PartitionTopicInfo, Iterator[ConsumerRecord]] | None = None
        self._problem: Exception | None = None
        self._ended = False
        self._on_room: Callable[[], None] | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> MessageAndMetadata:
        """Raises ConsumerTimeoutError after consumer.timeout.ms, and the ClientError of a failed fetch."""
        with self._changed:
            while True:
                if self._current is not None:
                    info, records = self._current
                    for record in records:
                        info.consumed_offset = record.offset + 1
                        return MessageAndMetadata(record, self._key_decoder, self._value_decoder)
                    self._current = None
                if self._chunks:
                    self._open_next()
                elif self._problem is not None:
                    problem, self._problem = self._problem, None
                    raise problem
                elif self._ended:
                    raise StopIteration
                elif not self._changed.wait_for(self._has_result, self._timeout_s):
                    assert self._timeout_s is not None
                    message = f"no message within consumer.timeout.ms={self._timeout_s * 1000:.0f}"
                    raise ConsumerTimeoutError(message)

    def _has_result(self) -> bool:
        return bool(self._chunks) or self._ended or self._problem is not None

    def _open_next(self) -> None:
        info, records = self._chunks.popleft()
        self._current = info, iter(records)
        on_room, self._on_room = self._on_room, None
        if on_room is not None:
            on_room()

    # --- for the fetcher ---

    def put(
        self, info: PartitionTopicInfo, records: Sequence[ConsumerRecord], on_room: Callable[[], None]
    ) -> bool:
        """Queue a chunk of records. Returns whether there is room for another one; if not, `on_room` is
        called once in the reader's thread when there is, unless `clear` is called before."""
        with self._changed:
            if self._ended:
                return False
            if info.consumed_offset is None:
                info.consumed_offset = records[0].offset
            self._chunks.append((info, records))
            self._changed.notify()
            if len(self._chunks) < self._chunks_max:
                return True
            self._on_room = on_room
            return False

    def fail(self, problem: Exception) -> None:
        """Raise this error in the reader's thread after the queued messages."""
        with self._changed:
            self._problem = problem
            self._changed.notify()

    def clear(self) -> None:
        """Drop the messages that the iterator has not returned."""
        with self._changed:
            self._chunks.clear()
            self._current = None
            self._problem = None
            self._on_room = None

    def end(self) -> None:
        """End the stream after the queued messages."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
