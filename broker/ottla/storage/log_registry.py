"""The logs of a broker by partition, its log directories, and the checkpoint files of offsets in them.

Owned by the log manager, which adds and removes logs. A directory that fails takes its logs offline until the
next start; other directories are not affected.
"""

from __future__ import annotations

import itertools
import logging
import random
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from ottla.ports.files import Files
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.storage.checkpoints import (
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    TopicPartition,
)
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from ottla.storage.log_dir import LogDir, LogDirProblem

logger = logging.getLogger(__name__)

CONFIG_CACHE_MAX = 1000


class LogRegistry:
    """See the module."""

    def __init__(
        self, log_dirs: list[Path], defaults: Mapping[str, str], files: Files, source: random.Random
    ) -> None:
        if not log_dirs:
            raise LogDirProblem("log.dirs names no directory")
        self.log_dirs = [Path(log_dir).absolute() for log_dir in log_dirs]
        self.on_dir_failed: Callable[[Path], None] = lambda path: None
        """Called once for each directory that fails after `load`, in the thread that met the error. Its logs
        reject appends by then; the callee arranges for `take_offline`."""
        self.defaults = defaults
        """Topic configs from the broker's own settings. Replaced as a whole, never changed."""
        self._configs: dict[frozenset[tuple[str, str]], tuple[Mapping[str, str], LogConfig]] = {}
        self.dirs = {
            path: LogDir(path, self._on_dir_failed, files=files, source=source) for path in self.log_dirs
        }
        self.current: dict[TopicPartition, Log] = {}
        self.future: dict[TopicPartition, Log] = {}
        """Future logs, each in another directory than its partition's current log."""
        self.is_loaded = False
        self.mutex = threading.RLock()

    # --- directories -----------------------------------------------------------------------------

    def online_dirs(self) -> list[LogDir]:
        return [log_dir for log_dir in self.dirs.values() if log_dir.online]

    def failed_dirs(self) -> list[LogDir]:
        return [log_dir for log_dir in self.dirs.values() if not log_dir.online]

    def log_dir(self, path: str) -> LogDir:
        """The log directory with this absolute path. Raises LOG_DIR_NOT_FOUND."""
        found = self.dirs.get(Path(path))
        if found is None or str(found.path) != path:
            raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is not in log.dirs")
        return found

    def _on_dir_failed(self, log_dir: LogDir) -> None:
        """Called from any thread, with locks of logs held: takes no other lock."""
        for log in [*self.logs().values(), *self.future_logs().values()]:
            if log.log_dir is log_dir:
                log.closed = True
        if self.is_loaded:
            self.on_dir_failed(log_dir.path)

    def take_offline(self, path: Path) -> None:
        """Remove the logs of a failed directory. Their files stay unchanged for the next start."""
        with self.mutex:
            log_dir = self.dirs[path]
            for logs in (self.current, self.future):
                removed = [key for key, log in logs.items() if log.log_dir is log_dir]
                for key in removed:
                    logs.pop(key).closed = True
                if removed:
                    logger.warning("%d logs in %s are offline", len(removed), path)
            log_dir.unlock()

    def config_for(self, props: Mapping[str, str]) -> LogConfig:
        """A topic's configuration: its overrides `props` over the broker's defaults. Topics with equal
        overrides share one object."""
        key = frozenset(props.items())
        defaults, config = self._configs.get(key, (None, None))
        if config is None or defaults is not self.defaults:
            if len(self._configs) >= CONFIG_CACHE_MAX:
                self._configs.clear()
            config = LogConfig.from_mapping(props, self.defaults)
            self._configs[key] = (self.defaults, config)
        return config

    def get(self, topic: str, partition: int) -> Log | None:
        return self.current.get((topic, partition))

    def logs(self) -> dict[TopicPartition, Log]:
        """A copy of the map of current logs: logs may be added and removed while the caller iterates."""
        return dict(self.current)

    def future_log(self, topic: str, partition: int) -> Log | None:
        """The partition's future log: its copy in another log directory, which replaces the current log when
        it has caught up (KIP-113)."""
        return self.future.get((topic, partition))

    def future_logs(self) -> dict[TopicPartition, Log]:
        """A copy of the map of future logs."""
        return dict(self.future)

    def _logs_in(self, log_dir: LogDir) -> dict[TopicPartition, Log]:
        both = itertools.chain(self.logs().items(), self.future_logs().items())
        return {key: log for key, log in both if log.log_dir is log_dir}

    def count_logs_in(self, log_dir: LogDir) -> int:
        return sum(log.log_dir is log_dir for logs in (self.current, self.future) for log in logs.values())

    # --- checkpoints -----------------------------------------------------------------------------

    def read_high_watermarks(self) -> dict[TopicPartition, int]:
        """The checkpointed high watermarks; of two directories with the same partition, that with its log
        counts."""
        merged: dict[TopicPartition, int] = {}
        for log_dir in self.online_dirs():
            for key, offset in log_dir.read_offsets(REPLICATION_FILE).items():
                log = self.current.get(key)
                if key not in merged or (log is not None and log.log_dir is log_dir):
                    merged[key] = offset
        return merged

    def write_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Checkpoint the high watermarks in the log directories of their partitions; partitions without a log
        are ignored."""
        by_dir: dict[LogDir, dict[TopicPartition, int]] = {log_dir: {} for log_dir in self.online_dirs()}
        for key, offset in high_watermarks.items():
            log = self.current.get(key)
            if log is not None and log.log_dir in by_dir:
                by_dir[log.log_dir][key] = offset
        for log_dir, offsets in by_dir.items():
            log_dir.write_offsets(REPLICATION_FILE, offsets)

    def write_start_offsets(self) -> None:
        """Checkpoint the log start offsets that are not the base offset of the first segment. Blocking."""
        for log_dir in self.online_dirs():
            self.checkpoint_start_offsets(log_dir)

    def write_recovery_points(self, log_dir: LogDir) -> None:
        written: list[tuple[Log, int]] = []

        def collect() -> dict[TopicPartition, int]:
            points = {key: (log, log.recovery_point) for key, log in self._logs_in(log_dir).items()}
            written[:] = points.values()
            return {key: point for key, (_, point) in points.items()}

        log_dir.checkpoint(RECOVERY_POINT_FILE, collect)
        if log_dir.online:
            for log, point in written:
                log.durable_to = point

    def make_durable(self, log: Log, offset: int) -> None:
        """Before segments up to `offset` are cleaned: sync the data, and write the recovery point. Blocking;
        raises KAFKA_STORAGE_ERROR."""
        if min(log.durable_to, log.recovery_point) < offset:
            log.flush_sealed()
            self.write_recovery_points(log.log_dir)

    def checkpoint_start_offsets(self, log_dir: LogDir) -> None:
        log_dir.checkpoint(
            LOG_START_FILE,
            lambda: {
                key: log.log_start_offset
                for key, log in self._logs_in(log_dir).items()
                if log.log_start_offset > log.segments[0].base_offset
            },
        )
