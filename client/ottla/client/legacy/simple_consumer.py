"""The SimpleConsumer of Kafka 0.8: one broker, and what it is asked. The caller knows partitions, leaders,
offsets.

    with SimpleConsumer("127.0.0.1", 9092, client_id="reader") as consumer:
        for each in consumer.fetch(FetchRequest("orders", 0, 0, 100_000)):  # Kafka 0.7's; below, 0.8's
            print(each.offset, each.message.payload)
        request = FetchRequestBuilder().add_fetch("orders", 0, 0, 100_000).build()
        for each in consumer.fetch(request).message_set("orders", 0):
            print(each.offset, each.message.payload)

Which versions it speaks: ListOffsets 0, the only one that gives several offsets before a time; Fetch up to
10, the last one that only leaders answer (from 11 on followers do, KIP-392), so that NOT_LEADER_OR_FOLLOWER
means what it meant in 0.8, and the broker need not convert what it has to messages of old; OffsetCommit and
OffsetFetch as the caller says: 0 is ZooKeeper's, 1 Kafka's.

Invariant: a request is sent again once, over a new connection, when the connection has failed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Protocol, Self, overload

from ottla.client.core.config import ClientConfig
from ottla.client.core.types import Node, TopicPartition
from ottla.client.errors import IllegalStateError, for_code
from ottla.client.legacy.message_sets import ByteBufferMessageSet
from ottla.client.legacy.simple_requests import (
    BuiltFetchRequest,
    FetchedPartition,
    FetchRequest,
    FetchRequestBuilder,
    FetchResponse,
    MultiFetchResponse,
    OffsetMetadataAndError,
    OffsetRequest,
    OffsetResponse,
    PartitionMetadata,
    PartitionOffsets,
    TopicMetadata,
    TopicMetadataResponse,
)
from ottla.client.loop_thread import EventLoopThread
from ottla.protocol import messages
from ottla.protocol.errors import ErrorCode
from ottla.protocol.grouping import by_topic
from ottla.protocol.types import Message
from ottla.wire.connection import BrokerConnection, ConnectionLost

_FETCH_VERSION_MAX: Final = 10
_VERSIONS_MAX: Final = {
    messages.FetchRequest.api_key: _FETCH_VERSION_MAX,
    messages.ListOffsetsRequest.api_key: 0,
    messages.FindCoordinatorRequest.api_key: 0,
    messages.MetadataRequest.api_key: 8,
}


class _Ask(Protocol):
    """Sends a request, returns the response."""

    def __call__(
        self, message: Message, version: int | None = None, client_id: str | None = None
    ) -> Awaitable[Any]: ...


class SimpleConsumer:
    """May be shared by threads: their requests go one after the other."""

    def __init__(
        self,
        host: str,
        port: int,
        so_timeout_ms: int = 30_000,
        buffer_size: int = 64 * 1024,
        client_id: str = "",
        *,
        security: Mapping[str, object] | None = None,
    ) -> None:
        """It connects when it is asked something. `buffer_size`, of the socket in 0.8, has no effect.
        `security`: security.protocol, ssl.* and sasl.*, as of today's clients. Raises ConfigError."""
        self.host = host
        self.port = port
        self.client_id = client_id
        self._timeout_s = so_timeout_ms / 1000
        settings = {"bootstrap.servers": [(host, port)], **(security or {})}
        self._security = ClientConfig.of(settings).security()
        self._lock = threading.Lock()
        self._thread: EventLoopThread | None = None
        self._connections: dict[str, BrokerConnection] = {}
        """By client id."""
        self._closed = False

    def close(self) -> None:
        """Close the connection; nothing can be asked after."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
            if thread is not None:
                thread.run(self._disconnect())
                thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- messages ---

    @overload
    def fetch(self, request: FetchRequest) -> ByteBufferMessageSet: ...

    @overload
    def fetch(self, request: BuiltFetchRequest) -> FetchResponse: ...

    def fetch(self, request: FetchRequest | BuiltFetchRequest) -> ByteBufferMessageSet | FetchResponse:
        """0.7's request of one partition, or what a FetchRequestBuilder has built. Raises OSError,
        ConnectionLost, TimeoutError: nobody there, twice."""
        return self._fetched([request])[0]

    @overload
    def multifetch(self, requests: Sequence[FetchRequest]) -> MultiFetchResponse: ...

    @overload
    def multifetch(self, requests: Sequence[BuiltFetchRequest]) -> list[FetchResponse]: ...

    def multifetch(
        self, requests: Sequence[FetchRequest] | Sequence[BuiltFetchRequest]
    ) -> MultiFetchResponse | list[FetchResponse]:
        """All of them on their way at once; the broker answers one after the other, in their order. Raises
        as `fetch`."""
        found = self._fetched(requests)
        sets = [each for each in found if isinstance(each, ByteBufferMessageSet)]
        if len(sets) == len(found):
            return MultiFetchResponse(sets)
        return [each for each in found if isinstance(each, FetchResponse)]

    def _fetched(
        self, requests: Sequence[FetchRequest | BuiltFetchRequest]
    ) -> list[ByteBufferMessageSet | FetchResponse]:
        built = [
            each if isinstance(each, BuiltFetchRequest) else FetchRequestBuilder().add_fetch(*each).build()
            for each in requests
        ]
        sent = [(_fetch_message(each), None, each.client_id) for each in built]
        answers = self._ask(
            lambda ask: asyncio.gather(*(ask(*each) for each in sent)), [each.client_id for each in built]
        )
        responses = [_fetched(request, answer) for request, answer in zip(built, answers, strict=True)]
        return [
            response if isinstance(request, BuiltFetchRequest) else _only(response, request)
            for request, response in zip(requests, responses, strict=True)
        ]

    # --- offsets of the log ---

    def get_offsets_before(
        self, topic: str, partition: int, time_ms: int, max_num_offsets: int = 1
    ) -> list[int]:
        """Offsets at which to begin for messages from before a time: where segments of the log begin, and
        for LATEST_TIME its end, the latest first. Raises BrokerError, as for `fetch`."""
        response = self.get_offsets(OffsetRequest({(topic, partition): (time_ms, max_num_offsets)}))
        if response.has_error:
            raise for_code(response.error_code(topic, partition), f"{topic}-{partition}")
        return response.offsets(topic, partition)

    def get_offsets(self, request: OffsetRequest) -> OffsetResponse:
        """The same for many partitions, with their error codes."""
        asked = messages.ListOffsetsRequest(replica_id=-1)
        for topic, partitions in by_topic(request.partitions.items()).items():
            entry = asked.ListOffsetsTopic(name=topic)
            for partition, (time_ms, most) in partitions:
                entry.partitions.append(
                    asked.ListOffsetsPartition(
                        partition_index=partition, timestamp=time_ms, max_num_offsets=most
                    )
                )
            asked.topics.append(entry)
        answer: messages.ListOffsetsResponse = self._ask(lambda ask: ask(asked))
        return OffsetResponse(
            {
                TopicPartition(topic.name, found.partition_index): PartitionOffsets(
                    found.error_code, list(found.old_style_offsets)
                )
                for topic in answer.topics
                for found in topic.partitions
            }
        )

    def earliest_or_latest_offset(self, topic_partition: tuple[str, int], time_ms: int) -> int:
        """EARLIEST_TIME or LATEST_TIME of a partition. Raises BrokerError, as for `fetch`."""
        return self.get_offsets_before(*topic_partition, time_ms)[0]

    # --- offsets of a group ---

    def commit_offsets(
        self,
        group_id: str,
        offsets: Mapping[tuple[str, int], int | tuple[int, str]],
        *,
        version_id: int = 1,
    ) -> dict[TopicPartition, ErrorCode]:
        """Offsets of next messages, or these with metadata. Version 0: the broker keeps them in ZooKeeper;
        1: it must be the group's coordinator (`consumer_metadata`)."""
        _check_version(version_id)
        asked = messages.OffsetCommitRequest(group_id=group_id)
        for topic, partitions in by_topic(offsets.items()).items():
            entry = asked.OffsetCommitRequestTopic(name=topic)
            for partition, given in partitions:
                offset, metadata = (given, "") if isinstance(given, int) else given
                entry.partitions.append(
                    asked.OffsetCommitRequestPartition(
                        partition_index=partition, committed_offset=offset, committed_metadata=metadata
                    )
                )
            asked.topics.append(entry)
        answer: messages.OffsetCommitResponse = self._ask(lambda ask: ask(asked, version_id))
        return {
            TopicPartition(topic.name, found.partition_index): ErrorCode(found.error_code)
            for topic in answer.topics
            for found in topic.partitions
        }

    def fetch_offsets(
        self, group_id: str, partitions: Iterable[tuple[str, int]], *, version_id: int = 1
    ) -> dict[TopicPartition, OffsetMetadataAndError]:
        """What `commit_offsets` of the same version kept. Kafka says nothing of any partition in version 1
        while the broker is not the group's coordinator."""
        _check_version(version_id)
        asked = messages.OffsetFetchRequest(group_id=group_id, topics=[])
        grouped = by_topic((TopicPartition(*each), None) for each in partitions)
        for topic, of_topic in grouped.items():
            indexes = [partition for partition, _ in of_topic]
            assert asked.topics is not None
            asked.topics.append(asked.OffsetFetchRequestTopic(name=topic, partition_indexes=indexes))
        answer: messages.OffsetFetchResponse = self._ask(lambda ask: ask(asked, version_id))
        return {
            TopicPartition(topic.name, found.partition_index): OffsetMetadataAndError(
                found.committed_offset, found.metadata or "", ErrorCode(found.error_code)
            )
            for topic in answer.topics
            for found in topic.partitions
        }

    # --- the cluster ---

    def topic_metadata(self, topics: Sequence[str] = ()) -> TopicMetadataResponse:
        """0.8's send(TopicMetadataRequest): these topics, which may be created by it, or all of them."""
        entries = [messages.MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics]
        asked = messages.MetadataRequest(topics=entries or None)
        answer: messages.MetadataResponse = self._ask(lambda ask: ask(asked))
        brokers = {each.node_id: Node(each.node_id, each.host, each.port) for each in answer.brokers}
        found = [
            TopicMetadata(
                topic.name or "",
                [
                    PartitionMetadata(
                        each.partition_index,
                        each.leader_id,
                        list(each.replica_nodes),
                        list(each.isr_nodes),
                        ErrorCode(each.error_code),
                    )
                    for each in topic.partitions
                ],
                ErrorCode(topic.error_code),
            )
            for topic in answer.topics
        ]
        return TopicMetadataResponse(brokers, found)

    def consumer_metadata(self, group_id: str) -> Node:
        """0.8's send(ConsumerMetadataRequest): the broker that keeps the group's offsets. Raises
        CoordinatorNotAvailableError while there is none yet."""
        asked = messages.FindCoordinatorRequest(key=group_id)
        answer: messages.FindCoordinatorResponse = self._ask(lambda ask: ask(asked))
        if answer.error_code:
            raise for_code(answer.error_code, f"group {group_id}")
        return Node(answer.node_id, answer.host, answer.port)

    # --- the wire ---

    def _ask(self, work: Callable[[_Ask], Awaitable[Any]], client_ids: Iterable[str | None] = (None,)) -> Any:
        """Do something over the connections of these client ids (None: the consumer's), twice if one fails
        the first time."""
        with self._lock:
            if self._closed:
                raise IllegalStateError("the consumer is closed")
            if self._thread is None:
                self._thread = EventLoopThread(f"ottla-simple-{self.host}:{self.port}")
            return self._thread.run(self._try_twice(work, {self._id(each) for each in client_ids}))

    def _id(self, client_id: str | None) -> str:
        return self.client_id if client_id is None else client_id

    async def _try_twice(self, work: Callable[[_Ask], Awaitable[Any]], client_ids: Iterable[str]) -> Any:
        try:
            return await self._try(work, client_ids)
        except (OSError, ConnectionLost, TimeoutError):
            await self._disconnect()
            return await self._try(work, client_ids)

    async def _try(self, work: Callable[[_Ask], Awaitable[Any]], client_ids: Iterable[str]) -> Any:
        for client_id in client_ids:
            await self._connect(client_id)

        async def ask(message: Message, version: int | None = None, client_id: str | None = None) -> Any:
            opened = self._connections[self._id(client_id)]
            return await opened.request(message, version=version, timeout_s=self._timeout_s)

        try:
            return await work(ask)
        except TimeoutError:
            await self._disconnect()  # its late answer would be taken for another's
            raise

    async def _connect(self, client_id: str) -> None:
        known = self._connections.get(client_id)
        if known is None or known.closed:
            self._connections[client_id] = await BrokerConnection.open(
                self.host,
                self.port,
                client_id=client_id,
                timeout_s=self._timeout_s,
                limits=_VERSIONS_MAX,
                security=self._security,
            )

    async def _disconnect(self) -> None:
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close()


