"""What a broker's logs need from time to time: retention, flushes, the removal of what was deleted.

Part of the log manager, over `log_registry`. Nothing in here runs by itself: the shell calls it from its own
timers, in a thread, for it blocks. One log that fails in any of it keeps none of the others from its turn.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from ottla.protocol.errors import KafkaError
from ottla.storage.checkpoints import TopicPartition
from ottla.storage.deferred_tasks import Chores
from ottla.storage.files import sync_directory
from ottla.storage.log_config import INT64_MAX
from ottla.storage.log_registry import LogRegistry
from ottla.storage.retention import BUILT_IN, DeletionPolicy

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class LogUpkeep(LogRegistry):
    """See the module. `producer_id_expiration_ms` is producer.id.expiration.ms; the broker may set it anew at
    any time."""

    def __init__(
        self, log_dirs: list[Path], defaults: Mapping[str, str], producer_id_expiration_ms: int
    ) -> None:
        super().__init__(log_dirs, defaults)
        self.producer_id_expiration_ms = producer_id_expiration_ms
        self.deletion_policies: Mapping[str, DeletionPolicy] = BUILT_IN
        """By the names that `ottla.deletion.policies` has for them."""
        self._chores = Chores()
        self._claimed: set[TopicPartition] = set()
        self._claiming = threading.Lock()

    def claim(self, key: TopicPartition) -> bool:
        """Whether the partition's log is the caller's, to clean it or to delete segments, until `release`."""
        with self._claiming:
            free = key not in self._claimed
            self._claimed.add(key)
            return free

    def release(self, key: TopicPartition) -> None:
        with self._claiming:
            self._claimed.discard(key)

    def is_claimed(self, key: TopicPartition) -> bool:
        return key in self._claimed

    def write_checkpoints(self) -> None:
        """Flush sealed segments, and checkpoint recovery points. Blocking."""
        for log in self.logs().values():
            _attempt(log.flush_sealed)
        for log_dir in self.online_dirs():
            self._write_recovery_points(log_dir)

    def cleanup(self, now_ms: int, high_watermarks: Mapping[TopicPartition, int]) -> int:
        """Apply retention and forget silent producers; how many segments were deleted. Blocking.

        A partition without a known high watermark is left alone. Retention of compacted logs is the log
        cleaner's, as in Kafka, and never goes on while a log is being cleaned.
        """
        deleted = 0
        for key, log in self.logs().items():
            _attempt(partial(log.expire_producers, now_ms, self.producer_id_expiration_ms))
            if key in high_watermarks and not log.config.compacts and self.claim(key):
                retain = partial(
                    log.delete_old_segments,
                    now_ms=now_ms,
                    high_watermark=high_watermarks[key],
                    policies=self.deletion_policies,
                )
                deleted += _attempt(retain) or 0
                self.release(key)
        return deleted

    def flush_due(self, now_ms: int) -> None:
        """Flush the logs that were not flushed for their flush.ms. Blocking."""
        for log in self.logs().values():
            if log.config.flush_ms != INT64_MAX and now_ms - log.last_flush_ms >= log.config.flush_ms:
                log.last_flush_ms = now_ms
                _attempt(log.flush)

    def has_chores(self, now_ms: int) -> bool:
        """Whether there is something for `tend` to do; cheap."""
        return self._chores.any_due(now_ms)

    def tend(self, now_ms: int) -> None:
        """Do what logs have left to do: remove what was deleted (file.delete.delay.ms ago), flush what was
        sealed, write down recovery points that fell. Blocking."""
        if self._chores.take_checkpoint():
            for log_dir in self.online_dirs():
                self._write_recovery_points(log_dir)
        for work in self._chores.take_works():
            _attempt(work)
        for path in self._chores.take_due(now_ms):
            for log_dir in self._dirs.values():
                if log_dir.path in path.parents:
                    log_dir.attempt(f"remove {path.name}", partial(_remove, path))

    @property
    def _delete_delay_ms(self) -> int:
        """Kafka delays the removal of whole logs by the broker's setting, not the topic's."""
        return self.config_for({}).file_delete_delay_ms


def _attempt(job: Callable[[], Result]) -> Result | None:
    """What `job` returns; None if it failed, which is logged, and must not end the round."""
    try:
        return job()
    except KafkaError as problem:
        logger.warning("upkeep of a log failed: %s", problem)
    except Exception:
        logger.exception("upkeep of a log failed")
    return None


def _remove(path: Path) -> None:
    """Unlink a file, or a whole folder once its new name is certain to last."""
    if path.is_dir():
        sync_directory(path.parent)
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
