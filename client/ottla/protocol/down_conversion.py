"""Converts batches of format v2 to the message sets of v0 and v1, which Fetch 0 to 3 returns (KIP-283).

Called by the fetch handlers with the data of a read of the log. The bytes are those that Apache Kafka sends,
as far as these are deterministic (codecs are not). Kafka sends the size of the response before it has
converted more than the first batch: the size of the batches in the log, or of the converted first batch,
whichever is larger. It cuts the converted data at that size, or fills it up with the head of an incomplete
batch, which clients drop as any incomplete batch. So:

* the first batch that the old format can represent is complete;
* only headers of records and control batches are dropped; what is cut is fetched again;
* a batch with zstd, or one that cannot be decoded, raises its error if it is the first one; else the
  converted data ends before it, and the next fetch, which begins there, raises the error.

Invariant: no more is made than that length and one group of batches.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

from ottla.protocol.compression import Buffer, Codec
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.legacy_records import encode_message_set
from ottla.protocol.records import (
    CRC_START,
    LOG_OVERHEAD,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    TimestampType,
    decode_batch,
    iter_batches,
)

GROUP_BYTES = 128 * 1024
"""Kafka converts so many bytes at a time; a group fails as a whole."""

_FILLER_HEAD = struct.Struct(">qi")


def down_converted(data: Buffer, magic: int, first_offset: int) -> bytes:
    """Convert `data`, read from the log, to format `magic` (0 or 1) for a fetch from `first_offset` on.

    Raises KafkaError: UNSUPPORTED_COMPRESSION_TYPE for zstd in the first batch; CORRUPT_MESSAGE for a
    first batch with a wrong checksum; that or MESSAGE_TOO_LARGE (when decompressed) for one that cannot be
    decoded.
    """
    view = memoryview(data)
    batches = list(iter_batches(view))
    if not batches:
        return b""
    out = bytearray()
    at = 0
    while not out and at < len(batches):
        out += convert_batch(view, *batches[at], magic, first_offset)
        at += 1
    if not out:
        _fill(out, LOG_OVERHEAD)
        return bytes(out)
    length = max(len(view), len(out))
    while at < len(batches) and len(out) < length:
        stop = _group_end(batches, at)
        try:
            group = [convert_batch(view, *batch, magic, first_offset) for batch in batches[at:stop]]
        except KafkaError:
            break
        out += b"".join(group)
        at = stop
    del out[length:]
    _fill(out, length)
    return bytes(out)


def convert_batch(
    data: memoryview, position: int, header: BatchHeader, magic: int, first_offset: int
) -> bytes:
    """The batch at `position` as a message set; empty if the old format cannot represent any of it.

    Records before `first_offset` are dropped if the set is not compressed: some versions of librdkafka
    rely on that. Raises KafkaError as `down_converted`.
    """
    if header.is_control:
        return b""
    codec = header.codec
    if codec is Codec.ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd has no place in messages of format {magic}"
        )
    # The message set gets a checksum of its own, which would be valid for damaged records, too.
    if crc32c(data[position + CRC_START : position + header.size]) != header.crc:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"batch at offset {header.base_offset}: checksum")
    records = decode_batch(data, position)
    if codec is Codec.NONE and header.base_offset < first_offset:
        records = [record for record in records if record.offset >= first_offset]
    by_broker = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    return encode_message_set(records, magic, codec, append_time=header.max_timestamp if by_broker else None)


def _group_end(batches: list[tuple[int, BatchHeader]], at: int) -> int:
    """The end of the group that begins with batch `at`: at least one batch, at most GROUP_BYTES."""
    size = batches[at][1].size
    stop = at + 1
    while stop < len(batches) and size + batches[stop][1].size <= GROUP_BYTES:
        size += batches[stop][1].size
        stop += 1
    return stop


def _fill(out: bytearray, length: int) -> None:
    """Fill up to `length` with the heads of batches that are larger than that."""
    while len(out) < length:
        missing = length - len(out)
        head = _FILLER_HEAD.pack(-1, max(missing + 1, RECORD_BATCH_OVERHEAD))
        piece = head + bytes(max(0, min(missing + 1, GROUP_BYTES) - len(head)))
        out += piece[:missing]
