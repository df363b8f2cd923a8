"""What there is to clean in a log, whether that is due, and in which groups: pure functions, told the time.

Called by `server.log_cleaner` (what to clean) and by `rewrite` (groups). The rules are those of Kafka 3.9.

A log is clean up to its first dirty offset, where the last cleaning came to. Of the rest that may be cleaned
which is not in the active segment, is below the last stable offset (so below the high watermark, and of no
open transaction), and lies before the first segment with a record younger than min.compaction.lag.ms. The
range ends where a segment begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ottla.protocol.records import INT32_MAX
from ottla.storage.log_config import INT64_MAX, LogConfig

GROUP_MAX = 256
"""More segments than these are not replaced at once, since that is done under the log's lock. Kafka has no
such limit."""


class Piece(NamedTuple):
    """A segment, as far as it matters here; timestamps are milliseconds."""

    base_offset: int
    size: int
    largest_timestamp: int
    first_timestamp: int
    """Of the first batch the highest; -1 where there is none."""


class Dirt(NamedTuple):
    """What there is to clean in a log."""

    first_dirty: int
    first_uncleanable: int
    """Where the cleanable range ends, which is where a segment begins."""
    clean_bytes: int
    cleanable_bytes: int
    delay_ms: int
    """For how long something has been due by max.compaction.lag.ms; 0 when nothing is."""

    @property
    def ratio(self) -> float:
        """The cleanable share of the log."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    def is_due(self, config: LogConfig) -> bool:
        """Whether there is so much of it, or it has waited for so long, that it is to be cleaned."""
        if self.delay_ms > 0 and self.cleanable_bytes > 0:
            return True
        return self.ratio > config.min_cleanable_dirty_ratio


class Source(NamedTuple):
    """A segment that is to be read by the cleaner; sizes are bytes."""

    base_offset: int
    size: int
    offset_index_size: int
    time_index_size: int


def first_dirty_offset(checkpoint: int | None, log_start_offset: int, log_end_offset: int) -> int:
    """Where the dirty part begins; a checkpoint that is outside of the log counts for nothing."""
    if checkpoint is None or not log_start_offset <= checkpoint <= log_end_offset:
        return log_start_offset
    return checkpoint


def measure(
    pieces: Sequence[Piece], config: LogConfig, *, first_dirty: int, last_stable_offset: int, now_ms: int
) -> Dirt:
    """What there is to clean of a log of these segments, the last of which is the active one."""
    active = pieces[-1].base_offset
    first_uncleanable = min(last_stable_offset, active)
    dirty = [piece for at, piece in enumerate(pieces[:-1]) if pieces[at + 1].base_offset > first_dirty]
    if config.min_compaction_lag_ms > 0:
        newest_ms = now_ms - config.min_compaction_lag_ms
        young = next((piece for piece in dirty if piece.largest_timestamp > newest_ms), None)
        if young is not None:
            first_uncleanable = min(first_uncleanable, young.base_offset)
    first_uncleanable = max(first_dirty, first_uncleanable)
    # The segment that this falls into stays as it is, all of it.
    end = max(piece.base_offset for piece in pieces if piece.base_offset <= first_uncleanable)
    return Dirt(
        first_dirty,
        end,
        clean_bytes=sum(piece.size for piece in pieces if piece.base_offset < first_dirty),
        cleanable_bytes=sum(piece.size for piece in dirty if piece.base_offset < end),
        delay_ms=_delay_ms(dirty, config, now_ms),
    )


def _delay_ms(dirty: Sequence[Piece], config: LogConfig, now_ms: int) -> int:
    if config.max_compaction_lag_ms == INT64_MAX:
        return 0
    earliest = min((piece.first_timestamp for piece in dirty if piece.first_timestamp > 0), default=None)
    due_ms = now_ms - config.max_compaction_lag_ms
    return due_ms - earliest if earliest is not None and earliest < due_ms else 0


def groups(
    sources: Sequence[Source], *, segment_bytes: int, index_bytes: int, end_offset: int
) -> list[list[Source]]:
    """Neighbours that become one segment together, so that segments do not shrink for ever: as many as stay
    within the limits even if nothing goes. `end_offset` is where the last of them ends, or later."""
    grouped: list[list[Source]] = []
    for at, source in enumerate(sources):
        next_base = sources[at + 1].base_offset if at + 1 < len(sources) else end_offset
        if grouped:
            group = grouped[-1]
            if (
                sum(each.size for each in group) + source.size <= segment_bytes
                and sum(each.offset_index_size for each in group) + source.offset_index_size <= index_bytes
                and sum(each.time_index_size for each in group) + source.time_index_size <= index_bytes
                and (source.size == 0 or next_base - 1 - group[0].base_offset <= INT32_MAX)
                and len(group) < GROUP_MAX
            ):
                group.append(source)
                continue
        grouped.append([source])
    return grouped
