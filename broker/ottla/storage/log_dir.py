"""One of the broker's log directories: whether it can be used, and Kafka's checkpoint files in it.

Made by the log manager, one for each of log.dirs. Every log knows the one it lies in, and tells it of the
I/O errors that it meets; whoever else works on files there does so too.

Invariant: a directory that has failed stays failed until the next start (KIP-112), and nothing is written to
it any more. `on_failure` is called once, in the thread that met the error.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from ottla.storage.checkpoints import MalformedCheckpoint, TopicPartition, read_offsets, write_offsets
from ottla.storage.directories import DirectoryLock, check_meta_properties, mark_clean_shutdown

logger = logging.getLogger(__name__)

_NOT_THE_DISK: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN))
"""What the process or the machine has too little of. Kafka gives the directory up for these too."""


def _nobody(log_dir: LogDir) -> None:
    """For logs that have no manager."""


class LogDir:
    """See the module. `path` is absolute."""

    def __init__(self, path: Path, on_failure: Callable[[LogDir], None] = _nobody) -> None:
        self.path = path
        self.failure: str | None = None
        """Why it cannot be used."""
        self._on_failure = on_failure
        self._lock: DirectoryLock | None = None
        self._mutex = threading.Lock()
        self._checkpoint_mutex = threading.RLock()

    def __repr__(self) -> str:
        return f"<{self.path}{'' if self.online else ' offline'}>"

    @property
    def online(self) -> bool:
        return self.failure is None

    # --- failing ---------------------------------------------------------------------------------

    def failed(self, action: str, problem: OSError) -> None:
        """An I/O error was met while somebody tried to `action`. From any thread."""
        if problem.errno in _NOT_THE_DISK:
            return
        with self._mutex:
            if self.failure is not None:
                return
            self.failure = f"cannot {action}: {problem.strerror or problem}"
        logger.error("log directory %s has failed: %s", self.path, self.failure)
        self._on_failure(self)

    # --- life ------------------------------------------------------------------------------------

    def claim(self, broker_id: int, cluster_id: str) -> None:
        """Make it if need be, lock it, and make sure that it is this broker's. Raises LogDirProblem; an I/O
        error fails the directory."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = DirectoryLock(self.path)
            check_meta_properties(self.path, broker_id, cluster_id)
        except OSError as problem:
            self.failed("use it", problem)

    def release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    @property
    def claimed(self) -> bool:
        return self._lock is not None

    def mark_clean(self, broker_epoch: int) -> None:
        """All logs here were closed in order."""
        self.attempt("mark it as cleanly shut down", lambda: mark_clean_shutdown(self.path, broker_epoch))

    def attempt(self, action: str, work: Callable[[], None]) -> None:
        """Do something to files here, unless the directory has failed; an I/O error fails it."""
        if self.failure is None:
            try:
                work()
            except OSError as problem:
                self.failed(action, problem)

    # --- checkpoints -----------------------------------------------------------------------------

    def read_offsets(self, name: str) -> dict[TopicPartition, int]:
        """A checkpoint file; empty when there is none, and when it is damaged, which costs a longer recovery
        and no data."""
        try:
            return read_offsets(self.path / name)
        except MalformedCheckpoint as problem:
            logger.warning("ignoring a checkpoint: %s", problem)
        except OSError as problem:
            self.failed(f"read {name}", problem)
        return {}

    def write_offsets(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace a checkpoint file, if the directory can be used. Blocking: fsyncs."""
        self.checkpoint(name, lambda: offsets)

    def checkpoint(self, name: str, collect: Callable[[], Mapping[TopicPartition, int]]) -> None:
        """Replace a checkpoint file by what is true once nobody else writes it. Blocking."""
        with self._checkpoint_mutex:
            self.attempt(f"write {name}", lambda: write_offsets(self.path / name, collect()))

    def drop_offset(self, name: str, key: TopicPartition) -> None:
        """Take one partition out of a checkpoint file. Blocking."""
        with self._checkpoint_mutex:
            offsets = self.read_offsets(name)
            if offsets.pop(key, None) is not None:
                self.write_offsets(name, offsets)
