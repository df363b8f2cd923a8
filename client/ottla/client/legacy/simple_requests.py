"""Requests and responses of a `SimpleConsumer`, as in Kafka 0.8; no I/O.

Responses have an error code for each partition (`ottla.protocol.errors.ErrorCode`) and raise nothing: the
caller handles NOT_LEADER_OR_FOLLOWER, OFFSET_OUT_OF_RANGE and the like.
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
    """The fetch offset of a partition, and the bytes to fetch."""

    offset: int
    fetch_size: int


class FetchRequest(NamedTuple):
    """Kafka 0.7's request for one partition: `max_size` bytes from an offset on; at least one batch is
    returned. `SimpleConsumer.fetch` returns a ByteBufferMessageSet for it."""

    topic: str
    partition: int
    offset: int
    max_size: int


@dataclass(frozen=True)
class BuiltFetchRequest:
    """Kafka 0.8's FetchRequest for many partitions, built by FetchRequestBuilder. `SimpleConsumer.fetch`
    returns a FetchResponse for it."""

    partitions: Mapping[TopicPartition, PartitionFetchInfo]
    max_wait_ms: int = 0
    min_bytes: int = 0
    client_id: str | None = None
    """None: the client id of the SimpleConsumer."""


class FetchRequestBuilder:
    """Builds a fetch request: `FetchRequestBuilder().add_fetch("orders", 0, 17, 100_000).build()`."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, PartitionFetchInfo] = {}
        self._max_wait_ms = 0
        self._min_bytes = 0
        self._client_id: str | None = None

    def client_id(self, client_id: str) -> Self:
        """Set the client id of this request, instead of the SimpleConsumer's; it counts for quotas."""
        self._client_id = client_id
        return self

    def add_fetch(self, topic: str, partition: int, offset: int, fetch_size: int) -> Self:
        """Add a partition: `fetch_size` bytes from the offset on; at least one batch is returned."""
        self._partitions[TopicPartition(topic, partition)] = PartitionFetchInfo(offset, fetch_size)
        return self

    def max_wait(self, max_wait_ms: int) -> Self:
        """Set the time that the broker may wait for `min_bytes`."""
        self._max_wait_ms = max_wait_ms
        return self

    def min_bytes(self, min_bytes: int) -> Self:
        """Set the minimum size of the response, for which the broker waits."""
        self._min_bytes = min_bytes
        return self

    def build(self) -> BuiltFetchRequest:
        """Build the request and remove the partitions from the builder, as in 0.8."""
        partitions, self._partitions = self._partitions, {}
        return BuiltFetchRequest(partitions, self._max_wait_ms, self._min_bytes, self._client_id)


class FetchedPartition(NamedTuple):
    """The result of a fetch for one partition."""

    error: int
    high_watermark: int
    """The offset after the last message that consumers can read."""
    messages: ByteBufferMessageSet


class MultiFetchResponse(tuple[ByteBufferMessageSet, ...]):
    """Kafka 0.7's response to `multifetch`: a ByteBufferMessageSet for each request, in order."""

    __slots__ = ()


@dataclass(frozen=True)
class FetchResponse:
    """Kafka 0.8's response to a fetch: messages and error codes by partition."""

    partitions: Mapping[TopicPartition, FetchedPartition]

    @property
    def has_error(self) -> bool:
        return any(found.error for found in self.partitions.values())

    def error_code(self, topic: str, partition: int) -> ErrorCode:
        return ErrorCode(self._partition(topic, partition).error)

    def high_watermark(self, topic: str, partition: int) -> int:
        return self._partition(topic, partition).high_watermark

    def message_set(self, topic: str, partition: int) -> ByteBufferMessageSet:
        return self._partition(topic, partition).messages

    def _partition(self, topic: str, partition: int) -> FetchedPartition:
        return self.partitions[TopicPartition(topic, partition)]


class PartitionOffsetRequestInfo(NamedTuple):
    """The time and the maximum number of offsets of an offset request."""

    time: int
    """A timestamp in milliseconds, LATEST_TIME or EARLIEST_TIME."""
    max_num_offsets: int


@dataclass(frozen=True)
class OffsetRequest:
    """The request of `SimpleConsumer.get_offsets`: offsets before a time, by partition."""

    LATEST_TIME: ClassVar[int] = LATEST_TIME
    EARLIEST_TIME: ClassVar[int] = EARLIEST_TIME
    partitions: Mapping[tuple[str, int], PartitionOffsetRequestInfo | tuple[int, int]]
    """(topic, partition) -> (time, maximum number of offsets)."""


class PartitionOffsets(NamedTuple):
    """The result of an offset request for one partition."""

    error: int
    offsets: list[int]


@dataclass(frozen=True)
class OffsetResponse:
    """The response of `SimpleConsumer.get_offsets`."""

    partitions: Mapping[TopicPartition, PartitionOffsets]

    @property
    def has_error(self) -> bool:
        return any(found.error for found in self.partitions.values())

    def error_code(self, topic: str, partition: int) -> ErrorCode:
        return ErrorCode(self.partitions[TopicPartition(topic, partition)].error)

    def offsets(self, topic: str, partition: int) -> list[int]:
        """The base offsets of segments and the log end offset, in descending order."""
        return self.partitions[TopicPartition(topic, partition)].offsets


class OffsetMetadataAndError(NamedTuple):
    """The committed offset of a partition, its metadata, and the error code."""

    offset: int
    """-1: no committed offset."""
    metadata: str
    error: ErrorCode


class PartitionMetadata(NamedTuple):
    """Leader and replicas of a partition."""

    partition: int
    leader: int
    """-1: no leader at present."""
    replicas: list[int]
    isr: list[int]
    error: ErrorCode


class TopicMetadata(NamedTuple):
    """The partitions of a topic, or its error."""

    topic: str
    partitions: list[PartitionMetadata]
    error: ErrorCode


@dataclass(frozen=True)
class TopicMetadataResponse:
    """The response of `SimpleConsumer.topic_metadata`: brokers by id, and topics."""

    brokers: Mapping[int, Node]
    topics: list[TopicMetadata] = field(default_factory=list)
