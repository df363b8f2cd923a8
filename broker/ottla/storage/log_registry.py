"""Which logs a broker has, in which of its log directories, and the checkpoint files that name them.

The ground floor of the log manager, which fills it. A directory that fails takes its own logs out of use, at
once and until the next start; the others go on.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.storage.checkpoints import (
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    TopicPartition,
)
from ottla.storage.directories import LogDirProblem
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from ottla.storage.log_dir import LogDir

logger = logging.getLogger(__name__)

CONFIGS_KEPT_MAX = 1000


class LogRegistry:
    """See the module."""

    def __init__(self, log_dirs: list[Path], defaults: Mapping[str, str]) -> None:
        if not log_dirs:
            raise LogDirProblem("log.dirs names no directory")
        self.log_dirs = [Path(log_dir).absolute() for log_dir in log_dirs]
        self.on_dir_failed: Callable[[Path], None] = lambda path: None
        """Called once for each directory that fails after `load`, in whatever thread met the error. Its logs
        take no more appends by then; `take_offline` is to follow."""
        self.defaults = defaults
        """Replaced as a whole, never changed."""
        self._configs: dict[frozenset[tuple[str, str]], tuple[Mapping[str, str], LogConfig]] = {}
        self._dirs = {path: LogDir(path, self._dir_failed) for path in self.log_dirs}
        self._logs: dict[TopicPartition, Log] = {}
        self._futures: dict[TopicPartition, Log] = {}
        """Logs in the making, each in another directory than its partition's present one."""
        self._loaded = False
        self._mutex = threading.RLock()

    # --- directories -----------------------------------------------------------------------------

    def online_dirs(self) -> list[LogDir]:
        return [log_dir for log_dir in self._dirs.values() if log_dir.online]

    def failed_dirs(self) -> list[LogDir]:
        return [log_dir for log_dir in self._dirs.values() if not log_dir.online]

    def log_dir(self, path: str) -> LogDir:
        """The directory of that (absolute) name. Raises LOG_DIR_NOT_FOUND."""
        found = self._dirs.get(Path(path))
        if found is None or str(found.path) != path:
            raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is not in log.dirs")
        return found

    def _dir_failed(self, log_dir: LogDir) -> None:
        """From any thread, and inside the locks of logs: takes no other lock."""
        for log in [*self.logs().values(), *self.futures().values()]:
            if log.log_dir is log_dir:
                log.closed = True
        if self._loaded:
            self.on_dir_failed(log_dir.path)

    def take_offline(self, path: Path) -> None:
        """Forget the logs of a directory that has failed. Their files stay as they are for the next start."""
        with self._mutex:
            log_dir = self._dirs[path]
            for logs in (self._logs, self._futures):
                gone = [key for key, log in logs.items() if log.log_dir is log_dir]
                for key in gone:
                    logs.pop(key).closed = True
                if gone:
                    logger.warning("%d logs in %s are offline", len(gone), path)
            log_dir.release()

    def config_for(self, props: Mapping[str, str]) -> LogConfig:
        """A topic's configuration: its overrides `props` over the broker's defaults. Most topics share it."""
        key = frozenset(props.items())
        defaults, config = self._configs.get(key, (None, None))
        if config is None or defaults is not self.defaults:
            if len(self._configs) >= CONFIGS_KEPT_MAX:
                self._configs.clear()
            config = LogConfig.from_mapping(props, self.defaults)
            self._configs[key] = (self.defaults, config)
        return config

    def get(self, topic: str, partition: int) -> Log | None:
        return self._logs.get((topic, partition))

    def logs(self) -> dict[TopicPartition, Log]:
        """A copy: logs may come and go while the caller works through it."""
        return dict(self._logs)

    def future(self, topic: str, partition: int) -> Log | None:
        """The log that is to take the place of the partition's present one."""
        return self._futures.get((topic, partition))

    def futures(self) -> dict[TopicPartition, Log]:
        """A copy."""
        return dict(self._futures)

    def _in(self, log_dir: LogDir) -> dict[TopicPartition, Log]:
        both = itertools.chain(self.logs().items(), self.futures().items())
        return {key: log for key, log in both if log.log_dir is log_dir}

    def _count_in(self, log_dir: LogDir) -> int:
        return sum(log.log_dir is log_dir for logs in (self._logs, self._futures) for log in logs.values())

    # --- checkpoints -----------------------------------------------------------------------------

    def read_high_watermarks(self) -> dict[TopicPartition, int]:
        """High watermarks as last checkpointed; where two directories name a partition, that of its log."""
        merged: dict[TopicPartition, int] = {}
        for log_dir in self.online_dirs():
            for key, offset in log_dir.read_offsets(REPLICATION_FILE).items():
                log = self._logs.get(key)
                if key not in merged or (log is not None and log.log_dir is log_dir):
                    merged[key] = offset
        return merged

    def write_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Checkpoint them, each in its partition's directory; partitions without a log are left out."""
        by_dir: dict[LogDir, dict[TopicPartition, int]] = {log_dir: {} for log_dir in self.online_dirs()}
        for key, offset in high_watermarks.items():
            log = self._logs.get(key)
            if log is not None and log.log_dir in by_dir:
                by_dir[log.log_dir][key] = offset
        for log_dir, offsets in by_dir.items():
            log_dir.write_offsets(REPLICATION_FILE, offsets)

    def write_start_offsets(self) -> None:
        """Checkpoint the log start offsets that the files do not show. Blocking."""
        for log_dir in self.online_dirs():
            self._write_start_offsets(log_dir)

    def _write_recovery_points(self, log_dir: LogDir) -> None:
        log_dir.checkpoint(
            RECOVERY_POINT_FILE, lambda: {key: log.recovery_point for key, log in self._in(log_dir).items()}
        )

    def _write_start_offsets(self, log_dir: LogDir) -> None:
        log_dir.checkpoint(
            LOG_START_FILE,
            lambda: {
                key: log.log_start_offset
                for key, log in self._in(log_dir).items()
                if log.log_start_offset > log.first_segment_offset
            },
        )
