"""What a `SimpleConsumer` is asked and what it answers: Kafka 0.8's requests and responses as values; no I/O.

Responses carry error codes by partition, as brokers send them (`ottla.protocol.errors.ErrorCode`), and raise
nothing: what to do about NOT_LEADER_OR_FOLLOWER or OFFSET_OUT_OF_RANGE is the caller's to decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple, Self

from ottla.client.core.types import Node, TopicPartition
from ottla.client.legacy.message_sets import ByteBufferMessageSet
from ottla.protocol.errors import ErrorCode

LATEST_TIME: Final = -1
EARLIEST_TIME: Final = -2


class PartitionFetchInfo(NamedTuple):
    offset: int
    fetch_size: int


class FetchRequest(NamedTuple):
    """Kafka 0.7's: from this offset of one partition on, `max_size` bytes. A batch that is larger comes
    nevertheless. `SimpleConsumer.fetch` answers it with a ByteBufferMessageSet."""

    topic: str
    partition: int
    offset: int
    max_size: int


@dataclass(frozen=True)
class BuiltFetchRequest:
    """Kafka 0.8's FetchRequest, of many partitions; made by FetchRequestBuilder. `SimpleConsumer.fetch`
    answers it with a FetchResponse."""

    partitions: Mapping[TopicPartition, PartitionFetchInfo]
    max_wait_ms: int = 0
    min_bytes: int = 0
    client_id: str | None = None
    """None: the SimpleConsumer's."""


class FetchRequestBuilder:
    """`FetchRequestBuilder().add_fetch("orders", 0, offset=17, fetch_size=100_000).build()`"""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, PartitionFetchInfo] = {}
        self._max_wait_ms = 0
        self._min_bytes = 0
        self._client_id: str | None = None

    def client_id(self, client_id: str) -> Self:
        """The client id of this request, in the place of the SimpleConsumer's: brokers count quotas by it."""
        self._client_id = client_id
        return self

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

    def build(self) -> BuiltFetchRequest:
        """As 0.8's, it empties the builder of its partitions."""
        partitions, self._partitions = self._partitions, {}
        return BuiltFetchRequest(partitions, self._max_wait_ms, self._min_bytes, self._client_id)


class FetchedPartition(NamedTuple):
    error: int
    high_watermark: int
    """The offset after the last message that consumers may have."""
    messages: ByteBufferMessageSet


class MultiFetchResponse(tuple[ByteBufferMessageSet, ...]):
    """Kafka 0.7's: a ByteBufferMessageSet for each FetchRequest of a `multifetch`, in their order."""

    __slots__ = ()


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

    def message_set(self, topic: str, partition: int) -> ByteBufferMessageSet:
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

    LATEST_TIME: ClassVar[int] = LATEST_TIME
    EARLIEST_TIME: ClassVar[int] = EARLIEST_TIME
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
