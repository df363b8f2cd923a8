"""FindCoordinator, versions 0 to 6.

Behaviour: a group's coordinator is the leader of the partition of __consumer_offsets that its id hashes to,
that of a transactional id the leader of a partition of __transaction_state. If that topic does not exist, it
is created (offsets.topic.* and transaction.state.log.* settings), and the error is COORDINATOR_NOT_AVAILABLE,
which clients retry, until it has leaders. Share groups (KIP-932) have no coordinator:
COORDINATOR_NOT_AVAILABLE from version 6, INVALID_REQUEST before.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.metadata.cache import MetadataCache
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from ottla.server.dispatch.dispatcher import Request, Route
from ottla.server.handlers.cluster.auto_create import TopicCreator

GROUP, TRANSACTION, SHARE = 0, 1, 2
MANY_KEYS_FROM = 4
SHARE_FROM = 6
_NO_ERROR = "NONE"
"""Kafka's error message without an error."""
Coordinator = FindCoordinatorResponse.Coordinator


class FindCoordinatorHandler:
    """See the module."""

    def __init__(
        self,
        cache: MetadataCache,
        creator: TopicCreator,
        group_partition: Callable[[str], int],
        transaction_partition: Callable[[str], int],
    ) -> None:
        self._cache = cache
        self._creator = creator
        self._partition_for = {GROUP: group_partition, TRANSACTION: transaction_partition}

    def routes(self) -> list[Route]:
        return [Route(FindCoordinatorRequest, self.handle, _error)]

    def handle(self, request: Request) -> None:
        message = request.decode(FindCoordinatorRequest)
        keys = message.coordinator_keys if request.version >= MANY_KEYS_FROM else [message.key]
        found = [self._find(message.key_type, key, request) for key in keys]
        request.respond(_response(found, request.version))

    def _find(self, key_type: int, key: str, request: Request) -> Coordinator:
        listener, version = request.connection.listener, request.version
        if key_type == SHARE:
            served = version >= SHARE_FROM
            return _failed(
                key, ErrorCode.COORDINATOR_NOT_AVAILABLE if served else ErrorCode.INVALID_REQUEST, None
            )
        if key_type not in (GROUP, TRANSACTION):
            return _failed(key, ErrorCode.INVALID_REQUEST, f"there are no coordinators of type {key_type}")
        topic = OFFSETS_TOPIC if key_type == GROUP else TRANSACTIONS_TOPIC
        partitions = self._cache.partitions(topic)
        if partitions is None:
            error = self._creator.request(topic, len(self._cache.brokers()), request)
            detail = (
                f"fewer brokers are alive than {topic} is to have replicas"
                if error == ErrorCode.INVALID_REPLICATION_FACTOR
                else None
            )
            return _failed(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, detail)
        partition = partitions.get(self._partition_for[key_type](key))
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
        error_message=one.error_message or _NO_ERROR,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


def _error(
    message: FindCoordinatorRequest, version: int, code: ErrorCode, detail: str | None
) -> FindCoordinatorResponse:
    keys = message.coordinator_keys if version >= MANY_KEYS_FROM else [message.key]
    return _response([_failed(key, code, detail) for key in keys], version)
