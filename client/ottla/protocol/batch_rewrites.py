"""Copies of a v2 batch with another timestamp type or codec, or with fewer records, made without record
objects.

Called by `storage.log_validator`, on its slow paths, and by the log cleaner. All functions return copies with
a new checksum.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

from ottla.protocol.compression import Buffer, Codec, compress
from ottla.protocol.records import (
    BATCH_HEADER,
    CODEC_MASK,
    CONTROL_FLAG,
    CRC_START,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    codec_of,
)

_LENGTH_AT = 8
_CRC_AT = 17
_MAX_TIMESTAMP_AT = 35


def with_log_append_time(batch: Buffer, now_ms: int) -> bytearray:
    """The batch marked LogAppendTime at `now_ms`; header only, whatever the compression."""
    return _with_times(batch, LOG_APPEND_TIME_FLAG, now_ms)


def with_create_time(batch: Buffer, max_timestamp: int) -> bytearray:
    """The batch marked CreateTime, with `max_timestamp` (milliseconds) for its highest; header only."""
    return _with_times(batch, 0, max_timestamp)


def with_codec(
    batch: Buffer, records: Buffer, codec: Codec, level: int | None, max_timestamp: int
) -> bytearray:
    """The batch with its `records`, given uncompressed, in another codec, and `max_timestamp` for their
    highest; `level` is the codec's own."""
    copy = bytearray(batch[:RECORD_BATCH_OVERHEAD])
    copy += compress(codec, records, level)
    struct.pack_into(">i", copy, _LENGTH_AT, len(copy) - LOG_OVERHEAD)
    (attributes,) = struct.unpack_from(">h", copy, CRC_START)
    struct.pack_into(">h", copy, CRC_START, attributes & ~CODEC_MASK | codec)
    struct.pack_into(">q", copy, _MAX_TIMESTAMP_AT, max_timestamp)
    return _with_crc(copy)


def with_records(header: BatchHeader, records: Buffer, level: int | None = None) -> bytearray:
    """A batch with this header, but for its length and checksum, and `records`, given uncompressed. They keep
    their offsets, and the batch its last one, whichever of its records are gone."""
    codec = codec_of(header.attributes)
    payload = records if codec is Codec.NONE else compress(codec, records, level)
    batch = bytearray(RECORD_BATCH_OVERHEAD)
    batch += payload
    BATCH_HEADER.pack_into(batch, 0, *header._replace(batch_length=len(batch) - LOG_OVERHEAD))
    return _with_crc(batch)


def without_records(header: BatchHeader) -> bytearray:
    """The batch without records: it keeps its producer's sequence number and its offsets."""
    kept = header.attributes & (LOG_APPEND_TIME_FLAG | TRANSACTIONAL_FLAG | CONTROL_FLAG)
    return with_records(
        header._replace(attributes=kept, base_timestamp=NO_TIMESTAMP, record_count=0),
        b"",
    )


def _with_times(batch: Buffer, flag: int, max_timestamp: int) -> bytearray:
    copy = bytearray(batch)
    (attributes,) = struct.unpack_from(">h", copy, CRC_START)
    struct.pack_into(">h", copy, CRC_START, attributes & ~LOG_APPEND_TIME_FLAG | flag)
    struct.pack_into(">q", copy, _MAX_TIMESTAMP_AT, max_timestamp)
    return _with_crc(copy)


def _with_crc(batch: bytearray) -> bytearray:
    struct.pack_into(">I", batch, _CRC_AT, crc32c(memoryview(batch)[CRC_START:]))
    return batch
