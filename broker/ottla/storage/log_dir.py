"""A log directory: the names in it, Kafka's files beside the logs, its lock and its availability.

`LogDir` is made by the log manager for each entry of log.dirs. Logs and all other code that works on files in
the directory report I/O errors to it (Kafka's LogDirFailureChannel). The functions read and write

* meta.properties: the broker and cluster to which the directory belongs (version 0, ZooKeeper mode), and the
  id that a KRaft or migrating broker has assigned to it;
* .lock: held by the running broker, respected by Apache Kafka, too;
* .kafka_cleanshutdown: the logs were closed in order;
* partition.metadata: the topic's id (KIP-516).

Invariant: a failed directory stays failed until the next start (KIP-112), and nothing is written to it.
`on_failure` is called once, in the thread that met the error.
"""

from __future__ import annotations

import base64
import errno
import json
import logging
import os
import random
import re
import sys
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Final

from ottla.ports import random_uuid
from ottla.ports.files import Files, read_file, sync_path, write_atomically
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.topics import is_legal_topic_name, topic_name_problem
from ottla.storage.checkpoints import MalformedCheckpoint, TopicPartition, read_offsets, write_offsets

logger = logging.getLogger(__name__)

META_PROPERTIES_FILE = "meta.properties"
LOCK_FILE = ".lock"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
PARTITION_METADATA_FILE = "partition.metadata"
DELETE_SUFFIX = "-delete"
FUTURE_SUFFIX = "-future"
STRAY_SUFFIX = "-stray"
_FLUSHES_KEPT: Final = 512
_NAME_BYTES_MAX = 255
_UNIQUE_LENGTH = 33
"""The length of a dot and a UUID in hexadecimal."""
_NOT_THE_DISK: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN))
"""Errors of the process or the machine, not of the disk. Kafka fails the directory for these, too."""


class LogDirProblem(Exception):
    """This broker cannot use a log directory; the message says why and what to do."""


def partition_directory(topic: str, partition: int) -> str:
    """The name of a partition's directory. Every path of a log is built from this or from `future_directory`.

    Raises INVALID_TOPIC_EXCEPTION for an invalid topic name, which could lead out of the log directory.
    """
    problem = topic_name_problem(topic)
    if problem is None and partition < 0:
        problem = f"{partition} is not a partition number"
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"cannot create a log: {problem}")
    return f"{topic}-{partition}"


def parse_partition_directory(name: str) -> tuple[str, int] | None:
    """(topic, partition) of a directory's name; None if it is not the directory of a current log."""
    if name.endswith((DELETE_SUFFIX, FUTURE_SUFFIX, STRAY_SUFFIX)):
        return None
    match = re.fullmatch(r"(.+)-([0-9]+)", name)
    return (sys.intern(match[1]), int(match[2])) if match and is_legal_topic_name(match[1]) else None


def parse_future_directory(name: str) -> tuple[str, int] | None:
    """(topic, partition) of `<topic>-<partition>.<unique id>-future` (KIP-113); None for another name."""
    match = re.fullmatch(r"(.+)-([0-9]+)\.\S+" + FUTURE_SUFFIX, name)
    return (match[1], int(match[2])) if match and is_legal_topic_name(match[1]) else None


def future_directory(topic: str, partition: int, source: random.Random) -> str:
    """A directory name for a future log of the partition. Raises like `partition_directory`."""
    return f"{partition_directory(topic, partition)}.{random_uuid(source).hex}{FUTURE_SUFFIX}"


def deleted_directory(name: str, source: random.Random) -> str:
    """The new directory name of a log that is deleted; shortened if need be."""
    suffix = f".{random_uuid(source).hex}{DELETE_SUFFIX}"
    return name[: _NAME_BYTES_MAX - len(suffix)] + suffix


def is_too_long_to_move(topic: str, partition: int) -> bool:
    """Whether the directory name of the partition's future log exceeds the file system's limit (KAFKA-4893).
    Raises like `partition_directory`."""
    return len(partition_directory(topic, partition)) + _UNIQUE_LENGTH + len(FUTURE_SUFFIX) > _NAME_BYTES_MAX


# --- meta.properties -----------------------------------------------------------------------------


