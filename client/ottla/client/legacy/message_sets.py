"""Messages and message sets of Kafka 0.7 and 0.8; no I/O.

Used by `producer`, which sends them, and by `simple_requests`, whose responses have them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Self

from ottla.client.core.decoding import PartitionData
from ottla.client.core.types import TopicPartition
from ottla.client.errors import for_code
from ottla.protocol.errors import ErrorCode


class Message(NamedTuple):
    """An encoded message: `Message(b"one")`, `Message(b"one", b"key")`. A producer sends it without an
    encoder."""

    payload: bytes | None
    key: bytes | None = None
    timestamp_ms: int = -1
    """-1 in messages of producers before 0.10; a message that is sent with -1 gets the current time."""


class MessageAndOffset(NamedTuple):
    """A fetched message with its offset."""

    message: Message
    offset: int

    @property
    def next_offset(self) -> int:
        """The offset of the next fetch. In Kafka 0.7 this was `offset`."""
        return self.offset + 1


class MessageSet(tuple[Message, ...]):
    """Messages to be sent together: `MessageSet(Message(b"one"), Message(b"two"))`."""

    __slots__ = ()

    def __new__(cls, *messages: Message) -> Self:
        return super().__new__(cls, messages)


class ByteBufferMessageSet:
    """The messages of one partition in a response, from the fetch offset on. It can be iterated several
    times. Iteration raises the partition's error if the request was 0.7's FetchRequest
    (OffsetOutOfRangeError, say), and DeserializationError for a corrupt message."""

    def __init__(
        self, tp: TopicPartition, data: memoryview, offset: int, error: ErrorCode = ErrorCode.NONE
    ) -> None:
        self._tp = tp
        self._data = data
        self._offset = offset
        self.error_code = error
        """The partition's error in a response to 0.7's FetchRequest."""

    @property
    def size_in_bytes(self) -> int:
        """The size of the batches, as they were sent."""
        return len(self._data)

    def __iter__(self) -> Iterator[MessageAndOffset]:
        if self.error_code:
            raise for_code(self.error_code, str(self._tp))
        data = PartitionData(self._tp, self._data, self._offset, check_crcs=True, aborted=None)
        while (records := data.next_batch()) is not None:
            for record in records:
                message = Message(record.value, record.key, record.timestamp_ms)
                yield MessageAndOffset(message, record.offset)
