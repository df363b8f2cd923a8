"""The state of the producers that write to a log: idempotence and transactions (KIP-98, KIP-185).

`Log` validates appends against it and records them in it; `producer_state_manager` restores it from snapshots
and batch headers.

The state of a producer id is its epoch, its last five batches (in which a retry is recognised) and the first
offset of its open transaction. Invariants: `_ongoing` is in the order of first offsets, because transactions
begin in log order; a batch is recorded only after it is in the file.

Before the first batch of a transaction, the transaction coordinator verifies that the partition is part of it
(KIP-890). The request holds a `VerificationGuard`, and the batch is appended only if that guard is still
current: an end of the transaction or another append discards it. So a delayed batch cannot begin a
transaction that is never completed.

Sequence rules, as in Kafka 3.9: an unknown producer may begin with any sequence (its state may have been
deleted by retention); a known one continues at last + 1, or at 0 with a newer epoch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records import (
    CONTROL_FLAG,
    INT32_MAX,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    ControlRecord,
    ControlType,
    decode_batch,
    parse_control_record,
)

BATCHES_KEPT = 5


class BatchMetadata(NamedTuple):
    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class VerificationGuard:
    """A verification in progress. Compared by identity."""

    __slots__ = ("_begun_ms", "_epoch", "_lowest_sequence")

    def __init__(self, epoch: int, sequence: int, now_ms: int) -> None:
        self._epoch = epoch
        self._lowest_sequence = sequence
        self._begun_ms = now_ms

    def update(self, epoch: int, sequence: int) -> None:
        if epoch > self._epoch:
            self._epoch = epoch
            self._lowest_sequence = sequence
        elif epoch == self._epoch and sequence < self._lowest_sequence:
            self._lowest_sequence = sequence

    def is_out_of_order(self, sequence: int) -> bool:
        """Whether an earlier batch, which could not be verified, must be retried before this one."""
        return sequence > self._lowest_sequence

    def age_ms(self, now_ms: int) -> int:
        return now_ms - self._begun_ms


class ProducerStateEntry:
    """The state of one producer id."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "first_offset",
        "last_timestamp",
        "transaction_start",
    )

    def __init__(self, first_offset: int | None = None) -> None:
        self.epoch = NO_PRODUCER_EPOCH
        self.first_offset = first_offset
        """The first offset of the producer's first batch in this log, if known."""
        self.batches: deque[BatchMetadata] = deque(maxlen=BATCHES_KEPT)
        self.last_timestamp = -1
        self.coordinator_epoch = -1
        self.transaction_start: int | None = None

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


