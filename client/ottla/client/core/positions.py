"""The positions of partitions: offsets at timestamps and ends of logs (KIP-79), and validation after leader
changes (KIP-320).

A request manager. It handles partitions in the phases RESET and VALIDATION by itself, and the look-ups that
the consumer requests (`offsets_for_times`, `end_offsets`, …). Invariants: a response counts only for a
partition that still waits for it; a failed request is retried after a pause, with the leader of that time.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from ottla.client import errors
from ottla.client.core.assigned import EARLIEST, LATEST, Assigned, AssignedPartition, OffsetAndMetadata, Phase
from ottla.client.core.backoff import Uniform
from ottla.client.core.baseline import Baseline
from ottla.client.core.cluster import Cluster
from ottla.client.core.consumer_config import ConsumerConfig
from ottla.client.core.coordinator import CHANNEL
from ottla.client.core.types import Leader, TopicPartition, UnsentRequest
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode

log = logging.getLogger(__name__)

_CONSUMER: Final = -1
_UNKNOWN: Final = -1
_RESET_PENDING: Final = -2
"""The value of `reset_offset` until the offset is known."""
RESETS: Final = {"latest": LATEST, "earliest": EARLIEST}
"""The ListOffsets timestamps for auto.offset.reset."""


class OffsetAndTimestamp(NamedTuple):
    """The first offset at or after a timestamp, and the timestamp of its record."""

    offset: int
    timestamp_ms: int
    leader_epoch: int = -1


Found: TypeAlias = Callable[[TopicPartition, OffsetAndTimestamp | Exception], None]


class _LookUp:
    """A look-up of the offset at a timestamp in a partition."""

    __slots__ = ("found", "retry_at", "timestamp", "tp")

    def __init__(self, tp: TopicPartition, timestamp: int, found: Found) -> None:
        self.tp = tp
        self.timestamp = timestamp
        self.found = found
        self.retry_at = -math.inf


class Positions:
    """Kafka's OffsetFetcher."""

    def __init__(
        self,
        config: ConsumerConfig,
        cluster: Cluster,
        assigned: Assigned,
        uniform: Uniform,
        baseline: Baseline,
    ) -> None:
        self._baseline = baseline
        self._config = config
        self._cluster = cluster
        self._assigned = assigned
        self._uniform = uniform
        self._look_ups: list[_LookUp] = []
        self._in_flight: dict[int, list[_LookUp] | dict[TopicPartition, tuple[int, int, int]]] = {}
        """Requests in flight by number: look-ups, or positions under validation with their epochs."""
        self._busy: set[TopicPartition] = set()
        """Partitions with a reset or a validation in flight."""
        self._number = 0
        self._cluster_version = -1
        self._assigned_version = -1
        self.problems: list[Exception] = []
        """Errors that the next `poll` raises."""

    def look_up(self, timestamps: Mapping[TopicPartition, int], found: Found) -> Callable[[], None]:
        """Look up offsets; `found` is called for each partition. Returns a function that cancels the
        look-ups."""
        asked = [_LookUp(tp, timestamp, found) for tp, timestamp in timestamps.items()]
        self._look_ups += asked

        def cancel() -> None:
            self._look_ups = [each for each in self._look_ups if each not in asked]

        return cancel

    # --- requests and responses ---

    def poll(self, now: float) -> list[UnsentRequest]:
        self._baseline.update()
        self._check_leader_epochs()
        by_leader: defaultdict[tuple[int, int], list[_LookUp]] = defaultdict(list)
        waiting = []
        for wanted in [*self._look_ups, *self._resets(now)]:
            leader = self._cluster.leader(wanted.tp) if wanted.retry_at <= now else None
            if leader is None:
                if wanted.retry_at <= now:
                    self._cluster.invalidate(wanted.tp)
                    wanted.retry_at = now + self._pause_s()
                if wanted.found != self._reset_found:
                    waiting.append(wanted)
                else:
                    self._assigned[wanted.tp].retry_at = wanted.retry_at
            else:
                if wanted.found == self._reset_found:
                    self._busy.add(wanted.tp)
                by_leader[leader.node_id, 0].append(wanted)
        self._look_ups = waiting
        out = [self._list_offsets(node, asked) for (node, _), asked in by_leader.items()]
        return out + self._validations(now)

    def _check_leader_epochs(self) -> None:
        versions = self._cluster.version, self._assigned.version
        if versions == (self._cluster_version, self._assigned_version):
            return
        self._cluster_version, self._assigned_version = versions
        for state in self._assigned:
            self._check_topic(state)
            leader = self._cluster.leader(state.tp)
            if leader is not None:
                state.check_epoch(leader)

    def _check_topic(self, state: AssignedPartition) -> None:
        """A position is invalid if the topic was deleted and created again."""
        before, state.topic_id = state.topic_id, self._cluster.topic_id(state.tp.topic) or state.topic_id
        if before in (None, state.topic_id) or state.phase is Phase.COMMITTED:
            return
        if self._config.auto_offset_reset_new_partitions == "earliest" and self._baseline.appeared(state.tp):
            log.info("%s was created again: resetting the position to its first record", state.tp)
            self.reset((state,), appeared=True)

    def _resets(self, now: float) -> list[_LookUp]:
        due = []
        for state in self._assigned:
            if state.phase is Phase.RESET and state.tp not in self._busy:
                wanted = _LookUp(state.tp, state.reset_to, self._reset_found)
                wanted.retry_at = state.retry_at
                due.append(wanted)
        return due

    def _list_offsets(self, node_id: int, asked: list[_LookUp]) -> UnsentRequest:
        message = m.ListOffsetsRequest
        topics: defaultdict[str, list[m.ListOffsetsRequest.ListOffsetsPartition]] = defaultdict(list)
        for wanted in asked:
            leader = self._cluster.leader(wanted.tp)
            topics[wanted.tp.topic].append(
                message.ListOffsetsPartition(
                    partition_index=wanted.tp.partition,
                    current_leader_epoch=leader.epoch if leader else _UNKNOWN,
                    timestamp=wanted.timestamp,
                )
            )
        request = message(
            replica_id=_CONSUMER,
            isolation_level=self._config.isolation,
            topics=[message.ListOffsetsTopic(name=name, partitions=rows) for name, rows in topics.items()],
        )
        return self._unsent(node_id, request, asked)

    def _validations(self, now: float) -> list[UnsentRequest]:
        by_leader: defaultdict[int, list[tuple[AssignedPartition, Leader]]] = defaultdict(list)
        for state in self._assigned:
            if state.phase is not Phase.VALIDATION or state.tp in self._busy or state.retry_at > now:
                continue
            leader = self._cluster.leader(state.tp)
            if leader is None:
                self._cluster.invalidate(state.tp)
                state.retry_at = now + self._pause_s()
            else:
                by_leader[leader.node_id].append((state, leader))
        return [self._ask_epochs(node_id, rows, now) for node_id, rows in by_leader.items()]

    def _ask_epochs(
        self, node_id: int, rows: list[tuple[AssignedPartition, Leader]], now: float
    ) -> UnsentRequest:
        message = m.OffsetForLeaderEpochRequest
        topics: defaultdict[str, list[m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition]] = defaultdict(
            list
        )
        asked = {}
        for state, leader in rows:
            self._busy.add(state.tp)
            asked[state.tp] = (state.position, state.epoch, leader.epoch)
            topics[state.tp.topic].append(
                message.OffsetForLeaderPartition(
                    partition=state.tp.partition,
                    current_leader_epoch=self._current_epoch(state, leader, now),
                    leader_epoch=state.epoch,
                )
            )
        request = message(
            replica_id=_CONSUMER,
            topics=[message.OffsetForLeaderTopic(topic=name, partitions=p) for name, p in topics.items()],
        )
        return self._unsent(node_id, request, asked)

    def _current_epoch(self, state: AssignedPartition, leader: Leader, now: float) -> int:
        """The leader epoch that the leader must have to validate the position.

        A leader that is older than the position, in metadata of a broker that lags behind, knows nothing of
        it: at the position's epoch it rejects the request, and newer metadata is asked for. A leader that
        stays older for default.api.timeout.ms has the log of a topic that was created again.
        """
        if leader.epoch >= state.epoch:
            return leader.epoch
        if state.ahead_since is None:
            state.ahead_since = now
        waits = now < state.ahead_since + self._config.default_api_timeout_ms / 1000
        return state.epoch if waits else leader.epoch

    def _unsent(self, node_id: int, request: Any, asked: Any) -> UnsentRequest:
        self._number += 1
        self._in_flight[self._number] = asked
        timeout_s = self._config.request_timeout_ms / 1000
        return UnsentRequest(node_id, request, self._number, timeout_s, channel=CHANNEL, keeps=True)

    def next_time(self, now: float) -> float:
        times = [each.retry_at for each in self._look_ups]
        times += [
            state.retry_at
            for state in self._assigned
            if state.phase in (Phase.RESET, Phase.VALIDATION) and state.tp not in self._busy
        ]
        return min(times, default=math.inf)

    def on_response(self, tag: Hashable, response: Any, now: float) -> None:
        assert isinstance(tag, int)
        asked = self._in_flight.pop(tag)
        if isinstance(asked, list):
            self._offsets_listed(asked, response, now)
        else:
            self._epochs_found(asked, response, now)

    # --- offsets at timestamps ---

    def _offsets_listed(self, asked: list[_LookUp], response: Any, now: float) -> None:
        rows = _rows(response, "name", "partition_index")
        for wanted in asked:
            own = wanted.found == self._reset_found
            if own:
                self._busy.discard(wanted.tp)
            row = rows.get(wanted.tp)
            code = ErrorCode.NETWORK_EXCEPTION if row is None else ErrorCode.of(row.error_code)
            if row is not None and code is ErrorCode.NONE:
                wanted.found(wanted.tp, OffsetAndTimestamp(row.offset, row.timestamp, row.leader_epoch))
            elif code.retriable or code is ErrorCode.FENCED_LEADER_EPOCH:
                self._cluster.invalidate(wanted.tp)
                wanted.retry_at = now + self._pause_s()
                state = self._assigned.get(wanted.tp)
                if not own:
                    self._look_ups.append(wanted)
                elif state is not None:
                    state.retry_at = wanted.retry_at
            else:
                wanted.found(wanted.tp, errors.for_code(code, f"the offsets of {wanted.tp}"))

    def _reset_found(self, tp: TopicPartition, found: OffsetAndTimestamp | Exception) -> None:
        state = self._assigned.get(tp)
        if state is None or state.phase is not Phase.RESET:
            return
        if isinstance(found, Exception):
            self.problems.append(found)
            state.retry_at = math.inf
        elif found.offset < 0:
            state.reset(LATEST)  # no record has that timestamp or a later one: continue at the end
        else:
            by_policy = state.reset_offset == _RESET_PENDING
            state.seek(found.offset)
            state.reset_offset = found.offset if by_policy else -1
            # The offset is valid in the log of the leader that returned it.
            leader = self._cluster.leader(tp)
            state.leader_epoch = max(state.leader_epoch, found.leader_epoch, leader.epoch if leader else -1)

    # --- validation ---

    def _epochs_found(
        self, asked: dict[TopicPartition, tuple[int, int, int]], response: Any, now: float
    ) -> None:
        self._busy -= asked.keys()
        rows = _rows(response, "topic", "partition")
        for tp, (position, epoch, leader_epoch) in asked.items():
            state = self._assigned.get(tp)
            if state is None or state.phase is not Phase.VALIDATION:
                continue
            if (state.position, state.epoch) != (position, epoch):
                continue  # the position has changed in the meantime
            row = rows.get(tp)
            code = ErrorCode.NETWORK_EXCEPTION if row is None else ErrorCode.of(row.error_code)
            if row is None or code is not ErrorCode.NONE:
                self._cluster.invalidate(tp)
                state.retry_at = now + self._pause_s()
                if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                    self.problems.append(errors.for_code(code, f"topic {tp.topic}"))
            else:
                state.leader_epoch = max(state.leader_epoch, leader_epoch)
                self._validate(state, row)

    def _validate(self, state: AssignedPartition, row: Any) -> None:
        """Compare the position with the end offset of the largest epoch, not above that of the position, in
        the log of the leader."""
        undefined = row.end_offset < 0 or row.leader_epoch < 0
        if not undefined and row.end_offset >= state.position:
            state.phase = Phase.FETCHING
            return
        policy = self._config.auto_offset_reset
        if policy == "none":
            end = -1 if undefined else row.end_offset
            self.problems.append(
                errors.LogTruncationError(state.tp.topic, state.tp.partition, state.position, end)
            )
            state.retry_at = math.inf
        elif undefined:
            state.reset(RESETS[policy])
        else:
            state.seek(row.end_offset, row.leader_epoch)

    def begin(self, state: AssignedPartition, committed: OffsetAndMetadata) -> None:
        """Set the position to a committed offset, which is validated against the log of the current
        leader."""
        state.leader_epoch = -1
        state.seek(committed.offset, committed.leader_epoch)
        leader = self._cluster.leader(state.tp)
        if leader is not None:
            state.check_epoch(leader)

    def reset(self, partitions: Iterable[AssignedPartition], *, appeared: bool = False) -> None:
        """Reset partitions without a position, or with one that is out of range, by auto.offset.reset; if
        they were created since the subscription (`appeared`), by auto.offset.reset.new.partitions.

        Raises NoOffsetForPartitionError if the policy is none.
        """
        key, policy = "auto.offset.reset", self._config.auto_offset_reset
        if appeared:
            key, policy = f"{key}.new.partitions", self._config.auto_offset_reset_new_partitions
        states = list(partitions)
        if states and policy == "none":
            names = ", ".join(str(state.tp) for state in states)
            raise errors.NoOffsetForPartitionError(
                f"{names}: group {self._config.group_id} has no committed offset, and {key} is none"
            )
        for state in states:
            state.reset(RESETS[policy])
            state.reset_offset = _RESET_PENDING

    def _pause_s(self) -> float:
        return self._config.retry_pause_s(0, self._uniform)


def _rows(response: Any, topic: str, partition: str) -> dict[TopicPartition, Any]:
    """The rows of a response by partition; empty for a failed request."""
    if isinstance(response, BaseException):
        return {}
    return {
        TopicPartition(getattr(each, topic), getattr(row, partition)): row
        for each in response.topics
        for row in each.partitions
    }
