"""All logs of one broker, over its log directories (Kafka's LogManager).

Owned by the broker; used by replication to find and create logs. It loads them at startup (and recovers them
after a crash), creates, moves and deletes them, and closes them in order. Its parts are `LogRegistry` (the
logs and directories) and `LogMaintenance` (periodic work).

Invariants: a partition has at most one current log and one future log, in different log directories; a
directory's checkpoint files contain its own partitions only; `.kafka_cleanshutdown` exists only while no
broker has the logs open.
"""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Mapping
from pathlib import Path

from ottla.ports import OS_RANDOM
from ottla.ports.files import OS_FILES, Files, is_directory, sync_path
from ottla.ports.threads import RunParallel, run_in_threads
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.storage.checkpoints import (
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    TopicPartition,
)
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from ottla.storage.log_dir import (
    DELETE_SUFFIX,
    LogDir,
    LogDirProblem,
    check_directory_ids,
    future_directory,
    parse_future_directory,
    parse_partition_directory,
    partition_directory,
    remove_clean_shutdown_file,
)
from ottla.storage.log_maintenance import LogMaintenance
from ottla.storage.log_registry import LogRegistry

logger = logging.getLogger(__name__)

Loaded = tuple[TopicPartition, Log, bool]
"""(partition, log, whether it is a future log)."""

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
        files: Files = OS_FILES,
        source: random.Random = OS_RANDOM,
        run_parallel: RunParallel = run_in_threads,
    ) -> None:
        """`recovery_threads` open logs in each directory, by `run_parallel`; `source` is for unique names."""
        self.files = files
        self._random = source
        self._run_parallel = run_parallel
        self.registry = registry = LogRegistry(log_dirs, dict(defaults or {}), files, self._random)
        self.maintenance = maintenance = LogMaintenance(registry, producer_id_expiration_ms)
        self.broker_id = broker_id
        self.cluster_id = cluster_id
        self._recovery_threads = recovery_threads
        self._preferred: dict[TopicPartition, LogDir] = {}
        """The log directories in which logs will be created."""
        self._stale: set[TopicPartition] = set()
        """Partitions without a log that may still have entries in the checkpoint files."""
        # The API of the parts, bound once.
        self.log_dirs = registry.log_dirs
        self.log_dir = registry.log_dir
        self.online_dirs = registry.online_dirs
        self.failed_dirs = registry.failed_dirs
        self.take_offline = registry.take_offline
        self.config_for = registry.config_for
        self.get = registry.get
        self.logs = registry.logs
        self.future_log = registry.future_log
        self.future_logs = registry.future_logs
        self.read_high_watermarks = registry.read_high_watermarks
        self.write_high_watermarks = registry.write_high_watermarks
        self.write_start_offsets = registry.write_start_offsets
        self.write_checkpoints = maintenance.write_checkpoints
        self.cleanup = maintenance.cleanup
        self.flush_due = maintenance.flush_due
        self.has_deferred_tasks = maintenance.has_deferred_tasks
        self.run_deferred_tasks = maintenance.run_deferred_tasks

    def load(self, now_ms: int, topic_configs: Mapping[str, Mapping[str, str]] | None = None) -> None:
        """Lock the directories, verify that they belong to this broker, and open every log in them.

        `topic_configs` are overrides per topic. A directory with an I/O error is offline. A damaged
        checkpoint is ignored, and its logs are recovered from their start. Raises LogDirProblem: no directory
        is online, or one is locked by another broker, belongs to another broker or cluster, or has a
        partition twice.
        """
        try:
            self._lock_dirs()
            found = self._run_parallel(
                lambda log_dir: self._load_directory(log_dir, now_ms, topic_configs or {}),
                self.online_dirs(),
                len(self.registry.dirs),
            )
            for key, log, is_future in itertools.chain.from_iterable(found):
                self._add(key, log, is_future=is_future)
        except LogDirProblem:
            self._release_locks()
            raise
        for log_dir in self.registry.dirs.values():
            if not log_dir.online:
                self.take_offline(log_dir.path)
        self._require_online_dir()
        self.registry.is_loaded = True

    def _lock_dirs(self) -> None:
        by_real_path: dict[str, Path] = {}
        for path, log_dir in self.registry.dirs.items():
            log_dir.lock(self.broker_id, self.cluster_id)
            other = by_real_path.setdefault(self.files.realpath(path), path)
            if other != path:
                raise LogDirProblem(f"log.dirs names one directory twice: {other} and {path}")
        self._require_online_dir()
        check_directory_ids(self.files, [log_dir.path for log_dir in self.online_dirs()])

    def _require_online_dir(self) -> None:
        if not self.online_dirs():
            self._release_locks()
            reasons = "; ".join(
                f"{log_dir.path}: {log_dir.failure}" for log_dir in self.registry.dirs.values()
            )
            raise LogDirProblem(f"none of the log directories can be used: {reasons}")

    def get_or_create(
        self, topic: str, partition: int, config: LogConfig, now_ms: int = 0, *, is_new: bool = True
    ) -> Log:
        """The partition's log. A new log is created in the preferred directory (`set_preferred_log_dir`) or
        in the one with the fewest logs.

        Raises KAFKA_STORAGE_ERROR if it cannot be created in any directory, or if the partition is not new
        and a directory that may have its log is offline; INVALID_TOPIC_EXCEPTION for an invalid topic name.
        """
        key = (topic, partition)
        with self.registry.mutex:
            log = self.registry.current.get(key)
            if log is None:
                name = partition_directory(topic, partition)
                if not is_new and len(self.online_dirs()) < len(self.registry.dirs):
                    raise KafkaError(
                        ErrorCode.KAFKA_STORAGE_ERROR,
                        f"{topic}-{partition} may have a log in one of the directories that are offline",
                    )
                if key in self._stale:
                    self._remove_stale_entries(key)
                preferred = self._preferred.pop(key, None)
                candidates = self.online_dirs() if preferred is None else [preferred]
                if len(candidates) > 1:
                    candidates.sort(key=self.registry.count_logs_in)
                log = self._create(name, candidates, config, now_ms)
                self.registry.current[key] = log
                logger.info("Created log for partition %s in %s", name, log.directory)
            return log

    def _create(self, name: str, candidates: list[LogDir], config: LogConfig, now_ms: int) -> Log:
        """Create a log in the first of the directories that has no I/O error."""
        for log_dir in candidates:
            if log_dir.online:
                try:
                    return self._open(log_dir, log_dir.path / name, config, 0, 0, clean=True, now_ms=now_ms)
                except OSError as problem:
                    log_dir.fail(f"create {name}", problem)
        tried = ", ".join(str(log_dir.path) for log_dir in candidates)
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"cannot create {name} in any of {tried}")

    def delete(self, topic: str, partition: int) -> None:
        """Delete the partition's current and future log, if they exist.

        Fast enough for the event loop: the directory is renamed, and removed by `run_deferred_tasks` after
        the broker's log.segment.delete.delay.ms. Raises KAFKA_STORAGE_ERROR.
        """
        with self.registry.mutex:
            self.delete_future_log(topic, partition)
            log = self.registry.current.pop((topic, partition), None)
            if log is not None:
                self._stale.add((topic, partition))
                self._schedule_delete(log)

    def _schedule_delete(self, log: Log) -> None:
        name = log.directory.name
        renamed = log.rename_for_deletion()
        if renamed is not None:
            logger.info("Log for partition %s is renamed to %s and is scheduled for deletion", name, renamed)
            self.maintenance.deferred_tasks.schedule_delete([renamed], self.maintenance.delete_delay_ms)

    def _remove_stale_entries(self, key: TopicPartition) -> None:
        """Remove a deleted log's checkpoint entries before a log with its name is created: after a crash they
        must not be applied to the new log."""
        for log_dir in self.online_dirs():
            self.registry.write_recovery_points(log_dir)
            self.registry.checkpoint_start_offsets(log_dir)
            log_dir.drop_offset(REPLICATION_FILE, key)
        self._stale.discard(key)

    # --- future logs (KIP-113) -------------------------------------------------------------------

    def set_preferred_log_dir(self, topic: str, partition: int, log_dir: LogDir) -> None:
        """Create the partition's next log, current or future, in this directory (KIP-113)."""
        logs = (self.get(topic, partition), self.future_log(topic, partition))
        if not any(log is not None and log.log_dir is log_dir for log in logs):
            self._preferred[topic, partition] = log_dir

    def create_future_log(self, topic: str, partition: int, now_ms: int) -> Log:
        """Create the future log, in the preferred directory. Raises KAFKA_STORAGE_ERROR."""
        key = (topic, partition)
        with self.registry.mutex:
            source = self.registry.current[key]
            log_dir = self._preferred.pop(key)
            assert key not in self.registry.future, f"{key} is moving"
            assert log_dir is not source.log_dir, f"{key} is in {log_dir} already"
            name = future_directory(topic, partition, self._random)
            log = self._create(name, [log_dir], source.config, now_ms)
            if source.topic_id is not None:
                log.topic_id = source.topic_id
            self.registry.future[key] = log
            return log

    def delete_future_log(self, topic: str, partition: int) -> None:
        """Delete the future log: the partition stays in its directory. Raises KAFKA_STORAGE_ERROR."""
        with self.registry.mutex:
            log = self.registry.future.pop((topic, partition), None)
            if log is not None:
                self._schedule_delete(log)

    def replace_current_with_future(self, topic: str, partition: int) -> Log:
        """Replace the current log by the future log, which has caught up. The caller calls `checkpoint_dirs`
        next.

        Raises KAFKA_STORAGE_ERROR if nothing was changed. An error in the old directory fails that directory
        only. A crash between the two renames leaves the partition in both directories; as in Kafka, the next
        start fails.
        """
        key = (topic, partition)
        with self.registry.mutex:
            source, future = self.registry.current[key], self.registry.future[key]
            future.rename_dir(future.directory.with_name(partition_directory(topic, partition)))
            future.log_dir.run("sync the directory", lambda: sync_path(self.files, future.log_dir.path))
            if not future.log_dir.online:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{future.log_dir} has failed")
            self.registry.current[key] = self.registry.future.pop(key)
            future.first_dirty_offset = source.first_dirty_offset
            try:
                self._schedule_delete(source)
            except KafkaError as problem:
                logger.warning(
                    "The old log of %s-%d in %s could not be deleted: %s",
                    topic,
                    partition,
                    source.directory,
                    problem,
                )
            return future

    def checkpoint_dirs(self, *log_dirs: LogDir) -> None:
        """Checkpoint the offsets of directories, before and after a future log replaces the current one.
        Blocking."""
        for log_dir in log_dirs:
            self.registry.write_recovery_points(log_dir)
            self.registry.checkpoint_start_offsets(log_dir)

    def close(self, now_ms: int, broker_epoch: int = -1) -> None:
        """Close every log, write the checkpoints and .kafka_cleanshutdown, and unlock the directories.
        Blocking.

        A directory with a log that could not be closed does not get .kafka_cleanshutdown.
        """
        dirty: set[LogDir] = set()
        for log in [*self.logs().values(), *self.future_logs().values()]:
            try:
                log.close(now_ms)
            except Exception:
                logger.exception("Error while closing %s: it will be recovered next time", log.directory)
                dirty.add(log.log_dir)
        try:
            for log_dir in self.online_dirs():
                if log_dir.is_locked:
                    self.registry.write_recovery_points(log_dir)
                    self.registry.checkpoint_start_offsets(log_dir)
                    if log_dir not in dirty:
                        log_dir.write_clean_shutdown(broker_epoch)
        finally:
            self._release_locks()

    # --- opening logs ----------------------------------------------------------------------------

    def _load_directory(
        self, log_dir: LogDir, now_ms: int, topic_configs: Mapping[str, Mapping[str, str]]
    ) -> list[Loaded]:
        """Open every log in a directory; none if it fails meanwhile."""
        try:
            loaded = self._load_logs(log_dir, now_ms, topic_configs)
        except OSError as problem:
            log_dir.fail("load its logs", problem)
        except KafkaError:
            if log_dir.online:
                raise
        return loaded if log_dir.online else []

    def _load_logs(
        self, log_dir: LogDir, now_ms: int, topic_configs: Mapping[str, Mapping[str, str]]
    ) -> list[Loaded]:
        clean = remove_clean_shutdown_file(self.files, log_dir.path)
        recovery_points = log_dir.read_offsets(RECOVERY_POINT_FILE)
        start_offsets = log_dir.read_offsets(LOG_START_FILE)
        # Names instead of Paths: objects that live while thousands of logs are created fragment the memory.
        found: list[tuple[TopicPartition, str, bool]] = []
        for name in self.files.listdir(log_dir.path):
            if not is_directory(self.files, f"{log_dir.path}/{name}"):
                continue
            if name.endswith(DELETE_SUFFIX):
                self.maintenance.deferred_tasks.schedule_delete(
                    [log_dir.path / name], self.maintenance.delete_delay_ms
                )
            elif (key := parse_partition_directory(name)) is not None:
                found.append((key, name, False))
            elif (key := parse_future_directory(name)) is not None:
                found.append((key, name, True))
            else:
                # Also `-stray`, as Kafka's brokers in ZooKeeper mode do.
                logger.warning("Ignoring %s: it is not a partition directory", log_dir.path / name)

        def open_one(entry: tuple[TopicPartition, str, bool]) -> Loaded:
            key, name, is_future = entry
            path = log_dir.path / name
            config = self.config_for(topic_configs.get(key[0], {}))
            recovery_point, start_offset = recovery_points.get(key), start_offsets.get(key, 0)
            log = self._open(log_dir, path, config, recovery_point, start_offset, clean=clean, now_ms=now_ms)
            log.remove_expired_producers(now_ms, self.maintenance.producer_id_expiration_ms)
            return key, log, is_future

        loaded = self._run_parallel(open_one, found, self._recovery_threads)
        named = {*recovery_points, *start_offsets, *log_dir.read_offsets(REPLICATION_FILE)}
        self._stale |= named - {key for key, _, _ in found}
        if not found:
            logger.info("No logs found to be loaded in %s", log_dir.path)
        else:
            how = "clean" if clean else "not clean"
            logger.info("%s: %d logs, last shutdown %s", log_dir.path, len(found), how)
        return loaded

    def _open(
        self,
        log_dir: LogDir,
        path: Path,
        config: LogConfig,
        recovery_point: int | None,
        log_start_offset: int,
        *,
        clean: bool,
        now_ms: int,
    ) -> Log:
        return Log.open(
            path,
            config,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            clean_shutdown=clean,
            now_ms=now_ms,
            deferred_tasks=self.maintenance.deferred_tasks,
            log_dir=log_dir,
        )

    def _add(self, key: TopicPartition, log: Log, *, is_future: bool) -> None:
        logs = self.registry.future if is_future else self.registry.current
        other = logs.setdefault(key, log)
        if other is not log:
            raise LogDirProblem(
                f"{key[0]}-{key[1]} is in two log directories: {other.directory} and {log.directory}. One of "
                "them may have failed while the partition moved to the other: remove the one that is not "
                "wanted, most likely the one in the directory that has failed"
            )
        self._stale.discard(key)

    def _release_locks(self) -> None:
        for log_dir in self.registry.dirs.values():
            log_dir.unlock()
