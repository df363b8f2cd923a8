"""The state of one partition's log, its producers and leader epochs: the ground floor of `Log`.

Above it are `readable_log` (reading), `durable_log` (flushing, closing, moving), `trimmed_log` (truncation,
rolling, retention), `cleanable_log` (compaction) and `log` (appending), which is what other rooms use.

Threads: appends, reads and truncations come from the broker's event loop; flushing and retention from
the upkeep thread, which also does what logs leave as `chores`. Writers hold `_lock` (never across an
fsync, but at the end); readers take the tuple of segments as it is at that moment, which is replaced,
never changed.

Invariants: `log_start_offset <= log_end_offset`; the last segment is the active one and alone is
appended to; a producer's state is changed only after its batch is in the file; the recovery point is
not beyond a batch whose leader epoch is not on disk.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.storage import log_validator
from ottla.storage.deferred_tasks import Chores
from ottla.storage.directories import read_topic_id, write_topic_id
from ottla.storage.leader_epochs import LeaderEpochCheckpoint
from ottla.storage.log_config import LogConfig
from ottla.storage.log_dir import LogDir
from ottla.storage.log_segment import Segment
from ottla.storage.producer_state import ProducerState
from ottla.storage.producer_state_manager import ProducerHistory

logger = logging.getLogger(__name__)


class LogState:
    """See the module."""

    # Slots, here and in what logs are made of: a broker has thousands of logs that nobody uses.
    __slots__ = (
        "_active",
        "_chores",
        "_config",
        "_directory",
        "_epochs",
        "_flush_lock",
        "_flush_messages",
        "_is_plain",
        "_lock",
        "_made_history",
        "_max_message_bytes",
        "_producers",
        "_roll_ms",
        "_segment_bytes",
        "_segments",
        "_topic_id",
        "_topic_id_due",
        "_verifies",
        "closed",
        "last_flush_ms",
        "latest_epoch",
        "log_dir",
        "log_end_offset",
        "log_start_offset",
        "recovery_point",
        "truncations",
    )

    def __init__(
        self,
        directory: str,
        config: LogConfig,
        segments: list[Segment],
        history: ProducerHistory,
        epochs: LeaderEpochCheckpoint,
        chores: Chores,
        log_dir: LogDir,
        *,
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        last_flush_ms: int,
    ) -> None:
        self._directory = directory
        self.log_dir = log_dir
        """Where it lies; told of every I/O error, after which it takes its logs out of use."""
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.recovery_point = recovery_point
        """All before it is on disk for certain."""
        self._producers: ProducerState | None = None
        """The history's, once somebody has asked for it, or there was something in it at the start."""
        self._verifies = False
        self.closed = False
        """Takes no appends any more: it was closed or deleted, or its directory has failed."""
        self.last_flush_ms = last_flush_ms
        """When flush.ms last had this log flushed, or it was opened; kept by the log manager."""
        self._made_history = None if history.is_empty else history
        self._epochs = epochs
        self._chores = chores
        self.latest_epoch = epochs.latest
        self._topic_id = read_topic_id(directory)
        self._topic_id_due = False
        self._lock = threading.RLock()
        self._flush_lock: threading.Lock | None = None
        self.truncations = 0
        """How often something was dropped from its end."""
        self._config = config
        self._set_segments(segments)
        self.config = config
        if history.has_producers:
            self._producers = history.state

    # --- facts -----------------------------------------------------------------------------------

    @property
    def directory(self) -> Path:
        return Path(self._directory)

    @property
    def config(self) -> LogConfig:
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        """Takes effect for the next append, roll and retention."""
        self._config = config
        self._max_message_bytes = config.max_message_bytes
        self._segment_bytes = config.segment_bytes
        self._roll_ms = self._rolls_after_ms()
        self._flush_messages = config.flush_messages
        self._is_plain = not log_validator.needs_rewrite_or_records(config)

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._segments)

    @property
    def topic_id(self) -> uuid.UUID | None:
        """The id in partition.metadata; set once, when the first LeaderAndIsr request names it. The file is
        written with the next upkeep, or before the first batch is, as in Kafka: whoever makes thousands of
        partitions at once must not wait for the disk for each."""
        return self._topic_id

    @topic_id.setter
    def topic_id(self, topic_id: uuid.UUID) -> None:
        self._topic_id = topic_id
        self._topic_id_due = True
        self._chores.work_soon(self.write_topic_id)

    def write_topic_id(self) -> None:
        """Bring partition.metadata up to date. Blocking: fsyncs, once in a log's life."""
        with self._lock, self._io("write the topic id of"):
            if self._topic_id_due and self._topic_id is not None and not self.closed:
                write_topic_id(self.directory, self._topic_id)
                self._topic_id_due = False

    @property
    def first_segment_offset(self) -> int:
        """Where the first segment begins; the log itself may begin later."""
        return self._segments[0].base_offset

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    # --- producers -------------------------------------------------------------------------------

    def expire_producers(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers silent for that long (producer.id.expiration.ms); how many."""
        if self._producers is None:
            return 0
        with self._lock:
            return self._producers.expire(now_ms, expiration_ms)

    @property
    def producers(self) -> ProducerState:
        """Made when it is first asked for."""
        state = self._producers
        if state is None:
            with self._lock:
                state = self._history.state
                state.verifies = self._verifies
                self._producers = state
        return state

    @property
    def _history(self) -> ProducerHistory:
        """Kept from when there is something in it, or it is first asked for."""
        history = self._made_history
        if history is None:
            with self._lock:
                history = self._made_history = self._made_history or ProducerHistory(self._directory, ())
        return history

    def _producers_noted(self) -> None:
        """The history may have come to have some."""
        if self._producers is None and self._history.has_producers:
            self._producers = self.producers

    @property
    def verifies(self) -> bool:
        """Whether transactions have to be verified before they begin here (KIP-890)."""
        return self._verifies

    @verifies.setter
    def verifies(self, verifies: bool) -> None:
        self._verifies = verifies
        if self._producers is not None:
            self._producers.verifies = verifies

    def forget_replicated(self, high_watermark: int) -> None:
        """All before it is on every replica in sync."""
        if self._producers is not None:
            self._producers.forget_replicated(high_watermark)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Up to where read_committed consumers may read (KIP-98)."""
        if self._producers is None:
            return high_watermark
        unstable = self._producers.first_unstable_offset(high_watermark)
        if unstable is None or unstable >= high_watermark:
            return high_watermark
        return max(unstable, self.log_start_offset)

    # --- leader epochs ---------------------------------------------------------------------------

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(largest epoch at or below `epoch`, its end offset); (-1, -1) unknown (KIP-101, KIP-279)."""
        with self._lock:  # retention, in its thread, cuts the epochs too
            return self._epochs.end_offset_for(epoch, self.log_end_offset)

    def epoch_start(self, epoch: int) -> int | None:
        return self._epochs.start_of(epoch)

    def epoch_at(self, offset: int) -> int | None:
        """The leader epoch that `offset` was written in."""
        with self._lock:
            return self._epochs.epoch_at(offset)

    def assign_epoch_start(self, epoch: int, offset: int) -> None:
        """Note that `epoch` begins at `offset`: on becoming leader, and with an epoch's first batch."""
        with self._lock, self._io("note an epoch of"):
            self._epochs.assign(epoch, offset)
            self._epochs_changed(is_urgent=offset < self.log_end_offset)

    def write_epochs(self) -> None:
        """Bring the file of leader epochs up to date. No fsync."""
        with self._lock, self._io("write the epochs of"):
            if not self.closed:
                self._epochs.write()

    def epochs(self) -> list[tuple[int, int]]:
        """(epoch, where it begins), ascending."""
        with self._lock:
            return self._epochs.entries()

    # --- inside ----------------------------------------------------------------------------------

    def _set_segments(self, segments: list[Segment]) -> None:
        assert segments
        self._segments = tuple(segments)
        self._active = segments[-1]
        self._roll_ms = self._rolls_after_ms()

    def _rolls_after_ms(self) -> int:
        jitter_ms = self._active.roll_jitter_ms
        # Without, the number that all logs of these settings share: there may be many.
        return self._config.max_segment_ms - jitter_ms if jitter_ms else self._config.max_segment_ms

    def _epochs_changed(self, *, is_urgent: bool = True) -> None:
        """An epoch that begins at the log's end has left nothing in it, and is written with the next flush: a
        broker that starts comes to lead thousands of logs at once, most of which nobody writes to."""
        self.latest_epoch = self._epochs.latest
        if is_urgent and self._epochs.is_dirty:
            self._chores.work_soon(self.write_epochs)

    @contextmanager
    def _io(self, action: str) -> Iterator[None]:
        """An I/O error inside is told to the directory, and raised as KAFKA_STORAGE_ERROR."""
        try:
            yield
        except OSError as problem:
            raise self._storage_error(action, problem) from problem

    def _storage_error(self, action: str, problem: OSError) -> KafkaError:
        if not self.closed:
            logger.error("cannot %s %s: %s", action, self.directory, problem)
            # A single file that is not there (somebody removed it) says nothing of the others.
            if not isinstance(problem, FileNotFoundError) or not self.directory.exists():
                self.log_dir.failed(f"{action} {self.directory.name}", problem)
        return KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"cannot {action} {self.directory}: {problem.strerror or problem}",
        )