def check_meta_properties(files: Files, log_dir: Path, broker_id: int, cluster_id: str) -> None:
    """Verify that the directory belongs to this broker, or assign it if it belongs to none. Other properties
    in the file are kept.

    Raises LogDirProblem if it belongs to another broker or cluster or has another version, and OSError for an
    I/O error or an unreadable file.
    """
    path = log_dir / META_PROPERTIES_FILE
    ours = {"version": "0", "broker.id": str(broker_id), "cluster.id": cluster_id}
    try:
        found = read_properties(files, path)
    except FileNotFoundError:
        found = {}
    if found.get("version", "0") != "0":
        raise LogDirProblem(f"{path} has version={found.get('version')}; only 0 (ZooKeeper mode) is known")
    for name, owner in (("broker.id", "broker"), ("cluster.id", "cluster")):
        if found.get(name, ours[name]) != ours[name]:
            raise LogDirProblem(
                f"{path} has {name}={found.get(name)}, but this broker has {name}={ours[name]}: the "
                f"directory belongs to another {owner}. Point log.dirs at this broker's own data, or "
                f"correct {name}; remove the file only if its data may be taken over."
            )
    wanted = {**found, **ours}
    if wanted != found:
        write_atomically(files, path, "".join(f"{name}={value}\n" for name, value in wanted.items()))


def check_directory_ids(files: Files, log_dirs: Iterable[Path]) -> None:
    """Raise LogDirProblem if two directories have the same `directory.id` (KIP-858): one of them is a copy.

    Directories with an unreadable file are ignored.
    """
    seen: dict[str, Path] = {}
    for log_dir in log_dirs:
        try:
            directory_id = read_properties(files, log_dir / META_PROPERTIES_FILE).get("directory.id")
        except OSError:
            continue
        if directory_id is None:
            continue
        other = seen.setdefault(directory_id, log_dir)
        if other is not log_dir:
            raise LogDirProblem(
                f"{log_dir} and {other} have the same directory.id={directory_id}: one is a copy of the other"
            )


def read_properties(files: Files, path: Path) -> dict[str, str]:
    """Parse a Java properties file of plain `name=value` lines."""
    properties = {}
    try:
        text = read_file(files, path).decode("utf-8")
    except UnicodeDecodeError as problem:
        raise OSError(errno.EIO, f"{path} is no text: {problem}") from problem
    for line in text.splitlines():
        line = line.strip()
        if line and line[0] not in "#!":
            name, _, value = line.partition("=")
            properties[name.strip()] = value.strip().replace("\\:", ":").replace("\\=", "=")
    return properties


# --- .lock ---------------------------------------------------------------------------------------


class DirectoryLock:
    """The `.lock` of a log directory, held until `release`. It keeps out other brokers, also Apache
    Kafka's."""

    def __init__(self, files: Files, log_dir: Path) -> None:
        """Raises LogDirProblem when another broker holds it, and OSError."""
        path = log_dir / LOCK_FILE
        self._files = files
        self._fd = files.open(path, os.O_RDWR | os.O_CREAT)
        try:
            files.lock(self._fd)
        except OSError as problem:
            files.close(self._fd)
            if problem.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise LogDirProblem(
                f"{path} is held by another broker process: stop that one, or give this one its own log.dirs"
            ) from problem

    def release(self) -> None:
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1


# --- .kafka_cleanshutdown ------------------------------------------------------------------------


def remove_clean_shutdown_file(files: Files, log_dir: Path) -> bool:
    """Remove .kafka_cleanshutdown. Returns whether it existed: whether the last shutdown was clean."""
    try:
        files.unlink(log_dir / CLEAN_SHUTDOWN_FILE)
    except FileNotFoundError:
        return False
    sync_path(files, log_dir)
    return True


def write_clean_shutdown_file(files: Files, log_dir: Path, broker_epoch: int = -1) -> None:
    text = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    write_atomically(files, log_dir / CLEAN_SHUTDOWN_FILE, text)


# --- partition.metadata --------------------------------------------------------------------------


def encode_topic_id(topic_id: uuid.UUID) -> str:
    """Kafka's text form of a uuid: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


@lru_cache(64)
def decode_topic_id(text: str) -> uuid.UUID:
    """The topic id of its text form. Cached, so that partitions of one topic share the object."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))


def read_topic_id(files: Files, partition_dir: str | Path) -> uuid.UUID | None:
    """The topic id in partition.metadata; None without the file. Raises LogDirProblem for an invalid file."""
    path = f"{partition_dir}/{PARTITION_METADATA_FILE}"
    try:
        lines = read_file(files, path).decode("utf-8").splitlines()
    except FileNotFoundError:
        return None
    try:
        fields = dict(line.split(": ", 1) for line in lines if line)
        if fields["version"] != "0":
            raise ValueError(f"version {fields['version']}")
        return decode_topic_id(fields["topic_id"])
    except (ValueError, KeyError) as problem:
        raise LogDirProblem(f"{path} is malformed: {problem!r}") from problem


def write_topic_id(files: Files, partition_dir: Path, topic_id: uuid.UUID) -> None:
    text = f"version: 0\ntopic_id: {encode_topic_id(topic_id)}"
    write_atomically(files, partition_dir / PARTITION_METADATA_FILE, text)


# --- the directory -------------------------------------------------------------------------------


