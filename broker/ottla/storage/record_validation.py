"""What a leader asks of the records in a batch, and tells a client whose batch fails (as LogValidator does).

Called by `batch_rules` on its slow paths only. `looked_into` finds batches whose inside is not what their
header says; `check` finds records that the topic does not take, and names each of them (KIP-467).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ottla.protocol.compression import decompress
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.record_scan import Scan, scan_heads, scan_records
from ottla.protocol.records import (
    LOG_APPEND_TIME_FLAG,
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    Record,
    TimestampType,
    decode_batch,
)
from ottla.storage.log_config import INT64_MAX, LogConfig


class RecordError(NamedTuple):
    """What is wrong with the record at `batch_index` of its batch."""

    batch_index: int
    code: ErrorCode
    message: str


class RecordsRefused(KafkaError):
    """A batch is refused because of some of its records; all of them are named."""

    def __init__(self, errors: list[RecordError]) -> None:
        timestamps = any(error.code is ErrorCode.INVALID_TIMESTAMP for error in errors)
        super().__init__(
            ErrorCode.INVALID_TIMESTAMP if timestamps else ErrorCode.INVALID_RECORD,
            f"{len(errors)} of the batch's records cannot be taken; the first: {errors[0].message}",
        )
        self.record_errors = errors


class Inside(NamedTuple):
    """A batch's records, decompressed, and what a walk over them found."""

    data: bytes
    scan: Scan
    lowest_timestamp: int
    highest_timestamp: int
    """At least -1, which is no timestamp."""


def looked_into(view: memoryview, header: BatchHeader, most: int | None = None) -> Inside:
    """Raises KafkaError: INVALID_RECORD for lengths and counts that lie, MESSAGE_TOO_LARGE for more than may
    be decompressed, or than `most`, UNKNOWN_SERVER_ERROR, as Kafka, for what does not decompress."""
    data = _decompressed(view, header, most)
    scan = scan_records(data, header.record_count)
    if header.attributes & LOG_APPEND_TIME_FLAG:
        return Inside(data, scan, header.max_timestamp, header.max_timestamp)
    base = header.base_timestamp
    return Inside(data, scan, base + scan.lowest_delta, max(base + scan.highest_delta, NO_TIMESTAMP))


def heads(view: memoryview, header: BatchHeader, most: int | None = None) -> tuple[bool, int]:
    """Of a compressed batch: whether its records' offsets are in order, and their highest timestamp, as in
    `Inside`. Raises KafkaError as `looked_into`."""
    found = scan_heads(_decompressed(view, header, most), header.record_count)
    return found.in_order, max(header.base_timestamp + found.highest_delta, NO_TIMESTAMP)


def _decompressed(view: memoryview, header: BatchHeader, most: int | None) -> bytes:
    try:
        return decompress(header.codec, view[RECORD_BATCH_OVERHEAD:], most)
    except KafkaError as problem:
        if problem.code is not ErrorCode.CORRUPT_MESSAGE:
            raise
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, problem.message) from problem


def limits_timestamps(config: LogConfig) -> bool:
    """Whether the topic compares its records' timestamps with the clock (KIP-937)."""
    return config.timestamp_type is TimestampType.CREATE_TIME and (
        config.message_timestamp_after_max_ms != INT64_MAX
        or config.message_timestamp_before_max_ms != INT64_MAX
    )


def check(view: memoryview, header: BatchHeader, inside: Inside, config: LogConfig, now_ms: int) -> None:
    """Raises RecordsRefused. Walks over the records again only where one of them must be wrong, or may be."""
    by_broker = bool(header.attributes & LOG_APPEND_TIME_FLAG)
    suspicious = (
        (config.compacts and inside.scan.has_keyless)
        or (by_broker and (_sets_timestamps(config) or header.max_timestamp == NO_TIMESTAMP))
        or (
            limits_timestamps(config)
            and (
                _is_out_of_range(inside.lowest_timestamp, config, now_ms)
                or _is_out_of_range(inside.highest_timestamp, config, now_ms)
            )
        )
    )
    if suspicious:
        errors = list(record_errors(decode_batch(view), config, now_ms, by_broker=by_broker))
        if errors:
            raise RecordsRefused(errors)


def record_errors(
    records: list[Record], config: LogConfig, now_ms: int, *, by_broker: bool
) -> Iterator[RecordError]:
    """What is wrong with records of which the sender says that a broker set their time (`by_broker`) or not.

    As in Kafka, it may say so where the topic takes the sender's timestamps: then they are just that.
    """
    for index, record in enumerate(records):
        timestamp = record.timestamp
        if config.compacts and record.key is None:
            yield RecordError(
                index, ErrorCode.INVALID_RECORD, "The topic is compacted: every record needs a key."
            )
        elif not _sets_timestamps(config) and timestamp != NO_TIMESTAMP:
            if _is_out_of_range(timestamp, config, now_ms):
                earliest = now_ms - config.message_timestamp_before_max_ms
                latest = now_ms + config.message_timestamp_after_max_ms
                yield RecordError(
                    index,
                    ErrorCode.INVALID_TIMESTAMP,
                    f"Timestamp {timestamp} is not within {earliest} to {latest}.",
                )
        elif by_broker:
            yield RecordError(
                index, ErrorCode.INVALID_TIMESTAMP, "Only brokers may say that a timestamp is LogAppendTime."
            )


def _sets_timestamps(config: LogConfig) -> bool:
    return config.timestamp_type is TimestampType.LOG_APPEND_TIME


def _is_out_of_range(timestamp: int, config: LogConfig, now_ms: int) -> bool:
    return (
        timestamp - now_ms > config.message_timestamp_after_max_ms
        or now_ms - timestamp > config.message_timestamp_before_max_ms
    )
