"""One partition's log: appends, reads, truncation, retention, compaction (Kafka's UnifiedLog).

Used by replication's `Partition`, by the log manager's maintenance and by the log cleaner. `Log` assigns
offsets and leader epochs, and has four parts: `LocalLog` (the directory and its segments), `LogSegments`
(searches), `ProducerStateManager` and `LeaderEpochFileCache`. The high watermark is the partition's.

The produce path is `append_as_leader`: it validates the batch header and checksum, patches base offset and
leader epoch into a copy of the first 16 bytes, and writes that and the unchanged rest with one system call.
All checks that need the records are in `log_validator`.

Threads: appends, reads and truncations are called from the broker's event loop; flushes and retention from
the maintenance thread, which also runs the deferred tasks; segment replacement from the cleaner's threads.
Writers hold the local log's lock. Readers do not: they use the tuple of segments as it is at one moment.

The parts hold no reference to `Log`. A reference cycle would delay the release of a deleted log's descriptors
until a garbage collection, for ever for logs that exist when the broker freezes its objects (`gc.freeze`). So
the offsets, which are read for every request, are attributes of `Log`, and the parts get them as arguments.

Invariants: `log_start_offset <= log_end_offset`; a producer's state is changed only after its batch is in the
file; the recovery point is not beyond a batch whose leader epoch is not on disk; segments are replaced only
by segments that were made of them, and only if the log was not truncated below their end meanwhile.
"""

from __future__ import annotations

import errno
import logging
import sys
import uuid
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple, TypeAlias

from crc32c import crc32c

from ottla.ports import OS_RANDOM
from ottla.ports.files import OS_FILES, sync_path
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records import (
    BATCH_HEADER,
    CODEC_MASK,
    CONTROL_FLAG,
    CRC_START,
    HEAD_BYTES,
    INT32_MAX,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAGIC_V2,
    RECORD_BATCH_OVERHEAD,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    last_sequence,
)
from ottla.storage import log_validator
from ottla.storage.deferred_tasks import DeferredTasks
from ottla.storage.index_recovery import verify_max_timestamp
from ottla.storage.indexes import AbortedTransaction
from ottla.storage.leader_epochs import LeaderEpochFileCache
from ottla.storage.local_log import LocalLog
from ottla.storage.log_config import INT64_MAX, LogConfig
from ottla.storage.log_dir import LogDir
from ottla.storage.log_loader import load_segments
from ottla.storage.log_segment import HEAD, LogSegment
from ottla.storage.log_segments import TimestampAndOffset
from ottla.storage.producer_state import ActiveProducers
from ottla.storage.producer_state_manager import ProducerStateManager
from ottla.storage.retention import BUILT_IN, DeletionPolicy, LogFacts, deletable_within, log_facts
from ottla.storage.segment_files import LogRead

logger = logging.getLogger(__name__)

_NOT_FROM_CLIENTS = CONTROL_FLAG | LOG_APPEND_TIME_FLAG
_NEEDS_VALIDATOR = LOG_APPEND_TIME_FLAG | CODEC_MASK

ValidatedBatch: TypeAlias = tuple[bytes | memoryview, int]
"""The result of `log_validator.validate`: a batch and its log append time."""


class LogAppendInfo(NamedTuple):
    """The result of an append; times are milliseconds."""

    first_offset: int
    last_offset: int
    max_timestamp: int
    log_append_time: int
    """-1 under CreateTime; for a duplicate the original's timestamp, as in Kafka."""
    log_start_offset: int
    duplicate: bool
    """Nothing was appended: the batch is in the log already, or (offsets -1) the request had no records."""


