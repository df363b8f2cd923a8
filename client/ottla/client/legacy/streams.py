"""What a connector's user iterates over: `KafkaStream`, one for each thread that reads.

Filled by `feed` in its event loop, emptied by one thread of the user's. Invariants: a message counts as
consumed from when it is given out, and what is consumed is what commits; after `clear` nothing is given out
that was there before, so that a partition that goes to others is read by one of both.
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
    """A message, and where it was. Its bytes are decoded when they are asked for."""

    __slots__ = ("_key_decoder", "_record", "_value_decoder")

    def __init__(
        self, record: ConsumerRecord, key_decoder: Decoder[Any], value_decoder: Decoder[Any]
    ) -> None:
        self._record = record
        self._key_decoder = key_decoder
        self._value_decoder = value_decoder

    @property
    def topic(self) -> str:
        """Its topic's name."""
        return self._record.topic

    @property
    def partition(self) -> int:
        """Its number in the topic."""
        return self._record.partition

    @property
    def offset(self) -> int:
        """Its number in the partition."""
        return self._record.offset

    @property
    def timestamp_ms(self) -> int:
        """-1 in messages of a producer from before 0.10."""
        return self._record.timestamp_ms

    @property
    def key(self) -> Any:
        """As the key decoder makes it; raises what that raises."""
        return self._key_decoder.from_bytes(self._record.key)

    @property
    def message(self) -> Any:
        """As the value decoder makes it; raises what that raises."""
        return self._value_decoder.from_bytes(self._record.value)

    def __repr__(self) -> str:
        record = self._record
        return f"MessageAndMetadata({record.topic}-{record.partition} at offset {record.offset})"


class Progress:
    """How far one partition has been read; made anew whenever the partition is taken on."""

    __slots__ = ("consumed", "stream", "tp")

    def __init__(self, tp: TopicPartition, stream: KafkaStream, consumed: int | None) -> None:
        self.tp = tp
        self.stream = stream
        self.consumed = consumed
        """The offset of the next message; None while it is not known where to begin."""


class KafkaStream:
    """An iterator over messages, of one partition or of many; for one thread. It blocks, and ends when the
    connector is shut down; after ConsumerTimeoutError it can be iterated on."""

    def __init__(
        self,
        *,
        chunks_max: int,
        timeout_ms: int,
        key_decoder: Decoder[Any],
        value_decoder: Decoder[Any],
    ) -> None:
        """`timeout_ms`: -1 for none."""
        self._chunks_max = chunks_max
        self._timeout_s = None if timeout_ms < 0 else timeout_ms / 1000
        self._key_decoder = key_decoder
        self._value_decoder = value_decoder
        self._news = threading.Condition()
        self._chunks: deque[tuple[Progress, Sequence[ConsumerRecord]]] = deque()
        self._current: tuple[Progress, Iterator[ConsumerRecord]] | None = None
        self._problem: Exception | None = None
        self._ended = False
        self._when_there_is_room: Callable[[], None] | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> MessageAndMetadata:
        """Raises ConsumerTimeoutError after consumer.timeout.ms, ClientError for what hinders reading."""
        with self._news:
            while True:
                if self._current is not None:
                    progress, records = self._current
                    for record in records:
                        progress.consumed = record.offset + 1
                        return MessageAndMetadata(record, self._key_decoder, self._value_decoder)
                    self._current = None
                if self._chunks:
                    self._open_next()
                elif self._problem is not None:
                    problem, self._problem = self._problem, None
                    raise problem
                elif self._ended:
                    raise StopIteration
                elif not self._news.wait_for(self._anything, self._timeout_s):
                    assert self._timeout_s is not None
                    told = f"no message within consumer.timeout.ms={self._timeout_s * 1000:.0f}"
                    raise ConsumerTimeoutError(told)

    def _anything(self) -> bool:
        return bool(self._chunks) or self._ended or self._problem is not None

    def _open_next(self) -> None:
        progress, records = self._chunks.popleft()
        self._current = progress, iter(records)
        tell, self._when_there_is_room = self._when_there_is_room, None
        if tell is not None:
            tell()

    # --- for the feed ---

    def put(
        self, progress: Progress, records: Sequence[ConsumerRecord], when_there_is_room: Callable[[], None]
    ) -> bool:
        """Whether there is room for more; if not, `when_there_is_room` is called once, in the reader's
        thread, unless `clear` makes room before."""
        with self._news:
            if self._ended:
                return False
            if progress.consumed is None:
                progress.consumed = records[0].offset
            self._chunks.append((progress, records))
            self._news.notify()
            if len(self._chunks) < self._chunks_max:
                return True
            self._when_there_is_room = when_there_is_room
            return False

    def fail(self, problem: Exception) -> None:
        """To be raised after what is here already."""
        with self._news:
            self._problem = problem
            self._news.notify()

    def clear(self) -> None:
        """Take back what was not given out."""
        with self._news:
            self._chunks.clear()
            self._current = None
            self._problem = None
            self._when_there_is_room = None

    def end(self) -> None:
        """Nothing more comes; what is here is still given out."""
        with self._news:
            self._ended = True
            self._news.notify_all()
