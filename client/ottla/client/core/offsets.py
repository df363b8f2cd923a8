"""Commits offsets of a group and fetches committed offsets.

A request manager; `Consumer` and its parts call `commit` and `fetch`. Invariants: the callback of each
operation is called once; commits of a consumer are sent in the order of the calls, and only for the current
generation.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

from ottla.client import errors
from ottla.client.core.assigned import OffsetAndMetadata
from ottla.client.core.backoff import Uniform
from ottla.client.core.consumer_config import ConsumerConfig
from ottla.client.core.coordinator import CHANNEL, Coordinator
from ottla.client.core.types import TopicPartition, UnsentRequest
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode


class Membership(NamedTuple):
    """The generation and member id of a commit; a consumer with manual assignment has neither."""

    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


class Group(Protocol):
    """The membership, as far as commits need it; `membership.GroupMember`."""

    def current(self) -> Membership:
        """Raises RebalanceInProgressError or CommitFailedError if there is no current membership."""

    def commit_refused(self, code: ErrorCode, sent: Membership) -> Exception:
        """The coordinator rejected a commit because of the membership: the error to raise."""


Done: TypeAlias = Callable[[Any], None]
"""Called with the result or the exception."""
Offsets: TypeAlias = Mapping[TopicPartition, OffsetAndMetadata]

_MOVED = frozenset(
    {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.REQUEST_TIMED_OUT}
)
_MEMBERSHIP = frozenset(
    {
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
    }
)


class _Operation:
    """A commit, or with `offsets` None a fetch of committed offsets."""

    __slots__ = (
        "deadline",
        "done",
        "failures",
        "node_id",
        "offsets",
        "once",
        "partitions",
        "retry_at",
        "sent",
    )

    def __init__(
        self,
        offsets: Offsets | None,
        partitions: Iterable[TopicPartition],
        deadline: float,
        done: Done,
        *,
        once: bool = False,
    ) -> None:
        self.offsets = offsets
        self.once = once
        self.partitions = tuple(partitions)
        self.deadline = deadline
        self.done = done
        self.retry_at = -math.inf
        self.failures = 0
        self.node_id: int | None = None
        self.sent = Membership()


class OffsetManager:
    """Kafka's CommitRequestManager."""

    def __init__(
        self, config: ConsumerConfig, coordinator: Coordinator, group: Group, uniform: Uniform
    ) -> None:
        self._config = config
        self._coordinator = coordinator
        self._group = group
        self._uniform = uniform
        self._queue: deque[_Operation] = deque()
        self._in_flight: dict[int, _Operation] = {}
        self._number = 0

    def commit(self, offsets: Offsets, deadline: float, done: Done, *, once: bool = False) -> None:
        """Commit, with retries until the deadline; `done` is called with None or the exception.

        `once`: do not retry, because a retry could arrive after a later commit.
        """
        if not offsets:
            done(None)
        else:
            self._queue.append(_Operation(offsets, (), deadline, done, once=once))

    def fetch(self, partitions: Iterable[TopicPartition], deadline: float, done: Done) -> None:
        """`done` is called with a dict by partition, whose values are None for partitions without a committed
        offset, or with the exception."""
        self._queue.append(_Operation(None, partitions, deadline, done))

    @property
    def idle(self) -> bool:
        return not self._queue and not self._in_flight

    # --- requests and responses ---

    def poll(self, now: float) -> list[UnsentRequest]:
        if not self._queue:
            return []
        fatal = self._coordinator.fatal
        if fatal is not None:
            self._coordinator.fatal = None
            for call in self._dequeue(lambda call: True):
                call.done(fatal)
            return []
        for call in self._dequeue(lambda call: call.deadline <= now):
            call.done(errors.RequestTimedOutError("the coordinator of the group did not respond in time"))
        node_id = self._coordinator.node()
        if node_id is None:
            return []
        out = []
        for call in self._dequeue(lambda call: call.retry_at <= now):
            request: Any
            if call.offsets is None:
                request = self._fetch_request(call.partitions)
            else:
                try:
                    call.sent = self._group.current()
                except errors.ClientError as problem:
                    call.done(problem)
                    continue
                request = self._commit_request(call.offsets, call.sent)
            self._number += 1
            self._in_flight[self._number] = call
            call.node_id = node_id
            timeout_s = self._config.request_timeout_ms / 1000
            # Version 7 of OffsetFetch is the last with a single group.
            version_max = 7 if call.offsets is None else None
            out.append(
                UnsentRequest(
                    node_id, request, self._number, timeout_s, version_max, channel=CHANNEL, keeps=True
                )
            )
        return out

    def _dequeue(self, which: Callable[[_Operation], bool]) -> list[_Operation]:
        """Remove matching operations from the queue and return them."""
        found = [call for call in self._queue if which(call)]
        if found:
            self._queue = deque(call for call in self._queue if call not in found)
        return found

    def _commit_request(self, offsets: Offsets, member: Membership) -> m.OffsetCommitRequest:
        message = m.OffsetCommitRequest
        topics: defaultdict[str, list[m.OffsetCommitRequest.OffsetCommitRequestPartition]] = defaultdict(list)
        for tp, (offset, metadata, epoch) in offsets.items():
            topics[tp.topic].append(
                message.OffsetCommitRequestPartition(
                    partition_index=tp.partition,
                    committed_offset=offset,
                    committed_leader_epoch=epoch,
                    committed_metadata=metadata,
                )
            )
        return message(
            group_id=self._config.group_id or "",
            generation_id_or_member_epoch=member.generation,
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            topics=[message.OffsetCommitRequestTopic(name=t, partitions=rows) for t, rows in topics.items()],
        )

    def _fetch_request(self, partitions: Iterable[TopicPartition]) -> m.OffsetFetchRequest:
        topics: defaultdict[str, list[int]] = defaultdict(list)
        for tp in partitions:
            topics[tp.topic].append(tp.partition)
        row = m.OffsetFetchRequest.OffsetFetchRequestTopic
        return m.OffsetFetchRequest(
            group_id=self._config.group_id or "",
            topics=[row(name=name, partition_indexes=numbers) for name, numbers in topics.items()],
            require_stable=True,
        )

    def next_time(self, now: float) -> float:
        # What is due and was not sent waits for the coordinator, whose response wakes the network loop.
        return min((c.retry_at if c.retry_at > now else c.deadline for c in self._queue), default=math.inf)

    def on_response(self, tag: Hashable, response: Any, now: float) -> None:
        assert isinstance(tag, int)
        call = self._in_flight.pop(tag)
        if isinstance(response, BaseException):
            self._coordinator.lost(call.node_id, now)
            self._retry(call, ErrorCode.NETWORK_EXCEPTION, now)
        elif call.offsets is None:
            self._fetched(call, response, now)
        else:
            self._committed(call, response, now)

    def _committed(self, call: _Operation, response: Any, now: float) -> None:
        for topic in response.topics:
            for row in topic.partitions:
                code = ErrorCode.of(row.error_code)
                if code is ErrorCode.NONE:
                    continue
                if code in _MOVED:
                    self._coordinator.lost(call.node_id, now)
                    self._retry(call, code, now)
                elif code in _MEMBERSHIP:
                    call.done(self._group.commit_refused(code, call.sent))
                elif code.retriable:
                    self._retry(call, code, now)
                else:
                    where = f"committing {topic.name}-{row.partition_index} for group {self._config.group_id}"
                    call.done(errors.for_code(code, where))
                return
        call.done(None)

    def _fetched(self, call: _Operation, response: Any, now: float) -> None:
        code = ErrorCode.of(response.error_code)
        found: dict[TopicPartition, OffsetAndMetadata | None] = {}
        where = f"the offsets of group {self._config.group_id}"
        for topic in response.topics:
            for row in topic.partitions:
                tp = TopicPartition(topic.name, row.partition_index)
                if row.error_code and code is ErrorCode.NONE:
                    code = ErrorCode.of(row.error_code)
                    where = f"the offset of group {self._config.group_id} in {tp}"
                if row.committed_offset < 0:
                    found[tp] = None
                else:
                    epoch = row.committed_leader_epoch
                    found[tp] = OffsetAndMetadata(row.committed_offset, row.metadata or "", epoch)
        if code is ErrorCode.NONE:
            call.done(found)
        elif code in _MOVED:
            self._coordinator.lost(call.node_id, now)
            self._retry(call, code, now)
        elif code.retriable and code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self._retry(call, code, now)
        else:
            call.done(errors.for_code(code, where))

    def _retry(self, call: _Operation, code: ErrorCode, now: float) -> None:
        if call.once:
            text = f"{errors.for_code(code)}; a later commit covers it"
            call.done(errors.RetriableCommitFailedError(text))
            return
        call.retry_at = now + self._config.retry_pause_s(call.failures, self._uniform)
        call.failures += 1
        if call.retry_at >= call.deadline:
            call.done(errors.for_code(code, f"the coordinator of group {self._config.group_id}"))
        else:
            self._queue.appendleft(call)