def _ignore_failure(log_dir: LogDir) -> None:
    """The callback for logs without a log manager."""


class FlushTimes:
    """How often the logs of a directory were flushed, and how long the last flushes took. Used by any
    thread."""

    def __init__(self) -> None:
        self.monotonic_s: Callable[[], float] = lambda: 0.0
        """The clock, once the broker has set it."""
        self.count = 0
        self.times_ms: deque[float] = deque(maxlen=_FLUSHES_KEPT)
        self._mutex = threading.Lock()

    @contextmanager
    def measured(self) -> Iterator[None]:
        began_s = self.monotonic_s()
        yield
        with self._mutex:
            self.count += 1
            self.times_ms.append(1000 * (self.monotonic_s() - began_s))


class LogDir:
    """See the module. `path` is absolute."""

    def __init__(
        self,
        path: Path,
        on_failure: Callable[[LogDir], None] = _ignore_failure,
        *,
        files: Files,
        source: random.Random,
    ) -> None:
        self.path = path
        self.files = files
        """The file system of the directory, for its logs, too."""
        self.random = source
        """For unique file names."""
        self.failure: str | None = None
        """The reason why the directory is offline; None while it is online."""
        self.flushes = FlushTimes()
        self._on_failure = on_failure
        self._lock: DirectoryLock | None = None
        self._mutex = threading.Lock()
        self._checkpoint_mutex = threading.RLock()

    def __repr__(self) -> str:
        return f"<{self.path}{'' if self.online else ' offline'}>"

    @property
    def online(self) -> bool:
        return self.failure is None

    # --- failure ---------------------------------------------------------------------------------

    def fail(self, action: str, problem: OSError) -> None:
        """Take the directory offline after an I/O error while trying to `action`. Called from any thread."""
        if problem.errno in _NOT_THE_DISK:
            return
        with self._mutex:
            if self.failure is not None:
                return
            self.failure = f"cannot {action}: {problem.strerror or problem}"
        logger.error("Log directory %s has failed: %s", self.path, self.failure)
        self._on_failure(self)

    # --- lifecycle --------------------------------------------------------------------------------

    def lock(self, broker_id: int, cluster_id: str) -> None:
        """Create the directory if it does not exist, lock it, and verify that it belongs to this broker.
        Raises LogDirProblem; an I/O error fails the directory."""
        try:
            self.files.mkdir(self.path)
            self._lock = DirectoryLock(self.files, self.path)
            check_meta_properties(self.files, self.path, broker_id, cluster_id)
        except OSError as problem:
            self.fail("open the directory", problem)

    def unlock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    @property
    def is_locked(self) -> bool:
        return self._lock is not None

    def write_clean_shutdown(self, broker_epoch: int) -> None:
        """Record that all logs in the directory were closed in order."""
        self.run(
            "mark it as cleanly shut down",
            lambda: write_clean_shutdown_file(self.files, self.path, broker_epoch),
        )

    def run(self, action: str, work: Callable[[], None]) -> None:
        """Call `work`, which works on files in the directory, unless it is offline. An I/O error fails it."""
        if self.failure is None:
            try:
                work()
            except OSError as problem:
                self.fail(action, problem)

    # --- checkpoints -----------------------------------------------------------------------------

    def read_offsets(self, name: str) -> dict[TopicPartition, int]:
        """The offsets of a checkpoint file; none if it does not exist or is damaged, which causes a longer
        recovery but no data loss."""
        try:
            return read_offsets(self.files, self.path / name)
        except MalformedCheckpoint as problem:
            logger.warning("Ignoring a checkpoint: %s", problem)
        except OSError as problem:
            self.fail(f"read {name}", problem)
        return {}

    def write_offsets(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace a checkpoint file, if the directory is online. Blocking: fsyncs."""
        self.checkpoint(name, lambda: offsets)

    def checkpoint(self, name: str, collect: Callable[[], Mapping[TopicPartition, int]]) -> None:
        """Replace a checkpoint file with the result of `collect`, called when no other thread writes it.
        Blocking."""
        with self._checkpoint_mutex:
            self.run(f"write {name}", lambda: write_offsets(self.files, self.path / name, collect()))

    def lower_offset(self, name: str, key: TopicPartition, offset: int) -> None:
        """Lower one partition's offset in a checkpoint file. Blocking."""
        with self._checkpoint_mutex:
            offsets = self.read_offsets(name)
            if offsets.get(key, 0) > offset:
                self.write_offsets(name, {**offsets, key: offset})

    def drop_offset(self, name: str, key: TopicPartition) -> None:
        """Remove one partition from a checkpoint file. Blocking."""
        with self._checkpoint_mutex:
            offsets = self.read_offsets(name)
            if offsets.pop(key, None) is not None:
                self.write_offsets(name, offsets)
