"""What a log knows of the producers that wrote to it (KIP-98, KIP-185): idempotence and transactions.

Asked by `Log` before an append, told after it; `producer_history` fills it when a log is opened or
truncated, out of snapshots and batch headers.

Per producer id: its epoch, the last five batches (within which a retry is recognised), and where its
open transaction began. Invariants: `_ongoing` is in the order of first offsets, because transactions
begin in log order; a batch is recorded only once it is in the file.

Before the first batch of a transaction its coordinator is asked whether the partition is in it (KIP-890):
whoever asks holds a `Verification`, and the batch is taken only if that is still the one that is under way.
An end of the transaction in between, or another append, has thrown it away. So no batch that was long on its
way begins a transaction that nobody would ever end.

Sequence rules, as in Kafka 3.9: an unknown producer may begin anywhere (its past may have been
deleted by retention); a known one continues at last + 1, or at 0 under a newer epoch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records import (
    INT32_MAX,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    BatchHeader,
    ControlRecord,
    ControlType,
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


class Verification:
    """A question to the coordinator, under way. Compared by identity."""

    __slots__ = ("_begun_ms", "_epoch", "_lowest_sequence")

    def __init__(self, epoch: int, sequence: int, now_ms: int) -> None:
        self._epoch = epoch
        self._lowest_sequence = sequence
        self._begun_ms = now_ms

    def asked_again(self, epoch: int, sequence: int) -> None:
        if epoch > self._epoch:
            self._epoch = epoch
            self._lowest_sequence = sequence
        elif epoch == self._epoch and sequence < self._lowest_sequence:
            self._lowest_sequence = sequence

    def is_out_of_order(self, sequence: int) -> bool:
        """Whether a batch before this one is still to come again, because it could not be verified."""
        return sequence > self._lowest_sequence

    def age_ms(self, now_ms: int) -> int:
        return now_ms - self._begun_ms


class ProducerEntry:
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
        """Of the first batch that this log holds of the producer, if that is known."""
        self.batches: deque[BatchMetadata] = deque(maxlen=BATCHES_KEPT)
        self.last_timestamp = -1
        self.coordinator_epoch = -1
        self.transaction_start: int | None = None

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


class ProducerState:
    """All producers of one log."""

    __slots__ = ("_entries", "_ongoing", "_unreplicated", "_verifying", "verifies")

    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}
        self._ongoing: dict[int, int] = {}
        """Producer id to first offset, of open transactions."""
        self._unreplicated: list[tuple[int, int, int]] = []
        """(first offset, marker's offset, coordinator epoch before) of those that are complete, but whose
        marker is not known to be below the high watermark."""
        self._verifying: dict[int, Verification] = {}
        self.verifies = False
        """transaction.partition.verification.enable, of a broker that can ask coordinators."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._entries.get(producer_id)

    def entries(self) -> dict[int, ProducerEntry]:
        """A copy of producer id to entry (for DescribeProducers)."""
        return dict(self._entries)

    def all(self) -> Mapping[int, ProducerEntry]:
        """Producer id to entry, not a copy (for a snapshot)."""
        return self._entries

    @property
    def is_empty(self) -> bool:
        return not self._entries and not self._unreplicated

    def load(self, entries: Mapping[int, ProducerEntry]) -> None:
        """Begin with a snapshot's entries, which become this state's own."""
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
    ) -> Verification | None:
        """What to show with the batch once the coordinator has said that it belongs to a transaction; None if
        it need not be asked: the transaction is open here."""
        entry = self._entries.get(producer_id)
        if entry is not None and entry.transaction_start is not None:
            return None
        verification = self._verifying.get(producer_id)
        if verification is None:
            verification = self._verifying[producer_id] = Verification(epoch, sequence, now_ms)
        else:
            verification.asked_again(epoch, sequence)
        return verification

    def check_verified(self, producer_id: int, guard: object | None) -> None:
        """Whether a transactional batch may begin a transaction here. Raises KafkaError:
        INVALID_TXN_STATE."""
        entry = self._entries.get(producer_id)
        if not self.verifies or (entry is not None and entry.transaction_start is not None):
            return
        if guard is None or self._verifying.get(producer_id) is not guard:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "Record was not part of an ongoing transaction")

    def take_over_verifications(self, other: ProducerState) -> None:
        """Go on where another copy of the same log stops."""
        self.verifies = other.verifies
        self._verifying = other._verifying

    def find_duplicate(
        self, producer_id: int, epoch: int, first_sequence: int, last_sequence: int
    ) -> BatchMetadata | None:
        """The batch that a client's retry repeats, when it is one of the last five."""
        entry = self._entries.get(producer_id)
        if entry is None or entry.epoch != epoch:
            return None
        for batch in entry.batches:
            if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
                return batch
        return None

    def check_data(
        self, producer_id: int, epoch: int, first_sequence: int, transactional: bool, *, client: bool
    ) -> None:
        """Whether this batch may be appended by the leader.

        Raises KafkaError: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER (clients only) or
        INVALID_TXN_STATE (a plain write within the producer's own transaction).
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

    def check_marker(self, producer_id: int, epoch: int, marker: ControlRecord) -> None:
        """Whether this marker may be appended by the leader.

        Raises KafkaError: INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED.
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
    def _check_epoch(producer_id: int, entry: ProducerEntry, epoch: int) -> None:
        if epoch < entry.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} has epoch {entry.epoch}; {epoch} is fenced",
            )

    # --- after an append, on a follower, and in replay -------------------------------------------

    def record_data(
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
        """A data batch is in the log."""
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._entries[producer_id] = ProducerEntry(first_offset)
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

    def record_marker(
        self, producer_id: int, epoch: int, marker: ControlRecord, offset: int, timestamp: int
    ) -> None:
        """A marker is in the log, and ends the producer's transaction if it has one open."""
        self._verifying.pop(producer_id, None)
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._entries[producer_id] = ProducerEntry()
        if entry.epoch != epoch:
            entry.epoch = epoch
            entry.batches.clear()
        if entry.transaction_start is not None:
            del self._ongoing[producer_id]
            self._unreplicated.append((entry.transaction_start, offset, entry.coordinator_epoch))
            entry.transaction_start = None
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp = timestamp

    def forget_replicated(self, high_watermark: int) -> None:
        """Transactions whose marker lies below the high watermark are over for good. To be told whenever that
        advances: of a replica that nobody reads from, nobody asks for the last stable offset either."""
        unreplicated = self._unreplicated
        # Markers are in log order, so that the replicated ones are at the front.
        if unreplicated and unreplicated[0][1] < high_watermark:
            over = bisect_left(unreplicated, high_watermark, key=itemgetter(1))
            del unreplicated[:over]

    def take_back(self, tail: Sequence[BatchHeader], end_offset: int) -> dict[int, ProducerEntry] | None:
        """Undo what the batches of `tail`, all that the log holds from `end_offset` on, have changed.

        Returns the producers of whose batches before it none is remembered, to be found in the log and
        `restore`d. None if the state must be rebuilt: a marker was replicated already.
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

    # --- questions -------------------------------------------------------------------------------

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """The first offset of a transaction that is open, or whose marker is not below the high
        watermark; None when there is none. The last stable offset is this, or the high watermark."""
        self.forget_replicated(high_watermark)
        unreplicated = self._unreplicated
        if not unreplicated:
            return next(iter(self._ongoing.values()), None) if self._ongoing else None
        first = min(start for start, _, _ in unreplicated)
        return min(first, next(iter(self._ongoing.values()), first))

    def aborted_by(self, producer_id: int, marker: ControlRecord) -> int | None:
        """Where the transaction began that `marker`, about to be recorded, aborts; None without one."""
        if marker.type != ControlType.ABORT:
            return None
        return self._ongoing.get(producer_id)

    def first_open_besides(self, producer_id: int) -> int | None:
        """Where the oldest open transaction of another producer begins."""
        return next((start for other, start in self._ongoing.items() if other != producer_id), None)

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers silent for `expiration_ms` (producer.id.expiration.ms); how many."""
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
