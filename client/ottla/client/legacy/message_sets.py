"""Messages as Kafka 0.7 and 0.8 had them, alone and in sets; no I/O.

Called by `producer`, which sends them, and by `simple_requests`, whose answers have them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Self

from ottla.client.core.decoding import PartitionData
from ottla.client.core.types import TopicPartition
from ottla.client.errors import for_code
from ottla.protocol.errors import ErrorCode


class Message(NamedTuple):
    """The bytes of a message: `Message(b"one")`, `Message(b"one", b"key")`. A producer sends them as they
    are, without an encoder."""

    payload: bytes | None
    key: bytes | None = None
    timestamp_ms: int = -1
    """-1 in messages of a producer from before 0.10; one that is sent with -1 has the time of sending."""


class MessageAndOffset(NamedTuple):
    """A message that was read, and its offset."""

    message: Message
    offset: int

    @property
    def next_offset(self) -> int:
        """Where to go on. In Kafka 0.7 this was the `offset`."""
        return self.offset + 1


class MessageSet(tuple[Message, ...]):
    """Messages to be sent together: `MessageSet(Message(b"one"), Message(b"two"))`."""

    __slots__ = ()

    def __new__(cls, *messages: Message) -> Self:
        return super().__new__(cls, messages)


class ByteBufferMessageSet:
    """The messages of one partition in an answer, from the offset that was asked for. Iterate as often as
    you like: raises the partition's error in an answer to 0.7's FetchRequest (OffsetOutOfRangeError),
    DeserializationError on what is corrupt."""

    def __init__(
        self, tp: TopicPartition, data: memoryview, offset: int, error: ErrorCode = ErrorCode.NONE
    ) -> None:
        self._tp = tp
        self._data = data
        self._offset = offset
        self.error_code = error
        """Of the partition, in an answer to 0.7's FetchRequest."""

    @property
    def size_in_bytes(self) -> int:
        """Of the batches, compressed as they may be."""
        return len(self._data)

    def __iter__(self) -> Iterator[MessageAndOffset]:
        if self.error_code:
            raise for_code(self.error_code, str(self._tp))
        data = PartitionData(self._tp, self._data, self._offset, check_crcs=True, aborted=None)
        while (records := data.next_batch()) is not None:
            for record in records:
                message = Message(record.value, record.key, record.timestamp_ms)
                yield MessageAndOffset(message, record.offset)
