"""One of the broker's log directories: its availability, and Kafka's checkpoint files in it.

Created by the log manager for each entry of log.dirs. Logs and all other code that works on files in the
directory report I/O errors to it (Kafka's LogDirFailureChannel).

Invariant: a failed directory stays failed until the next start (KIP-112), and nothing is written to it.
`on_failure` is called once, in the thread that met the error.
"""

from __future__ import annotations

import errno
import logging
import random
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from ottla.ports.files import Files
from ottla.storage.checkpoints import MalformedCheckpoint, TopicPartition, read_offsets, write_offsets
from ottla.storage.directories import DirectoryLock, check_meta_properties, write_clean_shutdown_file

logger = logging.getLogger(__name__)

_NOT_THE_DISK: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN))
"""Errors of the process or the machine, not of the disk. Kafka fails the directory for these, too."""


def _ignore_failure(log_dir: LogDir) -> None:
    """The callback for logs without a log manager."""


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
            self.fail("use it", problem)

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

    def drop_offset(self, name: str, key: TopicPartition) -> None:
        """Remove one partition from a checkpoint file. Blocking."""
        with self._checkpoint_mutex:
            offsets = self.read_offsets(name)
            if offsets.pop(key, None) is not None:
                self.write_offsets(name, offsets)
