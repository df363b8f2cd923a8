"""One partition's replica (Partition): roles, appends, ISR changes and the high watermark.

Called by the produce, fetch and offset handlers (through `manager`), by the fetcher, and by the coordinators'
logs. No I/O besides the log's. Time is passed in (`now_ms` is monotonic, except wall time in `append_*`), ISR
changes go to `propose_isr`, and notifications to the listener.

Invariants, asserted where they are cheap:
- log_start_offset <= high_watermark <= log_end_offset, and a leader's high watermark never goes back;
- a leader epoch never goes back, and a leader never truncates (KIP-320);
- every member of the maximal ISR has all records below the high watermark (KIP-497);
- a follower truncates only to where its log diverges from the leader's, never by high watermark (KIP-101).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol
from uuid import UUID

from ottla.metadata.znodes import intern_brokers
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records import parse_batch_header
from ottla.replication.isr import UNKNOWN_EPOCH, Follower, InSyncReplicas, IsrChange
from ottla.replication.requests import PartitionState
from ottla.storage.log import Log, LogAppendInfo, ValidatedBatch
from ottla.storage.log_config import LogConfig
from ottla.storage.producer_state import VerificationGuard

_logger = logging.getLogger(__name__)

ACKS_ALL: Final = -1
NO_EPOCH: Final = -1
NO_OFFSET: Final = -1

_NONE: Final = ErrorCode.NONE


class ReplicationListener(Protocol):
    """Notifications about partitions, for waiting requests and the layers above.

    Implemented by the server's purgatory, and by recorders in tests. Invariant: every call is synchronous, on
    the event loop, after the state has changed, so that a listener can read the partition. A listener must
    not raise.
    """

    def high_watermark_advanced(self, p: Partition) -> None:
        """Records became committed after their append: consumers can read them, acks=all requests may
        complete."""

    def log_appended(self, p: Partition, *, committed: bool) -> None:
        """Records were appended to the leader's log: followers can read them. `committed`: the high watermark
        has advanced, too."""

    def changed(self, p: Partition) -> None:
        """The log start offset, the log end after a truncation, or the leader epoch changed."""

    def became_leader(self, p: Partition) -> None:
        """This broker became the partition's leader."""

    def became_follower(self, p: Partition) -> None:
        """This broker became a follower, or follows with a new leader epoch."""

    def stopped(self, p: Partition, deleted: bool) -> None:
        """The replica was removed from this broker; with `deleted` its log as well."""


