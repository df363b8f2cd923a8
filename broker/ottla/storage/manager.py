"""All logs of one broker, over its log directories.

Owned by the broker; used by replication to find and make logs. It loads them at start (recovering
what a crash left), keeps the checkpoint files, applies retention, and closes everything in order.
Nothing in here runs by itself: the shell calls `tend`, `flush_due`, `cleanup` and those that write
checkpoints from its own timers, in a thread, for they block. One log that fails in any of them keeps
none of the others from its turn.

A directory that fails takes its own logs out of use, at once and until the next start; the others go on.

Invariants: a partition lives in one log directory, and has at most one log in the making, in another; a
directory's checkpoint files name only its own partitions; `.kafka_cleanshutdown` exists only while nobody
has the logs open.
"""

from __future__ import annotations

import itertools
import logging
import shutil
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.storage.checkpoints import (
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    TopicPartition,
)
from ottla.storage.chores import Chores
from ottla.storage.directories import (
    DELETE_SUFFIX,
    LogDirProblem,
    check_directory_ids,
    future_directory,
    parse_future_directory,
    parse_partition_directory,
    take_clean_shutdown,
)
from ottla.storage.durable import sync_directory
from ottla.storage.log import Log
from ottla.storage.log_config import INT64_MAX, LogConfig
from ottla.storage.log_dirs import LogDir

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Loaded = tuple[TopicPartition, Log, bool]
"""A partition's log, and whether it is one in the making."""

CONFIGS_KEPT_MAX = 1000
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
        self.on_dir_failed: Callable[[Path], None] = lambda path: None
        """Called once for each directory that fails after `load`, in whatever thread met the error. Its logs
        take no more appends by then; `take_offline` is to follow."""
        self.broker_id = broker_id
        self.cluster_id = cluster_id
        self.defaults: Mapping[str, str] = dict(defaults or {})
        """Replaced as a whole, never changed."""
        self._configs: dict[frozenset[tuple[str, str]], tuple[Mapping[str, str], LogConfig]] = {}
        self._recovery_threads = recovery_threads
        self.producer_id_expiration_ms = producer_id_expiration_ms
        """producer.id.expiration.ms; the broker may set it anew at any time."""
        self._dirs = {path: LogDir(path, self._dir_failed) for path in self.log_dirs}
        self._logs: dict[TopicPartition, Log] = {}
        self._futures: dict[TopicPartition, Log] = {}
        """Logs in the making, each in another directory than its partition's present one."""
        self._preferred: dict[TopicPartition, LogDir] = {}
        """Where logs are to be made that are not there yet."""
        self._stale: set[TopicPartition] = set()
        """Partitions without a log that checkpoint files on disk may still name."""
        self._chores = Chores()
        self._loaded = False
        self._mutex = threading.RLock()

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

    def get_or_create(
        self, topic: str, partition: int, config: LogConfig, now_ms: int = 0, *, is_new: bool = True
    ) -> Log:
        """The log; if there is none yet it is made, where it was asked for by `prefer`, or in the directory
        with the fewest.

        Raises KAFKA_STORAGE_ERROR where no directory takes it, and for a partition that is not new while a
        directory is offline that may have it.
        """
        key = (topic, partition)
        with self._mutex:
            log = self._logs.get(key)
            if log is None:
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
                log = self._make(f"{topic}-{partition}", places, config, now_ms)
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
            future.move_to(future.directory.with_name(f"{topic}-{partition}"))
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

    def write_checkpoints(self) -> None:
        """Flush sealed segments, and checkpoint recovery points. Blocking."""
        for log in self.logs().values():
            _attempt(log.flush_sealed)
        for log_dir in self.online_dirs():
            self._write_recovery_points(log_dir)

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
            for log_dir in self.online_dirs():
                self._write_recovery_points(log_dir)
        for work in self._chores.take_works():
            _attempt(work)
        for path in self._chores.take_due(now_ms):
            for log_dir in self._dirs.values():
                if log_dir.path in path.parents:
                    log_dir.attempt(f"remove {path.name}", partial(_remove, path))

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
        found: list[tuple[TopicPartition, Path, bool]] = []
        for path in sorted(path for path in log_dir.path.iterdir() if path.is_dir()):
            if path.name.endswith(DELETE_SUFFIX):
                self._chores.bury([path], self._delete_delay_ms)
            elif (key := parse_partition_directory(path.name)) is not None:
                found.append((key, path, False))
            elif (key := parse_future_directory(path.name)) is not None:
                found.append((key, path, True))
            else:
                logger.warning("%s is no partition's directory: left alone", path)

        def open_one(entry: tuple[TopicPartition, Path, bool]) -> Loaded:
            key, path, is_future = entry
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

    @property
    def _delete_delay_ms(self) -> int:
        """Kafka delays the removal of whole logs by the broker's setting, not the topic's."""
        return self.config_for({}).file_delete_delay_ms

    def _in(self, log_dir: LogDir) -> dict[TopicPartition, Log]:
        both = itertools.chain(self.logs().items(), self.futures().items())
        return {key: log for key, log in both if log.log_dir is log_dir}

    def _count_in(self, log_dir: LogDir) -> int:
        return sum(log.log_dir is log_dir for logs in (self._logs, self._futures) for log in logs.values())

    def _release_locks(self) -> None:
        for log_dir in self._dirs.values():
            log_dir.release()


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