def _check_version(version_id: int) -> None:
    if version_id not in (0, 1):
        raise ValueError(f"version_id={version_id}: must be 0 (ZooKeeper) or 1 (Kafka)")


def _fetch_message(request: BuiltFetchRequest) -> messages.FetchRequest:
    asked = messages.FetchRequest(max_wait_ms=request.max_wait_ms, min_bytes=request.min_bytes)
    for topic, partitions in by_topic(request.partitions.items()).items():
        entry = asked.FetchTopic(topic=topic)
        for partition, (offset, size) in partitions:
            entry.partitions.append(
                asked.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=size)
            )
        asked.topics.append(entry)
    return asked


def _fetched(request: BuiltFetchRequest, answer: messages.FetchResponse) -> FetchResponse:
    if answer.error_code:
        raise for_code(answer.error_code, "a fetch")
    partitions = {}
    for topic in answer.responses:
        for found in topic.partitions:
            tp = TopicPartition(topic.topic, found.partition_index)
            data = memoryview(found.records or b"")
            message_set = ByteBufferMessageSet(tp, data, request.partitions[tp].offset)
            partitions[tp] = FetchedPartition(found.error_code, found.high_watermark, message_set)
    return FetchResponse(partitions)


def _only(response: FetchResponse, request: FetchRequest) -> ByteBufferMessageSet:
    """The answer to 0.7's request, which raises the partition's error when it is iterated over."""
    tp = TopicPartition(request.topic, request.partition)
    found = response.message_set(*tp)
    found.error_code = response.error_code(*tp)
    return found