class Partition:
    """This broker's replica of a partition, as leader or as follower."""

    __slots__ = (
        "_checked_ms",
        "_not_leader_error",
        "_notified_log_start",
        "_propose_isr",
        "broker_id",
        "high_watermark",
        "in_sync",
        "is_leader",
        "key",
        "leader_epoch",
        "leader_epoch_start",
        "leader_id",
        "listener",
        "log",
        "partition",
        "partition_epoch",
        "replicas",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        broker_id: int,
        log: Log,
        *,
        listener: ReplicationListener,
        propose_isr: Callable[[Partition, IsrChange], None],
        is_eligible: Callable[[int], bool],
        lag_ms_max: int,
        high_watermark: int = 0,
    ) -> None:
        """`high_watermark` is the checkpointed one; `is_eligible(broker)` returns whether a broker can
        join the ISR (it is alive); `lag_ms_max` is replica.lag.time.max.ms."""
        self.topic = topic
        self.partition = partition
        self.key = (topic, partition)
        self.broker_id = broker_id
        self.log = log
        self.listener = listener
        self.leader_id = -1
        self.leader_epoch = NO_EPOCH
        self.leader_epoch_start = NO_OFFSET
        """The start offset of the current leader epoch; -1 on a follower."""
        self.partition_epoch = -1
        self.is_leader = False
        self._not_leader_error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        self.replicas: tuple[int, ...] = ()
        self.high_watermark = min(max(high_watermark, log.log_start_offset), log.log_end_offset)
        self.in_sync = InSyncReplicas(broker_id, lag_ms_max, is_eligible)
        """The leader's state of its followers, for this package only."""
        self._propose_isr = propose_isr
        self._checked_ms = 0  # of the last computation of the high watermark
        self._notified_log_start = log.log_start_offset

    def __repr__(self) -> str:
        role = "leader" if self.is_leader else f"follower of {self.leader_id}"
        return f"<{self.topic}-{self.partition} {role} epoch {self.leader_epoch}>"

    @property
    def topic_id(self) -> UUID | None:
        return self.log.topic_id

    @topic_id.setter
    def topic_id(self, topic_id: UUID) -> None:
        self.log.topic_id = topic_id

    @property
    def isr(self) -> frozenset[int]:
        """The ISR that the controller has confirmed; empty on a follower."""
        return self.in_sync.committed

    @property
    def maximal_isr(self) -> frozenset[int]:
        """`isr` with the proposed additional members."""
        return self.in_sync.maximal

    @property
    def isr_change(self) -> IsrChange | None:
        """The change in flight. After an error that leaves the ISR unknown, it stays until LeaderAndIsr."""
        return self.in_sync.change

    @property
    def last_stable_offset(self) -> int:
        """The end offset for read_committed consumers (KIP-98)."""
        return self.log.last_stable_offset(self.high_watermark)

    @property
    def min_in_sync(self) -> int:
        """min.insync.replicas, at most the number of replicas."""
        return min(self.log.config.min_insync_replicas, len(self.replicas))

    def follower(self, broker_id: int) -> Follower | None:
        """The leader's state of a follower; None if the broker is not a replica."""
        return self.in_sync.followers.get(broker_id)

    # --- roles --------------------------------------------------------------------------------------

    def become_leader(self, state: PartitionState, now_ms: int) -> bool:
        """Become the leader, or update the leader's state. Returns whether this broker was not the leader
        before. Raises OSError, without a change."""
        assert state.leader == self.broker_id
        assert state.leader_epoch >= self.leader_epoch, "a leader epoch never goes back"
        if state.partition_epoch < self.partition_epoch:
            _logger.info("%r: ignoring the stale partition epoch %d", self, state.partition_epoch)
            return False
        new_leader = not self.is_leader
        new_epoch = state.leader_epoch > self.leader_epoch
        start = self.log.log_end_offset
        if new_epoch:
            # First, because the write can fail: then nothing has changed. Also before the first append: a
            # follower may have records with a later epoch than any in this log, and must truncate them
            # (KIP-101).
            self.log.assign_epoch_start(state.leader_epoch, start)
        self._assign(state)
        self.in_sync.set_isr(state.isr)
        self.is_leader = True
        self.leader_id = self.broker_id
        if new_epoch:
            # In an epoch that this leader has missed, another one may have made the followers truncate.
            has_led = not new_leader and state.leader_epoch == self.leader_epoch + 1
            self.in_sync.start_epoch(start, now_ms, has_led=has_led)
            self.leader_epoch = state.leader_epoch
            self.leader_epoch_start = start
        self._clamp_high_watermark()
        self._advance_and_notify(now_ms)
        return new_leader

    def become_follower(self, state: PartitionState) -> bool:
        """Become a follower, or a replica without a leader. Returns whether the leader epoch is new, so that
        fetching must start again."""
        assert state.leader != self.broker_id
        assert state.leader_epoch >= self.leader_epoch, "a leader epoch never goes back"
        if state.partition_epoch < self.partition_epoch:
            _logger.info("%r: ignoring the stale partition epoch %d", self, state.partition_epoch)
            return False
        new_epoch = state.leader_epoch > self.leader_epoch
        self.is_leader = False
        self.leader_id = state.leader
        self.leader_epoch = state.leader_epoch
        self.leader_epoch_start = NO_OFFSET
        self._assign(state)
        self.in_sync.clear()
        self._clamp_high_watermark()
        return new_epoch

    def retire(self, why: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> None:
        """Stop serving: the replica is removed, or its log directory has failed (KAFKA_STORAGE_ERROR).
        Requests that still have the object get the error `why`."""
        self._not_leader_error = why
        self.is_leader = False
        self.leader_id = -1
        self.leader_epoch_start = NO_OFFSET
        self.in_sync.clear()

    def _assign(self, state: PartitionState) -> None:
        self.partition_epoch = state.partition_epoch
        self.replicas = intern_brokers(state.replicas)
        self.in_sync.assign(state.replicas)

    def _clamp_high_watermark(self) -> None:
        log = self.log
        if self.high_watermark > log.log_end_offset:
            self.high_watermark = log.log_end_offset
        if self.high_watermark < log.log_start_offset:
            self.high_watermark = log.log_start_offset

    def maybe_notify_log_start(self) -> bool:
        """Notify the listener if the log start offset has changed (retention, DeleteRecords). Call on the
        event loop after a possible change; returns whether it has changed."""
        if self.log.log_start_offset == self._notified_log_start:
            return False
        self._notified_log_start = self.log.log_start_offset
        self.listener.changed(self)
        return True

    def config_changed(self, config: LogConfig, now_ms: int) -> None:
        """Apply the topic's changed configuration; a lower min.insync.replicas may commit records."""
        self.log.config = config
        if self.is_leader:
            self._advance_and_notify(now_ms)

    def log_replaced(self, log: Log) -> None:
        """Use the log in another log directory, which has the same records."""
        assert log.log_end_offset == self.log.log_end_offset
        assert log.log_start_offset == self.log.log_start_offset
        log.config = self.log.config
        log.verifies = self.log.verifies
        log.on_high_watermark_updated(self.high_watermark)
        log.producers.adopt_verifications(self.log.producers)
        self.log = log
        self.listener.changed(self)

    # --- the leader's log ---------------------------------------------------------------------------

    def append_as_leader(
        self,
        records: bytes | memoryview,
        *,
        required_acks: int,
        now_ms: int,
        client: bool = True,
        guard: object | None = None,
        allow_deferral: bool = False,
        validated: ValidatedBatch | None = None,
    ) -> LogAppendInfo:
        """Append a producer's batches. `now_ms` is wall time; `guard`, `allow_deferral` and `validated` are
        for the log. Raises NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS (acks=all below min.insync.replicas),
        and what the log raises."""
        if not self.is_leader:
            raise KafkaError(self._not_leader_error, f"{self!r} cannot append")
        if required_acks == ACKS_ALL and len(self.in_sync.committed) < self.min_in_sync:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self!r} has {len(self.isr)} replicas in sync, fewer than the {self.min_in_sync} required",
            )
        log = self.log
        info = log.append_as_leader(
            records,
            leader_epoch=self.leader_epoch,
            now_ms=now_ms,
            client=client,
            verification_guard=guard,
            allow_deferral=allow_deferral,
            validated=validated,
        )
        if info.duplicate:
            return info
        in_sync = self.in_sync
        if len(in_sync.maximal) > 1:
            committed = False  # the high watermark cannot advance before the followers fetch
        elif in_sync.followers:
            committed = self._advance_high_watermark(self._checked_ms)
        else:
            committed = True
            self.high_watermark = log.log_end_offset
            log.on_high_watermark_updated(log.log_end_offset)
        self.listener.log_appended(self, committed=committed)
        return info

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, now_ms: int
    ) -> VerificationGuard | None:
        """The verification guard for a transactional batch (KIP-890), None if none is required. Raises
        NOT_LEADER_OR_FOLLOWER."""
        if not self.is_leader:
            raise KafkaError(self._not_leader_error, f"{self!r} cannot append")
        return self.log.producers.begin_verification(producer_id, epoch, sequence, now_ms)

    def enough_replicas_for(self, offset: int) -> tuple[bool, ErrorCode]:
        """(complete, error) of an acks=all produce request that ends before `offset`
        (checkEnoughReplicas)."""
        if not self.is_leader:
            return True, self._not_leader_error
        if self.high_watermark < offset:
            return False, _NONE
        if len(self.maximal_isr) < self.min_in_sync:
            return True, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return True, _NONE

    def epoch_error(self, current_leader_epoch: int) -> ErrorCode:
        """The error of a request with this leader epoch, -1 for none (KIP-320)."""
        if current_leader_epoch < 0 or current_leader_epoch == self.leader_epoch:
            return _NONE
        if current_leader_epoch < self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH

    def leader_error(self, current_leader_epoch: int) -> ErrorCode:
        """The error of a request to the leader with this leader epoch, -1 for none."""
        error = self.epoch_error(current_leader_epoch)
        if error is _NONE and not self.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return error

    # --- in-sync replicas and the high watermark ----------------------------------------------------

    def follower_fetched(
        self,
        follower: Follower,
        offset: int,
        log_start_offset: int,
        leader_end: int,
        now_ms: int,
        broker_epoch: int = UNKNOWN_EPOCH,
    ) -> None:
        """Update the state for a follower's fetch at `offset`, with this leader's log end at `leader_end`."""
        follower.broker_epoch = broker_epoch
        moved = follower.fetched(offset, log_start_offset, leader_end, now_ms)
        in_sync = self.in_sync
        if in_sync.change is None:
            if follower.broker_id not in in_sync.committed:
                self._maybe_expand_isr(follower)
            elif offset < self.high_watermark:
                _logger.error(
                    "%r: removing in-sync replica %d from the ISR: it fetches from offset %d, below the high "
                    "watermark %d, so it has lost records",
                    self, follower.broker_id, offset, self.high_watermark,
                )  # fmt: skip
                self._propose(self.isr - {follower.broker_id})
        if moved:
            self._advance_and_notify(now_ms)

    def follower_was_idle(self, broker_id: int, at_ms: int, leader_epoch: int) -> None:
        """Update the state for a fetch at `at_ms` in a session that skipped this partition, because it had no
        change. A fetch with another leader epoch than this leader's is fenced, and says nothing: the follower
        may have left the ISR with the new epoch, because its log directory failed."""
        follower = self.in_sync.followers.get(broker_id)
        if follower is not None and self.epoch_error(leader_epoch) is _NONE:
            follower.was_idle(at_ms)

    def _maybe_expand_isr(self, follower: Follower) -> None:
        """Propose to add a follower that has reached the high watermark and the start of the leader epoch:
        before that start there may be records of a former leader that are not committed yet."""
        end = follower.log_end_offset
        if end < self.high_watermark or end < self.leader_epoch_start:
            return
        if self.in_sync.is_eligible(follower.broker_id):
            wider = self.isr | {follower.broker_id}
            _logger.info(
                "[Partition %s-%d] Expanding ISR from %s to %s",
                self.topic, self.partition, _brokers(self.isr), _brokers(wider),
            )  # fmt: skip
            self._propose(wider)

    def broker_left(self, now_ms: int) -> None:
        """Advance the high watermark after a broker has left the cluster: its follower may have held it
        back."""
        if self.is_leader and self.high_watermark < self.log.log_end_offset:
            self._advance_and_notify(now_ms)

    def maybe_shrink_isr(self, now_ms: int) -> None:
        """Propose to remove followers that did not reach the log end within replica.lag.time.max.ms. Call
        twice in that time."""
        if not self.is_leader:
            return
        # A follower outside the ISR may have exceeded the lag time since the last check.
        self.broker_left(now_ms)
        if self.in_sync.change is not None:
            return
        behind = self.in_sync.out_of_sync(self.log.log_end_offset, now_ms)
        if behind:
            kept = self.isr - behind
            _logger.info(
                "[Partition %s-%d] Shrinking ISR from %s to %s. Leader: (highWatermark: %d, endOffset: %d). "
                "Out of sync replicas: %s",
                self.topic, self.partition, _brokers(self.isr), _brokers(kept), self.high_watermark,
                self.log.log_end_offset, [self.follower(broker) or broker for broker in sorted(behind)],
            )  # fmt: skip
            self._propose(kept)

    def _propose(self, isr: frozenset[int]) -> None:
        assert self.is_leader
        self._propose_isr(self, self.in_sync.propose(isr, self.leader_epoch, self.partition_epoch))

    def isr_change_committed(
        self, change: IsrChange, *, leader_epoch: int, isr: frozenset[int], partition_epoch: int, now_ms: int
    ) -> bool:
        """Apply the controller's response to `change`. False if it is outdated."""
        if self.isr_change is not change or leader_epoch != self.leader_epoch:
            return False
        if partition_epoch < self.partition_epoch:
            return False
        self.in_sync.set_isr(isr)
        self.partition_epoch = partition_epoch
        _logger.info(
            "[Partition %s-%d] ISR updated to %s and version updated to %d",
            self.topic, self.partition, _brokers(isr), partition_epoch,
        )  # fmt: skip
        self._advance_and_notify(now_ms, isr_changed=True)
        return True

    def isr_change_failed(self, change: IsrChange, error: ErrorCode, now_ms: int) -> bool:
        """Handle the controller's error for `change`. Returns whether to retry it."""
        if self.isr_change is not change:
            return False
        match error:
            case ErrorCode.INELIGIBLE_REPLICA | ErrorCode.OPERATION_NOT_ATTEMPTED:
                # The only errors that confirm the committed ISR.
                self.in_sync.drop_change()
                # The proposed members do not hold back the high watermark any more.
                self._advance_and_notify(now_ms)
                return False
            case (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                | ErrorCode.UNKNOWN_TOPIC_ID
                | ErrorCode.FENCED_LEADER_EPOCH
                | ErrorCode.INVALID_UPDATE_VERSION
                | ErrorCode.INVALID_REQUEST
                | ErrorCode.NEW_LEADER_ELECTED
            ):
                _logger.info("%r: %s failed with %s, waiting for LeaderAndIsr", self, change, error.name)
                return False
            case _:
                _logger.warning("%r: %s failed with %s, retrying", self, change, error.name)
                return True

    def _advance_and_notify(self, now_ms: int, *, isr_changed: bool = False) -> None:
        # Notify after a changed ISR, too: a waiting produce may have to fail with too few in-sync replicas.
        if self._advance_high_watermark(now_ms) or isr_changed:
            self.listener.high_watermark_advanced(self)

    def _advance_high_watermark(self, now_ms: int) -> bool:
        """Advance the high watermark to the lowest end of the replicas that count.

        Not below min.insync.replicas: a record would be committed, and readable, that one more failure can
        lose (KAFKA-15583).
        """
        if len(self.in_sync.committed) < self.min_in_sync:
            return False
        self._checked_ms = now_ms
        committed = self.in_sync.common_end(self.log.log_end_offset, now_ms)
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        self.log.on_high_watermark_updated(committed)
        return True

    # --- the follower's log -------------------------------------------------------------------------

    def append_as_follower(
        self, records: bytes | memoryview, *, leader_high_watermark: int, leader_log_start: int, now_ms: int
    ) -> None:
        """Append the leader's records, if any, and apply its high watermark and log start offset."""
        assert not self.is_leader
        log = self.log
        if records:
            if log.log_end_offset == log.log_start_offset:
                self._align_empty_log(records)
            log.append_as_follower(records, now_ms=now_ms)
        committed = min(leader_high_watermark, log.log_end_offset)
        advanced = committed > self.high_watermark
        if advanced:
            self.high_watermark = committed
            log.on_high_watermark_updated(committed)
        if leader_log_start > log.log_start_offset:
            log.maybe_increment_log_start_offset(
                min(leader_log_start, self.high_watermark), "leader offset increment"
            )
            self.maybe_notify_log_start()
        if advanced:
            self.listener.high_watermark_advanced(self)

    def _align_empty_log(self, records: bytes | memoryview) -> None:
        """Start an empty log at the base offset of its first batch.

        After DeleteRecords, the leader's log start offset can be within a batch. A follower that starts there
        gets the whole batch; its log start offset follows later.
        """
        first = parse_batch_header(records)
        if first.base_offset < self.log.log_end_offset <= first.last_offset:
            self.log.truncate_fully_and_start_at(first.base_offset)

    def truncate_to(self, offset: int) -> None:
        """Truncate the records from `offset`, which the leader does not have."""
        assert not self.is_leader, "a leader never truncates"
        if offset < self.high_watermark:
            # Only after an unclean election, or with a leader that has lost records.
            _logger.warning(
                "%r: truncating to offset %d, below the high watermark %d", self, offset, self.high_watermark
            )
        self.log.truncate_to(offset)
        self._clamp_high_watermark()
        self.listener.changed(self)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Delete all records and start at `offset`: the leader's log starts after this log's end."""
        assert not self.is_leader, "a leader never truncates"
        _logger.warning(
            "%r: truncating fully and starting at offset %d, log end offset was %d",
            self, offset, self.log.log_end_offset,
        )  # fmt: skip
        self.log.truncate_fully_and_start_at(offset)
        self.high_watermark = self.log.log_end_offset
        self.listener.changed(self)


def _brokers(ids: Iterable[int]) -> str:
    return ",".join(map(str, sorted(ids)))