class Log:
    """See the module. Create one with `Log.open`."""

    # Slots: a broker has thousands of idle logs.
    __slots__ = (
        "_flush_offset",
        "_is_plain",
        "_leader_epochs",
        "_local",
        "_max_message_bytes",
        "_producer_state",
        "_producers",
        "_rewrites_brokers_batches",
        "_verifies",
        "durable_to",
        "first_dirty_offset",
        "latest_epoch",
        "log_end_offset",
        "log_start_offset",
        "truncated_to",
    )

    def __init__(
        self,
        local: LocalLog,
        producer_state: ProducerStateManager,
        leader_epochs: LeaderEpochFileCache,
        *,
        log_start_offset: int,
        log_end_offset: int,
    ) -> None:
        self._local = local
        self._producer_state = producer_state
        self._leader_epochs = leader_epochs
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.latest_epoch = leader_epochs.latest
        self.durable_to = 0
        """The recovery point in the directory's checkpoint file."""
        self.first_dirty_offset: int | None = None
        """The offset up to which the log is cleaned, set by the cleaner; None for the log's start."""
        self.truncated_to = INT64_MAX
        """The lowest truncation since the cleaner last set this."""
        self._producers: ActiveProducers | None = None
        """The producers, if there are any or `producers` was used."""
        self._verifies = False
        self._find_producers()
        self._apply_config()

    @classmethod
    def open(
        cls,
        directory: Path,
        config: LogConfig,
        *,
        recovery_point: int | None = None,
        log_start_offset: int = 0,
        clean_shutdown: bool = False,
        now_ms: int = 0,
        deferred_tasks: DeferredTasks | None = None,
        log_dir: LogDir | None = None,
    ) -> Log:
        """Open or create the log in `directory`; after a crash, verify it and cut invalid batches at its end.

        `recovery_point`: data before it is on the disk, and only there segments are cleaned; None: unknown.
        Deleted files are left to `deferred_tasks`; without, to the next start. Raises OSError, and
        UnsupportedMessageFormat for formats that only another version can open.
        """
        log_dir = log_dir or LogDir(directory.parent, files=OS_FILES, source=OS_RANDOM)
        files = log_dir.files
        path = sys.intern(str(directory))
        try:
            names = files.listdir(path)
        except FileNotFoundError:
            # Not synced, as a broker may create thousands at once: the first flush does it.
            files.mkdir(path)
            names = []
        producer_state = ProducerStateManager(files, path, names)
        leader_epochs = LeaderEpochFileCache(files, path)
        segments, end_offset = load_segments(
            files,
            path,
            names,
            config,
            producer_state,
            leader_epochs,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            clean_shutdown=clean_shutdown,
            now_ms=now_ms,
        )
        log_start_offset = max(log_start_offset, segments[0].base_offset)
        leader_epochs.truncate_from_start(log_start_offset)
        local = LocalLog(
            path,
            config,
            segments,
            deferred_tasks or DeferredTasks(),
            log_dir,
            recovery_point=end_offset if clean_shutdown else min(max(recovery_point or 0, 0), end_offset),
            now_ms=now_ms,
        )
        log = cls(
            local,
            producer_state,
            leader_epochs,
            log_start_offset=log_start_offset,
            log_end_offset=end_offset,
        )
        log.durable_to = recovery_point or 0
        return log

    # --- properties ------------------------------------------------------------------------------

    @property
    def directory(self) -> Path:
        return self._local.directory

    @property
    def log_dir(self) -> LogDir:
        return self._local.log_dir

    @property
    def config(self) -> LogConfig:
        return self._local.config

    @config.setter
    def config(self, config: LogConfig) -> None:
        """Takes effect for the next append, roll and retention."""
        self._local.config = config
        self._apply_config()

    def _apply_config(self) -> None:
        config = self._local.config
        self._max_message_bytes = config.max_message_bytes
        self._is_plain = not log_validator.needs_rewrite_or_records(config)
        self._rewrites_brokers_batches = not self._is_plain and log_validator.rewrites_brokers_batches(config)
        self._update_flush_offset()

    def _update_flush_offset(self) -> None:
        """The last offset that makes an append flush the log (flush.messages)."""
        self._flush_offset = self._local.recovery_point + self._local.config.flush_messages - 1

    @property
    def closed(self) -> bool:
        """Whether the log rejects appends: it was closed or deleted, or its directory has failed."""
        return self._local.closed

    @closed.setter
    def closed(self, closed: bool) -> None:
        self._local.closed = closed

    @property
    def recovery_point(self) -> int:
        """The offset before which all data is on disk."""
        return self._local.recovery_point

    @property
    def truncations(self) -> int:
        """How often data was dropped from the log's end."""
        return self._local.truncations

    @property
    def segments(self) -> tuple[LogSegment, ...]:
        """The segments at this moment, the active one last."""
        return self._local.segments.all

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return self._local.segments.size

    @property
    def topic_id(self) -> uuid.UUID | None:
        """The topic's id; set once, when the first LeaderAndIsr request contains it."""
        return self._local.topic_id

    @topic_id.setter
    def topic_id(self, topic_id: uuid.UUID) -> None:
        self._local.set_topic_id(topic_id)

    # --- appending -------------------------------------------------------------------------------

    def append_as_leader(
        self,
        records: bytes | memoryview,
        *,
        leader_epoch: int,
        now_ms: int,
        client: bool = True,
        verification_guard: object | None = None,
        allow_deferral: bool = False,
        validated: ValidatedBatch | None = None,
    ) -> LogAppendInfo:
        """Append one batch of a producer (or, with `client` false, of a coordinator).

        `verification_guard` is the result of `producers.begin_verification` for the first batch of a
        transaction. With `allow_deferral`, raises log_validator.ValidationDeferred if the validation may take
        long; the caller then passes the result of `log_validator.validate` as `validated`.

        Assigns offsets and the leader epoch. Answers a retry of one of the producer's last five batches with
        the original's offsets. Raises KafkaError: CORRUPT_MESSAGE, INVALID_RECORD, MESSAGE_TOO_LARGE,
        RECORD_LIST_TOO_LARGE, INVALID_TIMESTAMP, UNSUPPORTED_COMPRESSION_TYPE, OUT_OF_ORDER_SEQUENCE_NUMBER,
        INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, TRANSACTION_COORDINATOR_FENCED, KAFKA_STORAGE_ERROR.
        """
        view = memoryview(records if validated is None else validated[0])
        size = len(view)
        is_batch = size >= RECORD_BATCH_OVERHEAD
        # fmt: off
        if is_batch:
            (base_offset, length, _, magic, crc, attributes, delta, _, max_timestamp,
             producer_id, producer_epoch, sequence, count) = BATCH_HEADER.unpack_from(view)
            is_batch = magic == MAGIC_V2 and length + LOG_OVERHEAD == size
        if not is_batch:
            if size or validated is None:
                view = log_validator.to_single_v2_batch(
                    view, self._local.config, now_ms, allow_deferral=allow_deferral
                )
                size = len(view)
            if not size:
                return LogAppendInfo(-1, -1, -1, -1, self.log_start_offset, True)
            (base_offset, length, _, _, crc, attributes, delta, _, max_timestamp,
             producer_id, producer_epoch, sequence, count) = BATCH_HEADER.unpack_from(view)
        # fmt: on
        if size > self._max_message_bytes:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a batch of {size} bytes; the topic takes at most {self._max_message_bytes}",
            )
        if crc32c(view[CRC_START:]) != crc:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the batch's checksum is not {crc:#010x}")
        if client and (
            base_offset
            or delta != count - 1
            or delta < 0
            or attributes & _NOT_FROM_CLIENTS
            or (producer_id >= 0 and sequence < 0)
            or attributes & CODEC_MASK > 4
        ):
            log_validator.check_client_batch(base_offset, attributes, delta, producer_id, sequence, count)
        log_append_time = -1
        if validated is not None:
            log_append_time = validated[1]
        elif (not self._is_plain or attributes & _NEEDS_VALIDATOR) and (
            client or self._rewrites_brokers_batches
        ):
            view, log_append_time = log_validator.prepare_batch(
                view, self._local.config, now_ms, client=client, allow_deferral=allow_deferral
            )
            size = len(view)
            length = size - LOG_OVERHEAD
            max_timestamp = BATCH_HEADER.unpack_from(view)[8]
            if size > self._max_message_bytes:
                raise KafkaError(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"a recompressed batch of {size} bytes; at most {self._max_message_bytes}",
                )
        local = self._local
        with local.lock:
            if local.closed:
                raise local.storage_error("append to", OSError(errno.EBADF, "closed"))
            if producer_id >= 0:
                producers = self.producers
                final_sequence = last_sequence(sequence, delta)
                original = producers.check_batch(
                    view,
                    producer_id,
                    producer_epoch,
                    sequence,
                    final_sequence,
                    attributes,
                    client,
                    verification_guard,
                )
                if original is not None:
                    return LogAppendInfo(
                        original.first_offset,
                        original.last_offset,
                        original.timestamp,
                        original.timestamp,
                        self.log_start_offset,
                        True,
                    )
            first_offset = self.log_end_offset
            last_offset = first_offset + delta
            segment = local.active
            if segment.first_timestamp >= 0:
                age_ms = max_timestamp - segment.first_timestamp
            else:
                age_ms = now_ms - segment.created_ms
                local.flush_topic_id()
            if (
                segment.size + size > local.segment_bytes
                or age_ms > local.roll_ms
                or last_offset - segment.base_offset > INT32_MAX
                or segment.index_full
            ):
                segment = self._roll_for(size, now_ms)
            if leader_epoch != self.latest_epoch:
                self.assign_epoch_start(leader_epoch, first_offset)
            try:
                segment.append(
                    HEAD.pack(first_offset, length, leader_epoch),
                    view[HEAD_BYTES:],
                    size,
                    first_offset,
                    last_offset,
                    max_timestamp,
                )
            except OSError as problem:
                raise local.storage_error("append to", problem) from problem
            self.log_end_offset = last_offset + 1
            if producer_id < 0:
                pass
            elif attributes & CONTROL_FLAG:
                header = BatchHeader(*BATCH_HEADER.unpack_from(view))._replace(base_offset=first_offset)
                try:
                    self._producer_state.update(header, view, segment)
                except OSError as problem:
                    raise local.storage_error("append to the transaction index of", problem) from problem
            else:
                producers.append_data_batch(
                    producer_id,
                    producer_epoch,
                    sequence,
                    final_sequence,
                    first_offset,
                    last_offset,
                    max_timestamp,
                    bool(attributes & TRANSACTIONAL_FLAG),
                )
        if last_offset >= self._flush_offset:
            self.flush()
        return LogAppendInfo(
            first_offset, last_offset, max_timestamp, log_append_time, self.log_start_offset, False
        )

    def append_as_follower(self, records: bytes | memoryview, *, now_ms: int) -> LogAppendInfo:
        """Append the leader's batches with their offsets and epochs. A partial batch at the end is ignored;
        gaps between offsets (of a compacted leader) are allowed.

        Raises KafkaError: CORRUPT_MESSAGE, OFFSET_OUT_OF_RANGE if the batches do not follow the log end
        offset, UNSUPPORTED_FOR_MESSAGE_FORMAT, KAFKA_STORAGE_ERROR.
        """
        view = memoryview(records)
        batches = log_validator.validate_leader_batches(view, self.log_end_offset)
        if not batches:
            raise KafkaError(ErrorCode.INVALID_RECORD, f"{len(view)} bytes hold no whole batch")
        local = self._local
        with local.lock:
            try:
                if local.closed:
                    raise OSError(errno.EBADF, "closed")
                self._append_batches(view, batches, now_ms)
            except OSError as problem:
                raise local.storage_error("append to", problem) from problem
        if self.log_end_offset > self._flush_offset:
            self.flush()
        first, last = batches[0][1], batches[-1][1]
        return LogAppendInfo(
            first.base_offset,
            last.last_offset,
            max(header.max_timestamp for _, header in batches),
            -1,
            self.log_start_offset,
            False,
        )

    def _append_batches(self, view: memoryview, batches: list[tuple[int, BatchHeader]], now_ms: int) -> None:
        """Write batches with one system call for each segment."""
        local = self._local
        at = 0
        while at < len(batches):
            run_start, first = batches[at]
            segment = local.active
            local.flush_topic_id()
            if local.needs_roll(first.size, first.last_offset, first.max_timestamp, now_ms):
                # At the log's end, though the leader's log may have a gap here: segments that are not
                # cleaned end where the next one begins, and recovery relies on it.
                is_far = first.last_offset - self.log_end_offset > INT32_MAX
                segment = self._roll_for(first.size, now_ms, first.base_offset if is_far else None)
            run_end = run_start
            stop = at
            while stop < len(batches):
                pos, header = batches[stop]
                fits = segment.size + (pos - run_start) + header.size <= local.segment_bytes
                if stop > at and (not fits or header.last_offset - segment.base_offset > INT32_MAX):
                    break
                run_end = pos + header.size
                stop += 1
            for _, header in batches[at:stop]:
                if header.partition_leader_epoch != self.latest_epoch:
                    self.assign_epoch_start(header.partition_leader_epoch, header.base_offset)
            segment.write(view[run_start:run_end])
            for pos, header in batches[at:stop]:
                segment.register_batch(
                    header.size, header.base_offset, header.last_offset, header.max_timestamp
                )
                self.log_end_offset = header.last_offset + 1
                if header.producer_id >= 0:
                    self._producer_state.update(header, view[pos : pos + header.size], segment)
            at = stop
        self._find_producers()

    def roll(self, now_ms: int, base_offset: int | None = None) -> None:
        """Seal the active segment and begin a new one, unless it is empty. No fsync."""
        local = self._local
        with local.lock, local.io("roll"):
            if local.active.size == 0:
                return
            offset = max(self.log_end_offset, base_offset or 0)
            segment = local.create_next_segment(offset, now_ms)
            self._producer_state.take_snapshot(offset, self.log_start_offset, sync=False)
            local.set_segments([*local.segments.all, segment])
            local.deferred_tasks.schedule(self.flush_sealed)
            logger.info("[%s] Rolled new log segment at offset %d", self.directory.name, offset)

    def _roll_for(self, size: int, now_ms: int, base_offset: int | None = None) -> LogSegment:
        """Roll, and return the segment for a batch of `size` bytes."""
        local = self._local
        if size > local.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"a batch of {size} bytes is larger than a segment of {local.segment_bytes}",
            )
        if local.active.size == 0:
            local.active.created_ms = now_ms
        else:
            self.roll(now_ms, base_offset)
        return local.active

    # --- reading ---------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, up_to: int, min_one: bool = True) -> LogRead:
        """File ranges of one segment, from the batch that holds `offset` to the one that holds `up_to`, the
        latter excluded.

        As in Kafka, `max_bytes` may cut the last batch; with `min_one` the first batch is complete whatever
        its size, without it the result is empty if the first batch does not fit. `up_to` is a high watermark
        or last stable offset. Raises KafkaError: OFFSET_OUT_OF_RANGE outside [log_start_offset,
        log_end_offset], KAFKA_STORAGE_ERROR.
        """
        log_end = self.log_end_offset
        if offset < self.log_start_offset or offset > log_end:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not within {self.log_start_offset} to {log_end}",
            )
        if up_to > log_end:
            up_to = log_end
        if offset >= up_to or max_bytes < 0:
            return LogRead(offset, [], 0)
        try:
            segment = self._local.active
            if offset >= segment.base_offset:
                position = segment.position_of(offset)
                limit = segment.size if up_to == log_end else segment.position_of(up_to)
            else:
                segment, position, limit = self._local.segments.locate(offset, up_to, log_end)
            length = limit - position
            if length > max_bytes:
                length = max_bytes
                # From the file, as Kafka: a damaged length is the consumer's to see.
                first_size = segment.batch_size_at(position)
                if first_size > max_bytes:
                    length = min(first_size, limit - position) if min_one else 0
        except OSError as problem:
            raise self._local.storage_error("read", problem) from problem
        if segment.index_is_suspect:
            self._local.deferred_tasks.schedule(self.rebuild_indexes)
        if length <= 0:
            return LogRead(offset, [], 0)
        return LogRead(offset, [segment.slice(position, length)], length)

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampAndOffset | None:
        """(offset, timestamp, leader epoch) of the first record at or after `timestamp_ms`."""
        with self._local.io("read"):
            result = self._local.segments.offset_for_timestamp(timestamp_ms, self.log_start_offset)
            self._rebuild_suspect_indexes_later()
            return result

    def max_timestamp(self) -> TimestampAndOffset | None:
        """(offset, timestamp, leader epoch) of the first record with the max timestamp (KIP-734)."""
        with self._local.io("read"):
            result = self._local.segments.max_timestamp()
            self._rebuild_suspect_indexes_later()
            return result

    def segment_starts_before(self, timestamp_ms: int, now_ms: int) -> list[int]:
        """Start offsets of the segments that were last written before `timestamp_ms`, newest first, with the
        log end offset if that is before it, too (ListOffsets 0)."""
        with self._local.io("read"):
            return self._local.segments.start_offsets_before(
                timestamp_ms, self.log_start_offset, self.log_end_offset, now_ms
            )

    def aborted_transactions(self, fetch_offset: int, read: LogRead | None) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions that a read_committed consumer must skip in
        `read`, a read at `fetch_offset`. As in Kafka, some may begin after it."""
        if read is None or not read.slices:
            return []
        with self._local.io("read"):
            aborted = self._local.segments.aborted_in_slice(
                fetch_offset, read.slices[-1], self.log_end_offset
            )
        return [(each.producer_id, each.first_offset) for each in aborted]

    def collect_aborted_transactions(self, fetch_offset: int, upper_bound: int) -> list[AbortedTransaction]:
        """The aborted transactions that overlap [fetch_offset, upper_bound)."""
        return self._local.segments.aborted_between(fetch_offset, upper_bound)

    def rebuild_indexes(self) -> None:
        """Rebuild the indexes that contradicted the log. Blocking."""
        if not self.closed:
            with self._local.io("rebuild an index of"):
                self._local.segments.rebuild_suspect_indexes(self._local.lock)

    def _rebuild_suspect_indexes_later(self) -> None:
        if self._local.segments.has_suspect_index:
            self._local.deferred_tasks.schedule(self.rebuild_indexes)

    # --- producers -------------------------------------------------------------------------------

    @property
    def producers(self) -> ActiveProducers:
        """The active producers, created on first use."""
        producers = self._producers
        if producers is None:
            with self._local.lock:
                producers = self._producer_state.producers
                producers.verifies = self._verifies
                self._producers = producers
        return producers

    def _find_producers(self) -> None:
        """Set `_producers` if the producer state has any since the last call."""
        if self._producers is None and self._producer_state.has_producers:
            self._producers = self.producers

    @property
    def verifies(self) -> bool:
        """Whether transactions must be verified before they begin in this log (KIP-890)."""
        return self._verifies

    @verifies.setter
    def verifies(self, verifies: bool) -> None:
        self._verifies = verifies
        if self._producers is not None:
            self._producers.verifies = verifies

    def remove_expired_producers(self, now_ms: int, expiration_ms: int) -> int:
        """Remove producers without a batch for `expiration_ms` (producer.id.expiration.ms); returns how
        many."""
        if self._producers is None:
            return 0
        with self._local.lock:
            return self._producers.remove_expired(now_ms, expiration_ms)

    def last_producer_batches(self) -> list[tuple[int, int, int]]:
        """(producer id, last offset of its last data batch or -1, epoch) of every producer."""
        with self._local.lock:
            return [
                (producer_id, entry.batches[-1].last_offset if entry.batches else -1, entry.epoch)
                for producer_id, entry in self.producers.all().items()
            ]

    def on_high_watermark_updated(self, high_watermark: int) -> None:
        """All data before `high_watermark` is replicated."""
        if self._producers is not None:
            self._producers.on_high_watermark_updated(high_watermark)

    def last_stable_offset(self, high_watermark: int) -> int:
        """The offset up to which read_committed consumers read (KIP-98)."""
        if self._producers is None:
            return high_watermark
        unstable = self._producers.first_unstable_offset(high_watermark)
        if unstable is None or unstable >= high_watermark:
            return high_watermark
        return max(unstable, self.log_start_offset)

    # --- leader epochs ---------------------------------------------------------------------------

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(largest epoch at or below `epoch`, its end offset); (-1, -1) unknown (KIP-101, KIP-279)."""
        with self._local.lock:  # retention truncates the epochs from another thread
            return self._leader_epochs.end_offset_for(epoch, self.log_end_offset)

    def epoch_start(self, epoch: int) -> int | None:
        return self._leader_epochs.start_of(epoch)

    def epoch_at(self, offset: int) -> int | None:
        """The leader epoch in which `offset` was written."""
        with self._local.lock:
            return self._leader_epochs.epoch_at(offset)

    def epochs(self) -> list[tuple[int, int]]:
        """(epoch, start offset), ascending."""
        with self._local.lock:
            return self._leader_epochs.entries()

    def assign_epoch_start(self, epoch: int, offset: int) -> None:
        """Record that `epoch` starts at `offset`: on becoming leader, and with an epoch's first batch."""
        with self._local.lock, self._local.io("record a leader epoch of"):
            self._leader_epochs.assign(epoch, offset)
            self._on_epochs_changed(is_urgent=offset < self.log_end_offset)

    def write_epochs(self) -> None:
        """Write the leader epoch checkpoint if it changed. No fsync."""
        with self._local.lock, self._local.io("write the leader epochs of"):
            if not self.closed:
                self._leader_epochs.write()

    def _on_epochs_changed(self, *, is_urgent: bool = True) -> None:
        """An epoch that starts at the log end offset has no batch, and is written by the next flush: a broker
        that starts becomes leader of thousands of logs at once, most of them idle."""
        self.latest_epoch = self._leader_epochs.latest
        if is_urgent and self._leader_epochs.is_dirty:
            self._local.deferred_tasks.schedule(self.write_epochs)

    # --- flushing, closing, renaming -------------------------------------------------------------

    def flush_sealed(self) -> None:
        """fsync all segments but the active one. Blocking."""
        self.flush(include_active=False)

    def flush(self, *, include_active: bool = True) -> None:
        """fsync all data since the recovery point, and advance it. Blocking."""
        local = self._local
        if local.recovery_point >= self._flush_target(include_active):
            return
        with local.flush_lock():
            with local.lock:
                if local.closed:
                    return
                local.flush_topic_id()
                target = self._flush_target(include_active)
                if target <= local.recovery_point:
                    return
                with local.io("write indexes of"):
                    self._leader_epochs.write()
                    pending = local.begin_flush(target)
                paths = [*self._producer_state.snapshots.unsynced(), *self._leader_epochs.take_unsynced()]
            if local.sync(pending, paths):
                with local.lock:
                    local.complete_flush(pending)
                    self._update_flush_offset()

    def _flush_target(self, include_active: bool) -> int:
        return self.log_end_offset if include_active else self._local.active.base_offset

    def flush_if_due(self, now_ms: int) -> None:
        """Flush if the last flush because of flush.ms is that long ago. Blocking."""
        local = self._local
        if local.config.flush_ms != INT64_MAX and now_ms - local.last_flush_ms >= local.config.flush_ms:
            local.last_flush_ms = now_ms
            self.flush()

    def close(self, now_ms: int = 0) -> None:
        """Seal and flush the log, and reject appends; the files are then as Kafka leaves them. Blocking."""
        local = self._local
        if local.closed:
            return
        with local.io("close"):
            with local.lock:
                local.active.seal()
                self._leader_epochs.write()
                local.flush_topic_id()
            self.flush()
            with local.lock:
                self._producer_state.take_snapshot(self.log_end_offset, self.log_start_offset, sync=True)
            local.active.sync_indexes()
        local.closed = True

    def rename_for_deletion(self) -> Path | None:
        """Reject appends, and rename the directory to `*-delete`. Returns the new path; None if the directory
        does not exist. No fsync, no removal: fast enough for the event loop."""
        return self._local.rename_for_deletion()

    def rename_dir(self, directory: Path) -> None:
        """Rename the directory: a future log becomes the current one. Raises KAFKA_STORAGE_ERROR."""
        local = self._local
        with local.lock, local.io("rename"):
            local.rename_dir(directory)
            self._producer_state.snapshots.update_parent_dir(local.directory_str)
            self._leader_epochs.update_parent_dir(local.directory_str)

    # --- truncation ------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> bool:
        """Drop all data from `offset` on, and the whole batch that holds it: the log ends before that batch.
        Returns whether there was any.

        Kafka's log then ends at `offset` and lacks the batch's first records: a follower whose leader has
        deleted records up to the middle of the batch can append nothing any more.
        """
        local = self._local
        with local.lock, local.io("truncate"):
            if offset < 0:
                raise ValueError(f"cannot truncate to {offset}")
            if offset >= self.log_end_offset:
                # A leader epoch without a batch may begin here.
                self._leader_epochs.truncate_from_end(self.log_end_offset)
                self._on_epochs_changed()
                return False
            segments = local.segments.all
            if offset < segments[0].base_offset:
                self.truncate_fully_and_start_at(offset)
                return True
            local.truncations += 1
            kept = [segment for segment in segments if segment.base_offset <= offset]
            removed = segments[len(kept) :]
            cut = kept[-1].header_at(offset)
            if cut is not None and cut.base_offset < offset:
                offset = max(cut.base_offset, min(self.log_start_offset, offset))
            self._lower_checkpoint(kept[-1].base_offset)
            is_rolled_back = self._producer_state.roll_back(segments[len(kept) - 1 :], offset)
            self._forget_snapshots(removed)
            local.truncate_to(offset, removed)
            self._update_flush_offset()
            self.log_end_offset = offset
            self.log_start_offset = min(self.log_start_offset, offset)
            self._leader_epochs.truncate_from_end(offset)
            self._on_epochs_changed()
            if is_rolled_back:
                self._producer_state.snapshots.keep_within(self.log_start_offset, offset)
            else:  # not synced: this runs on the event loop
                self._producer_state.rebuild(kept, self.log_start_offset, offset, sync=False)
                self._find_producers()
            self._mark_dirty_from(offset)
            return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop all data, and continue with an empty log at `offset`."""
        local = self._local
        with local.lock, local.io("truncate"):
            local.truncations += 1
            self._lower_checkpoint(offset)
            self._forget_snapshots(local.segments.all)
            local.truncate_fully_and_start_at(offset)
            self._update_flush_offset()
            self.log_end_offset = self.log_start_offset = offset
            self._leader_epochs.clear()
            self.latest_epoch = None
            self._producer_state.clear()
            self._mark_dirty_from(offset)

    def _lower_checkpoint(self, offset: int) -> None:
        """Before data from `offset` on is dropped: the broker that starts after a crash must not take what
        has replaced it for data on the disk. Blocks only if the recovery point is beyond `offset`, which is
        rare."""
        local = self._local
        if max(self.durable_to, local.recovery_point) > offset:
            local.lower_checkpoint(offset)
            self.durable_to = min(self.durable_to, offset)

    def _forget_snapshots(self, segments: Sequence[LogSegment]) -> None:
        """The snapshots' files are renamed with the files of their segments."""
        for segment in segments:
            self._producer_state.snapshots.forget(segment.base_offset)

    # --- retention -------------------------------------------------------------------------------

    def maybe_increment_log_start_offset(self, offset: int, reason: str = "segment deletion") -> bool:
        """Set the log start offset (DeleteRecords, retention). Segments before it are deleted by the next
        retention. `reason` is for the log."""
        with self._local.lock, self._local.io("set the log start offset of"):
            if offset <= self.log_start_offset or offset > self.log_end_offset:
                return False
            self.log_start_offset = offset
            self._leader_epochs.truncate_from_start(offset)
            self._on_epochs_changed()
            logger.info(
                "[%s] Incremented log start offset to %d due to %s", self.directory.name, offset, reason
            )
            return True

    def delete_old_segments(
        self, *, now_ms: int, high_watermark: int, policies: Mapping[str, DeletionPolicy] = BUILT_IN
    ) -> int:
        """Apply retention; returns how many segments were deleted. Files follow after file.delete.delay.ms.

        `policies`, by name, are called without the lock: they may be slow.
        """
        local = self._local
        if local.closed or (len(self.segments) == 1 and not local.active.size):
            return 0
        with local.io("delete segments of"):
            # Blocking reads are done here, before the lock.
            segments, truncations = self.segments, local.truncations
            facts = self._facts(now_ms)
            reasons = self._deletable(facts, policies, high_watermark)
            count = len(reasons)
            if (
                count + 1 < len(segments)
                and segments[count].max_timestamp > segments[count + 1].max_timestamp
            ):
                verify_max_timestamp(segments[count])  # a wrong one would keep all later segments
            for segment in segments[:count]:
                segment.load()
                verify_max_timestamp(segment)
            self._rebuild_suspect_indexes_later()
            verified = self._facts(now_ms)
            if verified != facts:
                facts, reasons = verified, self._deletable(verified, policies, high_watermark)
        if not reasons:
            return 0
        with local.lock, local.io("delete segments of"):
            segments = self.segments
            if local.closed or local.truncations != truncations:
                return 0
            # The policies have not seen segments that were written meanwhile.
            current = self._facts(now_ms).segments[: len(reasons)]
            unchanged = takewhile(lambda pair: pair[0] == pair[1], zip(current, facts.segments, strict=False))
            count = sum(1 for _ in unchanged)
            if count == 0:
                return 0
            if count == len(segments):
                self.roll(now_ms)
            local.set_segments(self.segments[count:])
            self.maybe_increment_log_start_offset(self.segments[0].base_offset)
            # Not to the log start offset within the segment: a crash may forget it.
            local.recovery_point = max(local.recovery_point, self.segments[0].base_offset)
            self._update_flush_offset()
            # The oldest first: after a crash the log begins later, and has no gap.
            for segment, reason in zip(segments[:count], reasons, strict=False):
                logger.info(
                    "[%s] Deleting segment %d of %d bytes due to %s",
                    self.directory.name,
                    segment.base_offset,
                    segment.size,
                    reason,
                )
                self._forget_snapshots([segment])
                local.schedule_delete([segment])
        return count

    def _facts(self, now_ms: int) -> LogFacts:
        return log_facts(self.directory.name, self.segments, self.config, now_ms)

    def _deletable(
        self, facts: LogFacts, policies: Mapping[str, DeletionPolicy], high_watermark: int
    ) -> list[str]:
        return deletable_within(
            facts,
            policies,
            high_watermark,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
        )

    # --- compaction ------------------------------------------------------------------------------

    @property
    def has_dirty_sealed_segments(self) -> bool:
        """Whether segments besides the active one are not cleaned."""
        clean_to = self.first_dirty_offset
        return (self.log_start_offset if clean_to is None else clean_to) < self._local.active.base_offset

    def _mark_dirty_from(self, offset: int) -> None:
        """After a truncation: new data from `offset` on is not cleaned."""
        self.truncated_to = min(self.truncated_to, offset)
        if self.first_dirty_offset is not None:
            self.first_dirty_offset = min(self.first_dirty_offset, self._local.active.base_offset)

    def mark_cleaned(self, end_offset: int) -> None:
        """The log is cleaned before `end_offset`, unless it was truncated meanwhile."""
        with self._local.lock:
            if self.truncated_to >= end_offset:
                self.first_dirty_offset = end_offset

    def replace_segments(self, old: Sequence[LogSegment], new: LogSegment, end_offset: int) -> bool:
        """Replace `old`, neighbours up to `end_offset`, by the cleaned segment `new`. Returns False if they
        are not segments of this log any more. Blocking; raises KAFKA_STORAGE_ERROR."""
        local = self._local
        for segment in old:
            segment.load()
        # No flush is in progress meanwhile: it identifies segments by their file names.
        with local.flush_lock(), local.lock:
            if self.truncated_to < end_offset:
                return False
            with local.io("replace segments of"):
                if not local.replace_segments(old, new):
                    return False
            self._forget_snapshots(old[1:])
        sync_path(local.log_dir.files, self.directory)
        return True
