"""Which segments a log may let go (log.retention.*, KIP-107): a pure function over their facts.

Called by `Log.delete_old_segments`. Invariant: nothing at or beyond the high watermark is deleted,
and an empty active segment stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ottla.storage.log_config import LogConfig


class SegmentFacts(NamedTuple):
    base_offset: int
    size: int
    largest_timestamp: int
    """Milliseconds: of the records, or the file's time of change where they have none."""


def deletable_segments(
    segments: Sequence[SegmentFacts],
    config: LogConfig,
    *,
    now_ms: int,
    high_watermark: int,
    log_start_offset: int,
    log_end_offset: int,
) -> int:
    """How many of the oldest segments go, the active one included when it is to be rolled first.

    What lies below the log start offset first, then size, then time, each from the oldest on that is left
    until one stays.
    """
    allowed = 0
    for at, segment in enumerate(segments):
        upper = segments[at + 1].base_offset if at + 1 < len(segments) else log_end_offset
        if high_watermark < upper or (at == len(segments) - 1 and segment.size == 0):
            break
        allowed += 1

    gone = 0
    while gone < allowed and gone + 1 < len(segments) and segments[gone + 1].base_offset <= log_start_offset:
        gone += 1
    if config.deletes and config.retention_bytes >= 0:
        excess = sum(segment.size for segment in segments[gone:]) - config.retention_bytes
        while gone < allowed and excess - segments[gone].size >= 0:
            excess -= segments[gone].size
            gone += 1
    if config.deletes and config.retention_ms >= 0:
        while gone < allowed and now_ms - segments[gone].largest_timestamp > config.retention_ms:
            gone += 1
    return gone
