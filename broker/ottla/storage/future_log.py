"""A partition's future log: a copy in another log directory that replaces the current log when it has caught
up (KIP-113).

Called by replication's `log_dir_moves`, in rounds: `read_next` on the event loop, which owns the current log;
`append`, which blocks, in a thread; and, when little is missing, `catch_up` on the event loop, where no
append can come in between. Like a follower, the future log truncates to the end of the last common leader
epoch (KIP-101): the current log may have been truncated and appended to meanwhile.

Invariant: after `catch_up` returns True, both logs have the same batches, epochs and log start offset.
"""

from __future__ import annotations

from ottla.protocol.records import parse_batch_header
from ottla.storage.log import Log
from ottla.storage.segment_files import LogRead


class FutureLog:
    """See the module. `source` is the current log, `log` the future log."""

    def __init__(self, source: Log, log: Log) -> None:
        self.source = source
        self.log = log
        self._truncations = -1
        """The source's `truncations` at the last reconciliation."""

    @property
    def lag(self) -> int:
        """In offsets."""
        return self.source.log_end_offset - self.log.log_end_offset

    def read_next(self, max_bytes: int) -> LogRead | None:
        """The next batches to copy. None if there are none, or if the logs must be reconciled first. Raises
        KafkaError, and PageCacheMiss in nonblocking reads."""
        if self._truncations != self.source.truncations or self.lag <= 0:
            return None
        if self.log.log_end_offset < self.source.log_start_offset:
            return None
        return self.source.read(self.log.log_end_offset, max_bytes, up_to=self.source.log_end_offset)

    def append(self, read: LogRead | None, now_ms: int) -> int:
        """Append the result of `read_next`, or reconcile the logs. Returns the number of bytes. Blocking.
        Raises KafkaError and OSError."""
        if self._truncations != self.source.truncations or read is None:
            self._reconcile()
            return 0
        data = read.to_bytes()
        if data:
            self._append(data, now_ms)
        self._copy_start_offset_and_epochs()
        return len(data)

    def catch_up(self, max_bytes: int, now_ms: int) -> bool:
        """Copy the missing batches, up to `max_bytes`. Returns whether the future log can replace the current
        one. Called where no append can happen. Raises KafkaError, OSError and PageCacheMiss."""
        left = max_bytes
        while self.lag > 0 and left > 0:
            read = self.read_next(left)
            if read is None:
                return False
            data = read.to_bytes()
            if not data:
                return False
            self._append(data, now_ms)
            left -= len(data)
        if self.lag or self._truncations != self.source.truncations:
            return False
        self._copy_start_offset_and_epochs()
        return self.log.log_start_offset == self.source.log_start_offset

    def _append(self, data: bytes, now_ms: int) -> None:
        log = self.log
        if log.log_end_offset == log.log_start_offset:
            # The source's log start offset may be within a batch, which is copied completely.
            first = parse_batch_header(data)
            if first.base_offset < log.log_end_offset <= first.last_offset:
                log.truncate_fully_and_start_at(first.base_offset)
        log.append_as_follower(data, now_ms=now_ms)

    def _copy_start_offset_and_epochs(self) -> None:
        source, log = self.source, self.log
        log.maybe_increment_log_start_offset(
            min(source.log_start_offset, log.log_end_offset), "the log start offset of the current log"
        )
        latest = log.latest_epoch
        for epoch, start in source.epochs():
            # An epoch that starts at the end offset has no batch.
            if start == log.log_end_offset and (latest is None or epoch > latest):
                log.assign_epoch_start(epoch, start)

    def _reconcile(self) -> None:
        """Truncate the future log to its common prefix with the source."""
        source, log = self.source, self.log
        truncations = source.truncations
        while log.latest_epoch is not None:
            latest = log.latest_epoch
            epoch, end = source.end_offset_for_epoch(latest)
            mine, my_end = log.end_offset_for_epoch(epoch)
            if epoch < 0 or mine < 0:
                log.truncate_fully_and_start_at(source.log_start_offset)
                break
            log.truncate_to(min(end, my_end))
            if epoch in (latest, mine) or log.latest_epoch == latest:
                break
        log.truncate_to(source.log_end_offset)
        knows_none = log.latest_epoch is None and log.log_end_offset > log.log_start_offset
        if knows_none or log.log_end_offset < source.log_start_offset:
            log.truncate_fully_and_start_at(source.log_start_offset)
        self._copy_start_offset_and_epochs()
        self._truncations = truncations
