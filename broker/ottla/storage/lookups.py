"""Finding offsets by timestamp (ListOffsets, KIP-79 and KIP-734).

Called by `Log`; a named slow path, for it decodes the records of one batch. Results are
(offset, timestamp in ms, leader epoch).
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ottla.protocol.records import decode_batch
from ottla.storage.segment import Segment

Found = tuple[int, int, int]


def first_at_or_after(segments: Sequence[Segment], timestamp_ms: int, log_start_offset: int) -> Found | None:
    """The first record at or after `timestamp_ms` that is not below the log's start."""
    for at, segment in enumerate(segments):
        next_base = segments[at + 1].base_offset if at + 1 < len(segments) else None
        if segment.max_timestamp < timestamp_ms or (next_base is not None and next_base <= log_start_offset):
            continue
        _, index_offset = segment.time_index.lookup(timestamp_ms - 1)
        start = segment.position_of(max(index_offset, log_start_offset))
        for position, header in segment.headers(start):
            if header.max_timestamp < timestamp_ms or header.last_offset < log_start_offset:
                continue
            for record in decode_batch(segment.read_batch(position)):
                if record.timestamp >= timestamp_ms and record.offset >= log_start_offset:
                    return record.offset, record.timestamp, header.partition_leader_epoch
    return None


def segment_starts_before(
    segments: Sequence[Segment], timestamp_ms: int, log_start_offset: int, log_end_offset: int, now_ms: int
) -> list[int]:
    """What ListOffsets 0 asks for, newest first: where segments that were written to before `timestamp_ms`
    begin, and those before them; and the log's end, if that is now and there is something in the last."""
    known = [
        (max(each.base_offset, log_start_offset), os.fstat(each.fd).st_mtime_ns // 1_000_000)
        for each in segments
    ]
    if segments[-1].size:
        known.append((log_end_offset, now_ms))
    while known and known[-1][1] > timestamp_ms:
        known.pop()
    return sorted((offset for offset, _ in known), reverse=True)


def highest(segments: Sequence[Segment]) -> Found | None:
    """The first record that has the log's highest timestamp; None when no record has one."""
    segment = max(segments, key=lambda candidate: candidate.max_timestamp)
    if segment.max_timestamp < 0:
        return None
    for position, header in segment.headers(segment.position_of(segment.max_timestamp_offset)):
        if header.max_timestamp == segment.max_timestamp:
            for record in decode_batch(segment.read_batch(position)):
                if record.timestamp == header.max_timestamp:
                    return record.offset, record.timestamp, header.partition_leader_epoch
    return None
