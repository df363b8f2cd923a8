"""A partition's log in the making, in another log directory: it follows the present one until it can take its
place (KIP-113).

Called by replication's `log_dir_moves`, in rounds: `look_up` on the event loop, whose the present log is;
`take`, which blocks, in a thread; and, when little is missing, `finish` on the loop, after which nothing can
come between. Like a follower, it truncates to where leader epochs say that the logs part (KIP-101): whatever
was truncated and appended meanwhile, also while nobody copied.

Invariant: after `finish` both logs have the same batches, epochs and start.
"""

from __future__ import annotations

from ottla.protocol.records import parse_batch_header
from ottla.storage.log import Log
from ottla.storage.log_segment import LogRead


class FutureLog:
    """See the module. `source` is the present log, `log` the one to be."""

    def __init__(self, source: Log, log: Log) -> None:
        self.source = source
        self.log = log
        self._truncations = -1
        """As counted by the source when they were reconciled last."""

    @property
    def lag(self) -> int:
        """In offsets."""
        return self.source.log_end_offset - self.log.log_end_offset

    def look_up(self, max_bytes: int) -> LogRead | None:
        """What comes next, by an index that may be cold (ColdRead). None when there is nothing, or when the
        two have to be reconciled first. Raises KafkaError."""
        if self._truncations != self.source.truncations or self.lag <= 0:
            return None
        if self.log.log_end_offset < self.source.log_start_offset:
            return None
        return self.source.read(self.log.log_end_offset, max_bytes, up_to=self.source.log_end_offset)

    def take(self, read: LogRead | None, now_ms: int) -> int:
        """Append what was found; how many bytes that was. Blocking. Raises KafkaError and OSError."""
        if self._truncations != self.source.truncations or read is None:
            self._reconcile()
            return 0
        data = read.to_bytes()
        if data:
            self._append(data, now_ms)
        self._follow_start_and_epochs()
        return len(data)

    def finish(self, max_bytes: int, now_ms: int) -> bool:
        """Copy what is missing, if it is little; whether the log can take the other's place. Quick; to be
        called where nobody appends. Raises KafkaError, OSError and ColdRead."""
        left = max_bytes
        while self.lag > 0 and left > 0:
            read = self.look_up(left)
            if read is None:
                return False
            data = read.to_bytes()
            if not data:
                return False
            self._append(data, now_ms)
            left -= len(data)
        if self.lag or self._truncations != self.source.truncations:
            return False
        self._follow_start_and_epochs()
        return self.log.log_start_offset == self.source.log_start_offset

    def _append(self, data: bytes, now_ms: int) -> None:
        log = self.log
        if log.log_end_offset == log.log_start_offset:
            # The source may begin amid a batch, all of which is there.
            first = parse_batch_header(data)
            if first.base_offset < log.log_end_offset <= first.last_offset:
                log.truncate_fully_and_start_at(first.base_offset)
        log.append_as_follower(data, now_ms=now_ms)

    def _follow_start_and_epochs(self) -> None:
        source, log = self.source, self.log
        log.maybe_increment_log_start_offset(min(source.log_start_offset, log.log_end_offset))
        latest = log.latest_epoch
        for epoch, start in source.epochs():
            # One that begins at the end has left no batch to learn it from.
            if start == log.log_end_offset and (latest is None or epoch > latest):
                log.assign_epoch_start(epoch, start)

    def _reconcile(self) -> None:
        """Drop what the source does not have, or has no more."""
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
        self._follow_start_and_epochs()
        self._truncations = truncations
