"""The state of one partition's log, and everything about it but appending: the lower half of `Log`.

Reading, leader epochs, truncation, rolling, retention, flushing, closing and deletion. `log.Log`
adds the rules of appending, and is what other rooms use.

Threads: appends, reads and truncations come from the broker's event loop; flushing and retention from
the upkeep thread, which also does what logs leave as `chores`. Writers hold `_lock` (never across an
fsync, but at the end); readers take the tuple of segments as it is at that moment, which is replaced,
never changed.

Invariants: `log_start_offset <= log_end_offset`; the last segment is the active one and alone is
appended to; a producer's state is changed only after its batch is in the file; the recovery point is
not beyond a batch whose leader epoch is not on disk.
"""

from __future__ import annotations

import logging
import shutil
import sys
import threading
import uuid
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.storage import batch_rules, lookups
from ottla.storage.chores import Chores
from ottla.storage.directories import DELETE_SUFFIX, read_topic_id, write_topic_id
from ottla.storage.durable import sync_directory, sync_file_if_any
from ottla.storage.epochs import LeaderEpochCheckpoint
from ottla.storage.index_rebuilding import rebuild
from ottla.storage.loading import new_segment
from ottla.storage.log_config import LogConfig
from ottla.storage.log_dirs import LogDir
from ottla.storage.producer_history import ProducerHistory
from ottla.storage.producers import ProducerState
from ottla.storage.retention import SegmentFacts, deletable_segments
from ottla.storage.segment import LogRead, Segment
from ottla.storage.txn_index import AbortedTransaction

logger = logging.getLogger(__name__)