class ActiveProducers:
    """The producers of one log by producer id."""

    __slots__ = ("_entries", "_ongoing", "_unreplicated", "_verifying", "verifies")

    def __init__(self) -> None:
        self._entries: dict[int, ProducerStateEntry] = {}
        self._ongoing: dict[int, int] = {}
        """First offsets of open transactions by producer id."""
        self._unreplicated: list[tuple[int, int, int]] = []
        """(first offset, marker's offset, previous coordinator epoch) of the completed transactions whose
        marker is not known to be below the high watermark."""
        self._verifying: dict[int, VerificationGuard] = {}
        self.verifies = False
        """Whether transactions must be verified (transaction.partition.verification.enable)."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, producer_id: int) -> ProducerStateEntry | None:
        return self._entries.get(producer_id)

    def entries(self) -> dict[int, ProducerStateEntry]:
        """A copy of the map of entries (for DescribeProducers)."""
        return dict(self._entries)

    def all(self) -> Mapping[int, ProducerStateEntry]:
        """The map of entries, not a copy (for a snapshot)."""
        return self._entries

    @property
    def is_empty(self) -> bool:
        return not self._entries and not self._unreplicated

    def load(self, entries: Mapping[int, ProducerStateEntry]) -> None:
        """Replace the state with a snapshot's entries, which are not copied."""
        self.clear()
        self._entries.update(entries)
        self._find_ongoing()

    def clear(self) -> None:
        self._entries.clear()
        self._ongoing.clear()
        self._unreplicated.clear()

    # --- before an append ------------------------------------------------------------------------

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, now_ms: int
    ) -> VerificationGuard | None:
        """The guard to pass with the batch after the coordinator has verified the transaction. None if no
        verification is needed, because the transaction is open in this log."""
        entry = self._entries.get(producer_id)
        if entry is not None and entry.transaction_start is not None:
            return None
        verification = self._verifying.get(producer_id)
        if verification is None:
            verification = self._verifying[producer_id] = VerificationGuard(epoch, sequence, now_ms)
        else:
            verification.update(epoch, sequence)
        return verification

    def check_verified(self, producer_id: int, guard: object | None) -> None:
        """Raise INVALID_TXN_STATE if a transactional batch would begin a transaction without verification."""
        entry = self._entries.get(producer_id)
        if not self.verifies or (entry is not None and entry.transaction_start is not None):
            return
        if guard is None or self._verifying.get(producer_id) is not guard:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "Record was not part of an ongoing transaction")

    def adopt_verifications(self, other: ActiveProducers) -> None:
        """Continue the verifications of another copy of the same log."""
        self.verifies = other.verifies
        self._verifying = other._verifying

    def check_batch(
        self,
        batch: memoryview,
        producer_id: int,
        epoch: int,
        first_sequence: int,
        last_sequence: int,
        attributes: int,
        client: bool,
        verification_guard: object | None,
    ) -> BatchMetadata | None:
        """Raise KafkaError if the leader must reject a batch. Returns the original if the batch is a
        retry."""
        entry = self._entries.get(producer_id)
        if (
            client
            and entry is not None
            and epoch == entry.epoch
            and entry.batches
            and first_sequence == entry.batches[-1].last_sequence + 1
            and not attributes & (CONTROL_FLAG | TRANSACTIONAL_FLAG)
            and entry.transaction_start is None
            and not self._verifying
        ):
            return None  # the usual case: the checks below find nothing
        if attributes & CONTROL_FLAG:
            marker = parse_control_record(decode_batch(batch)[0])
            self.check_end_txn_marker(producer_id, epoch, marker)
            return None
        if client:
            original = self.find_duplicate(producer_id, epoch, first_sequence, last_sequence)
            if original is not None:
                return original
        transactional = bool(attributes & TRANSACTIONAL_FLAG)
        if transactional:
            self.check_verified(producer_id, verification_guard)
        self.check_data_batch(producer_id, epoch, first_sequence, transactional, client=client)
        return None

    def find_duplicate(
        self, producer_id: int, epoch: int, first_sequence: int, last_sequence: int
    ) -> BatchMetadata | None:
        """The original of a retried batch, if it is one of the producer's last five."""
        entry = self._entries.get(producer_id)
        if entry is None or entry.epoch != epoch:
            return None
        for batch in entry.batches:
            if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
                return batch
        return None

    def check_data_batch(
        self, producer_id: int, epoch: int, first_sequence: int, transactional: bool, *, client: bool
    ) -> None:
        """Raise KafkaError if the leader must reject this batch: INVALID_PRODUCER_EPOCH,
        OUT_OF_ORDER_SEQUENCE_NUMBER (clients only) or INVALID_TXN_STATE (a nontransactional batch within the
        producer's transaction).
        """
        entry = self._entries.get(producer_id)
        if client and self._verifying:
            verification = self._verifying.get(producer_id)
            if verification is not None and verification.is_out_of_order(first_sequence):
                if entry is not None:
                    self._check_epoch(producer_id, entry, epoch)
                raise KafkaError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {producer_id} sent sequence {first_sequence} before one still to be verified",
                )
        if entry is None:
            return
        self._check_epoch(producer_id, entry, epoch)
        if client:
            if epoch != entry.epoch:
                in_order = first_sequence == 0 or entry.epoch == NO_PRODUCER_EPOCH
            else:
                last = entry.last_sequence
                in_order = first_sequence == last + 1 or (first_sequence == 0 and last == INT32_MAX)
            if not in_order:
                raise KafkaError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {producer_id} of epoch {epoch} sent sequence {first_sequence} after "
                    f"{entry.last_sequence} of epoch {entry.epoch}",
                )
        if entry.transaction_start is not None and not transactional:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {producer_id} wrote outside the transaction that it began at offset "
                f"{entry.transaction_start}",
            )

    def check_end_txn_marker(self, producer_id: int, epoch: int, marker: ControlRecord) -> None:
        """Raise KafkaError if the leader must reject this marker: INVALID_PRODUCER_EPOCH or
        TRANSACTION_COORDINATOR_FENCED.
        """
        entry = self._entries.get(producer_id)
        if entry is None:
            return
        self._check_epoch(producer_id, entry, epoch)
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"marker for producer {producer_id} from coordinator epoch {marker.coordinator_epoch}; "
                f"{entry.coordinator_epoch} was seen already",
            )

    @staticmethod
    def _check_epoch(producer_id: int, entry: ProducerStateEntry, epoch: int) -> None:
        if epoch < entry.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} has epoch {entry.epoch}; {epoch} is fenced",
            )

    # --- after an append, on a follower, and in replay -------------------------------------------

    def append_data_batch(
        self,
        producer_id: int,
        epoch: int,
        first_sequence: int,
        last_sequence: int,
        first_offset: int,
        last_offset: int,
        timestamp: int,
        transactional: bool,
    ) -> None:
        """Record a data batch that is in the log."""
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._entries[producer_id] = ProducerStateEntry(first_offset)
        if entry.epoch != epoch:
            entry.epoch = epoch
            entry.batches.clear()
        entry.batches.append(
            BatchMetadata(first_sequence, last_sequence, last_offset, last_offset - first_offset, timestamp)
        )
        entry.last_timestamp = timestamp
        if transactional and self._verifying:
            self._verifying.pop(producer_id, None)
        if transactional and entry.transaction_start is None:
            entry.transaction_start = first_offset
            self._ongoing[producer_id] = first_offset

    def append_end_txn_marker(
        self, producer_id: int, epoch: int, marker: ControlRecord, offset: int, timestamp: int
    ) -> None:
        """Record a marker that is in the log: it ends the producer's open transaction."""
        self._verifying.pop(producer_id, None)
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._entries[producer_id] = ProducerStateEntry()
        if entry.epoch != epoch:
            entry.epoch = epoch
            entry.batches.clear()
        if entry.transaction_start is not None:
            del self._ongoing[producer_id]
            self._unreplicated.append((entry.transaction_start, offset, entry.coordinator_epoch))
            entry.transaction_start = None
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp = timestamp

    def on_high_watermark_updated(self, high_watermark: int) -> None:
        """Remove completed transactions whose marker is below the high watermark. Called for each advance of
        the high watermark: without consumers, the last stable offset is not computed."""
        unreplicated = self._unreplicated
        # Markers are in log order: the replicated ones are at the front.
        if unreplicated and unreplicated[0][1] < high_watermark:
            over = bisect_left(unreplicated, high_watermark, key=itemgetter(1))
            del unreplicated[:over]

    def roll_back(self, tail: Sequence[BatchHeader], end_offset: int) -> dict[int, ProducerStateEntry] | None:
        """Undo the changes of the batches of `tail`, all batches in the log from `end_offset` on.

        Returns the producers without a known batch before it; the caller restores their batches from the log.
        None if the state must be rebuilt, because a marker was replicated already.
        """
        touched = set()
        for header in reversed(tail):
            producer_id = header.producer_id
            if producer_id < 0:
                continue
            entry = self._entries.get(producer_id)
            if entry is None:
                return None
            if header.is_control:
                if not self._unreplicated or self._unreplicated[-1][1] != header.last_offset:
                    return None
                start, _, entry.coordinator_epoch = self._unreplicated.pop()
                entry.transaction_start = start
            elif entry.transaction_start == header.base_offset:
                entry.transaction_start = None
            touched.add(producer_id)
        unknown = {}
        for producer_id in touched:
            entry = self._entries[producer_id]
            if entry.first_offset is not None and entry.first_offset >= end_offset:
                del self._entries[producer_id]
                continue
            while entry.batches and entry.batches[-1].last_offset >= end_offset:
                entry.batches.pop()
            if entry.batches:
                entry.last_timestamp = entry.batches[-1].timestamp
            else:
                unknown[producer_id] = entry
        self._find_ongoing()
        return unknown

    def _find_ongoing(self) -> None:
        started = sorted(
            (entry.transaction_start, producer_id)
            for producer_id, entry in self._entries.items()
            if entry.transaction_start is not None
        )
        self._ongoing = {producer_id: start for start, producer_id in started}

    # --- queries ---------------------------------------------------------------------------------

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """The first offset of a transaction that is open or whose marker is not below the high watermark;
        None if there is none. The last stable offset is this or the high watermark."""
        self.on_high_watermark_updated(high_watermark)
        unreplicated = self._unreplicated
        if not unreplicated:
            return next(iter(self._ongoing.values()), None) if self._ongoing else None
        first = min(start for start, _, _ in unreplicated)
        return min(first, next(iter(self._ongoing.values()), first))

    def aborted_by(self, producer_id: int, marker: ControlRecord) -> int | None:
        """The first offset of the transaction that `marker`, not recorded yet, aborts; None if there is
        none."""
        if marker.type != ControlType.ABORT:
            return None
        return self._ongoing.get(producer_id)

    def first_open_besides(self, producer_id: int) -> int | None:
        """The first offset of the oldest open transaction of another producer."""
        return next((start for other, start in self._ongoing.items() if other != producer_id), None)

    def remove_expired(self, now_ms: int, expiration_ms: int) -> int:
        """Remove producers without a batch for `expiration_ms` (producer.id.expiration.ms); returns how
        many."""
        expired = [
            producer_id
            for producer_id, entry in self._entries.items()
            if entry.transaction_start is None and now_ms - entry.last_timestamp >= expiration_ms
        ]
        for producer_id in expired:
            del self._entries[producer_id]
        for producer_id, verification in list(self._verifying.items()):
            if verification.age_ms(now_ms) >= expiration_ms:
                del self._verifying[producer_id]
        return len(expired)
