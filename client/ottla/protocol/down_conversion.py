"""Batches of format v2 as the message sets of v0 and v1 that Fetch 0 to 3 answers with (KIP-283).

Called by server.handlers.down_conversion with what a read of the log found. The bytes are those that
Apache Kafka sends, as far as it is deterministic (codecs are not). Kafka says how long the answer is
before it has converted more than the first batch: as long as the batches are in the log, or as the first
one becomes, whichever is more. What it converts then is cut off there, or filled up with the head of a
batch that never comes whole, which clients drop as they drop any batch cut short. So:

* the first batch that can be told in the old format is there whole;
* headers of records and control batches are dropped; nothing else is: what is cut off is fetched again;
* zstd and what does not decode is refused (the error is raised) if nothing comes before it, or else ends
  what is converted, and is refused by the next fetch, which begins there.

Invariant: no more is made than that length and one group of batches.
"""

from __future__ import annotations

import struct

from ottla.protocol.compression import Buffer, Codec
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.legacy_records import encode_message_set
from ottla.protocol.records import (
    LOG_OVERHEAD,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    TimestampType,
    decode_batch,
    iter_batches,
)

GROUP_BYTES = 128 * 1024
"""Kafka converts so much at a time; a group fails as one."""

_FILLER_HEAD = struct.Struct(">qi")


def down_converted(data: Buffer, magic: int, first_offset: int) -> bytes:
    """What a fetch from `first_offset` on gets for `data`, read from the log, in format `magic` (0 or 1).

    Raises KafkaError: UNSUPPORTED_COMPRESSION_TYPE for zstd at the front; CORRUPT_MESSAGE or
    MESSAGE_TOO_LARGE (too much once decompressed) for what does not decode there.
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
    """The batch at `position` as a message set; empty where the old format cannot tell any of it.

    Records before `first_offset` are left out where no wrapper holds them together: some versions of
    librdkafka rely on that. Raises KafkaError as `down_converted`.
    """
    if header.is_control:
        return b""
    codec = header.codec
    if codec is Codec.ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd has no place in messages of format {magic}"
        )
    records = decode_batch(data, position)
    if codec is Codec.NONE and header.base_offset < first_offset:
        records = [record for record in records if record.offset >= first_offset]
    by_broker = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    return encode_message_set(records, magic, codec, append_time=header.max_timestamp if by_broker else None)


def _group_end(batches: list[tuple[int, BatchHeader]], at: int) -> int:
    """Where the group that begins with batch `at` ends: at least one batch, at most GROUP_BYTES."""
    size = batches[at][1].size
    stop = at + 1
    while stop < len(batches) and size + batches[stop][1].size <= GROUP_BYTES:
        size += batches[stop][1].size
        stop += 1
    return stop


def _fill(out: bytearray, length: int) -> None:
    """Up to `length` with the heads of batches that reach beyond it."""
    while len(out) < length:
        missing = length - len(out)
        head = _FILLER_HEAD.pack(-1, max(missing + 1, RECORD_BATCH_OVERHEAD))
        piece = head + bytes(max(0, min(missing + 1, GROUP_BYTES) - len(head)))
        out += piece[:missing]
