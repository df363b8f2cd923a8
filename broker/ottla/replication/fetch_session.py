"""A follower's end of a fetch session (KIP-227): what the leader remembers, so that requests name changes.

Called by `fetcher`, one for each leader. Pure. As Kafka's FetchSessionHandler: the first request is *full*
and names every partition; if the leader answers with a session id, the next ones are *incremental*. Whatever
goes wrong (a lost connection, a session that the leader evicted or that got out of step, an answer about
partitions that were not asked for), the next request is full again, and closes the session there may be.

Invariant: as long as a session goes on, `_asked` is what the leader has of it.
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
"""Errors that a full request sets right."""

PartitionAnswer: TypeAlias = tuple[PartitionKey, FetchResponse.PartitionData]


class Asked(NamedTuple):
    """What the leader was asked of a partition."""

    topic_id: UUID
    partition: FetchRequest.FetchPartition


class FetchSession:
    """The session with one leader, or the want of one."""

    def __init__(self, leader_id: int) -> None:
        self._leader_id = leader_id
        self._id = _NO_SESSION
        self._epoch = _INITIAL_EPOCH
        self._asked: dict[PartitionKey, Asked] = {}
        self._names: dict[UUID, str] = {}
        self._by_topic_id = True
        self._changed: dict[PartitionKey, Asked] = {}
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
        """Begin the next request. Returns whether it is full: then every partition is to be wanted anew, else
        only those that may have changed."""
        if by_topic_id != self._by_topic_id:
            # A session is in one or the other; the leader would refuse it.
            self._by_topic_id = by_topic_id
            self._epoch = _INITIAL_EPOCH
        self._changed.clear()
        self._forgotten.clear()
        if self.is_full:
            self._asked.clear()
            self._names.clear()
        return self.is_full

    def want(self, key: PartitionKey, topic_id: UUID | None, partition: FetchRequest.FetchPartition) -> None:
        """Ask for a partition, or go on asking for it."""
        asked = Asked(topic_id or ZERO_UUID, partition)
        before = self._asked.get(key)
        # Mostly the offset is another one, and comparing the rest would cost more than it tells.
        if before and before.partition.fetch_offset == partition.fetch_offset and asked == before:
            return
        if before is not None and self._by_topic_id and before.topic_id != asked.topic_id:
            self._forgotten.append((key, before.topic_id))
        self._asked[key] = self._changed[key] = asked
        self._names[asked.topic_id] = key[0]

    def forget(self, key: PartitionKey) -> None:
        """Do not ask for a partition any more."""
        asked = self._asked.pop(key, None)
        if asked is not None:
            self._forgotten.append((key, asked.topic_id))

    def request(self) -> FetchRequest | None:
        """The request that says what has been wanted and forgotten; None if there is nothing to ask for."""
        if not self._asked and not self._forgotten:
            return None
        topics: dict[PartitionKey | tuple[str, UUID], FetchRequest.FetchTopic] = {}
        for (name, _), asked in self._changed.items():
            topic = topics.get((name, asked.topic_id))
            if topic is None:
                topic = FetchRequest.FetchTopic(topic=name, topic_id=asked.topic_id)
                topics[name, asked.topic_id] = topic
            topic.partitions.append(asked.partition)
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

    # --- its answer ---------------------------------------------------------------------------------

    def accept(self, response: FetchResponse) -> list[PartitionAnswer] | None:
        """The leader's answers to the last request. None: there is nothing to go by, and the next request is
        full."""
        if response.error_code != ErrorCode.NONE:
            _logger.info(
                "broker %d refused fetch %d of session %d: %s",
                self._leader_id, self._epoch, self._id, ErrorCode.of(response.error_code).name,
            )  # fmt: skip
            if response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self._id = _NO_SESSION
            self.restart()
            return None
        answers = list(self._answers(response))
        count = sum(len(topic.partitions) for topic in response.responses)
        if len(answers) < count or (self.is_full and count < len(self._asked)):
            _logger.warning(
                "broker %d answered about %d partitions where it was asked about %d",
                self._leader_id, count, len(self._asked),
            )  # fmt: skip
            self.restart()
            return None
        self._id = response.session_id
        if self._id == _NO_SESSION:
            self.restart()
        else:
            self._epoch = self._epoch % _MAX_EPOCH + 1
        return answers

    def _answers(self, response: FetchResponse) -> Iterator[PartitionAnswer]:
        for topic in response.responses:
            name = self._names.get(topic.topic_id, "") if self._by_topic_id else topic.topic
            for answer in topic.partitions:
                key = (name, answer.partition_index)
                asked = self._asked.get(key)
                if asked is not None and (not self._by_topic_id or asked.topic_id == topic.topic_id):
                    yield key, answer

    def restart(self) -> None:
        """Something went wrong: close the session, if there is one, with the next request, and begin anew."""
        self._epoch = _INITIAL_EPOCH
