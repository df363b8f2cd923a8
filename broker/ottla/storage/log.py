"""One partition's log: append, read, truncate, retain. There is no high watermark in here.

Used by replication's `Partition` (and by the log manager for its upkeep). The produce path is
`append_as_leader`: it reads the batch's header and checksum, patches base offset and leader epoch
into a copy of the first 16 bytes, and writes that and the untouched rest with one system call.
Whatever needs the records themselves is a slow path in `batch_rules`.

The rest of what a log does, and the rules about threads, are in `log_state`.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import NamedTuple, TypeAlias

from crc32c import crc32c

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
    decode_batch,
    last_sequence,
    parse_control_record,
)
from ottla.storage import log_validator
from ottla.storage.cleanable_log import CleanableLog
from ottla.storage.deferred_tasks import Chores
from ottla.storage.leader_epochs import LeaderEpochCheckpoint
from ottla.storage.log_config import LogConfig
from ottla.storage.log_dir import LogDir
from ottla.storage.log_loader import load_segments
from ottla.storage.log_segment import HEAD, Segment
from ottla.storage.producer_state_manager import ProducerHistory

_NOT_FROM_CLIENTS = CONTROL_FLAG | LOG_APPEND_TIME_FLAG
_LEADS_OFF_THE_FAST_PATH = LOG_APPEND_TIME_FLAG | CODEC_MASK


Settled: TypeAlias = tuple[bytes | memoryview, int]
"""What `log_validator.settle` gives."""


class AppendInfo(NamedTuple):
    """Where an append went; times are milliseconds."""

    first_offset: int
    last_offset: int
    max_timestamp: int
    log_append_time: int
    """-1 under CreateTime; for a duplicate the original's timestamp, as Kafka answers."""
    log_start_offset: int
    duplicate: bool
    """Nothing was appended: the batch is in the log already, or (offsets -1) there was none."""


