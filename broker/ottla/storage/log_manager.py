"""All logs of one broker, over its log directories.

Owned by the broker; used by replication to find and make logs. It loads them at start (recovering
what a crash left), makes, moves and deletes them, and closes everything in order. Over `log_upkeep`, which
does what is due from time to time, and `log_registry`, which knows what is where.

Invariants: a partition lives in one log directory, and has at most one log in the making, in another; a
directory's checkpoint files name only its own partitions; `.kafka_cleanshutdown` exists only while nobody
has the logs open.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.storage.checkpoints import (
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    TopicPartition,
)
from ottla.storage.directories import (
    DELETE_SUFFIX,
    LogDirProblem,
    check_directory_ids,
    future_directory,
    parse_future_directory,
    parse_partition_directory,
    partition_directory,
    take_clean_shutdown,
)
from ottla.storage.files import sync_directory
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from ottla.storage.log_dir import LogDir
from ottla.storage.log_maintenance import LogUpkeep

logger = logging.getLogger(__name__)

Loaded = tuple[TopicPartition, Log, bool]
"""A partition's log, and whether it is one in the making."""

PRODUCER_ID_EXPIRATION_MS = 24 * 60 * 60 * 1000
"""producer.id.expiration.ms"""


class LogManager(LogUpkeep):
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
        super().__init__(log_dirs, dict(defaults or {}), producer_id_expiration_ms)
        self.broker_id = broker_id
        self.cluster_id = cluster_id
        self._recovery_threads = recovery_threads
        self._preferred: dict[TopicPartition, LogDir] = {}
        """Where logs are to be made that are not there yet."""
        self._stale: set[TopicPartition] = set()
        """Partitions without a log that checkpoint files on disk may still name."""

    def load(self, now_ms: int, topic_configs: Mapping[str, Mapping[str, str]] | None = None) -> None:
        """Lock the directories, make sure that they are this broker's, and open every log in them.

        `topic_configs` are overrides per topic. A directory with an I/O error is left out. Raises
        LogDirProblem (none can be used, held by another broker, of another broker or cluster, a partition
        twice), MalformedCheckpoint never: a checkpoint that cannot be read is put aside, and its logs are
        verified from their start.
        """
        try:
            self._claim()
            with ThreadPoolExecutor(len(self._dirs)) as pool:
                found = pool.map(
                    lambda d: self._load_directory(d, now_ms, topic_configs or {}), self.online_dirs()
                )
            for key, log, is_future in itertools.chain.from_iterable(found):
                self._add(key, log, is_future=is_future)
        except LogDirProblem:
            self._release_locks()
            raise
        for log_dir in self._dirs.values():
            if not log_dir.online:
                self.take_offline(log_dir.path)
        self._need_one_online()
        self._loaded = True

    def _claim(self) -> None:
        by_real_path: dict[Path, Path] = {}
        for path, log_dir in self._dirs.items():
            log_dir.claim(self.broker_id, self.cluster_id)
            other = by_real_path.setdefault(path.resolve(), path)
            if other != path:
                raise LogDirProblem(f"log.dirs names one directory twice: {other} and {path}")
        self._need_one_online()
        check_directory_ids(log_dir.path for log_dir in self.online_dirs())

    def _need_one_online(self) -> None:
        if not self.online_dirs():
            self._release_locks()
            reasons = "; ".join(f"{log_dir.path}: {log_dir.failure}" for log_dir in self._dirs.values())
            raise LogDirProblem(f"none of the log directories can be used: {reasons}")

    def get_or_create(
        self, topic: str, partition: int, config: LogConfig, now_ms: int = 0, *, is_new: bool = True
    ) -> Log:
        """The log; if there is none yet it is made, where it was asked for by `prefer`, or in the directory
        with the fewest.

        Raises KAFKA_STORAGE_ERROR where no directory takes it, and for a partition that is not new while a
        directory is offline that may have it; INVALID_TOPIC_EXCEPTION for a name that no topic may have.
        """
        key = (topic, partition)
        with self._mutex:
            log = self._logs.get(key)
            if log is None:
                name = partition_directory(topic, partition)
                if not is_new and len(self.online_dirs()) < len(self._dirs):
                    raise KafkaError(
                        ErrorCode.KAFKA_STORAGE_ERROR,
                        f"{topic}-{partition} may have a log in one of the directories that are offline",
                    )
                if key in self._stale:
                    self._forget_stale(key)
                preferred = self._preferred.pop(key, None)
                places = self.online_dirs() if preferred is None else [preferred]
                if len(places) > 1:
                    places.sort(key=self._count_in)
                log = self._make(name, places, config, now_ms)
                self._logs[key] = log
            return log

    def _make(self, name: str, places: list[LogDir], config: LogConfig, now_ms: int) -> Log:
        """A new log in the first of the directories that takes it."""
        for log_dir in places:
            if log_dir.online:
                try:
                    return self._open(log_dir, log_dir.path / name, config, 0, 0, clean=True, now_ms=now_ms)
                except OSError as problem:
                    log_dir.failed(f"make {name}", problem)
        tried = ", ".join(str(log_dir.path) for log_dir in places)
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"no log directory takes {name}; tried: {tried}")

    def delete(self, topic: str, partition: int) -> None:
        """Make the log go away, and the one in the making; nothing happens when there is none.

        Quick enough for the event loop: the directory is only renamed, and removed by `tend` after the
        broker's log.segment.delete.delay.ms. Raises KAFKA_STORAGE_ERROR.
        """
        with self._mutex:
            self.drop_future(topic, partition)
            log = self._logs.pop((topic, partition), None)
            if log is not None:
                self._stale.add((topic, partition))
                self._retire(log)

    def _retire(self, log: Log) -> None:
        doomed = log.retire()
        if doomed is not None:
            self._chores.bury([doomed], self._delete_delay_ms)

    def _forget_stale(self, key: TopicPartition) -> None:
        """Before a log comes back under the name of a deleted one: what the checkpoint files say of
        that must not be applied to this after a crash."""
        for log_dir in self.online_dirs():
            self._write_recovery_points(log_dir)
            self._write_start_offsets(log_dir)
            log_dir.drop_offset(REPLICATION_FILE, key)
        self._stale.discard(key)

    # --- between directories (KIP-113) -----------------------------------------------------------

    def prefer(self, topic: str, partition: int, log_dir: LogDir) -> None:
        """Make the partition's next log, present or future, in this directory."""
        logs = (self.get(topic, partition), self.future(topic, partition))
        if not any(log is not None and log.log_dir is log_dir for log in logs):
            self._preferred[topic, partition] = log_dir

    def make_future(self, topic: str, partition: int, now_ms: int) -> Log:
        """A log in the making, in the directory that `prefer` named. Raises KAFKA_STORAGE_ERROR."""
        key = (topic, partition)
        with self._mutex:
            source = self._logs[key]
            log_dir = self._preferred.pop(key)
            assert key not in self._futures, f"{key} is moving"
            assert log_dir is not source.log_dir, f"{key} is in {log_dir} already"
            log = self._make(future_directory(topic, partition), [log_dir], source.config, now_ms)
            if source.topic_id is not None:
                log.topic_id = source.topic_id
            self._futures[key] = log
            return log

    def drop_future(self, topic: str, partition: int) -> None:
        """The partition stays where it is. Raises KAFKA_STORAGE_ERROR."""
        with self._mutex:
            log = self._futures.pop((topic, partition), None)
            if log is not None:
                self._retire(log)

    def replace_with_future(self, topic: str, partition: int) -> Log:
        """The future log, which has all that the present one has, becomes that. Call `checkpoint_move` next.

        Raises KAFKA_STORAGE_ERROR with nothing changed; an error in the directory that the partition leaves
        is that one's alone. A crash between the two renames leaves the partition in both directories, and the
        next start refuses to choose, as Kafka's does.
        """
        key = (topic, partition)
        with self._mutex:
            source, future = self._logs[key], self._futures[key]
            future.move_to(future.directory.with_name(partition_directory(topic, partition)))
            future.log_dir.attempt("sync it", lambda: sync_directory(future.log_dir.path))
            if not future.log_dir.online:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{future.log_dir} has failed")
            self._logs[key] = self._futures.pop(key)
            future.first_dirty_offset = source.first_dirty_offset
            try:
                self._retire(source)
            except KafkaError as problem:
                logger.warning("%s-%d has left %s behind: %s", topic, partition, source.directory, problem)
            return future

    def checkpoint_move(self, *log_dirs: LogDir) -> None:
        """Write down what is where, before and after a log takes another's place. Blocking."""
        for log_dir in log_dirs:
            self._write_recovery_points(log_dir)
            self._write_start_offsets(log_dir)

    def close(self, now_ms: int, broker_epoch: int = -1) -> None:
        """Close every log, checkpoint, mark the directories clean, release them. Blocking.

        A directory with a log that could not be closed is not marked clean.
        """
        dirty: set[LogDir] = set()
        for log in [*self.logs().values(), *self.futures().values()]:
            try:
                log.close(now_ms)
            except Exception:
                logger.exception("cannot close %s: it will be verified at the next start", log.directory)
                dirty.add(log.log_dir)
        try:
            for log_dir in self.online_dirs():
                if log_dir.claimed:
                    self._write_recovery_points(log_dir)
                    self._write_start_offsets(log_dir)
                    if log_dir not in dirty:
                        log_dir.mark_clean(broker_epoch)
        finally:
            self._release_locks()

    # --- inside ----------------------------------------------------------------------------------

    def _load_directory(
        self, log_dir: LogDir, now_ms: int, topic_configs: Mapping[str, Mapping[str, str]]
    ) -> list[Loaded]:
        """Every log in it; none if the directory fails meanwhile."""
        try:
            loaded = self._load_logs(log_dir, now_ms, topic_configs)
        except OSError as problem:
            log_dir.failed("load it", problem)
        except KafkaError:
            if log_dir.online:
                raise
        return loaded if log_dir.online else []

    def _load_logs(
        self, log_dir: LogDir, now_ms: int, topic_configs: Mapping[str, Mapping[str, str]]
    ) -> list[Loaded]:
        clean = take_clean_shutdown(log_dir.path)
        recovery_points = log_dir.read_offsets(RECOVERY_POINT_FILE)
        start_offsets = log_dir.read_offsets(LOG_START_FILE)
        # Names, and no Paths: what is kept while thousands of logs are made leaves holes in memory for good.
        found: list[tuple[TopicPartition, str, bool]] = []
        with os.scandir(log_dir.path) as folders:
            names = sorted(folder.name for folder in folders if folder.is_dir())
        for name in names:
            if name.endswith(DELETE_SUFFIX):
                self._chores.bury([log_dir.path / name], self._delete_delay_ms)
            elif (key := parse_partition_directory(name)) is not None:
                found.append((key, name, False))
            elif (key := parse_future_directory(name)) is not None:
                found.append((key, name, True))
            else:
                # Also `-stray`: as Kafka's brokers of ZooKeeper's time do.
                logger.warning("%s is no partition's directory: left alone", log_dir.path / name)

        def open_one(entry: tuple[TopicPartition, str, bool]) -> Loaded:
            key, name, is_future = entry
            path = log_dir.path / name
            config = self.config_for(topic_configs.get(key[0], {}))
            recovery_point, start_offset = recovery_points.get(key, 0), start_offsets.get(key, 0)
            log = self._open(log_dir, path, config, recovery_point, start_offset, clean=clean, now_ms=now_ms)
            log.expire_producers(now_ms, self.producer_id_expiration_ms)
            return key, log, is_future

        entries = iter(found)
        loaded: list[Loaded] = []

        def open_some() -> None:
            # A future for each of thousands of logs would leave holes in memory for good.
            loaded.extend(open_one(entry) for entry in entries)

        with ThreadPoolExecutor(self._recovery_threads) as pool:
            for opening in [pool.submit(open_some) for _ in range(self._recovery_threads)]:
                opening.result()
        named = {*recovery_points, *start_offsets, *log_dir.read_offsets(REPLICATION_FILE)}
        self._stale |= named - {key for key, _, _ in found}
        how = "clean" if clean else "not clean"
        logger.info("%s: %d logs, last shutdown %s", log_dir.path, len(found), how)
        return loaded

    def _open(
        self,
        log_dir: LogDir,
        path: Path,
        config: LogConfig,
        recovery_point: int,
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
            chores=self._chores,
            log_dir=log_dir,
        )

    def _add(self, key: TopicPartition, log: Log, *, is_future: bool) -> None:
        logs = self._futures if is_future else self._logs
        other = logs.setdefault(key, log)
        if other is not log:
            raise LogDirProblem(
                f"{key[0]}-{key[1]} is in two log directories: {other.directory} and {log.directory}. One of "
                "them may have failed while the partition moved to the other: remove the one that is not "
                "wanted, most likely that in the directory which has failed"
            )
        self._stale.discard(key)

    def _release_locks(self) -> None:
        for log_dir in self._dirs.values():
            log_dir.release()
