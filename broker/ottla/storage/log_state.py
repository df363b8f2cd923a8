"""The state of one partition's log, and everything about it but appending: the lower half of `Log`.

Reading, leader epochs, truncation, rolling, retention, flushing, closing and deletion. `log.Log`
adds the rules of appending, and is what other rooms use.

Threads: appends, reads and truncations come from the broker's event loop; flushing, retention and
deletion from upkeep threads. Writers hold `_lock` (never across an fsync); readers take the tuple of
segments as it is at that moment, which is replaced, never changed.

Invariants: `log_start_offset <= log_end_offset`; the last segment is the active one and alone is
appended to; a producer's state is changed only after its batch is in the file, an epoch's start is
on disk before the epoch's first batch.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import uuid
from bisect import bisect_right
from pathlib import Path

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records import BatchHeader, decode_batch, parse_control_record
from ottla.storage import batch_rules, lookups
from ottla.storage.directories import DELETE_SUFFIX, read_topic_id, write_topic_id
from ottla.storage.durable import sync_directory
from ottla.storage.epochs import LeaderEpochCheckpoint
from ottla.storage.loading import open_segment
from ottla.storage.log_config import LogConfig
from ottla.storage.producers import ProducerState
from ottla.storage.retention import SegmentFacts, deletable_segments
from ottla.storage.segment import LogRead, Segment

logger = logging.getLogger(__name__)


class LogState:
    """See the module."""

    def __init__(
        self,
        directory: Path,
        config: LogConfig,
        segments: list[Segment],
        *,
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
    ) -> None:
        self.directory = directory
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.recovery_point = recovery_point
        """All before it is on disk for certain."""
        self.producers = ProducerState()
        self.config = config
        self.closed = False
        self._epochs = LeaderEpochCheckpoint(directory)
        self.latest_epoch = self._epochs.latest
        self._topic_id = read_topic_id(directory)
        self._lock = threading.RLock()
        self._flush_lock = threading.Lock()
        self._truncations = 0
        self._unflushed_messages = 0
        self._set_segments(segments)

    # --- facts -----------------------------------------------------------------------------------

    @property
    def config(self) -> LogConfig:
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        """Takes effect for the next append, roll and retention."""
        self._config = config
        self._max_message_bytes = config.max_message_bytes
        self._segment_bytes = config.segment_bytes
        self._segment_ms = config.segment_ms
        self._flush_messages = config.flush_messages
        self._is_plain = not batch_rules.needs_rewrite_or_records(config)

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._segments)

    @property
    def topic_id(self) -> uuid.UUID | None:
        """The id in partition.metadata; set once, when the first LeaderAndIsr request names it."""
        return self._topic_id

    @topic_id.setter
    def topic_id(self, topic_id: uuid.UUID) -> None:
        write_topic_id(self.directory, topic_id)
        self._topic_id = topic_id

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    # --- reading ---------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, up_to: int, min_one: bool = True) -> LogRead:
        """Ranges of file from the batch that holds `offset` on, before `up_to`, of one segment.

        As in Kafka, `max_bytes` may cut the last batch short, but with `min_one` the first is whole
        however large; without, nothing is returned where the first does not fit. `up_to` (a high
        watermark or last stable offset) excludes the batch that holds it. Raises
        KafkaError(OFFSET_OUT_OF_RANGE) outside [log_start_offset, log_end_offset], KAFKA_STORAGE_ERROR.
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
            segment = self._active
            if offset >= segment.base_offset:
                position = segment.position_of(offset)
                limit = segment.size if up_to == log_end else segment.position_of(up_to)
            else:
                segment, position, limit = self._locate(offset, up_to)
            length = limit - position
            if length > max_bytes:
                length = max_bytes
                first_size = segment.batch_size_at(position)
                if first_size > max_bytes:
                    length = first_size if min_one else 0
        except OSError as problem:
            raise self._storage_error("read", problem) from problem
        if length <= 0:
            return LogRead(offset, [], 0)
        return LogRead(offset, [segment.slice(position, length)], length)

    def _locate(self, offset: int, up_to: int) -> tuple[Segment, int, int]:
        """Segment, start and limit of a read that does not begin in the active segment."""
        segments = self._segments
        at = max(bisect_right(segments, offset, key=_base_offset) - 1, 0)
        while True:
            segment = segments[at]
            position = segment.position_of(offset)
            is_last = at == len(segments) - 1
            if position < segment.size or is_last:
                break
            at += 1  # a gap at the end of this segment: the offset was compacted away
        end_offset = self.log_end_offset if is_last else segments[at + 1].base_offset
        if up_to >= end_offset:
            return segment, position, segment.size
        return segment, position, segment.position_of(up_to)

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int, int] | None:
        """(offset, timestamp, leader epoch) of the first record at or after `timestamp_ms`."""
        return lookups.first_at_or_after(self._segments, timestamp_ms, self.log_start_offset)

    def max_timestamp(self) -> tuple[int, int, int] | None:
        """(offset, timestamp, leader epoch) of the first record with the highest timestamp (KIP-734)."""
        return lookups.highest(self._segments)

    # --- producers -------------------------------------------------------------------------------

    def _note_producer(self, header: BatchHeader, batch: memoryview | bytes, first_offset: int) -> None:
        last_offset = first_offset + header.last_offset_delta
        if header.is_control:
            self.producers.record_marker(
                header.producer_id,
                header.producer_epoch,
                parse_control_record(decode_batch(batch)[0]),
                last_offset,
                header.max_timestamp,
            )
            return
        self.producers.record_data(
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.last_sequence,
            first_offset,
            last_offset,
            header.max_timestamp,
            header.is_transactional,
        )

    def _replay(self) -> None:
        """Learn producers, and epochs that the checkpoint misses, from the headers of the whole log.

        Snapshots of the producer state would let this begin later; they come with a later issue.
        """
        self.producers.clear()
        for segment in self._segments:
            for position, header in segment.headers():
                if header.producer_id >= 0:
                    batch = segment.read_batch(position) if header.is_control else b""
                    self._note_producer(header, batch, header.base_offset)
                if header.partition_leader_epoch > (-1 if self.latest_epoch is None else self.latest_epoch):
                    self.assign_epoch_start(header.partition_leader_epoch, header.base_offset)
        self.latest_epoch = self._epochs.latest

    def expire_producers(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers silent for that long (producer.id.expiration.ms); how many."""
        with self._lock:
            return self.producers.expire(now_ms, expiration_ms)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Up to where read_committed consumers may read (KIP-98)."""
        unstable = self.producers.first_unstable_offset(high_watermark)
        return high_watermark if unstable is None else min(unstable, high_watermark)

    # --- leader epochs ---------------------------------------------------------------------------

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(largest epoch at or below `epoch`, its end offset); (-1, -1) unknown (KIP-101, KIP-279)."""
        with self._lock:  # retention, in its thread, cuts the epochs too
            return self._epochs.end_offset_for(epoch, self.log_end_offset)

    def epoch_start(self, epoch: int) -> int | None:
        return self._epochs.start_of(epoch)

    def epoch_at(self, offset: int) -> int | None:
        """The leader epoch that `offset` was written in."""
        with self._lock:
            return self._epochs.epoch_at(offset)

    def assign_epoch_start(self, epoch: int, offset: int) -> None:
        """Note that `epoch` begins at `offset`: on becoming leader, and with an epoch's first batch."""
        with self._lock:
            self._epochs.assign(epoch, offset)
            self.latest_epoch = self._epochs.latest

    # --- truncation, rolling, deletion -----------------------------------------------------------

    def truncate_to(self, offset: int) -> bool:
        """Drop everything from `offset` on; whether there was anything to drop."""
        with self._lock:
            if offset < 0:
                raise ValueError(f"cannot truncate to {offset}")
            if offset >= self.log_end_offset:
                self._epochs.truncate_from_end(offset)
                self.latest_epoch = self._epochs.latest
                return False
            if offset < self._segments[0].base_offset:
                self.truncate_fully_and_start_at(offset)
                return True
            self._truncations += 1
            kept = [segment for segment in self._segments if segment.base_offset <= offset]
            dropped = self._segments[len(kept) :]
            for segment in reversed(dropped):
                segment.remove_files()
            kept[-1].truncate_to(offset)
            self._set_segments(kept)
            self.log_end_offset = offset
            self.log_start_offset = min(self.log_start_offset, offset)
            self.recovery_point = min(self.recovery_point, offset)
            self._epochs.truncate_from_end(offset)
            self._replay()
            return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything and go on, empty, at `offset`."""
        with self._lock:
            self._truncations += 1
            for segment in reversed(self._segments):
                segment.remove_files()
            self._set_segments([open_segment(self.directory, offset, self._config, 0)])
            self.log_end_offset = self.log_start_offset = self.recovery_point = offset
            self._epochs.clear()
            self.latest_epoch = None
            self.producers.clear()

    def roll(self, now_ms: int, base_offset: int | None = None) -> None:
        """Seal the active segment and begin a new one, unless it is empty. No fsync."""
        with self._lock:
            if self._active.size == 0:
                return
            self._active.seal()
            offset = max(self.log_end_offset, base_offset or 0)
            segment = open_segment(self.directory, offset, self._config, now_ms)
            self._set_segments([*self._segments, segment])

    def maybe_increment_log_start_offset(self, offset: int) -> bool:
        """Hide what lies before `offset` (DeleteRecords, retention); segments go at the next upkeep."""
        with self._lock:
            if offset <= self.log_start_offset or offset > self.log_end_offset:
                return False
            self.log_start_offset = offset
            self._epochs.truncate_from_start(offset)
            self.latest_epoch = self._epochs.latest
            return True

    def delete_old_segments(self, *, now_ms: int, high_watermark: int) -> int:
        """Apply retention; how many segments went. Blocking: for an upkeep thread."""
        with self._lock:
            if self.closed:
                return 0
            segments = self._segments
            facts = [SegmentFacts(s.base_offset, s.size, s.largest_timestamp()) for s in segments]
            count = deletable_segments(
                facts,
                self._config,
                now_ms=now_ms,
                high_watermark=high_watermark,
                log_start_offset=self.log_start_offset,
                log_end_offset=self.log_end_offset,
            )
            if count == 0:
                return 0
            if count == len(segments):
                self.roll(now_ms)
            self._set_segments(list(self._segments[count:]))
            self.maybe_increment_log_start_offset(self._segments[0].base_offset)
            self.recovery_point = max(self.recovery_point, self.log_start_offset)
            # Renamed under the lock: once it is released the topic may be deleted and made again, and the
            # old names be those of another log's files.
            doomed = [path for segment in segments[:count] for path in segment.set_aside()]
        for path in doomed:
            path.unlink(missing_ok=True)
        return count

    # --- durability and end ----------------------------------------------------------------------

    def flush(self, *, include_active: bool = True) -> None:
        """fsync what was appended since the recovery point, and move that. Blocking."""
        with self._flush_lock:
            with self._lock:
                if self.closed:
                    return
                target = self.log_end_offset if include_active else self._active.base_offset
                begin = self.recovery_point
                if target <= begin:
                    return
                truncations = self._truncations
                segments = self._segments
                dirty = [
                    segment
                    for at, segment in enumerate(segments)
                    if segment.base_offset < target
                    and (at == len(segments) - 1 or segments[at + 1].base_offset > begin)
                ]
                for segment in dirty:
                    segment.write_indexes()
                self._unflushed_messages = 0
            try:
                for segment in dirty:
                    segment.sync()
                sync_directory(self.directory)
            except FileNotFoundError:
                return  # truncated or deleted meanwhile: there is nothing to make durable
            except OSError as problem:
                raise self._storage_error("flush", problem) from problem
            with self._lock:
                if truncations == self._truncations:
                    self.recovery_point = max(self.recovery_point, target)

    def close(self, now_ms: int = 0) -> None:
        """Seal, flush, and take no more appends; files are then as Kafka leaves them. Blocking."""
        if self.closed:
            return
        with self._lock:
            self._active.seal()
        self.flush()
        for index in (self._active.offset_index, self._active.time_index):
            index.flush()
        self.closed = True

    def retire(self) -> Path | None:
        """Take no more appends, and rename the directory so that it is known to be deleted; its new
        name, or None when it was gone already. Quick: no fsync, nothing is removed yet."""
        with self._lock:
            self.closed = True
            suffix = f".{uuid.uuid4().hex}{DELETE_SUFFIX}"
            doomed = self.directory.with_name(self.directory.name[: 255 - len(suffix)] + suffix)
            try:
                self.directory.rename(doomed)
            except FileNotFoundError:
                return None
            self.directory = doomed
            return doomed

    def delete(self) -> None:
        """Remove the log: renamed first, so that a crash in between is finished at the next start.
        Blocking."""
        doomed = self.retire()
        if doomed is not None:
            sync_directory(doomed.parent)
            shutil.rmtree(doomed, ignore_errors=True)

    # --- inside ----------------------------------------------------------------------------------

    def _set_segments(self, segments: list[Segment]) -> None:
        assert segments
        self._segments = tuple(segments)
        self._active = segments[-1]

    def _storage_error(self, action: str, problem: OSError) -> KafkaError:
        logger.error("cannot %s %s: %s", action, self.directory, problem)
        return KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"cannot {action} {self.directory}: {os.strerror(problem.errno or 0)}",
        )


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