class LogState:
    """See the module."""

    # Slots, here and in what logs are made of: a broker has thousands of logs that nobody uses.
    __slots__ = (
        "_active",
        "_chores",
        "_config",
        "_directory",
        "_epochs",
        "_flush_lock",
        "_flush_messages",
        "_history",
        "_is_plain",
        "_lock",
        "_max_message_bytes",
        "_producers",
        "_roll_ms",
        "_segment_bytes",
        "_segments",
        "_topic_id",
        "_verifies",
        "closed",
        "last_flush_ms",
        "latest_epoch",
        "log_dir",
        "log_end_offset",
        "log_start_offset",
        "recovery_point",
        "truncations",
    )

    def __init__(
        self,
        directory: str,
        config: LogConfig,
        segments: list[Segment],
        history: ProducerHistory,
        epochs: LeaderEpochCheckpoint,
        chores: Chores,
        log_dir: LogDir,
        *,
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        last_flush_ms: int,
    ) -> None:
        self._directory = directory
        self.log_dir = log_dir
        """Where it lies; told of every I/O error, after which it takes its logs out of use."""
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.recovery_point = recovery_point
        """All before it is on disk for certain."""
        self._producers: ProducerState | None = None
        """The history's, once somebody has asked for it, or there was something in it at the start."""
        self._verifies = False
        self.closed = False
        """Takes no appends any more: it was closed or deleted, or its directory has failed."""
        self.last_flush_ms = last_flush_ms
        """When flush.ms last had this log flushed, or it was opened; kept by the log manager."""
        self._history = history
        self._epochs = epochs
        self._chores = chores
        self.latest_epoch = epochs.latest
        self._topic_id = read_topic_id(directory)
        self._lock = threading.RLock()
        self._flush_lock: threading.Lock | None = None
        self.truncations = 0
        """How often something was dropped from its end."""
        self._config = config
        self._set_segments(segments)
        self.config = config
        if history.has_producers:
            self._producers = history.state

    # --- facts -----------------------------------------------------------------------------------

    @property
    def directory(self) -> Path:
        return Path(self._directory)

    @property
    def config(self) -> LogConfig:
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        """Takes effect for the next append, roll and retention."""
        self._config = config
        self._max_message_bytes = config.max_message_bytes
        self._segment_bytes = config.segment_bytes
        self._roll_ms = config.max_segment_ms - self._active.roll_jitter_ms
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
        with self._io("write the topic id of"):
            write_topic_id(self.directory, topic_id)
        self._topic_id = topic_id

    @property
    def first_segment_offset(self) -> int:
        """Where the first segment begins; the log itself may begin later."""
        return self._segments[0].base_offset

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
                    length = min(first_size, limit - position) if min_one else 0
        except OSError as problem:
            raise self._storage_error("read", problem) from problem
        if segment.index_is_suspect:
            self._chores.work_soon(self.mend_indexes)
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
        with self._io("read"):
            return lookups.first_at_or_after(self._segments, timestamp_ms, self.log_start_offset)

    def segment_starts_before(self, timestamp_ms: int, now_ms: int) -> list[int]:
        """Where segments begin that were not written to after `timestamp_ms`, newest first, the log's end
        included (ListOffsets 0)."""
        with self._io("read"):
            return lookups.segment_starts_before(
                self._segments, timestamp_ms, self.log_start_offset, self.log_end_offset, now_ms
            )

    def max_timestamp(self) -> tuple[int, int, int] | None:
        """(offset, timestamp, leader epoch) of the first record with the highest timestamp (KIP-734)."""
        with self._io("read"):
            return lookups.highest(self._segments)

    # --- producers -------------------------------------------------------------------------------

    def expire_producers(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers silent for that long (producer.id.expiration.ms); how many."""
        if self._producers is None:
            return 0
        with self._lock:
            return self._producers.expire(now_ms, expiration_ms)

    @property
    def producers(self) -> ProducerState:
        """Made when it is first asked for."""
        state = self._producers
        if state is None:
            with self._lock:
                state = self._history.state
                state.verifies = self._verifies
                self._producers = state
        return state

    def _producers_noted(self) -> None:
        """The history may have come to have some."""
        if self._producers is None and self._history.has_producers:
            self._producers = self.producers

    @property
    def verifies(self) -> bool:
        """Whether transactions have to be verified before they begin here (KIP-890)."""
        return self._verifies

    @verifies.setter
    def verifies(self, verifies: bool) -> None:
        self._verifies = verifies
        if self._producers is not None:
            self._producers.verifies = verifies

    def forget_replicated(self, high_watermark: int) -> None:
        """All before it is on every replica in sync."""
        if self._producers is not None:
            self._producers.forget_replicated(high_watermark)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Up to where read_committed consumers may read (KIP-98)."""
        if self._producers is None:
            return high_watermark
        unstable = self._producers.first_unstable_offset(high_watermark)
        if unstable is None or unstable >= high_watermark:
            return high_watermark
        return max(unstable, self.log_start_offset)

    def aborted_transactions(self, fetch_offset: int, read: LogRead | None) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions that a read_committed reader of `read`,
        found for `fetch_offset`, has to skip; as Kafka's, it may name some that begin beyond."""
        if read is None or not read.slices:
            return []
        try:
            found = lookups.aborted_in(self._segments, fetch_offset, read.slices[-1], self.log_end_offset)
        except OSError as problem:
            raise self._storage_error("read", problem) from problem
        return [(aborted.producer_id, aborted.first_offset) for aborted in found]

    def collect_aborted_transactions(self, fetch_offset: int, upper_bound: int) -> list[AbortedTransaction]:
        """Those that reach into [fetch_offset, upper_bound)."""
        return lookups.aborted_between(self._segments, fetch_offset, upper_bound)

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
        with self._lock, self._io("note an epoch of"):
            self._epochs.assign(epoch, offset)
            self._epochs_changed(is_urgent=offset < self.log_end_offset)

    def write_epochs(self) -> None:
        """Bring the file of leader epochs up to date. No fsync."""
        with self._lock, self._io("write the epochs of"):
            if not self.closed:
                self._epochs.write()

    def epochs(self) -> list[tuple[int, int]]:
        """(epoch, where it begins), ascending."""
        with self._lock:
            return self._epochs.entries()

    # --- truncation, rolling, deletion -----------------------------------------------------------

    def truncate_to(self, offset: int) -> bool:
        """Drop everything from `offset` on; whether there was anything to drop."""
        with self._lock, self._io("truncate"):
            if offset < 0:
                raise ValueError(f"cannot truncate to {offset}")
            if offset >= self.log_end_offset:
                # Also a leader's epoch that begins here, and left nothing in the log.
                self._epochs.truncate_from_end(self.log_end_offset)
                self._epochs_changed()
                return False
            if offset < self._segments[0].base_offset:
                self.truncate_fully_and_start_at(offset)
                return True
            self.truncations += 1
            kept = [segment for segment in self._segments if segment.base_offset <= offset]
            taken_back = self._history.take_back(self._segments[len(kept) - 1 :], offset)
            self._bury(self._segments[len(kept) :])
            kept[-1].truncate_to(offset)
            self._set_segments(kept)
            self.log_end_offset = offset
            self.log_start_offset = min(self.log_start_offset, offset)
            self._lower_recovery_point(offset)
            self._epochs.truncate_from_end(offset)
            self._epochs_changed()
            if taken_back:
                self._history.snapshots.keep_within(self.log_start_offset, offset)
            else:  # not synced: this runs on the event loop
                self._history.rebuild(kept, self.log_start_offset, offset, sync=False)
                self._producers_noted()
            return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything and go on, empty, at `offset`."""
        with self._lock, self._io("truncate"):
            self.truncations += 1
            self._bury(self._segments)
            self._set_segments([new_segment(self._directory, offset, self._config, 0)])
            self.log_end_offset = self.log_start_offset = offset
            self._lower_recovery_point(offset)
            self._epochs.clear()
            self.latest_epoch = None
            self._history.clear()

    def _lower_recovery_point(self, offset: int) -> None:
        if offset < self.recovery_point:
            self._chores.checkpoint_soon()
        self.recovery_point = min(self.recovery_point, offset)

    def _bury(self, segments: Sequence[Segment]) -> None:
        """Rename the segments' files, which are to be removed after file.delete.delay.ms.

        At once, under the lock: once it is released the topic may be deleted and made again, and the old
        names be those of another log's files. The newest goes first, so that a crash leaves no gap."""
        for segment in reversed(segments):
            self._history.snapshots.forget(segment.base_offset)
            self._chores.bury(segment.set_aside(), self._config.file_delete_delay_ms)

    def roll(self, now_ms: int, base_offset: int | None = None) -> None:
        """Seal the active segment and begin a new one, unless it is empty. No fsync."""
        with self._lock, self._io("roll"):
            if self._active.size == 0:
                return
            self._active.seal()
            offset = max(self.log_end_offset, base_offset or 0)
            segment = new_segment(self._directory, offset, self._config, now_ms)
            self._history.take_snapshot(offset, self.log_start_offset, sync=False)
            self._set_segments([*self._segments, segment])
            self._chores.work_soon(self.flush_sealed)

    def maybe_increment_log_start_offset(self, offset: int) -> bool:
        """Hide what lies before `offset` (DeleteRecords, retention); segments go at the next upkeep."""
        with self._lock, self._io("note the start of"):
            if offset <= self.log_start_offset or offset > self.log_end_offset:
                return False
            self.log_start_offset = offset
            self._epochs.truncate_from_start(offset)
            self._epochs_changed()
            return True

    def delete_old_segments(self, *, now_ms: int, high_watermark: int) -> int:
        """Apply retention; how many segments went. Their files follow after file.delete.delay.ms."""
        with self._io("delete segments of"):
            # What may have to come from the disk, before others wait for the lock.
            for segment in self._segments[: self._deletable(now_ms, high_watermark)]:
                segment.load()
        with self._lock, self._io("delete segments of"):
            segments = self._segments
            count = self._deletable(now_ms, high_watermark)
            if count == 0:
                return 0
            if count == len(segments):
                self.roll(now_ms)
            self._set_segments(list(self._segments[count:]))
            self.maybe_increment_log_start_offset(self._segments[0].base_offset)
            self.recovery_point = max(self.recovery_point, self.log_start_offset)
            # The oldest first: after a crash the log begins later, and has no gap.
            for segment in segments[:count]:
                self._bury([segment])
        return count

    def _deletable(self, now_ms: int, high_watermark: int) -> int:
        """How many of the first segments retention lets go."""
        if self.closed:
            return 0
        return deletable_segments(
            [SegmentFacts(s.base_offset, s.size, s.largest_timestamp()) for s in self._segments],
            self._config,
            now_ms=now_ms,
            high_watermark=high_watermark,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
        )

    def mend_indexes(self) -> None:
        """Make the indexes anew that readers found to point nowhere. Blocking."""
        for segment in self._segments[:-1]:
            if segment.index_is_suspect and not self.closed:
                with self._io("rebuild an index of"):
                    rebuild(segment, self._lock, partial(self._has, segment))

    def _has(self, segment: Segment) -> bool:
        return segment in self._segments[:-1]

    # --- durability and end ----------------------------------------------------------------------

    def flush_sealed(self) -> None:
        """fsync all but the active segment. Blocking."""
        self.flush(include_active=False)

    def flush(self, *, include_active: bool = True) -> None:
        """fsync what was appended since the recovery point, and move that. Blocking."""
        if self.recovery_point >= (self.log_end_offset if include_active else self._active.base_offset):
            return
        with self.flushing():
            with self._lock:
                if self.closed:
                    return
                target = self.log_end_offset if include_active else self._active.base_offset
                begin = self.recovery_point
                if target <= begin:
                    return
                truncations = self.truncations
                segments = self._segments
                dirty = [
                    segment
                    for at, segment in enumerate(segments)
                    if segment.base_offset < target
                    and (at == len(segments) - 1 or segments[at + 1].base_offset > begin)
                ]
                with self._io("write indexes of"):
                    self._epochs.write()
                    for segment in dirty:
                        segment.write_indexes()
                beside = [*self._history.snapshots.unsynced(), *self._epochs.take_unsynced()]
            try:
                for path in beside:
                    sync_file_if_any(path)
                for segment in dirty:
                    segment.sync()
                sync_directory(self.directory)
            except FileNotFoundError:
                return  # truncated or deleted meanwhile: there is nothing to make durable
            except OSError as problem:
                raise self._storage_error("flush", problem) from problem
            with self._lock:
                if truncations == self.truncations:
                    self.recovery_point = max(self.recovery_point, target)

    def close(self, now_ms: int = 0) -> None:
        """Seal, flush, and take no more appends; files are then as Kafka leaves them. Blocking."""
        if self.closed:
            return
        with self._io("close"):
            with self._lock:
                self._active.seal()
                self._epochs.write()
            self.flush()
            with self._lock:
                self._history.take_snapshot(self.log_end_offset, self.log_start_offset, sync=True)
            self._active.sync_indexes()
        self.closed = True

    def retire(self) -> Path | None:
        """Take no more appends, and rename the directory so that it is known to be deleted; its new
        name, or None when it was gone already. Quick: no fsync, nothing is removed yet."""
        with self._lock:
            suffix = f".{uuid.uuid4().hex}{DELETE_SUFFIX}"
            present = self.directory
            doomed = present.with_name(present.name[: 255 - len(suffix)] + suffix)
            try:
                with self._io("delete"):
                    if not present.exists():
                        return None
                    present.rename(doomed)
            finally:
                self.closed = True
            self._directory = str(doomed)
            return doomed

    def move_to(self, directory: Path) -> None:
        """Rename the directory: a log that was in the making takes its place. Raises KAFKA_STORAGE_ERROR."""
        with self._lock, self._io("rename"):
            for segment in self._segments:
                segment.load()
            self.directory.rename(directory)
            self._directory = sys.intern(str(directory))
            for segment in self._segments:
                segment.moved_to(directory)
            self._history.snapshots.moved_to(self._directory)
            self._epochs.moved_to(self._directory)

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
        self._roll_ms = self._config.max_segment_ms - self._active.roll_jitter_ms

    def _epochs_changed(self, *, is_urgent: bool = True) -> None:
        """An epoch that begins at the log's end has left nothing in it, and is written with the next flush: a
        broker that starts comes to lead thousands of logs at once, most of which nobody writes to."""
        self.latest_epoch = self._epochs.latest
        if is_urgent and self._epochs.is_dirty:
            self._chores.work_soon(self.write_epochs)

    def flushing(self) -> threading.Lock:
        """Held while files are flushed, of segments that are known by their files' names."""
        lock = self._flush_lock
        if lock is None:
            with self._lock:
                lock = self._flush_lock = self._flush_lock or threading.Lock()
        return lock

    @contextmanager
    def _io(self, action: str) -> Iterator[None]:
        """An I/O error inside is told to the directory, and raised as KAFKA_STORAGE_ERROR."""
        try:
            yield
        except OSError as problem:
            raise self._storage_error(action, problem) from problem

    def _storage_error(self, action: str, problem: OSError) -> KafkaError:
        if not self.closed:
            logger.error("cannot %s %s: %s", action, self.directory, problem)
            # A single file that is not there (somebody removed it) says nothing of the others.
            if not isinstance(problem, FileNotFoundError) or not self.directory.exists():
                self.log_dir.failed(f"{action} {self.directory.name}", problem)
        return KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"cannot {action} {self.directory}: {problem.strerror or problem}",
        )


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
