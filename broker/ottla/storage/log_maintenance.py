"""Periodic maintenance of a broker's logs: retention, flushes, deferred tasks.

Owned by the log manager. Nothing in here runs by itself: the broker calls it from timers, in a thread,
because it blocks. An error in one log does not affect the others.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from ottla.ports.files import Files, is_directory, sync_path, unlink_if_exists
from ottla.protocol.errors import KafkaError
from ottla.storage.checkpoints import TopicPartition
from ottla.storage.deferred_tasks import DeferredTasks
from ottla.storage.log_registry import LogRegistry
from ottla.storage.retention import BUILT_IN, DeletionPolicy

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class LogMaintenance:
    """See the module."""

    def __init__(self, registry: LogRegistry, producer_id_expiration_ms: int) -> None:
        self._registry = registry
        self.deferred_tasks = DeferredTasks()
        self.producer_id_expiration_ms = producer_id_expiration_ms
        """producer.id.expiration.ms; the broker may change it at any time."""
        self.deletion_policies: Mapping[str, DeletionPolicy] = BUILT_IN
        """The policies by their names in `ottla.deletion.policies`."""
        self._locked_for_cleaning: set[TopicPartition] = set()
        self._mutex = threading.Lock()

    def try_lock_for_cleaning(self, key: TopicPartition) -> bool:
        """Reserve the partition's log for compaction or deletion, until `unlock_for_cleaning`. Returns False
        if it is reserved already."""
        with self._mutex:
            is_free = key not in self._locked_for_cleaning
            self._locked_for_cleaning.add(key)
            return is_free

    def unlock_for_cleaning(self, key: TopicPartition) -> None:
        with self._mutex:
            self._locked_for_cleaning.discard(key)

    def is_locked_for_cleaning(self, key: TopicPartition) -> bool:
        return key in self._locked_for_cleaning

    def write_checkpoints(self) -> None:
        """Flush sealed segments, and checkpoint recovery points. Blocking."""
        for log in self._registry.logs().values():
            _run(log.flush_sealed)
        for log_dir in self._registry.online_dirs():
            self._registry.write_recovery_points(log_dir)

    def cleanup(self, now_ms: int, high_watermarks: Mapping[TopicPartition, int]) -> int:
        """Apply retention and remove expired producers; returns how many segments were deleted. Blocking.

        Partitions without a known high watermark are ignored. As in Kafka, the log cleaner applies retention
        to compacted logs; retention and cleaning of one log never run at the same time.
        """
        deleted = 0
        for key, log in self._registry.logs().items():
            _run(partial(log.remove_expired_producers, now_ms, self.producer_id_expiration_ms))
            if key in high_watermarks and not log.config.compacts and self.try_lock_for_cleaning(key):
                apply_retention = partial(
                    log.delete_old_segments,
                    now_ms=now_ms,
                    high_watermark=high_watermarks[key],
                    policies=self.deletion_policies,
                )
                deleted += _run(apply_retention) or 0
                self.unlock_for_cleaning(key)
        return deleted

    def flush_due(self, now_ms: int) -> None:
        """Flush the logs whose last flush is flush.ms ago. Blocking."""
        for log in self._registry.logs().values():
            _run(partial(log.flush_if_due, now_ms))

    def has_deferred_tasks(self, now_ms: int) -> bool:
        """Whether `run_deferred_tasks` has something to do. Cheap."""
        return self.deferred_tasks.has_due(now_ms)

    def run_deferred_tasks(self, now_ms: int) -> None:
        """Write the requested recovery point checkpoints, run the deferred tasks and delete the files whose
        file.delete.delay.ms is over. Blocking."""
        if self.deferred_tasks.drain_checkpoint():
            for log_dir in self._registry.online_dirs():
                self._registry.write_recovery_points(log_dir)
        for task in self.deferred_tasks.drain():
            _run(task)
        for path in self.deferred_tasks.drain_deletions(now_ms):
            for log_dir in self._registry.dirs.values():
                if log_dir.path in path.parents:
                    log_dir.run(f"remove {path.name}", partial(_remove, log_dir.files, path))

    @property
    def delete_delay_ms(self) -> int:
        """file.delete.delay.ms for whole logs: the broker's setting, not the topic's, as in Kafka."""
        return self._registry.config_for({}).file_delete_delay_ms


def _run(job: Callable[[], Result]) -> Result | None:
    """The result of `job`; None if it failed, which is logged and does not affect other logs."""
    try:
        return job()
    except KafkaError as problem:
        logger.warning("Maintenance of a log failed: %s", problem)
    except Exception:
        logger.exception("Maintenance of a log failed")
    return None


def _remove(files: Files, path: Path) -> None:
    """Delete a file, or a directory after its rename is synced."""
    if is_directory(files, path):
        sync_path(files, path.parent)
        files.rmtree(path)
    else:
        unlink_if_exists(files, path)
