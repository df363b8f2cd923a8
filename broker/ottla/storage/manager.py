"""All logs of one broker, over its log directories.

Owned by the broker; used by replication to find and make logs. It loads them at start (recovering
what a crash left), keeps the checkpoint files, applies retention, and closes everything in order.
Nothing in here runs by itself: the shell calls `tend`, `flush_due`, `cleanup` and those that write
checkpoints from its own timers, in a thread, for they block. One log that fails in any of them keeps
none of the others from its turn.

Invariants: a partition lives in one log directory; a directory's checkpoint files name only its own
partitions; `.kafka_cleanshutdown` exists only while nobody has the logs open.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from ottla.storage.checkpoints import (
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    MalformedCheckpoint,
    TopicPartition,
    read_offsets,
    write_offsets,
)
from ottla.storage.chores import Chores
from ottla.storage.directories import (
    DELETE_SUFFIX,
    DirectoryLock,
    LogDirProblem,
    check_meta_properties,
    mark_clean_shutdown,
    parse_partition_directory,
    take_clean_shutdown,
)
from ottla.storage.durable import sync_directory
from ottla.storage.log import Log
from ottla.storage.log_config import INT64_MAX, LogConfig

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

PRODUCER_ID_EXPIRATION_MS = 24 * 60 * 60 * 1000
"""producer.id.expiration.ms"""


class LogManager:
    """See the module. `defaults` are the topic configs that follow from the broker's own settings."""

    def __init__(
        self,
        log_dirs: list[Path],
        broker_id: int,
        cluster_id: str,
        defaults: Mapping[str, str] | None = None,
        *,
        recovery_threads: int = 1,
        producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS,
    ) -> None:
        if not log_dirs:
            raise LogDirProblem("log.dirs names no directory")
        self.log_dirs = [Path(log_dir).absolute() for log_dir in log_dirs]
        self.broker_id = broker_id
        self.cluster_id = cluster_id
        self.defaults = dict(defaults or {})
        self._recovery_threads = recovery_threads
        self.producer_id_expiration_ms = producer_id_expiration_ms
        """producer.id.expiration.ms; the broker may set it anew at any time."""
        self._logs: dict[TopicPartition, Log] = {}
        self._stale: set[TopicPartition] = set()
        """Partitions without a log that checkpoint files on disk may still name."""
        self._chores = Chores()
        self._locks: list[DirectoryLock] = []
        self._mutex = threading.Lock()
        self._checkpoint_mutex = threading.Lock()

    def load(self, now_ms: int, topic_configs: Mapping[str, Mapping[str, str]] | None = None) -> None:
        """Lock the directories, make sure that they are this broker's, and open every log in them.

        `topic_configs` are overrides per topic. Raises LogDirProblem (held by another broker, of
        another broker or cluster, unusable), MalformedCheckpoint never: a checkpoint that cannot be
        read is put aside, and its logs are verified from their start.
        """
        for log_dir in self.log_dirs:
            try:
                log_dir.mkdir(parents=True, exist_ok=True)
                self._locks.append(DirectoryLock(log_dir))
                check_meta_properties(log_dir, self.broker_id, self.cluster_id)
            except (OSError, LogDirProblem) as problem:
                self._release_locks()
                if isinstance(problem, LogDirProblem):
                    raise
                raise LogDirProblem(f"log directory {log_dir} cannot be used: {problem}") from problem
        for log_dir in self.log_dirs:
            self._load_directory(log_dir, now_ms, topic_configs or {})

    def config_for(self, props: Mapping[str, str]) -> LogConfig:
        """A topic's configuration: its overrides `props` over the broker's defaults."""
        return LogConfig.from_mapping(props, self.defaults)

    def get(self, topic: str, partition: int) -> Log | None:
        return self._logs.get((topic, partition))

    def logs(self) -> dict[TopicPartition, Log]:
        """A copy: logs may come and go while the caller works through it."""
        return dict(self._logs)

    def get_or_create(self, topic: str, partition: int, config: LogConfig, now_ms: int = 0) -> Log:
        """The log, made in the directory with the fewest partitions if there is none yet.

        Raises OSError.
        """
        with self._mutex:
            log = self._logs.get((topic, partition))
            if log is None:
                if (topic, partition) in self._stale:
                    self._forget_stale((topic, partition))
                log_dir = min(self.log_dirs, key=self._count_in)
                log = Log.open(
                    log_dir / f"{topic}-{partition}",
                    config,
                    recovery_point=0,
                    log_start_offset=0,
                    clean_shutdown=True,
                    now_ms=now_ms,
                    chores=self._chores,
                )
                self._logs[(topic, partition)] = log
            return log

    def delete(self, topic: str, partition: int) -> None:
        """Make the log go away; nothing happens when there is none.

        Quick enough for the event loop: the directory is only renamed, and removed by `tend` after the
        broker's log.segment.delete.delay.ms. Raises OSError.
        """
        with self._mutex:
            log = self._logs.pop((topic, partition), None)
            if log is None:
                return
            self._stale.add((topic, partition))
            doomed = log.retire()
            if doomed is not None:
                self._chores.bury([doomed], self._delete_delay_ms)

    def _forget_stale(self, key: TopicPartition) -> None:
        """Before a log comes back under the name of a deleted one: what the checkpoint files say of
        that must not be applied to this after a crash."""
        for log_dir in self.log_dirs:
            self._write_recovery_points(log_dir)
            self._write_start_offsets(log_dir)
            with self._checkpoint_mutex:
                high_watermarks = _read_or_set_aside(log_dir / REPLICATION_FILE)
                if high_watermarks.pop(key, None) is not None:
                    write_offsets(log_dir / REPLICATION_FILE, high_watermarks)
        self._stale.discard(key)

    # --- checkpoints -----------------------------------------------------------------------------

    def read_high_watermarks(self) -> dict[TopicPartition, int]:
        """High watermarks as last checkpointed."""
        merged: dict[TopicPartition, int] = {}
        for log_dir in self.log_dirs:
            merged.update(_read_or_set_aside(log_dir / REPLICATION_FILE))
        return merged

    def write_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Checkpoint them, each in its partition's directory; partitions without a log are left out."""
        by_dir: dict[Path, dict[TopicPartition, int]] = {log_dir: {} for log_dir in self.log_dirs}
        for key, offset in high_watermarks.items():
            log = self._logs.get(key)
            if log is not None:
                by_dir[log.directory.parent][key] = offset
        with self._checkpoint_mutex:
            for log_dir, offsets in by_dir.items():
                write_offsets(log_dir / REPLICATION_FILE, offsets)

    def write_checkpoints(self) -> None:
        """Flush sealed segments, and checkpoint recovery points. Blocking."""
        for log in self.logs().values():
            _attempt(log.flush_sealed)
        for log_dir in self.log_dirs:
            self._write_recovery_points(log_dir)

    def write_start_offsets(self) -> None:
        """Checkpoint the log start offsets that the files do not show. Blocking."""
        for log_dir in self.log_dirs:
            self._write_start_offsets(log_dir)

    def _write_recovery_points(self, log_dir: Path) -> None:
        with self._checkpoint_mutex:
            points = {key: log.recovery_point for key, log in self._in(log_dir).items()}
            _attempt(partial(write_offsets, log_dir / RECOVERY_POINT_FILE, points))

    def _write_start_offsets(self, log_dir: Path) -> None:
        with self._checkpoint_mutex:
            starts = {
                key: log.log_start_offset
                for key, log in self._in(log_dir).items()
                if log.log_start_offset > log.first_segment_offset
            }
            _attempt(partial(write_offsets, log_dir / LOG_START_FILE, starts))

    # --- upkeep ----------------------------------------------------------------------------------

    def cleanup(self, now_ms: int, high_watermarks: Mapping[TopicPartition, int]) -> int:
        """Apply retention and forget silent producers; how many segments were deleted. Blocking.

        A partition without a known high watermark is left alone.
        """
        deleted = 0
        for key, log in self.logs().items():
            _attempt(partial(log.expire_producers, now_ms, self.producer_id_expiration_ms))
            if key in high_watermarks:
                retain = partial(log.delete_old_segments, now_ms=now_ms, high_watermark=high_watermarks[key])
                deleted += _attempt(retain) or 0
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
            for log_dir in self.log_dirs:
                self._write_recovery_points(log_dir)
        for flush in self._chores.take_flushes():
            _attempt(flush)
        for path in self._chores.take_due(now_ms):
            _attempt(partial(_remove, path))

    def close(self, now_ms: int, broker_epoch: int = -1) -> None:
        """Close every log, checkpoint, mark the directories clean, release them. Blocking.

        A directory with a log that could not be closed is not marked clean.
        """
        dirty: set[Path] = set()
        for key, log in self.logs().items():
            try:
                log.close(now_ms)
            except Exception:
                logger.exception(
                    "closing %s-%d failed; its directory will be verified at the next start", *key
                )
                dirty.add(log.directory.parent)
        try:
            for log_dir in self.log_dirs if self._locks else []:
                self._write_recovery_points(log_dir)
                self._write_start_offsets(log_dir)
                if log_dir not in dirty:
                    mark_clean_shutdown(log_dir, broker_epoch)
        finally:
            self._release_locks()

    # --- inside ----------------------------------------------------------------------------------

    def _load_directory(
        self, log_dir: Path, now_ms: int, topic_configs: Mapping[str, Mapping[str, str]]
    ) -> None:
        clean = take_clean_shutdown(log_dir)
        recovery_points = _read_or_set_aside(log_dir / RECOVERY_POINT_FILE)
        start_offsets = _read_or_set_aside(log_dir / LOG_START_FILE)
        found: list[tuple[TopicPartition, Path]] = []
        for path in sorted(path for path in log_dir.iterdir() if path.is_dir()):
            if path.name.endswith(DELETE_SUFFIX):
                self._chores.bury([path], self._delete_delay_ms)
                continue
            key = parse_partition_directory(path.name)
            if key is None:
                logger.warning("%s is no partition's directory: left alone", path)
                continue
            if key in self._logs:
                raise LogDirProblem(f"{key[0]}-{key[1]} is in two log directories: {path} is one of them")
            found.append((key, path))

        def open_one(entry: tuple[TopicPartition, Path]) -> tuple[TopicPartition, Log]:
            key, path = entry
            log = Log.open(
                path,
                self.config_for(topic_configs.get(key[0], {})),
                recovery_point=recovery_points.get(key, 0),
                log_start_offset=start_offsets.get(key, 0),
                clean_shutdown=clean,
                now_ms=now_ms,
                chores=self._chores,
            )
            log.expire_producers(now_ms, self.producer_id_expiration_ms)
            return key, log

        with ThreadPoolExecutor(self._recovery_threads) as pool:
            self._logs.update(pool.map(open_one, found))
        named = {*recovery_points, *start_offsets, *_read_or_set_aside(log_dir / REPLICATION_FILE)}
        self._stale |= named - {key for key, _ in found}
        logger.info("%s: %d logs, last shutdown %s", log_dir, len(found), "clean" if clean else "not clean")

    @property
    def _delete_delay_ms(self) -> int:
        """Kafka delays the removal of whole logs by the broker's setting, not the topic's."""
        return self.config_for({}).file_delete_delay_ms

    def _in(self, log_dir: Path) -> dict[TopicPartition, Log]:
        return {key: log for key, log in self.logs().items() if log.directory.parent == log_dir}

    def _count_in(self, log_dir: Path) -> int:
        return sum(1 for log in self._logs.values() if log.directory.parent == log_dir)

    def _release_locks(self) -> None:
        for lock in self._locks:
            lock.release()
        self._locks = []


def _read_or_set_aside(path: Path) -> dict[TopicPartition, int]:
    """The checkpoint; empty when it is damaged, which costs a longer recovery and no data."""
    try:
        return read_offsets(path)
    except MalformedCheckpoint as problem:
        logger.warning("ignoring a checkpoint: %s", problem)
        return {}


def _attempt(job: Callable[[], Result]) -> Result | None:
    """What `job` returns; None if it failed, which is logged, and must not end the round."""
    try:
        return job()
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
