"""The files of one partition's log: its directory, segments, recovery point and partition.metadata (Kafka's
LocalLog).

Owned by `Log`, which assigns offsets and keeps the leader epochs and the producers. `LocalLog` does not know
the log end offset: callers pass it. Callers hold `lock` for every change, except where a method says
otherwise; the lock is never held across an fsync, except in `Log.close`.

Invariants: the last segment is the active segment, and only it is appended to; all data before the recovery
point is on disk.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ottla.ports.files import sync_if_exists, sync_path
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records import INT32_MAX
from ottla.storage.checkpoints import RECOVERY_POINT_FILE
from ottla.storage.deferred_tasks import DeferredTasks
from ottla.storage.log_config import LogConfig
from ottla.storage.log_dir import (
    LogDir,
    deleted_directory,
    parse_future_directory,
    parse_partition_directory,
    read_topic_id,
    write_topic_id,
)
from ottla.storage.log_loader import new_segment
from ottla.storage.log_segment import LogSegment
from ottla.storage.log_segments import LogSegments
from ottla.storage.segment_files import SWAP_SUFFIX

logger = logging.getLogger(__name__)

_FLUSH_LOCK_CREATION = threading.Lock()


class PendingFlush(NamedTuple):
    """A flush whose indexes are written and whose files are not synced yet."""

    target: int
    """The recovery point after the flush."""
    segments: list[LogSegment]
    is_first: bool
    """Nothing of the log was flushed before: its directory entry must be synced, too."""
    truncations: int
    appended: LogSegment | None
    """The active segment, if it is among them."""


class LocalLog:
    """See the module."""

    # Slots, here and in the parts of logs: a broker has thousands of idle logs.
    __slots__ = (
        "_config",
        "_directory",
        "_flush_lock",
        "_topic_id_is_dirty",
        "active",
        "closed",
        "deferred_tasks",
        "last_flush_ms",
        "lock",
        "log_dir",
        "recovery_point",
        "roll_ms",
        "segment_bytes",
        "segments",
        "topic_id",
        "truncations",
    )

    def __init__(
        self,
        directory: str,
        config: LogConfig,
        segments: Sequence[LogSegment],
        deferred_tasks: DeferredTasks,
        log_dir: LogDir,
        *,
        recovery_point: int,
        now_ms: int,
    ) -> None:
        self._directory = directory
        self.log_dir = log_dir
        """The log directory, which takes its logs offline after an I/O error."""
        self.deferred_tasks = deferred_tasks
        self.lock = threading.RLock()
        self.closed = False
        """The log accepts no appends: it was closed or deleted, or its directory has failed."""
        self.recovery_point = recovery_point
        self.last_flush_ms = now_ms
        """When the log was opened or last flushed because of flush.ms; set by the maintenance."""
        self.truncations = 0
        """How often data was dropped from the log's end."""
        self._flush_lock: threading.Lock | None = None
        self.topic_id = read_topic_id(log_dir.files, directory)
        """The id in partition.metadata; None before the first LeaderAndIsr request that has it."""
        self._topic_id_is_dirty = False
        self._config = config
        self.segments = LogSegments(segments)
        self.active = segments[-1]
        self.config = config

    @property
    def config(self) -> LogConfig:
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._config = config
        self.segment_bytes = config.segment_bytes
        self._update_roll_ms()

    def set_segments(self, segments: Sequence[LogSegment]) -> None:
        """Replace all segments."""
        self.segments.set(segments)
        self.active = self.segments.active
        self._update_roll_ms()

    def _update_roll_ms(self) -> None:
        jitter_ms = self.active.roll_jitter_ms
        # Without jitter, share the number with all logs of this configuration.
        self.roll_ms = self._config.max_segment_ms - jitter_ms if jitter_ms else self._config.max_segment_ms

    # --- directory -------------------------------------------------------------------------------

    @property
    def directory(self) -> Path:
        return Path(self._directory)

    @property
    def directory_str(self) -> str:
        return self._directory

    def rename_dir(self, directory: Path) -> None:
        """Rename the log's directory. Raises OSError."""
        for segment in self.segments.all:
            segment.load()
        self.log_dir.files.rename(self._directory, directory)
        self._directory = sys.intern(str(directory))
        for segment in self.segments.all:
            segment.update_parent_dir(directory)

    def rename_for_deletion(self) -> Path | None:
        """Accept no more appends, and rename the directory to `*-delete`. Returns the new path; None if the
        directory does not exist. No fsync, no removal: fast enough for the event loop."""
        with self.lock:
            current = self.directory
            renamed = current.with_name(deleted_directory(current.name, self.log_dir.random))
            try:
                with self.io("delete"):
                    try:
                        self.log_dir.files.rename(current, renamed)
                    except FileNotFoundError:
                        return None
            finally:
                self.closed = True
            self._directory = str(renamed)
            return renamed

    def set_topic_id(self, topic_id: uuid.UUID) -> None:
        """Set the topic id. partition.metadata is written by the next maintenance or before the first batch,
        as in Kafka: a broker that creates thousands of partitions does not wait for the disk for each."""
        self.topic_id = topic_id
        self._topic_id_is_dirty = True
        self.deferred_tasks.schedule(self.flush_topic_id)

    def flush_topic_id(self) -> None:
        """Write partition.metadata if the topic id was set since. Blocking: fsyncs, once in a log's life."""
        if self._topic_id_is_dirty:
            with self.lock, self.io("write the topic id of"):
                if self._topic_id_is_dirty and self.topic_id is not None and not self.closed:
                    write_topic_id(self.log_dir.files, self.directory, self.topic_id)
                    self._topic_id_is_dirty = False

    # --- I/O errors ------------------------------------------------------------------------------

    @contextmanager
    def io(self, action: str) -> Iterator[None]:
        """Report an OSError to the log directory, and raise it as KAFKA_STORAGE_ERROR."""
        try:
            yield
        except OSError as problem:
            raise self.storage_error(action, problem) from problem

    def storage_error(self, action: str, problem: OSError) -> KafkaError:
        """The KAFKA_STORAGE_ERROR for an OSError, which is reported to the log directory."""
        if not self.closed:
            logger.error("Error while trying to %s %s: %s", action, self.directory, problem)
            # A single missing file (somebody removed it) does not mean that the disk has failed.
            if not isinstance(problem, FileNotFoundError) or not self.log_dir.files.exists(self.directory):
                self.log_dir.fail(f"{action} {self.directory.name}", problem)
        return KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"cannot {action} {self.directory}: {problem.strerror or problem}",
        )

    # --- rolling ---------------------------------------------------------------------------------

    def needs_roll(self, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool:
        """Whether a batch needs a new segment. `Log.append_as_leader` has an inlined copy."""
        segment = self.active
        if segment.first_timestamp >= 0:
            age_ms = max_timestamp - segment.first_timestamp
        else:
            age_ms = now_ms - segment.created_ms
        return segment.size > 0 and (
            segment.size + size > self.segment_bytes
            or age_ms > self.roll_ms
            or last_offset - segment.base_offset > INT32_MAX
            or segment.index_full
        )

    def create_next_segment(self, offset: int, now_ms: int) -> LogSegment:
        """Seal the active segment, and create its successor. The caller adds it with `set_segments`."""
        self.active.seal()
        # Sealing writes the last entries of the indexes: the next flush syncs them.
        if self.active.base_offset < self.recovery_point:
            self.deferred_tasks.schedule_checkpoint()
            self.recovery_point = self.active.base_offset
        return new_segment(self.log_dir.files, self._directory, offset, self._config, now_ms)

    # --- flushing --------------------------------------------------------------------------------

    def flush_lock(self) -> threading.Lock:
        """Held while files are synced, which identifies segments by their file names."""
        if self._flush_lock is None:
            with _FLUSH_LOCK_CREATION:
                self._flush_lock = self._flush_lock or threading.Lock()
        return self._flush_lock

    def begin_flush(self, target: int) -> PendingFlush:
        """Write the indexes of the segments between the recovery point and `target`. Raises OSError."""
        segments = self.segments.overlapping(self.recovery_point, target)
        for segment in segments:
            segment.write_indexes()
        appended = self.active if target > self.active.base_offset else None
        return PendingFlush(target, segments, self.recovery_point == 0, self.truncations, appended)

    def sync(self, pending: PendingFlush, paths: Iterable[Path]) -> bool:
        """fsync the segments and the files `paths`, without `lock`. Returns False if the log was truncated or
        deleted meanwhile. Blocking. Raises KAFKA_STORAGE_ERROR."""
        files = self.log_dir.files
        try:
            with self.log_dir.flushes.measured():
                for path in paths:
                    sync_if_exists(files, path)
                for segment in pending.segments:
                    segment.sync()
                sync_path(files, self.directory)
                if pending.is_first:
                    sync_path(files, self.directory.parent)
        except FileNotFoundError:
            return False
        except OSError as problem:
            raise self.storage_error("flush", problem) from problem
        return True

    def complete_flush(self, pending: PendingFlush) -> None:
        """Advance the recovery point, unless the log was truncated since `begin_flush`. Not to the end of a
        segment that was sealed since: its last index entries are not synced."""
        if pending.truncations == self.truncations:
            is_sealed = pending.appended not in (None, self.active)
            self.recovery_point = max(self.recovery_point, pending.target - is_sealed)

    # --- truncating, deleting and replacing segments ---------------------------------------------

    def truncate_to(self, offset: int, removed: Sequence[LogSegment]) -> None:
        """Delete the files of `removed`, the segments after `offset`, and cut the segment that holds it."""
        kept = self.segments.all[: len(self.segments.all) - len(removed)]
        self.schedule_delete(removed)
        kept[-1].truncate_to(offset)
        self.set_segments(kept)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Delete all segments, and continue with an empty one at `offset`."""
        self.schedule_delete(self.segments.all)
        self.set_segments([new_segment(self.log_dir.files, self._directory, offset, self._config, 0)])

    def lower_checkpoint(self, offset: int) -> None:
        """Lower the recovery point, also in the directory's checkpoint file. Blocking."""
        self.recovery_point = min(self.recovery_point, offset)
        name = os.path.basename(self._directory)
        key = parse_partition_directory(name) or parse_future_directory(name)
        if key is not None:
            self.log_dir.lower_offset(RECOVERY_POINT_FILE, key, offset)

    def schedule_delete(self, segments: Sequence[LogSegment]) -> None:
        """Rename the segments' files, and delete them after file.delete.delay.ms.

        The rename is done now, under the lock: after that, the topic may be deleted and created again, and
        the old names be those of another log's files. The newest segment is renamed first, so that a crash
        leaves no gap."""
        for segment in reversed(segments):
            self.deferred_tasks.schedule_delete(segment.rename_deleted(), self._config.file_delete_delay_ms)

    def replace_segments(self, old: Sequence[LogSegment], new: LogSegment) -> bool:
        """Replace `old`, neighbours, by the cleaned segment `new`. Returns False if they are not sealed
        segments of this log any more. No fsync; raises OSError.

        The steps are those of Kafka, so that either implementation can complete an interrupted swap when it
        opens the log (`log_loader`):

        1. The cleaner process has written and synced `.cleaned` files. After a crash they are removed.
        2. They are renamed to `.swap`, the log file first. While any `.cleaned` file exists, all are removed.
        3. The old segments' files are renamed to `.deleted`. From here on a crash is completed forwards: all
           files in the offset range of the `.swap` log that are not `.swap` are removed.
        4. The `.swap` suffix is removed, the log file first. The loader does the same for the remaining
        files.

        Of the producer snapshots, that of the first segment stays.
        """
        assert new.base_offset == old[0].base_offset
        segments = list(self.segments.all)
        at = segments.index(old[0]) if old[0] in segments else 0
        if self.closed or segments[at : at + len(old)] != list(old) or self.active in old:
            return False
        new.change_file_suffixes(SWAP_SUFFIX)
        renamed: list[Path] = []
        for segment in old:
            renamed += segment.rename_deleted(with_snapshot=segment is not old[0])
        new.change_file_suffixes("")
        segments[at : at + len(old)] = [new]
        self.set_segments(segments)
        self.deferred_tasks.schedule_delete(renamed, self._config.file_delete_delay_ms)
        return True