class Log(CleanableLog):
    """See the module. Make one with `Log.open`."""

    __slots__ = ()

    @classmethod
    def open(
        cls,
        directory: Path,
        config: LogConfig,
        *,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        clean_shutdown: bool = False,
        now_ms: int = 0,
        chores: Chores | None = None,
        log_dir: LogDir | None = None,
    ) -> Log:
        """Open or make the log in `directory`; after a crash, verify and cut its tail.

        Files that go are left to `chores`; without, to the next opening. Raises OSError, and
        `loading.OldFormat` for what only another version can open.
        """
        place = sys.intern(str(directory))
        try:
            names = os.listdir(place)
        except FileNotFoundError:
            # Not synced: thousands may be made at once. The first flush does it.
            directory.mkdir(parents=True)
            names = []
        history = ProducerHistory(place, names)
        epochs = LeaderEpochCheckpoint(place)
        segments, end_offset = load_segments(
            place,
            names,
            config,
            history,
            epochs,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            clean_shutdown=clean_shutdown,
            now_ms=now_ms,
        )
        log = cls(
            place,
            config,
            segments,
            history,
            epochs,
            chores or Chores(),
            log_dir or LogDir(directory.parent),
            log_start_offset=max(log_start_offset, segments[0].base_offset),
            log_end_offset=end_offset,
            recovery_point=end_offset if clean_shutdown else min(max(recovery_point, 0), end_offset),
            last_flush_ms=now_ms,
        )
        epochs.truncate_from_end(end_offset)
        epochs.truncate_from_start(log.log_start_offset)
        log.latest_epoch = epochs.latest
        log.nothing_cleaned()
        return log

    # --- appending -------------------------------------------------------------------------------

    def append_as_leader(
        self,
        records: bytes | memoryview,
        *,
        leader_epoch: int,
        now_ms: int,
        client: bool = True,
        guard: object | None = None,
        light: bool = False,
        settled: Settled | None = None,
    ) -> AppendInfo:
        """Append one batch of a producer (or, with `client` false, of a coordinator). `guard` is what
        `producers.begin_verification` gave for the first batch of a transaction. With `light`, what may take
        long raises log_validator.SlowAppend: `settled` is what `log_validator.settle` has made of it since.

        Assigns offsets and the leader epoch; answers a retry of one of the producer's last five
        batches with the original's offsets. Raises KafkaError: CORRUPT_MESSAGE, INVALID_RECORD,
        MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, INVALID_TIMESTAMP, UNSUPPORTED_COMPRESSION_TYPE,
        OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE,
        TRANSACTION_COORDINATOR_FENCED, KAFKA_STORAGE_ERROR.
        """
        view = memoryview(records if settled is None else settled[0])
        size = len(view)
        if settled is not None and not size:
            return AppendInfo(-1, -1, -1, -1, self.log_start_offset, True)
        if (
            size < RECORD_BATCH_OVERHEAD
            or view[16] != MAGIC_V2
            or int.from_bytes(view[8:12], "big") + LOG_OVERHEAD != size
        ):
            view = log_validator.batch_to_append(view, self._config, now_ms, light=light)
            size = len(view)
            if not size:
                return AppendInfo(-1, -1, -1, -1, self.log_start_offset, True)
        # fmt: off
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
        if settled is not None:
            log_append_time = settled[1]
        elif not self._is_plain or attributes & _LEADS_OFF_THE_FAST_PATH:
            view, log_append_time = log_validator.prepare(
                view, self._config, now_ms, client=client, light=light
            )
            size = len(view)
            length = size - LOG_OVERHEAD
            max_timestamp = BATCH_HEADER.unpack_from(view)[8]
            if size > self._max_message_bytes:
                raise KafkaError(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"a batch of {size} bytes once compressed anew; at most {self._max_message_bytes}",
                )
        with self._lock:
            if self.closed:
                raise self._storage_error("append to", OSError(errno.EBADF, "closed"))
            if producer_id >= 0:
                duplicate = self._check_producer(
                    view, producer_id, producer_epoch, sequence, delta, attributes, client, guard
                )
                if duplicate is not None:
                    return duplicate
            first_offset = self.log_end_offset
            last_offset = first_offset + delta
            segment = self._active
            if segment.first_timestamp >= 0:
                since_ms = max_timestamp - segment.first_timestamp
            else:
                since_ms = now_ms - segment.created_ms
                if self._topic_id_due:
                    self.write_topic_id()
            if (
                segment.size + size > self._segment_bytes
                or since_ms > self._roll_ms
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
                raise self._storage_error("append to", problem) from problem
            self.log_end_offset = last_offset + 1
            if producer_id < 0:
                pass
            elif attributes & CONTROL_FLAG:
                header = BatchHeader(*BATCH_HEADER.unpack_from(view))._replace(base_offset=first_offset)
                self._note_marker(header, view, segment)
            else:
                self.producers.record_data(
                    producer_id,
                    producer_epoch,
                    sequence,
                    last_sequence(sequence, delta),
                    first_offset,
                    last_offset,
                    max_timestamp,
                    bool(attributes & TRANSACTIONAL_FLAG),
                )
        if last_offset - self.recovery_point >= self._flush_messages - 1:
            self.flush()
        return AppendInfo(
            first_offset, last_offset, max_timestamp, log_append_time, self.log_start_offset, False
        )

    def append_as_follower(self, records: bytes | memoryview, *, now_ms: int) -> AppendInfo:
        """Append what the leader sent, offsets and epochs as they are; a partial batch at the end
        is left out, gaps (of a compacted leader) are taken.

        Raises KafkaError: CORRUPT_MESSAGE, OFFSET_OUT_OF_RANGE when the batches do not come after
        the log's end, UNSUPPORTED_FOR_MESSAGE_FORMAT, KAFKA_STORAGE_ERROR.
        """
        view = memoryview(records)
        batches = log_validator.verified_batches(view, self.log_end_offset)
        if not batches:
            raise KafkaError(ErrorCode.INVALID_RECORD, f"{len(view)} bytes hold no whole batch")
        with self._lock:
            try:
                if self.closed:
                    raise OSError(errno.EBADF, "closed")
                self._append_batches(view, batches, now_ms)
            except OSError as problem:
                raise self._storage_error("append to", problem) from problem
        if self.log_end_offset - self.recovery_point >= self._flush_messages:
            self.flush()
        first, last = batches[0][1], batches[-1][1]
        return AppendInfo(
            first.base_offset,
            last.last_offset,
            max(header.max_timestamp for _, header in batches),
            -1,
            self.log_start_offset,
            False,
        )

    def _append_batches(self, view: memoryview, batches: list[tuple[int, BatchHeader]], now_ms: int) -> None:
        """Write runs of batches, one system call per segment that they fall into."""
        at = 0
        while at < len(batches):
            run_start, first = batches[at]
            segment = self._active
            if self._topic_id_due:
                self.write_topic_id()
            if self._must_roll(segment, first.size, first.last_offset, first.max_timestamp, now_ms):
                segment = self._roll_for(first.size, now_ms, base_offset=first.base_offset)
            run_end = run_start
            stop = at
            while stop < len(batches):
                pos, header = batches[stop]
                fits = segment.size + (pos - run_start) + header.size <= self._segment_bytes
                if stop > at and (not fits or header.last_offset - segment.base_offset > INT32_MAX):
                    break
                run_end = pos + header.size
                stop += 1
            for _, header in batches[at:stop]:
                if header.partition_leader_epoch != self.latest_epoch:
                    self.assign_epoch_start(header.partition_leader_epoch, header.base_offset)
            segment.write(view[run_start:run_end])
            for pos, header in batches[at:stop]:
                segment.note_batch(header.size, header.base_offset, header.last_offset, header.max_timestamp)
                self.log_end_offset = header.last_offset + 1
                if header.producer_id >= 0:
                    self._history.note(header, view[pos : pos + header.size], segment)
            at = stop
        self._producers_noted()

    def _must_roll(
        self, segment: Segment, size: int, last_offset: int, max_timestamp: int, now_ms: int
    ) -> bool:
        if segment.first_timestamp >= 0:
            since_ms = max_timestamp - segment.first_timestamp
        else:
            since_ms = now_ms - segment.created_ms
        return segment.size > 0 and (
            segment.size + size > self._segment_bytes
            or since_ms > self._roll_ms
            or last_offset - segment.base_offset > INT32_MAX
            or segment.index_full
        )

    def _roll_for(self, size: int, now_ms: int, base_offset: int | None = None) -> Segment:
        """The segment for a batch that the active one has no room for."""
        segment = self._active
        if size > self._segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"a batch of {size} bytes cannot go into a segment of {self._segment_bytes}",
            )
        if segment.size == 0:
            segment.created_ms = now_ms
            return segment
        self.roll(now_ms, base_offset)
        return self._active

    # --- producers -------------------------------------------------------------------------------

    def _note_marker(self, header: BatchHeader, batch: memoryview, segment: Segment) -> None:
        try:
            self._history.note(header, batch, segment)
        except OSError as problem:
            raise self._storage_error("append to the transaction index of", problem) from problem

    def _check_producer(
        self,
        view: memoryview,
        producer_id: int,
        producer_epoch: int,
        sequence: int,
        delta: int,
        attributes: int,
        client: bool,
        guard: object | None,
    ) -> AppendInfo | None:
        """Raises KafkaError when the batch may not be appended; its first append when it is a retry."""
        producers = self.producers
        if attributes & CONTROL_FLAG:
            marker = parse_control_record(decode_batch(view)[0])
            producers.check_marker(producer_id, producer_epoch, marker)
            return None
        if client:
            first = producers.find_duplicate(
                producer_id, producer_epoch, sequence, last_sequence(sequence, delta)
            )
            if first is not None:
                return AppendInfo(
                    first.first_offset,
                    first.last_offset,
                    first.timestamp,
                    first.timestamp,
                    self.log_start_offset,
                    True,
                )
        transactional = bool(attributes & TRANSACTIONAL_FLAG)
        if transactional:
            producers.check_verified(producer_id, guard)
        producers.check_data(producer_id, producer_epoch, sequence, transactional, client=client)
        return None
