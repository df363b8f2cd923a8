"""The SimpleConsumer of Kafka 0.8: sends requests to one broker. The caller manages partitions, leaders and
offsets.

    with SimpleConsumer("127.0.0.1", 9092, client_id="reader") as consumer:
        for each in consumer.fetch(FetchRequest("orders", 0, 0, 100_000)):  # Kafka 0.7's; below, 0.8's
            print(each.offset, each.message.payload)
        request = FetchRequestBuilder().add_fetch("orders", 0, 0, 100_000).build()
        for each in consumer.fetch(request).message_set("orders", 0):
            print(each.offset, each.message.payload)

Versions of requests: ListOffsets 0, the only one with several offsets before a time. Fetch up to 10, the last
one that only leaders serve (followers serve 11 and later, KIP-392), so that NOT_LEADER_OR_FOLLOWER has the
meaning of 0.8; the broker does not down-convert for it. OffsetCommit and OffsetFetch by the caller's choice:
0 for offsets in ZooKeeper, 1 for offsets in Kafka.

Invariant: after a failure of the connection, a request is sent once more over a new one.
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
from ottla.protocol.topics import by_topic
from ottla.protocol.types import Message
from ottla.wire.connection import BrokerConnection, ConnectionLost, close_all

_FETCH_VERSION_MAX: Final = 10
_VERSIONS_MAX: Final = {
    messages.FetchRequest.api_key: _FETCH_VERSION_MAX,
    messages.ListOffsetsRequest.api_key: 0,
    messages.FindCoordinatorRequest.api_key: 0,
    messages.MetadataRequest.api_key: 8,
}


class _Send(Protocol):
    """Sends a request and returns its response."""

    def __call__(
        self, message: Message, version: int | None = None, client_id: str | None = None
    ) -> Awaitable[Any]: ...


class SimpleConsumer:
    """A consumer of one broker. Threads may share it; their requests are sent one after the other."""

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
        """Connects at the first request. `buffer_size`, of the socket in 0.8, has no effect. `security`:
        security.protocol, ssl.* and sasl.*, as of current clients. Raises ConfigError."""
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
        """Close the connections; later requests raise IllegalStateError."""
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
        """Send 0.7's request for one partition, or 0.8's from a FetchRequestBuilder. Raises OSError,
        ConnectionLost or TimeoutError after the second attempt."""
        return self._fetch_all([request])[0]

    @overload
    def multifetch(self, requests: Sequence[FetchRequest]) -> MultiFetchResponse: ...

    @overload
    def multifetch(self, requests: Sequence[BuiltFetchRequest]) -> list[FetchResponse]: ...

    def multifetch(
        self, requests: Sequence[FetchRequest] | Sequence[BuiltFetchRequest]
    ) -> MultiFetchResponse | list[FetchResponse]:
        """Send all requests at once; the broker responds in their order. Raises as `fetch`."""
        found = self._fetch_all(requests)
        sets = [each for each in found if isinstance(each, ByteBufferMessageSet)]
        if len(sets) == len(found):
            return MultiFetchResponse(sets)
        return [each for each in found if isinstance(each, FetchResponse)]

    def _fetch_all(
        self, requests: Sequence[FetchRequest | BuiltFetchRequest]
    ) -> list[ByteBufferMessageSet | FetchResponse]:
        built = [
            each if isinstance(each, BuiltFetchRequest) else FetchRequestBuilder().add_fetch(*each).build()
            for each in requests
        ]
        sent = [(_fetch_message(each), None, each.client_id) for each in built]
        answers = self._send(
            lambda send: asyncio.gather(*(send(*each) for each in sent)), [each.client_id for each in built]
        )
        responses = [
            _parse_fetch_response(request, response) for request, response in zip(built, answers, strict=True)
        ]
        return [
            response if isinstance(request, BuiltFetchRequest) else _single_message_set(response, request)
            for request, response in zip(requests, responses, strict=True)
        ]

    # --- offsets of the log ---

    def get_offsets_before(
        self, topic: str, partition: int, time_ms: int, max_num_offsets: int = 1
    ) -> list[int]:
        """The base offsets of segments before a time, and for LATEST_TIME the log end offset, in descending
        order. Raises BrokerError, and as `fetch`."""
        response = self.get_offsets(OffsetRequest({(topic, partition): (time_ms, max_num_offsets)}))
        if response.has_error:
            raise for_code(response.error_code(topic, partition), f"{topic}-{partition}")
        return response.offsets(topic, partition)

    def get_offsets(self, request: OffsetRequest) -> OffsetResponse:
        """As `get_offsets_before` for many partitions, with their error codes."""
        outgoing = messages.ListOffsetsRequest(replica_id=-1)
        for topic, partitions in by_topic(request.partitions.items()).items():
            entry = outgoing.ListOffsetsTopic(name=topic)
            for partition, (time_ms, most) in partitions:
                entry.partitions.append(
                    outgoing.ListOffsetsPartition(
                        partition_index=partition, timestamp=time_ms, max_num_offsets=most
                    )
                )
            outgoing.topics.append(entry)
        response: messages.ListOffsetsResponse = self._send(lambda send: send(outgoing))
        return OffsetResponse(
            {
                TopicPartition(topic.name, found.partition_index): PartitionOffsets(
                    found.error_code, list(found.old_style_offsets)
                )
                for topic in response.topics
                for found in topic.partitions
            }
        )

    def earliest_or_latest_offset(self, topic_partition: tuple[str, int], time_ms: int) -> int:
        """The offset for EARLIEST_TIME or LATEST_TIME. Raises BrokerError, and as `fetch`."""
        return self.get_offsets_before(*topic_partition, time_ms)[0]

    # --- offsets of a group ---

    def commit_offsets(
        self,
        group_id: str,
        offsets: Mapping[tuple[str, int], int | tuple[int, str]],
        *,
        version_id: int = 1,
    ) -> dict[TopicPartition, ErrorCode]:
        """Commit offsets, or (offset, metadata). Version 0: the broker stores them in ZooKeeper; version 1:
        the broker must be the group's coordinator (`consumer_metadata`), and stores them in Kafka."""
        _check_version(version_id)
        outgoing = messages.OffsetCommitRequest(group_id=group_id)
        for topic, partitions in by_topic(offsets.items()).items():
            entry = outgoing.OffsetCommitRequestTopic(name=topic)
            for partition, given in partitions:
                offset, metadata = (given, "") if isinstance(given, int) else given
                entry.partitions.append(
                    outgoing.OffsetCommitRequestPartition(
                        partition_index=partition, committed_offset=offset, committed_metadata=metadata
                    )
                )
            outgoing.topics.append(entry)
        response: messages.OffsetCommitResponse = self._send(lambda send: send(outgoing, version_id))
        return {
            TopicPartition(topic.name, found.partition_index): ErrorCode(found.error_code)
            for topic in response.topics
            for found in topic.partitions
        }

    def fetch_offsets(
        self, group_id: str, partitions: Iterable[tuple[str, int]], *, version_id: int = 1
    ) -> dict[TopicPartition, OffsetMetadataAndError]:
        """The offsets committed with the same version. In version 1, Kafka's response has no partitions if
        the broker is not the group's coordinator."""
        _check_version(version_id)
        outgoing = messages.OffsetFetchRequest(group_id=group_id, topics=[])
        grouped = by_topic((TopicPartition(*each), None) for each in partitions)
        for topic, of_topic in grouped.items():
            indexes = [partition for partition, _ in of_topic]
            assert outgoing.topics is not None
            outgoing.topics.append(outgoing.OffsetFetchRequestTopic(name=topic, partition_indexes=indexes))
        response: messages.OffsetFetchResponse = self._send(lambda send: send(outgoing, version_id))
        return {
            TopicPartition(topic.name, found.partition_index): OffsetMetadataAndError(
                found.committed_offset, found.metadata or "", ErrorCode(found.error_code)
            )
            for topic in response.topics
            for found in topic.partitions
        }

    # --- the cluster ---

    def topic_metadata(self, topics: Sequence[str] = ()) -> TopicMetadataResponse:
        """0.8's send(TopicMetadataRequest): metadata of these topics, which may be created, or of all
        topics."""
        entries = [messages.MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics]
        outgoing = messages.MetadataRequest(topics=entries or None)
        response: messages.MetadataResponse = self._send(lambda send: send(outgoing))
        brokers = {each.node_id: Node(each.node_id, each.host, each.port) for each in response.brokers}
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
            for topic in response.topics
        ]
        return TopicMetadataResponse(brokers, found)

    def consumer_metadata(self, group_id: str) -> Node:
        """0.8's send(ConsumerMetadataRequest): the coordinator of the group. Raises
        CoordinatorNotAvailableError while there is none."""
        outgoing = messages.FindCoordinatorRequest(key=group_id)
        response: messages.FindCoordinatorResponse = self._send(lambda send: send(outgoing))
        if response.error_code:
            raise for_code(response.error_code, f"group {group_id}")
        return Node(response.node_id, response.host, response.port)

    # --- connections ---

    def _send(
        self, work: Callable[[_Send], Awaitable[Any]], client_ids: Iterable[str | None] = (None,)
    ) -> Any:
        """Run `work` with the connections of these client ids (None: the consumer's); once more if a
        connection fails."""
        with self._lock:
            if self._closed:
                raise IllegalStateError("the consumer is closed")
            if self._thread is None:
                self._thread = EventLoopThread(f"ottla-simple-{self.host}:{self.port}")
            return self._thread.run(
                self._run_with_retry(work, {self._client_id_or_own(each) for each in client_ids})
            )

    def _client_id_or_own(self, client_id: str | None) -> str:
        return self.client_id if client_id is None else client_id

    async def _run_with_retry(
        self, work: Callable[[_Send], Awaitable[Any]], client_ids: Iterable[str]
    ) -> Any:
        try:
            return await self._run(work, client_ids)
        except (OSError, ConnectionLost, TimeoutError):
            await self._disconnect()
            return await self._run(work, client_ids)

    async def _run(self, work: Callable[[_Send], Awaitable[Any]], client_ids: Iterable[str]) -> Any:
        for client_id in client_ids:
            await self._connect(client_id)

        async def send(message: Message, version: int | None = None, client_id: str | None = None) -> Any:
            opened = self._connections[self._client_id_or_own(client_id)]
            return await opened.request(message, version=version, timeout_s=self._timeout_s)

        try:
            return await work(send)
        except TimeoutError:
            await self._disconnect()  # a late response would be taken for the next request's
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
        await close_all(connections.values())


