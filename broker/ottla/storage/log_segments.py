"""Finding things across a log's segments; called by `Log`.

* Offsets by timestamp (ListOffsets, KIP-79 and KIP-734): a named slow path, for it decodes the records of
  one batch. Results are (offset, timestamp in ms, leader epoch).
* Aborted transactions (KIP-98).
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records import decode_batch
from ottla.storage.index_recovery import check_timestamps, start_by_time
from ottla.storage.log_segment import FileSlice, Segment
from ottla.storage.transaction_index import AbortedTransaction

Found = tuple[int, int, int]


def first_at_or_after(segments: Sequence[Segment], timestamp_ms: int, log_start_offset: int) -> Found | None:
    """The first record at or after `timestamp_ms` that is not below the log's start."""
    before_ms = -1
    for at, segment in enumerate(segments):
        after = segments[at + 1] if at + 1 < len(segments) else None
        if after is not None and after.base_offset <= log_start_offset:
            continue
        if segment.max_timestamp < timestamp_ms:
            # To pass over a segment wrongly is to miss a record. Where timestamps ascend from one to the next
            # that needs to be made sure of for the last one only.
            if (
                segment.max_timestamp < before_ms
                or after in (None, segments[-1])
                or (after.max_timestamp >= timestamp_ms)
            ):
                check_timestamps(segment)
            before_ms = segment.max_timestamp
            if before_ms < timestamp_ms:
                continue
        end = start_by_time(segment, timestamp_ms, log_start_offset)
        for position, header in segment.headers(end):
            end = position + header.size
            if header.max_timestamp < timestamp_ms:
                continue
            for record in decode_batch(segment.read_batch(position)):
                if record.timestamp >= timestamp_ms and record.offset >= log_start_offset:
                    return record.offset, record.timestamp, header.partition_leader_epoch
        _need_end(segment, end)
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
    before_ms = -1
    for each in segments:
        if each.max_timestamp < before_ms:
            check_timestamps(each)
        before_ms = each.max_timestamp
    while True:
        segment = max(segments, key=lambda candidate: candidate.max_timestamp)
        told_ms = segment.max_timestamp
        check_timestamps(segment)
        if segment.max_timestamp == told_ms:
            break
    if told_ms < 0:
        return None
    end = segment.start_of_scan(segment.max_timestamp_offset)
    for position, header in segment.headers(end):
        end = position + header.size
        if header.max_timestamp == segment.max_timestamp:
            for record in decode_batch(segment.read_batch(position)):
                if record.timestamp == header.max_timestamp:
                    return record.offset, record.timestamp, header.partition_leader_epoch
    _need_end(segment, end)
    return None


def _need_end(segment: Segment, end: int) -> None:
    """Nobody may be told that there is nothing where the search could not go on."""
    if end < segment.size:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{segment.file.path}: no batch at {end}")


def aborted_in(
    segments: Sequence[Segment], fetch_offset: int, piece: FileSlice, log_end_offset: int
) -> list[AbortedTransaction]:
    """Aborted transactions that reach into `piece`, which was found for `fetch_offset`.

    As in Kafka up to the offset that the index knows behind it, which may name some that begin later.
    """
    at = _segment_of(segments, fetch_offset)
    while segments[at].file is not piece.file and at < len(segments) - 1:
        at += 1
    upper_bound = segments[at].offset_behind(piece.position + piece.length)
    if upper_bound is None:
        upper_bound = segments[at + 1].base_offset if at + 1 < len(segments) else log_end_offset
    return aborted_between(segments[at:], fetch_offset, upper_bound)


def aborted_between(
    segments: Sequence[Segment], fetch_offset: int, upper_bound: int
) -> list[AbortedTransaction]:
    """Aborted transactions that reach into [fetch_offset, upper_bound). One is in the index of the segment
    that its marker fell into, maybe a later one."""
    found: list[AbortedTransaction] = []
    for segment in segments[_segment_of(segments, fetch_offset) :]:
        aborted, is_complete = segment.txn_index.collect(fetch_offset, upper_bound)
        found += aborted
        if is_complete:
            break
    return found


def _segment_of(segments: Sequence[Segment], offset: int) -> int:
    return max(bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1, 0)
