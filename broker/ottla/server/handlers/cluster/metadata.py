"""Metadata 0 to 12 and DescribeCluster 0 to 1.

Behaviour: responses come from this broker's metadata cache (UpdateMetadata), as in Kafka. A partition whose
leader is dead or unknown has LEADER_NOT_AVAILABLE and leader -1; one whose leader has no listener of the
request's name has LISTENER_NOT_FOUND (from version 6). A request without topics means all (version 0: an
empty list, later: null). An unknown topic is created if auto.create.topics.enable and the request allow it,
and is LEADER_NOT_AVAILABLE until then. From version 12 a request may name topics by their ids (KIP-516): if
it has any id, its names are ignored; an unknown id is UNKNOWN_TOPIC_ID. Without an authorizer the authorized
operations are all operations.

A response with many partitions is built in time slices, topic by topic.

Until the controller's first UpdateMetadata, shortly after a broker's start, these requests wait
(ottla.server.handlers.cluster.initial_metadata_gate).

Left out on purpose: DescribeCluster for controllers (endpoint type 2 is KRaft's:
UNSUPPORTED_ENDPOINT_TYPE).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias
from uuid import UUID

from ottla.metadata.cache import MetadataCache, PartitionMetadata
from ottla.metadata.config import BrokerConfig
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import INTERNAL_TOPICS, is_legal_topic_name
from ottla.protocol.types import ZERO_UUID, Message
from ottla.security.acls import SUPPORTED, ResourceType, bits
from ottla.server.authorization.topics import named_by_id
from ottla.server.dispatch.dispatcher import Request, Route
from ottla.server.dispatch.splits import Split, join
from ottla.server.handlers.cluster.auto_create import TopicCreator

TOPIC_OPERATIONS = bits(SUPPORTED[ResourceType.TOPIC])
CLUSTER_OPERATIONS = bits(SUPPORTED[ResourceType.CLUSTER])
BROKERS_ENDPOINT = 1
NO_LEADER = -1
LISTENER_NOT_FOUND_FROM = 6
ROWS_AT_ONCE: Final = 500
"""Topics and partitions of a response that is built without slices."""
STEP_ROWS: Final = 100
_JOINED: Final = Split("topics", "topics", result_rows="partitions", key=("name", "topic_id"))

InSlices: TypeAlias = Callable[[Request, Iterator[Message], Split], None]


class MetadataHandler:
    def __init__(
        self,
        cache: MetadataCache,
        creator: TopicCreator,
        config: BrokerConfig,
        in_slices: InSlices | None = None,
    ) -> None:
        """`in_slices` sends responses with many partitions; None: they are built at once."""
        self._in_slices = in_slices
        self._cache = cache
        self._creator = creator
        self._auto_create = config.get_bool("auto.create.topics.enable")

    def routes(self) -> list[Route]:
        return [
            Route(m.MetadataRequest, self.metadata, _metadata_error),
            Route(m.DescribeClusterRequest, self.describe_cluster, _describe_cluster_error),
        ]

    def metadata(self, request: Request) -> None:
        message = request.decode(m.MetadataRequest)
        cache = self._cache
        version = request.version
        requested = message.topics
        names: Iterable[str | None]
        topics: Iterator[m.MetadataResponse.MetadataResponseTopic]
        if requested is None or (version == 0 and not requested):
            names = cache.topics()
            topics = (topic for name in names for topic in self._rows(name, version, request))
        else:
            may_create = self._auto_create and message.allow_auto_topic_creation
            if named_by_id(requested, version):
                ids = dict.fromkeys(topic.topic_id for topic in requested if topic.topic_id != ZERO_UUID)
                names = (cache.topic_name(topic_id) for topic_id in ids)
                topics = (row for topic_id in ids for row in self._rows_of_id(topic_id, version, request))
            else:
                names = distinct = dict.fromkeys(topic.name or "" for topic in requested)
                topics = (row for name in distinct for row in self._rows_named(name, request, may_create))
        parts = self._parts(request, message, topics)
        if self._in_slices is not None and not request.is_part and self._has_many_rows(names):
            self._in_slices(request, parts, _JOINED)
            return
        response = next(parts)
        for more in parts:
            join(response, more, _JOINED)
        request.respond(response)

    def _has_many_rows(self, names: Iterable[str | None]) -> bool:
        rows = 0
        for name in names:
            rows += 1 + len(self._cache.partitions(name or "") or ())
            if rows > ROWS_AT_ONCE:
                return True
        return False

    def _parts(
        self,
        request: Request,
        message: m.MetadataRequest,
        topics: Iterator[m.MetadataResponse.MetadataResponseTopic],
    ) -> Iterator[m.MetadataResponse]:
        """The response in parts; the first one has everything but topics."""
        cache, listener = self._cache, request.connection.listener
        response = m.MetadataResponse(
            brokers=[
                m.MetadataResponse.MetadataResponseBroker(node_id=b.id, host=b.host, port=b.port, rack=b.rack)
                for b in cache.brokers(listener)
            ],
            cluster_id=cache.cluster_id,
            controller_id=self._controller_id(listener),
        )
        if message.include_cluster_authorized_operations:
            response.cluster_authorized_operations = CLUSTER_OPERATIONS
        rows = 0
        for topic in topics:
            if message.include_topic_authorized_operations and topic.error_code != ErrorCode.UNKNOWN_TOPIC_ID:
                topic.topic_authorized_operations = TOPIC_OPERATIONS
            response.topics.append(topic)
            rows += 1 + len(topic.partitions)
            if rows >= STEP_ROWS:
                yield response
                response, rows = m.MetadataResponse(), 0
        yield response

    def _controller_id(self, listener: str) -> int:
        controller = self._cache.controller_id
        return -1 if controller is None or self._cache.broker(controller, listener) is None else controller

    def _rows_of_id(
        self, topic_id: UUID, version: int, request: Request
    ) -> Iterator[m.MetadataResponse.MetadataResponseTopic]:
        name = self._cache.topic_name(topic_id)
        if name is None:
            yield m.MetadataResponse.MetadataResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id
            )
            return
        yield from self._rows(name, version, request)

    def _rows_named(
        self, name: str, request: Request, may_create: bool
    ) -> Iterator[m.MetadataResponse.MetadataResponseTopic]:
        cache, version = self._cache, request.version
        if cache.partitions(name) is not None:
            yield from self._rows(name, version, request)
            return
        if not is_legal_topic_name(name):
            error = ErrorCode.INVALID_TOPIC_EXCEPTION
        elif may_create:
            error = self._creator.request(name, len(cache.brokers()), request)
        else:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        yield m.MetadataResponse.MetadataResponseTopic(
            error_code=error, name=name, topic_id=ZERO_UUID, is_internal=name in INTERNAL_TOPICS
        )

    def _rows(
        self, name: str, version: int, request: Request
    ) -> Iterator[m.MetadataResponse.MetadataResponseTopic]:
        """An existing topic, in several rows with STEP_ROWS partitions each."""
        listener = request.connection.listener
        partitions = [p for _, p in sorted((self._cache.partitions(name) or {}).items())]
        for at in range(0, max(1, len(partitions)), STEP_ROWS):
            yield m.MetadataResponse.MetadataResponseTopic(
                name=name,
                topic_id=self._cache.topic_id(name) or ZERO_UUID,
                is_internal=name in INTERNAL_TOPICS,
                partitions=[self._partition(p, version, listener) for p in partitions[at : at + STEP_ROWS]],
            )

    def _partition(
        self, p: PartitionMetadata, version: int, listener: str
    ) -> m.MetadataResponse.MetadataResponsePartition:
        def alive(broker: int) -> bool:
            return self._cache.broker(broker, listener) is not None

        has_leader = p.leader >= 0 and alive(p.leader)
        error = ErrorCode.NONE
        if not has_leader:
            # The leader may be alive without a listener of the name that the client uses.
            hidden = version >= LISTENER_NOT_FOUND_FROM and self._cache.is_alive(p.leader)
            error = ErrorCode.LISTENER_NOT_FOUND if hidden else ErrorCode.LEADER_NOT_AVAILABLE
        result = m.MetadataResponse.MetadataResponsePartition(
            error_code=error,
            partition_index=p.partition,
            leader_id=p.leader if has_leader else NO_LEADER,
            leader_epoch=p.leader_epoch,
            replica_nodes=list(p.replicas),
            isr_nodes=list(p.isr),
            offline_replicas=[
                r for r in p.replicas if not self._cache.is_alive(r) or r in p.offline_replicas
            ],
        )
        if version == 0:
            # Clients of version 0 need an endpoint for every id.
            result.replica_nodes = [r for r in p.replicas if alive(r)]
            result.isr_nodes = [r for r in p.isr if alive(r)]
            if has_leader and len(result.replica_nodes) < len(p.replicas):
                result.error_code = ErrorCode.REPLICA_NOT_AVAILABLE
        return result

    def describe_cluster(self, request: Request) -> None:
        message = request.decode(m.DescribeClusterRequest)
        if message.endpoint_type != BROKERS_ENDPOINT:
            request.respond(
                m.DescribeClusterResponse(
                    error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                    error_message="this cluster has no controller endpoints (ZooKeeper mode)",
                )
            )
            return
        cache = self._cache
        listener = request.connection.listener
        response = m.DescribeClusterResponse(
            endpoint_type=message.endpoint_type,
            cluster_id=cache.cluster_id or "",
            controller_id=self._controller_id(listener),
            brokers=[
                m.DescribeClusterResponse.DescribeClusterBroker(
                    broker_id=b.id, host=b.host, port=b.port, rack=b.rack
                )
                for b in cache.brokers(listener)
            ],
        )
        if message.include_cluster_authorized_operations:
            response.cluster_authorized_operations = CLUSTER_OPERATIONS
        request.respond(response)


def _metadata_error(
    message: m.MetadataRequest, version: int, code: ErrorCode, detail: str | None
) -> m.MetadataResponse:
    return m.MetadataResponse(
        topics=[
            m.MetadataResponse.MetadataResponseTopic(
                error_code=code, name=t.name if version >= 12 else t.name or "", topic_id=t.topic_id
            )
            for t in message.topics or []
        ]
    )


def _describe_cluster_error(
    message: m.DescribeClusterRequest, version: int, code: ErrorCode, detail: str | None
) -> m.DescribeClusterResponse:
    return m.DescribeClusterResponse(error_code=code, error_message=detail)
