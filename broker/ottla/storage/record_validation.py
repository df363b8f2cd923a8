"""Validates the records of a batch, and reports invalid records to the client (part of Kafka's LogValidator).

Called by `log_validator` on its slow paths. `decode_and_scan` rejects batches whose records differ from their
header; `check` rejects records that the topic does not accept, and lists each of them (KIP-467).
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
    """The error of the record at `batch_index` of its batch."""

    batch_index: int
    code: ErrorCode
    message: str


class InvalidRecords(KafkaError):
    """A batch is rejected because of invalid records; `record_errors` lists all of them."""

    def __init__(self, errors: list[RecordError]) -> None:
        timestamps = any(error.code is ErrorCode.INVALID_TIMESTAMP for error in errors)
        super().__init__(
            ErrorCode.INVALID_TIMESTAMP if timestamps else ErrorCode.INVALID_RECORD,
            f"{len(errors)} of the batch's records are invalid; the first: {errors[0].message}",
        )
        self.record_errors = errors

    def __reduce__(self) -> tuple[type[InvalidRecords], tuple[list[RecordError]]]:
        return InvalidRecords, (self.record_errors,)


class DecodedRecords(NamedTuple):
    """The decompressed records of a batch, and the result of a scan over them."""

    data: bytes
    scan: Scan
    lowest_timestamp: int
    highest_timestamp: int
    """-1 for no timestamp."""


def decode_and_scan(view: memoryview, header: BatchHeader, max_bytes: int | None = None) -> DecodedRecords:
    """Decompress and scan the records. Raises KafkaError: INVALID_RECORD for wrong lengths and counts,
    MESSAGE_TOO_LARGE beyond the decompression limit or `max_bytes`, UNKNOWN_SERVER_ERROR, as Kafka, if
    decompression fails."""
    data = _decompressed(view, header, max_bytes)
    scan = scan_records(data, header.record_count)
    if header.attributes & LOG_APPEND_TIME_FLAG:
        return DecodedRecords(data, scan, header.max_timestamp, header.max_timestamp)
    base = header.base_timestamp
    return DecodedRecords(data, scan, base + scan.lowest_delta, max(base + scan.highest_delta, NO_TIMESTAMP))


def scan_record_heads(
    view: memoryview, header: BatchHeader, max_bytes: int | None = None
) -> tuple[bool, int]:
    """Scan the heads of a compressed batch's records: whether their offsets ascend, and their max timestamp.
    Raises KafkaError as `decode_and_scan`."""
    found = scan_heads(_decompressed(view, header, max_bytes), header.record_count)
    return found.in_order, max(header.base_timestamp + found.highest_delta, NO_TIMESTAMP)


def _decompressed(view: memoryview, header: BatchHeader, max_bytes: int | None) -> bytes:
    try:
        return decompress(header.codec, view[RECORD_BATCH_OVERHEAD:], max_bytes)
    except KafkaError as problem:
        if problem.code is not ErrorCode.CORRUPT_MESSAGE:
            raise
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, problem.message) from problem


def limits_timestamps(config: LogConfig) -> bool:
    """Whether the topic limits its records' timestamps (KIP-937)."""
    return config.timestamp_type is TimestampType.CREATE_TIME and (
        config.message_timestamp_after_max_ms != INT64_MAX
        or config.message_timestamp_before_max_ms != INT64_MAX
    )


def check(
    view: memoryview, header: BatchHeader, decoded: DecodedRecords, config: LogConfig, now_ms: int
) -> None:
    """Raise InvalidRecords if a record is invalid. The records are decoded only if the scan makes that
    possible."""
    by_broker = bool(header.attributes & LOG_APPEND_TIME_FLAG)
    suspicious = (
        (config.compacts and decoded.scan.has_keyless)
        or (by_broker and (_sets_timestamps(config) or header.max_timestamp == NO_TIMESTAMP))
        or (
            limits_timestamps(config)
            and (
                _is_out_of_range(decoded.lowest_timestamp, config, now_ms)
                or _is_out_of_range(decoded.highest_timestamp, config, now_ms)
            )
        )
    )
    if suspicious:
        errors = list(record_errors(decode_batch(view), config, now_ms, by_broker=by_broker))
        if errors:
            raise InvalidRecords(errors)


def record_errors(
    records: list[Record], config: LogConfig, now_ms: int, *, by_broker: bool
) -> Iterator[RecordError]:
    """The errors of records. `by_broker`: their batch has LogAppendTime, which is an error only if the topic
    has it, too; otherwise, as in Kafka, their timestamps count as the producer's.
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
