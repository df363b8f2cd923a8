"""An incremental fetch session with one broker (KIP-227): the partitions it knows, and the changes to send.

Kept by `fetcher`, one for each node. Invariants: `asked` has the partitions of the session on the broker if
the last request has arrived; after a failure the next request has all partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import UUID

from ottla.client.core.types import TopicPartition
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode
from ottla.protocol.types import ZERO_UUID

_NO_SESSION: Final = 0
_INITIAL_EPOCH: Final = 0
_FINAL_EPOCH: Final = -1
_EPOCH_MAX: Final = 2**31 - 1
VERSION_WITH_NAMES: Final = 12
"""The last version of Fetch with topic names instead of ids."""


class FetchPosition(NamedTuple):
    """What to fetch from a partition."""

    topic_id: UUID
    """Zero if it is unknown."""
    offset: int
    leader_epoch: int
    max_bytes: int


class FetchSession:
    """Kafka's FetchSessionHandler."""

    def __init__(self) -> None:
        self.asked: dict[TopicPartition, FetchPosition] = {}
        self._names: dict[UUID, str] = {}
        self._id = _NO_SESSION
        self._epoch = _INITIAL_EPOCH

    def build(self, wanted: Mapping[TopicPartition, FetchPosition], request: m.FetchRequest) -> int | None:
        """Set the partitions and the session of the next request; returns the highest version it may have."""
        request.session_id = self._id
        request.session_epoch = self._epoch
        with_ids = all(want.topic_id != ZERO_UUID for want in wanted.values())
        sent: Mapping[TopicPartition, FetchPosition] = wanted
        forgotten: dict[TopicPartition, UUID] = {}
        if self._epoch != _INITIAL_EPOCH:
            with_ids = with_ids and all(old.topic_id != ZERO_UUID for old in self.asked.values())
            forgotten = {
                tp: old.topic_id
                for tp, old in self.asked.items()
                if tp not in wanted or wanted[tp].topic_id != old.topic_id
            }
            sent = {tp: want for tp, want in wanted.items() if self.asked.get(tp) != want}
        self.asked = dict(wanted)
        self._names = {want.topic_id: tp.topic for tp, want in wanted.items()} if with_ids else {}
        request.topics = _topics(sent)
        request.forgotten_topics_data = _forgotten(forgotten)
        return None if with_ids else VERSION_WITH_NAMES

    def close(self, request: m.FetchRequest) -> bool:
        """Make the request a final one, which closes the session; False if there is no session."""
        if self._id == _NO_SESSION:
            return False
        request.session_id = self._id
        request.session_epoch = _FINAL_EPOCH
        self._id, self._epoch = _NO_SESSION, _INITIAL_EPOCH
        return True

    def failed(self) -> None:
        """The request failed, or the response is invalid: the next request opens a new session."""
        self._epoch = _INITIAL_EPOCH

    def handle_response(self, response: m.FetchResponse) -> bool:
        """Process the session fields of a response; False if it has no data."""
        if response.error_code:
            if response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self._id = _NO_SESSION
            self._epoch = _INITIAL_EPOCH
            return False
        if not response.responses and response.throttle_time_ms > 0 and self._epoch == _INITIAL_EPOCH:
            return False  # it only reports throttling
        if response.session_id == _NO_SESSION:
            self._id, self._epoch = _NO_SESSION, _INITIAL_EPOCH
        elif self._epoch == _INITIAL_EPOCH:
            self._id, self._epoch = response.session_id, 1
        else:
            self._epoch = 1 if self._epoch == _EPOCH_MAX else self._epoch + 1
        return True

    def name(self, topic: m.FetchResponse.FetchableTopicResponse) -> str | None:
        """The name of a topic of the response; None for a topic that was not requested."""
        return topic.topic or self._names.get(topic.topic_id)


def _topics(sent: Mapping[TopicPartition, FetchPosition]) -> list[m.FetchRequest.FetchTopic]:
    """In the order of `sent`, in which a broker serves them; a topic may occur several times, as in Java."""
    rows: list[m.FetchRequest.FetchTopic] = []
    for tp, want in sent.items():
        if not rows or rows[-1].topic != tp.topic:
            rows.append(m.FetchRequest.FetchTopic(topic=tp.topic, topic_id=want.topic_id, partitions=[]))
        rows[-1].partitions.append(
            m.FetchRequest.FetchPartition(
                partition=tp.partition,
                current_leader_epoch=want.leader_epoch,
                fetch_offset=want.offset,
                partition_max_bytes=want.max_bytes,
            )
        )
    return rows


def _forgotten(forgotten: Mapping[TopicPartition, UUID]) -> list[m.FetchRequest.ForgottenTopic]:
    rows: dict[tuple[str, UUID], list[int]] = {}
    for tp, topic_id in forgotten.items():
        rows.setdefault((tp.topic, topic_id), []).append(tp.partition)
    return [
        m.FetchRequest.ForgottenTopic(topic=topic, topic_id=topic_id, partitions=partitions)
        for (topic, topic_id), partitions in rows.items()
    ]
