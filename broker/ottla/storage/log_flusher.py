"""What a log has on disk for certain, and its end: flushing, mending, closing, moving, deleting.

Part of `Log`, over `log_state`. In threads that may block, but for `retire` and `move_to`, which only rename,
and the flush that flush.messages asks for. The log's lock is never held across an fsync, but at the end.
"""

from __future__ import annotations

import shutil
import sys
import threading
import uuid
from functools import partial
from pathlib import Path

from ottla.storage.directories import DELETE_SUFFIX
from ottla.storage.files import sync_directory, sync_file_if_any
from ottla.storage.index_rebuilding import rebuild
from ottla.storage.log_segment import Segment
from ottla.storage.log_state import LogState


class DurableLog(LogState):
    """See the module."""

    __slots__ = ()

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
                if self._topic_id_due:
                    self.write_topic_id()
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
                if begin == 0:
                    sync_directory(self.directory.parent)
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
                self.write_topic_id()
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

    def flushing(self) -> threading.Lock:
        """Held while files are flushed, of segments that are known by their files' names."""
        lock = self._flush_lock
        if lock is None:
            with self._lock:
                lock = self._flush_lock = self._flush_lock or threading.Lock()
        return lock

    def mend_indexes(self) -> None:
        """Make the indexes anew that readers found to point nowhere. Blocking."""
        for segment in self._segments:
            if segment.index_is_suspect and not self.closed:
                is_active = segment is self._segments[-1]
                is_in_use = partial(self._has, segment, is_active=is_active)
                with self._io("rebuild an index of"):
                    rebuild(segment, self._lock, is_in_use, is_active=is_active)

    def _has(self, segment: Segment, *, is_active: bool) -> bool:
        return segment is self._segments[-1] if is_active else segment in self._segments[:-1]

    def _mend_soon(self) -> None:
        """After lookups, which see when an index is wrong."""
        if any(segment.index_is_suspect for segment in self._segments):
            self._chores.work_soon(self.mend_indexes)
