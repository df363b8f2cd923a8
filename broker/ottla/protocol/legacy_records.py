"""Message sets of the old formats v0 and v1 (before Kafka 0.11), and their conversion to v2.

A named slow path: Produce is advertised from version 0 on, whose clients send these formats, and
what a log stores is always v2. Called by the log's append when a batch's magic is 0 or 1.

A message set is `offset, size, message` repeated. A message's attributes may name a codec: then it
is a wrapper, whose value is a compressed message set. Inner offsets are absolute in v0 and relative
to the set in v1, where the wrapper carries the last record's offset (KIP-31).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

from ottla.protocol.compression import Buffer, Codec, decompress, fix_lz4_v0_header
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records import (
    CODEC_MASK,
    LOG_APPEND_TIME_FLAG,
    NO_TIMESTAMP,
    Record,
    build_batch,
)

_SET_ENTRY = struct.Struct(">qi")
_MESSAGE_HEAD = struct.Struct(">IBB")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")

MESSAGE_OVERHEAD_V0 = 14
"""crc, magic, attributes, key length and value length of a message."""


class Message(NamedTuple):
    """One message as it lies in a set, wrappers not opened; timestamp -1 where v0 has none."""

    offset: int
    magic: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def iter_messages(message_set: Buffer) -> Iterator[Message]:
    """The messages of a set, wrappers not opened; a partial message at the end is left out.

    Raises KafkaError(CORRUPT_MESSAGE) on a bad size, checksum or magic.
    """
    view = memoryview(message_set)
    pos = 0
    while pos + _SET_ENTRY.size <= len(view):
        offset, size = _SET_ENTRY.unpack_from(view, pos)
        start = pos + _SET_ENTRY.size
        pos = start + size
        if size < MESSAGE_OVERHEAD_V0:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a message of {size} bytes at {start}")
        if pos > len(view):
            return
        yield _parse_message(offset, view[start:pos])


def decode_message_set(message_set: Buffer) -> list[Record]:
    """The records of a set in order, wrappers opened. Raises KafkaError(CORRUPT_MESSAGE)."""
    return [record for message in iter_messages(message_set) for record in _records_of(message)]


def upconvert(message_set: Buffer) -> bytes:
    """One v2 batch with the records of the set, numbered from 0, compressed as the set was.

    Records of v0 get no timestamp (-1), as Kafka stores them. Raises KafkaError(CORRUPT_MESSAGE)
    on damage and KafkaError(INVALID_RECORD) when there is no record.
    """
    records: list[Record] = []
    codec = Codec.NONE
    for message in iter_messages(message_set):
        if codec is Codec.NONE:
            codec = _codec_of(message)
        records += _records_of(message)
    if not records:
        raise KafkaError(ErrorCode.INVALID_RECORD, "the message set holds no complete message")
    return build_batch(records, codec=codec)


def _parse_message(offset: int, message: memoryview) -> Message:
    crc, magic, attributes = _MESSAGE_HEAD.unpack_from(message)
    if magic not in (0, 1):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a message of magic {magic} in a v0 or v1 set")
    if crc32(message[4:]) != crc:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"checksum of the message at offset {offset} is wrong")
    pos = _MESSAGE_HEAD.size
    timestamp = NO_TIMESTAMP
    try:
        if magic == 1:
            (timestamp,) = _I64.unpack_from(message, pos)
            pos += 8
        key, pos = _read_bytes(message, pos)
        value, pos = _read_bytes(message, pos)
    except struct.error as problem:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"message at offset {offset}: {problem}") from problem
    return Message(offset, magic, attributes, timestamp, key, value)


def _read_bytes(message: memoryview, pos: int) -> tuple[bytes | None, int]:
    (length,) = _I32.unpack_from(message, pos)
    pos += 4
    if length == -1:
        return None, pos
    if not 0 <= length <= len(message) - pos:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{length} bytes in a message of {len(message)}")
    return bytes(message[pos : pos + length]), pos + length


def _codec_of(message: Message) -> Codec:
    code = message.attributes & CODEC_MASK
    if code > Codec.LZ4:  # zstd came after these formats
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"codec {code} in magic {message.magic}")
    return Codec(code)


def _records_of(message: Message) -> Iterator[Record]:
    codec = _codec_of(message)
    if codec is Codec.NONE:
        yield Record(message.offset, message.timestamp, message.key, message.value)
        return
    if message.value is None:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a compressed message without a value")
    data = message.value
    if codec is Codec.LZ4 and message.magic == 0:
        data = fix_lz4_v0_header(data)
    inner = list(iter_messages(decompress(codec, data)))
    if not inner:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a compressed message set with no message in it")
    shift = message.offset - inner[-1].offset if message.magic == 1 else 0
    append_time = message.timestamp if message.attributes & LOG_APPEND_TIME_FLAG else None
    for entry in inner:
        if entry.attributes & CODEC_MASK:
            raise KafkaError(ErrorCode.INVALID_RECORD, "a compressed message within a compressed message")
        if entry.magic != message.magic:
            raise KafkaError(ErrorCode.INVALID_RECORD, f"magic {entry.magic} in a set of {message.magic}")
        timestamp = entry.timestamp if append_time is None else append_time
        yield Record(entry.offset + shift, timestamp, entry.key, entry.value)
