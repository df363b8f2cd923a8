"""One partition's replica: what it may append, what it may show, and when a record is committed.

Called by the produce, fetch and offset handlers (through `manager`), by the follower's fetcher, and by the
coordinators' logs. Pure but for the log underneath: time is passed in (`now_ms`, of a clock that does not
step, but for what logs get: see `append_*`), a change of the in-sync set is handed to `propose_isr`, news
goes to the listener.

Invariants, asserted where they are cheap:
- log_start_offset <= high_watermark <= log_end_offset, and a leader's high watermark never goes back;
- a leader epoch never goes back, and a leader never truncates (KIP-320's premises);
- what lies below the high watermark is on every member of the maximal ISR (KIP-497);
- a follower truncates only to where the leader's log is known to diverge, never by high watermark (KIP-101).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final
from uuid import UUID

from ottla.metadata.sharing import shared
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records import parse_batch_header
from ottla.replication.isr import UNKNOWN_EPOCH, Follower, InSyncReplicas, IsrChange
from ottla.replication.listener import ReplicationListener
from ottla.replication.offsets import NO_EPOCH, NO_OFFSET
from ottla.replication.requests import PartitionState
from ottla.storage.log import Log, LogAppendInfo, ValidatedBatch
from ottla.storage.log_config import LogConfig
from ottla.storage.producer_state import VerificationGuard

_logger = logging.getLogger(__name__)

ACKS_ALL: Final = -1

_NONE: Final = ErrorCode.NONE


class Partition:
    """This broker's replica of a partition, as leader or as follower."""

    __slots__ = (
        "_log_start_told",
        "_looked_ms",
        "_propose_isr",
        "_why_no_leader",
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
        """`high_watermark` is the checkpointed one; `is_eligible(broker)` says whether a broker may join the
        ISR (it is alive); `lag_ms_max` is replica.lag.time.max.ms."""
        self.topic = topic
        self.partition = partition
        self.key = (topic, partition)
        self.broker_id = broker_id
        self.log = log
        self.listener = listener
        self.leader_id = -1
        self.leader_epoch = NO_EPOCH
        self.leader_epoch_start = NO_OFFSET
        """Where this leadership's records begin; -1 on a follower."""
        self.partition_epoch = -1
        self.is_leader = False
        self._why_no_leader = ErrorCode.NOT_LEADER_OR_FOLLOWER
        self.replicas: tuple[int, ...] = ()
        self.high_watermark = min(max(high_watermark, log.log_start_offset), log.log_end_offset)
        self.in_sync = InSyncReplicas(broker_id, lag_ms_max, is_eligible)
        """For this room alone: the leader's view of its followers."""
        self._propose_isr = propose_isr
        self._looked_ms = 0  # when the followers were last looked at
        self._log_start_told = log.log_start_offset

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
        """The in-sync set that the controller is known to have; empty on a follower."""
        return self.in_sync.committed

    @property
    def maximal_isr(self) -> frozenset[int]:
        """`isr`, and whom the controller was asked to add."""
        return self.in_sync.maximal

    @property
    def isr_change(self) -> IsrChange | None:
        """The change in flight. It stays after a refusal that leaves unknown what is in force, until the
        controller speaks."""
        return self.in_sync.change

    @property
    def last_stable_offset(self) -> int:
        """The end of what read_committed consumers see (KIP-98)."""
        return self.log.last_stable_offset(self.high_watermark)

    @property
    def min_in_sync(self) -> int:
        """min.insync.replicas, but never more than there are replicas."""
        return min(self.log.config.min_insync_replicas, len(self.replicas))

    def follower(self, broker_id: int) -> Follower | None:
        """What the leader knows of a follower's progress; None if it is no replica."""
        return self.in_sync.followers.get(broker_id)

    # --- roles --------------------------------------------------------------------------------------

    def become_leader(self, state: PartitionState, now_ms: int) -> bool:
        """Lead by the controller's word. Returns whether this broker did not lead before. Raises OSError,
        with nothing changed."""
        assert state.leader == self.broker_id
        assert state.leader_epoch >= self.leader_epoch, "a leader epoch never goes back"
        if state.partition_epoch < self.partition_epoch:
            _logger.info("%r ignores an older state of epoch %d", self, state.partition_epoch)
            return False
        new_leader = not self.is_leader
        new_epoch = state.leader_epoch > self.leader_epoch
        start = self.log.log_end_offset
        if new_epoch:
            # First, because the disk may refuse: then nothing has changed, and nobody leads here.
            # Also with nothing to append yet: a follower may hold records of an epoch later than any in
            # this log, and must learn where they stop being true (KIP-101).
            self.log.assign_epoch_start(state.leader_epoch, start)
        self._assign(state)
        self.in_sync.settle(state.isr)
        self.is_leader = True
        self.leader_id = self.broker_id
        if new_epoch:
            self.in_sync.start_epoch(start, now_ms, new_leader=new_leader)
            self.leader_epoch = state.leader_epoch
            self.leader_epoch_start = start
        self._clamp_high_watermark()
        self._advance_and_tell(now_ms)
        return new_leader

    def become_follower(self, state: PartitionState) -> bool:
        """Follow (or wait for a leader) by the controller's word. Returns whether the epoch is a new one,
        in which case fetching has to start over."""
        assert state.leader != self.broker_id
        assert state.leader_epoch >= self.leader_epoch, "a leader epoch never goes back"
        if state.partition_epoch < self.partition_epoch:
            _logger.info("%r ignores an older state of epoch %d", self, state.partition_epoch)
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
        """Serve no more: the replica is gone from this broker, or its disk has failed (KAFKA_STORAGE_ERROR).
        Whoever still holds it finds no leader, for that reason."""
        self._why_no_leader = why
        self.is_leader = False
        self.leader_id = -1
        self.leader_epoch_start = NO_OFFSET
        self.in_sync.clear()

    def _assign(self, state: PartitionState) -> None:
        self.partition_epoch = state.partition_epoch
        self.replicas = shared(state.replicas)
        self.in_sync.assign(state.replicas)

    def _clamp_high_watermark(self) -> None:
        log = self.log
        if self.high_watermark > log.log_end_offset:
            self.high_watermark = log.log_end_offset
        if self.high_watermark < log.log_start_offset:
            self.high_watermark = log.log_start_offset

    def log_start_checked(self) -> bool:
        """Tell the listener if the log's start has moved (retention, DeleteRecords). To be called on the
        event loop by whoever may have moved it; returns whether it has."""
        if self.log.log_start_offset == self._log_start_told:
            return False
        self._log_start_told = self.log.log_start_offset
        self.listener.changed(self)
        return True

    def config_changed(self, config: LogConfig, now_ms: int) -> None:
        """The topic's settings are others now; a lower min.insync.replicas may commit what waits."""
        self.log.config = config
        if self.is_leader:
            self._advance_and_tell(now_ms)

    def log_replaced(self, log: Log) -> None:
        """The log lies in another directory now, which has all that the former had."""
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
            raise KafkaError(self._why_no_leader, f"{self!r} cannot append")
        if required_acks == ACKS_ALL and len(self.in_sync.committed) < self.min_in_sync:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self!r} has {len(self.isr)} replicas in sync, fewer than the {self.min_in_sync} required",
            )
        info = self.log.append_as_leader(
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
        # A member of the ISR that is not us has not got these records, and holds the high watermark.
        advanced = len(self.in_sync.maximal) == 1 and self._advance_high_watermark(self._looked_ms)
        self.listener.log_appended(self)
        if advanced:
            self.listener.high_watermark_advanced(self)
        return info

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, now_ms: int
    ) -> VerificationGuard | None:
        """Before a transactional batch (KIP-890): what to append it with once its coordinator has agreed,
        None if that need not be asked. Raises NOT_LEADER_OR_FOLLOWER."""
        if not self.is_leader:
            raise KafkaError(self._why_no_leader, f"{self!r} cannot append")
        return self.log.producers.begin_verification(producer_id, epoch, sequence, now_ms)

    def enough_replicas_for(self, offset: int) -> tuple[bool, ErrorCode]:
        """Whether an acks=all produce that ends before `offset` is done, and how it went."""
        if not self.is_leader:
            return True, self._why_no_leader
        if self.high_watermark < offset:
            return False, _NONE
        if len(self.maximal_isr) < self.min_in_sync:
            return True, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return True, _NONE

    def epoch_error(self, current_leader_epoch: int) -> ErrorCode:
        """How a requester's idea of the leader epoch (-1: it has none) compares with ours (KIP-320)."""
        if current_leader_epoch < 0 or current_leader_epoch == self.leader_epoch:
            return _NONE
        if current_leader_epoch < self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH

    def leader_error(self, current_leader_epoch: int) -> ErrorCode:
        """Why this replica cannot speak as the leader of that epoch (-1: of whichever it is)."""
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
        """A follower asks for `offset` while this leader's log ends at `leader_end`: it has all before.
        `broker_epoch` is its registration."""
        follower.broker_epoch = broker_epoch
        moved = follower.fetched(offset, log_start_offset, leader_end, now_ms)
        in_sync = self.in_sync
        if in_sync.change is None:
            if follower.broker_id not in in_sync.committed:
                self._maybe_expand_isr(follower)
            elif offset < self.high_watermark:
                _logger.error(
                    "%r: in-sync replica %d fetches from offset %d, below the high watermark %d: it has lost "
                    "records, and leaves the ISR", self, follower.broker_id, offset, self.high_watermark,
                )  # fmt: skip
                self._propose(self.isr - {follower.broker_id})
        if moved:
            self._advance_and_tell(now_ms)

    def follower_was_idle(self, broker_id: int, at_ms: int) -> None:
        """A follower that has everything polled at `at_ms`, as part of a fetch session that did not look at
        this partition because nothing had happened to it."""
        follower = self.in_sync.followers.get(broker_id)
        if follower is not None:
            follower.was_idle(at_ms)

    def _maybe_expand_isr(self, follower: Follower) -> None:
        """Take in a follower that has all that is committed, and has caught up with this leadership: below
        its start there may be records of a former leader that were never committed but will be now."""
        end = follower.log_end_offset
        if end < self.high_watermark or end < self.leader_epoch_start:
            return
        if self.in_sync.is_eligible(follower.broker_id):
            self._propose(self.isr | {follower.broker_id})

    def follower_left(self, now_ms: int) -> None:
        """A broker has gone from the cluster: if its follower was about to join, it holds up the high
        watermark no longer, and no fetch will say so."""
        if self.is_leader and self.high_watermark < self.log.log_end_offset:
            self._advance_and_tell(now_ms)

    def maybe_shrink_isr(self, now_ms: int) -> None:
        """Ask for followers out that did not reach the log end within replica.lag.time.max.ms. To be called
        twice in that time."""
        if not self.is_leader:
            return
        # Caught up when it was looked at last, and too late by now.
        self.follower_left(now_ms)
        if self.in_sync.change is not None:
            return
        behind = self.in_sync.laggards(self.log.log_end_offset, now_ms)
        if behind:
            _logger.info(
                "%r, high watermark %d, end %d, shrinks its ISR %s: too slow are %s",
                self, self.high_watermark, self.log.log_end_offset, sorted(self.isr),
                [self.follower(broker) or broker for broker in sorted(behind)],
            )  # fmt: skip
            self._propose(self.isr - behind)

    def _propose(self, isr: frozenset[int]) -> None:
        assert self.is_leader
        self._propose_isr(self, self.in_sync.propose(isr, self.leader_epoch, self.partition_epoch))

    def isr_change_committed(
        self, change: IsrChange, *, leader_epoch: int, isr: frozenset[int], partition_epoch: int, now_ms: int
    ) -> bool:
        """The controller's state of the partition after `change`. False if it says nothing about now."""
        if self.isr_change is not change or leader_epoch != self.leader_epoch:
            return False
        if partition_epoch < self.partition_epoch:
            return False
        self.in_sync.settle(isr)
        self.partition_epoch = partition_epoch
        _logger.info("%r has ISR %s (partition epoch %d)", self, sorted(isr), partition_epoch)
        self._advance_and_tell(now_ms, isr_changed=True)
        return True

    def isr_change_refused(self, change: IsrChange, error: ErrorCode, now_ms: int) -> bool:
        """The controller refused `change`. Returns whether to ask again as it is."""
        if self.isr_change is not change:
            return False
        match error:
            case ErrorCode.INELIGIBLE_REPLICA | ErrorCode.OPERATION_NOT_ATTEMPTED:
                # The only refusals that say the committed set is what we think it is.
                self.in_sync.fall_back()
                # Whom the proposal made count may have left meanwhile.
                self._advance_and_tell(now_ms)
                return False
            case (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                | ErrorCode.UNKNOWN_TOPIC_ID
                | ErrorCode.FENCED_LEADER_EPOCH
                | ErrorCode.INVALID_UPDATE_VERSION
                | ErrorCode.INVALID_REQUEST
                | ErrorCode.NEW_LEADER_ELECTED
            ):
                _logger.info("%r was refused %s: %s; waits for LeaderAndIsr", self, change, error.name)
                return False
            case _:
                _logger.warning("%r was refused %s: %s; asks again", self, change, error.name)
                return True

    def _advance_and_tell(self, now_ms: int, *, isr_changed: bool = False) -> None:
        # A changed ISR wakes the waiting too: a produce may have to fail for want of replicas now.
        if self._advance_high_watermark(now_ms) or isr_changed:
            self.listener.high_watermark_advanced(self)

    def _advance_high_watermark(self, now_ms: int) -> bool:
        """Move the high watermark up to what all that count have.

        Not with fewer in sync than min.insync.replicas: a record would be committed, and readable, that one
        more failure can lose (KAFKA-15583).
        """
        if len(self.in_sync.committed) < self.min_in_sync:
            return False
        self._looked_ms = now_ms
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
        """Append what the leader sent (maybe nothing), and follow its high watermark and log start."""
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
            log.maybe_increment_log_start_offset(min(leader_log_start, self.high_watermark))
            self.log_start_checked()
        if advanced:
            self.listener.high_watermark_advanced(self)

    def _align_empty_log(self, records: bytes | memoryview) -> None:
        """DeleteRecords may put the leader's log start amid a batch. A follower that begins there is sent the
        whole batch: let its log begin with the batch, and its log start follow."""
        first = parse_batch_header(records)
        if first.base_offset < self.log.log_end_offset <= first.last_offset:
            self.log.truncate_fully_and_start_at(first.base_offset)

    def truncate_to(self, offset: int) -> None:
        """Drop the records from `offset` on, which the leader does not have."""
        assert not self.is_leader, "a leader never truncates"
        if offset < self.high_watermark:
            # Only an unclean election, or a leader that lost its disk, takes back what was committed.
            _logger.warning("%r truncates to %d, below %d", self, offset, self.high_watermark)
        self.log.truncate_to(offset)
        self._clamp_high_watermark()
        self.listener.changed(self)

    def start_over_at(self, offset: int) -> None:
        """Drop everything: the leader's log begins beyond the end of ours."""
        assert not self.is_leader, "a leader never truncates"
        _logger.warning("%r starts over at %d: its end was %d", self, offset, self.log.log_end_offset)
        self.log.truncate_fully_and_start_at(offset)
        self.high_watermark = self.log.log_end_offset
        self.listener.changed(self)
