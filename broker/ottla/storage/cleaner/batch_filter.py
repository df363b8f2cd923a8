"""Selects the records of a batch that stay when its log is cleaned, and rebuilds the batch (Kafka's
RecordFilter).

Called by `cleaner` in the worker process, for each batch of a log in order. As in Kafka 3.9:

* the last record of each key stays, and all records after the end of the offset map;
* a tombstone (no value) is removed after the batch's delete horizon. The first cleaning that keeps a
  tombstone writes the horizon into the batch, in place of the base timestamp (KIP-534);
* the marker of a transaction without records is removed in the same way; records of aborted transactions are
  removed at once;
* a batch without records stays if it is its producer's last (for the sequence number), or the last of the
  cleaned range (for the offset);
* a batch that keeps all records is kept byte for byte, in its compression.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ottla.protocol.batch_rewrites import with_records, without_records
from ottla.protocol.compression import Buffer, Codec, decompress
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records import (
    CODEC_MASK,
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    ControlType,
    append_varint,
    decode_batch,
    parse_control_record,
    read_varint,
)
from ottla.storage.cleaner.offset_map import OffsetMap
from ottla.storage.indexes import AbortedTransaction


class CleanedTransactionMetadata:
    """Tracks the transactions of a log while it is cleaned: which records were aborted, and which markers can
    be removed (KIP-98; Kafka's class of this name).

    Made by `cleaner` once for the offset map and once for the segments. Nothing after the last stable offset
    is cleaned, so that every transaction is decided, and the transaction indexes list the aborted ones in
    advance. Invariant: a marker is removed only if no batch of its transaction precedes it in the log:
    consumers that read records of a transaction also read its end.

    `on_abort_kept` is called with every aborted transaction whose marker stays.
    """

    def __init__(
        self,
        aborted: Iterable[AbortedTransaction],
        on_abort_kept: Callable[[AbortedTransaction], None] | None = None,
    ) -> None:
        self._ahead = [(each.first_offset, each.producer_id, each) for each in aborted]
        heapq.heapify(self._ahead)
        self._on_abort_kept = on_abort_kept
        self._ongoing_aborted: dict[int, AbortedTransaction] = {}
        self._seen: set[int] = set()
        """The producers of ongoing aborted transactions with a batch before."""
        self._ongoing_committed: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether this data batch belongs to an aborted transaction."""
        self._begin_up_to(header.last_offset)
        if not header.attributes & TRANSACTIONAL_FLAG:
            return False
        if header.producer_id in self._ongoing_aborted:
            self._seen.add(header.producer_id)
            return True
        self._ongoing_committed.add(header.producer_id)
        return False

    def can_discard_marker(self, header: BatchHeader, batch: memoryview) -> bool:
        """Whether this marker's transaction has no batch in the log."""
        self._begin_up_to(header.last_offset)
        if not header.record_count:
            return True  # emptied by an earlier cleaning; kept for its producer
        producer_id = header.producer_id
        match parse_control_record(decode_batch(batch)[0]).type:
            case ControlType.ABORT:
                aborted = self._ongoing_aborted.pop(producer_id, None)
                if aborted is None or producer_id not in self._seen:
                    return True
                self._seen.discard(producer_id)
                if self._on_abort_kept is not None:
                    self._on_abort_kept(aborted)
                return False
            case ControlType.COMMIT:
                if producer_id not in self._ongoing_committed:
                    return True
                self._ongoing_committed.discard(producer_id)
                return False
        return False

    def _begin_up_to(self, offset: int) -> None:
        while self._ahead and self._ahead[0][0] <= offset:
            _, producer_id, aborted = heapq.heappop(self._ahead)
            self._ongoing_aborted.setdefault(producer_id, aborted)


class LastOfProducer(NamedTuple):
    """The last data batch of an active producer: its last offset, -1 if there is no known batch."""

    offset: int
    epoch: int


@dataclass(slots=True)
class Counts:
    """Counts of records and bytes that were read and kept (Kafka's CleanerStats)."""

    records_read: int = 0
    records_kept: int = 0
    bytes_read: int = 0
    bytes_kept: int = 0
    keyless: int = 0
    """Records without a key, from before the topic was compacted; compaction removes them."""


class BatchFilter:
    """See the module. `upper_bound` is the end of the cleanable range; times are milliseconds."""

    def __init__(
        self,
        offsets: OffsetMap,
        transactions: CleanedTransactionMetadata,
        producers: Mapping[int, LastOfProducer],
        *,
        now_ms: int,
        delete_retention_ms: int,
        upper_bound: int,
    ) -> None:
        self._offsets = offsets
        self._transactions = transactions
        self._producers = producers
        self._now_ms = now_ms
        self._delete_retention_ms = delete_retention_ms
        self._upper_bound = upper_bound
        self.counts = Counts()

    def filter(self, header: BatchHeader, batch: memoryview) -> tuple[BatchHeader, Buffer] | None:
        """The filtered batch, as (header, bytes); None if it is removed.

        Raises KafkaError if the batch does not match its header.
        """
        counts = self.counts
        counts.bytes_read += header.size
        is_control = bool(header.attributes & CONTROL_FLAG)
        horizon = header.base_timestamp if header.attributes & DELETE_HORIZON_FLAG else None
        has_expired = horizon is not None and horizon <= self._now_ms
        if is_control:
            can_discard = self._transactions.can_discard_marker(header, batch)
            is_removed = can_discard and has_expired
        else:
            can_discard = False
            is_removed = self._transactions.is_aborted(header)
        if is_removed:
            counts.records_read += header.record_count
            return self._without_records(header)
        if is_control:
            counts.records_read += header.record_count
            if not header.record_count:
                return self._without_records(header)
            if can_discard and horizon is None:
                return self._rewritten(header, records_of(header, batch), header.record_count, None, True)
            return self._unchanged(header, batch)
        data = records_of(header, batch)
        try:
            kept = self._select(header, data, keeps_tombstones=not has_expired)
        except (IndexError, ValueError) as problem:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE, f"batch at offset {header.base_offset} is malformed: {problem}"
            ) from problem
        if not kept.record_count:
            return self._without_records(header)
        sets_horizon = kept.has_tombstone and horizon is None
        if kept.record_count == header.record_count and not sets_horizon:
            return self._unchanged(header, batch)
        return self._rewritten(header, kept.records, kept.record_count, kept.highest_delta, sets_horizon)

    def _select(self, header: BatchHeader, data: bytes, *, keeps_tombstones: bool) -> _Kept:
        """Scan the records, and join those that stay, neighbours at once."""
        find = self._offsets.get
        base_offset = header.base_offset
        latest = self._offsets.latest_offset - base_offset
        pos = kept = keyless = run = 0
        runs: list[bytes] = []
        has_tombstone = False
        highest: int | None = None
        for _ in range(header.record_count):
            start = pos
            # Varints of one byte, which are the most, are decoded inline: a call costs more than all the
            # rest.
            byte = data[pos]
            if byte < 0x80:
                length, pos = (byte >> 1) ^ -(byte & 1), pos + 1
            else:
                length, pos = read_varint(data, pos)
            end = pos + length
            byte = data[pos + 1]  # after one byte of attributes, unused
            if byte < 0x80:
                delta, pos = (byte >> 1) ^ -(byte & 1), pos + 2
            else:
                delta, pos = read_varint(data, pos + 1)
            byte = data[pos]
            if byte < 0x80:
                offset, pos = (byte >> 1) ^ -(byte & 1), pos + 1
            else:
                offset, pos = read_varint(data, pos)
            byte = data[pos]
            if byte < 0x80:
                length, pos = (byte >> 1) ^ -(byte & 1), pos + 1
            else:
                length, pos = read_varint(data, pos)
            key = None
            if length >= 0:
                key = data[pos : pos + length]
                pos += length
            has_value = not data[pos] & 1  # zigzag: odd is negative, and -1 is no value
            if pos >= end or end > len(data) or length < -1:
                raise ValueError(f"a record from {start} to {end} of {len(data)}")
            pos = end
            if offset > latest:
                stays = True
            elif key is None:
                stays = False
                keyless += 1
            else:
                stays = (has_value or keeps_tombstones) and base_offset + offset >= find(key)
            if stays:
                kept += 1
                if not has_value:
                    has_tombstone = True
                if highest is None or delta > highest:
                    highest = delta
            else:
                if run < start:
                    runs.append(data[run:start])
                run = end
        if pos != len(data):
            raise ValueError(f"{len(data) - pos} bytes after the last record")
        if run < pos:
            runs.append(data[run:pos])
        self.counts.records_read += header.record_count
        self.counts.keyless += keyless
        return _Kept(b"".join(runs), kept, has_tombstone, highest)

    def _unchanged(self, header: BatchHeader, batch: memoryview) -> tuple[BatchHeader, Buffer]:
        self.counts.records_kept += header.record_count
        self.counts.bytes_kept += header.size
        return header, batch

    def _rewritten(
        self, header: BatchHeader, records: bytes, count: int, highest_delta: int | None, sets_horizon: bool
    ) -> tuple[BatchHeader, Buffer]:
        max_timestamp = header.max_timestamp
        if highest_delta is not None and not header.attributes & LOG_APPEND_TIME_FLAG:
            max_timestamp = max(header.base_timestamp + highest_delta, NO_TIMESTAMP)
        new = header._replace(max_timestamp=max_timestamp, record_count=count)
        if sets_horizon:
            horizon = self._now_ms + self._delete_retention_ms
            records = _rebased(records, count, header.base_timestamp - horizon)
            new = new._replace(base_timestamp=horizon, attributes=header.attributes | DELETE_HORIZON_FLAG)
        return self._count_kept(new, with_records(new, records))

    def _without_records(self, header: BatchHeader) -> tuple[BatchHeader, Buffer] | None:
        """The batch without records if it must stay; None if it is removed."""
        if header.next_offset != self._upper_bound and not self._is_last_of_producer(header):
            return None
        return self._count_kept(header._replace(record_count=0), without_records(header))

    def _count_kept(self, header: BatchHeader, batch: bytearray) -> tuple[BatchHeader, Buffer]:
        self.counts.records_kept += header.record_count
        self.counts.bytes_kept += len(batch)
        return header._replace(batch_length=len(batch) - LOG_OVERHEAD), batch

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        if header.producer_id < 0:
            return False
        last = self._producers.get(header.producer_id)
        if last is None:
            return False
        if last.offset >= 0:
            return header.last_offset == last.offset
        # The log has only a marker of the producer: compare its epoch.
        return header.is_control and header.producer_epoch == last.epoch


class _Kept(NamedTuple):
    records: bytes
    record_count: int
    has_tombstone: bool
    highest_delta: int | None
    """Milliseconds from the base timestamp."""


def records_of(header: BatchHeader, batch: memoryview) -> bytes:
    """The decompressed records of a batch. Raises KafkaError."""
    body = batch[RECORD_BATCH_OVERHEAD:]
    if header.attributes & CODEC_MASK == Codec.NONE:
        return bytes(body)
    try:
        return decompress(header.codec, body)
    except KafkaError as problem:
        where = f"batch at offset {header.base_offset}"
        raise KafkaError(problem.code, f"{where}: {problem.message}") from problem


def _rebased(records: bytes, count: int, shift_ms: int) -> bytes:
    """The records with `shift_ms` added to their timestamp deltas."""
    out = bytearray()
    pos = 0
    for _ in range(count):
        length, start = read_varint(records, pos)
        pos = start + length
        delta, rest = read_varint(records, start + 1)
        record = bytearray(records[start : start + 1])
        append_varint(record, delta + shift_ms)
        record += records[rest:pos]
        append_varint(out, len(record))
        out += record
    return bytes(out)