def _check_version(version_id: int) -> None:
    if version_id not in (0, 1):
        raise ValueError(f"version_id={version_id}: must be 0 (ZooKeeper) or 1 (Kafka)")


def _fetch_message(request: BuiltFetchRequest) -> messages.FetchRequest:
    outgoing = messages.FetchRequest(max_wait_ms=request.max_wait_ms, min_bytes=request.min_bytes)
    for topic, partitions in by_topic(request.partitions.items()).items():
        entry = outgoing.FetchTopic(topic=topic)
        for partition, (offset, size) in partitions:
            entry.partitions.append(
                outgoing.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=size)
            )
        outgoing.topics.append(entry)
    return outgoing


def _parse_fetch_response(request: BuiltFetchRequest, response: messages.FetchResponse) -> FetchResponse:
    if response.error_code:
        raise for_code(response.error_code, "a fetch")
    partitions = {}
    for topic in response.responses:
        for found in topic.partitions:
            tp = TopicPartition(topic.topic, found.partition_index)
            data = memoryview(found.records or b"")
            message_set = ByteBufferMessageSet(tp, data, request.partitions[tp].offset)
            partitions[tp] = FetchedPartition(found.error_code, found.high_watermark, message_set)
    return FetchResponse(partitions)


def _single_message_set(response: FetchResponse, request: FetchRequest) -> ByteBufferMessageSet:
    """The message set of 0.7's request, which raises the partition's error when it is iterated."""
    tp = TopicPartition(request.topic, request.partition)
    found = response.message_set(*tp)
    found.error_code = response.error_code(*tp)
    return found
