"""What a `SimpleConsumer` is asked and what it answers: Kafka 0.8's requests and responses as values; no I/O.

Responses carry error codes by partition, as brokers send them (`ottla.protocol.errors.ErrorCode`), and raise
nothing: what to do about NOT_LEADER_OR_FOLLOWER or OFFSET_OUT_OF_RANGE is the caller's to decide.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

from ottla.client.core.decoding import PartitionData
from ottla.client.core.types import Node, TopicPartition
from ottla.protocol.errors import ErrorCode

LATEST_TIME: Final = -1
EARLIEST_TIME: Final = -2


class PartitionFetchInfo(NamedTuple):
    offset: int
    fetch_size: int


@dataclass(frozen=True)
class FetchRequest:
    """Made by FetchRequestBuilder."""

    partitions: Mapping[TopicPartition, PartitionFetchInfo]
    max_wait_ms: int = 0
    min_bytes: int = 0


class FetchRequestBuilder:
    """`FetchRequestBuilder().add_fetch("orders", 0, offset=17, fetch_size=100_000).build()`"""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, PartitionFetchInfo] = {}
        self._max_wait_ms = 0
        self._min_bytes = 0

    def add_fetch(self, topic: str, partition: int, offset: int, fetch_size: int) -> Self:
        """From this offset on, so many bytes; a batch that is larger comes nevertheless."""
        self._partitions[TopicPartition(topic, partition)] = PartitionFetchInfo(offset, fetch_size)
        return self

    def max_wait(self, max_wait_ms: int) -> Self:
        """How long the broker may wait for `min_bytes`."""
        self._max_wait_ms = max_wait_ms
        return self

    def min_bytes(self, min_bytes: int) -> Self:
        """How much the broker is to have before it answers."""
        self._min_bytes = min_bytes
        return self

    def build(self) -> FetchRequest:
        """As 0.8's, it empties the builder of its partitions."""
        partitions, self._partitions = self._partitions, {}
        return FetchRequest(partitions, self._max_wait_ms, self._min_bytes)


class Message(NamedTuple):
    key: bytes | None
    payload: bytes | None
    timestamp_ms: int = -1
    """-1 in messages of a producer from before 0.10."""


class MessageAndOffset(NamedTuple):
    message: Message
    offset: int

    @property
    def next_offset(self) -> int:
        return self.offset + 1


class MessageSet:
    """The messages of one partition in an answer, from the offset that was asked for. Iterate as often as
    you like. Raises DeserializationError on what is corrupt."""

    def __init__(self, tp: TopicPartition, data: memoryview, offset: int) -> None:
        self._tp = tp
        self._data = data
        self._offset = offset

    @property
    def size_in_bytes(self) -> int:
        return len(self._data)

    def __iter__(self) -> Iterator[MessageAndOffset]:
        data = PartitionData(self._tp, self._data, self._offset, check_crcs=True, aborted=None)
        while (records := data.next_batch()) is not None:
            for record in records:
                yield MessageAndOffset(Message(record.key, record.value, record.timestamp_ms), record.offset)


class FetchedPartition(NamedTuple):
    error: int
    high_watermark: int
    """The offset after the last message that consumers may have."""
    messages: MessageSet


@dataclass(frozen=True)
class FetchResponse:
    partitions: Mapping[TopicPartition, FetchedPartition]

    @property
    def has_error(self) -> bool:
        return any(found.error for found in self.partitions.values())

    def error_code(self, topic: str, partition: int) -> ErrorCode:
        return ErrorCode(self._of(topic, partition).error)

    def high_watermark(self, topic: str, partition: int) -> int:
        return self._of(topic, partition).high_watermark

    def message_set(self, topic: str, partition: int) -> MessageSet:
        return self._of(topic, partition).messages

    def _of(self, topic: str, partition: int) -> FetchedPartition:
        return self.partitions[TopicPartition(topic, partition)]


class PartitionOffsetRequestInfo(NamedTuple):
    time: int
    """Milliseconds, LATEST_TIME or EARLIEST_TIME."""
    max_num_offsets: int


@dataclass(frozen=True)
class OffsetRequest:
    """For `SimpleConsumer.get_offsets`."""

    partitions: Mapping[tuple[str, int], PartitionOffsetRequestInfo | tuple[int, int]]
    """(topic, partition) to (time, how many at most)."""


class PartitionOffsets(NamedTuple):
    error: int
    offsets: list[int]


@dataclass(frozen=True)
class OffsetResponse:
    partitions: Mapping[TopicPartition, PartitionOffsets]

    @property
    def has_error(self) -> bool:
        return any(found.error for found in self.partitions.values())

    def error_code(self, topic: str, partition: int) -> ErrorCode:
        return ErrorCode(self.partitions[TopicPartition(topic, partition)].error)

    def offsets(self, topic: str, partition: int) -> list[int]:
        """Where segments of the log begin, and its end; the latest first."""
        return self.partitions[TopicPartition(topic, partition)].offsets


class OffsetMetadataAndError(NamedTuple):
    offset: int
    """-1: none is kept."""
    metadata: str
    error: ErrorCode


class PartitionMetadata(NamedTuple):
    partition: int
    leader: int
    """-1: none just now."""
    replicas: list[int]
    isr: list[int]
    error: ErrorCode


class TopicMetadata(NamedTuple):
    topic: str
    partitions: list[PartitionMetadata]
    error: ErrorCode


@dataclass(frozen=True)
class TopicMetadataResponse:
    brokers: Mapping[int, Node]
    topics: list[TopicMetadata] = field(default_factory=list)
