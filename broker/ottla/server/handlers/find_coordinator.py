"""FindCoordinator, versions 0 to 6.

Behaviour: a group's coordinator leads the partition of __consumer_offsets that its id hashes to. When that
topic does not exist it is made (offsets.topic.* settings), and the answer is COORDINATOR_NOT_AVAILABLE
until it has leaders, which clients retry.

Left out on purpose: transactions and share groups. Their key types are answered like one that this broker
does not know, as Kafka does: INVALID_REQUEST, with the reason as text. The Java client fails at once on it;
librdkafka asks again until its time-out, as it does on everything but an authorization error, which this is
not.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.metadata.cache import MetadataCache
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.server.dispatch import Request, Route
from ottla.server.handlers.auto_create import OFFSETS_TOPIC, TopicCreator

GROUP = 0
MANY_KEYS_FROM = 4
Coordinator = FindCoordinatorResponse.Coordinator


class FindCoordinatorHandler:
    def __init__(
        self, cache: MetadataCache, creator: TopicCreator, partition_for: Callable[[str], int]
    ) -> None:
        self._cache = cache
        self._creator = creator
        self._partition_for = partition_for

    def routes(self) -> list[Route]:
        return [Route(FindCoordinatorRequest, self.handle, _error)]

    def handle(self, request: Request) -> None:
        message = request.decode(FindCoordinatorRequest)
        keys = message.coordinator_keys if request.version >= MANY_KEYS_FROM else [message.key]
        listener = request.connection.listener
        found = [self._find(message.key_type, key, listener) for key in keys]
        request.respond(_response(found, request.version))

    def _find(self, key_type: int, key: str, listener: str) -> Coordinator:
        if key_type != GROUP:
            return _failed(key, ErrorCode.INVALID_REQUEST, "only consumer groups have coordinators here yet")
        partitions = self._cache.partitions(OFFSETS_TOPIC)
        if partitions is None:
            error = self._creator.request(OFFSETS_TOPIC, len(self._cache.brokers()))
            detail = (
                "fewer brokers are alive than offsets.topic.replication.factor"
                if error == ErrorCode.INVALID_REPLICATION_FACTOR
                else None
            )
            return _failed(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, detail)
        partition = partitions.get(self._partition_for(key))
        node = None if partition is None else self._cache.broker(partition.leader, listener)
        if node is None:
            return _failed(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, None)
        return Coordinator(key=key, node_id=node.id, host=node.host, port=node.port)


def _failed(key: str, code: ErrorCode, detail: str | None) -> Coordinator:
    return Coordinator(
        key=key, node_id=-1, host="", port=-1, error_code=code, error_message=detail or code.message
    )


def _response(found: list[Coordinator], version: int) -> FindCoordinatorResponse:
    if version >= MANY_KEYS_FROM:
        return FindCoordinatorResponse(coordinators=found)
    one = found[0]
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


def _error(
    message: FindCoordinatorRequest, version: int, code: ErrorCode, detail: str | None
) -> FindCoordinatorResponse:
    keys = message.coordinator_keys if version >= MANY_KEYS_FROM else [message.key]
    return _response([_failed(key, code, detail) for key in keys], version)
