"""The follower's side of a fetch session (KIP-227): the leader remembers the partitions, requests name
changes.

Called by `fetcher`, one for each leader. Pure. As Kafka's FetchSessionHandler: the first request is *full*
and names every partition; if the response has a session id, the next requests are *incremental*. After any
failure (a lost connection, a session that the leader evicted, a wrong epoch, a response about partitions that
were not requested) the next request is full, and closes the session if there is one.

Invariant: during a session, `_partitions` are the partitions in the leader's session.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import FetchRequest, FetchResponse
from ottla.protocol.types import ZERO_UUID
from ottla.replication.requests import PartitionKey

_logger = logging.getLogger(__name__)

_NO_SESSION: Final = 0
_INITIAL_EPOCH: Final = 0
_FINAL_EPOCH: Final = -1
_MAX_EPOCH: Final = 0x7FFFFFFF

SESSION_ERRORS: Final = frozenset(
    (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    )
)
"""Errors after which a full request succeeds."""

PartitionResponse: TypeAlias = tuple[PartitionKey, FetchResponse.PartitionData]


class SessionPartition(NamedTuple):
    """A partition as it is in the session."""

    topic_id: UUID
    partition: FetchRequest.FetchPartition


class FetchSessionHandler:
    """The session with one leader, or none."""

    def __init__(self, leader_id: int) -> None:
        self._leader_id = leader_id
        self._id = _NO_SESSION
        self._epoch = _INITIAL_EPOCH
        self._partitions: dict[PartitionKey, SessionPartition] = {}
        self._names: dict[UUID, str] = {}
        self._by_topic_id = True
        self._changed: dict[PartitionKey, SessionPartition] = {}
        self._forgotten: list[tuple[PartitionKey, UUID]] = []

    @property
    def id(self) -> int:
        """0 while there is none."""
        return self._id

    @property
    def is_full(self) -> bool:
        """Whether the next request has to name all partitions."""
        return self._epoch == _INITIAL_EPOCH

    # --- the next request ---------------------------------------------------------------------------

    def begin(self, *, by_topic_id: bool) -> bool:
        """Begin the next request. Returns whether it is full: then `add` every partition, else only those
        that may have changed."""
        if by_topic_id != self._by_topic_id:
            # A session has either ids or names; the leader would reject a change.
            self._by_topic_id = by_topic_id
            self._epoch = _INITIAL_EPOCH
        self._changed.clear()
        self._forgotten.clear()
        if self.is_full:
            self._partitions.clear()
            self._names.clear()
        return self.is_full

    def add(self, key: PartitionKey, topic_id: UUID | None, partition: FetchRequest.FetchPartition) -> None:
        """Add a partition to the session, or change it."""
        requested = SessionPartition(topic_id or ZERO_UUID, partition)
        before = self._partitions.get(key)
        # Mostly the offset has changed, which is cheap to compare; the other fields are not.
        if before and before.partition.fetch_offset == partition.fetch_offset and requested == before:
            return
        if before is not None and self._by_topic_id and before.topic_id != requested.topic_id:
            self._forgotten.append((key, before.topic_id))
        self._partitions[key] = self._changed[key] = requested
        self._names[requested.topic_id] = key[0]

    def remove(self, key: PartitionKey) -> None:
        """Remove a partition from the session."""
        requested = self._partitions.pop(key, None)
        if requested is not None:
            self._forgotten.append((key, requested.topic_id))

    def request(self) -> FetchRequest | None:
        """The request with the partitions that were added and removed; None if there is no partition."""
        if not self._partitions and not self._forgotten:
            return None
        topics: dict[PartitionKey | tuple[str, UUID], FetchRequest.FetchTopic] = {}
        for (name, _), requested in self._changed.items():
            topic = topics.get((name, requested.topic_id))
            if topic is None:
                topic = FetchRequest.FetchTopic(topic=name, topic_id=requested.topic_id)
                topics[name, requested.topic_id] = topic
            topic.partitions.append(requested.partition)
        return FetchRequest(
            session_id=self._id,
            session_epoch=self._epoch,
            topics=list(topics.values()),
            forgotten_topics_data=[
                FetchRequest.ForgottenTopic(topic=name, topic_id=topic_id, partitions=[partition])
                for (name, partition), topic_id in self._forgotten
            ],
        )

    def final_request(self) -> FetchRequest:
        """The request that closes the session."""
        assert self._id != _NO_SESSION
        return FetchRequest(session_id=self._id, session_epoch=_FINAL_EPOCH)

    # --- the response ---------------------------------------------------------------------------------

    def accept(self, response: FetchResponse) -> list[PartitionResponse] | None:
        """The partitions of the response to the last request. None after an error: the next request is
        full."""
        if response.error_code != ErrorCode.NONE:
            _logger.info(
                "Node %d was unable to process the fetch request with (sessionId=%d, epoch=%d): %s.",
                self._leader_id, self._id, self._epoch, ErrorCode.of(response.error_code).name,
            )  # fmt: skip
            if response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self._id = _NO_SESSION
            self.restart()
            return None
        responses = list(self._responses(response))
        count = sum(len(topic.partitions) for topic in response.responses)
        if len(responses) < count or (self.is_full and count < len(self._partitions)):
            _logger.warning(
                "Node %d responded with %d partitions; %d were requested",
                self._leader_id, count, len(self._partitions),
            )  # fmt: skip
            self.restart()
            return None
        self._id = response.session_id
        if self._id == _NO_SESSION:
            self.restart()
        else:
            self._epoch = self._epoch % _MAX_EPOCH + 1
        return responses

    def _responses(self, response: FetchResponse) -> Iterator[PartitionResponse]:
        for topic in response.responses:
            name = self._names.get(topic.topic_id, "") if self._by_topic_id else topic.topic
            for row in topic.partitions:
                key = (name, row.partition_index)
                requested = self._partitions.get(key)
                if requested is not None and (not self._by_topic_id or requested.topic_id == topic.topic_id):
                    yield key, row

    def restart(self) -> None:
        """After a failure: the next request is full, and closes the session if there is one."""
        self._epoch = _INITIAL_EPOCH
