"""Message sets of the old formats v0 and v1 (before Kafka 0.11): read and written.

Two slow paths use it. Old versions of Produce have these formats, which `storage.log_validator` converts, as
a log stores v2 only. Clients of old versions of Fetch read no other formats, which `down_conversion` writes.

A message set is `offset, size, message` repeated. A message's attributes may name a codec: then it
is a wrapper, whose value is a compressed message set. Inner offsets are absolute in v0 and relative
to the set in v1, where the wrapper carries the last record's offset (KIP-31).

Invariant: errors have Kafka's codes, also where that is UNKNOWN_SERVER_ERROR (a wrong length with a correct
checksum, data that cannot be decompressed).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from zlib import crc32

from ottla.protocol.compression import Buffer, Codec, compress, decompress, fix_lz4_v0_header
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records import (
    CODEC_MASK,
    LOG_APPEND_TIME_FLAG,
    NO_TIMESTAMP,
    Record,
)

_SET_ENTRY = struct.Struct(">qi")
_MESSAGE_HEAD = struct.Struct(">IBB")
_AFTER_CRC_V0 = struct.Struct(">BB")
_AFTER_CRC_V1 = struct.Struct(">BBq")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_U32 = struct.Struct(">I")
_NULL = b"\xff\xff\xff\xff"
_CRC_BYTES = 4

MESSAGE_OVERHEAD_V0 = 14
"""crc, magic, attributes, key length and value length of a message."""
MESSAGE_OVERHEAD_V1 = 22
"""... and a timestamp."""
MAGIC_POSITION = 16
"""Offset of the magic in an entry of a set; the same in a v2 batch."""


class Message(NamedTuple):
    """One message of a set, not decompressed; the timestamp is -1 in v0."""

    offset: int
    magic: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None

    @property
    def size(self) -> int:
        """The bytes of its entry in the set."""
        overhead = MESSAGE_OVERHEAD_V0 if self.magic == 0 else MESSAGE_OVERHEAD_V1
        return _SET_ENTRY.size + overhead + len(self.key or b"") + len(self.value or b"")

    @property
    def has_append_time(self) -> bool:
        """Whether its timestamp is LogAppendTime."""
        return self.magic > 0 and bool(self.attributes & LOG_APPEND_TIME_FLAG)


# --- reading -------------------------------------------------------------------------------------


def iter_messages(message_set: Buffer) -> Iterator[Message]:
    """The messages of a set, not decompressed; a partial message at the end is dropped.

    Raises KafkaError: CORRUPT_MESSAGE on a bad size, checksum or magic; INVALID_RECORD where a v2
    batch follows; UNKNOWN_SERVER_ERROR on lengths that do not fit in the message.
    """
    view = memoryview(message_set)
    pos = 0
    while pos + _SET_ENTRY.size <= len(view):
        offset, size = _SET_ENTRY.unpack_from(view, pos)
        start = pos + _SET_ENTRY.size
        if size < MESSAGE_OVERHEAD_V0:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a message of {size} bytes at {start}")
        if pos + MAGIC_POSITION < len(view):
            _check_magic(view[pos + MAGIC_POSITION], start)
        pos = start + size
        if pos > len(view):
            return
        yield _parse_message(offset, view[start:pos])


def decode_message_set(message_set: Buffer) -> list[Record]:
    """The records of a set in order, decompressed. Raises KafkaError as `iter_messages` and
    `open_message`."""
    return [record for message in iter_messages(message_set) for record in open_message(message)]


def codec_of_message(message: Message) -> Codec:
    """Raises KafkaError: INVALID_RECORD for zstd, which is newer than these formats,
    UNKNOWN_SERVER_ERROR for an unknown codec."""
    code = message.attributes & CODEC_MASK
    if code > Codec.LZ4:
        known = code == Codec.ZSTD
        raise KafkaError(
            ErrorCode.INVALID_RECORD if known else ErrorCode.UNKNOWN_SERVER_ERROR,
            f"codec {code} in magic {message.magic}",
        )
    return Codec(code)


def open_message(message: Message) -> list[Record]:
    """Its record, or the records that it wraps. Raises KafkaError: INVALID_RECORD, CORRUPT_MESSAGE,
    MESSAGE_TOO_LARGE, UNKNOWN_SERVER_ERROR."""
    codec = codec_of_message(message)
    if codec is Codec.NONE:
        return [Record(message.offset, message.timestamp, message.key, message.value)]
    if message.value is None:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a compressed message without a value")
    inner = list(iter_messages(_decompressed(codec, message.magic, message.value)))
    if not inner:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a compressed message set with no message in it")
    shift = 0
    # Some versions of librdkafka write 0 as the wrapper's offset: then the inner offsets are absolute.
    if message.magic == 1 and message.offset != 0:
        shift = message.offset - inner[-1].offset
        if shift < 0:
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                f"the wrapper's offset {message.offset} is less than the last inner {inner[-1].offset}",
            )
    append_time = message.timestamp if message.has_append_time else None
    records = []
    for entry in inner:
        if entry.attributes & CODEC_MASK:
            raise KafkaError(ErrorCode.INVALID_RECORD, "a compressed message within a compressed message")
        if entry.magic != message.magic:
            raise KafkaError(ErrorCode.INVALID_RECORD, f"magic {entry.magic} in a set of {message.magic}")
        timestamp = entry.timestamp if append_time is None else append_time
        records.append(Record(entry.offset + shift, timestamp, entry.key, entry.value))
    return records


def _check_magic(magic: int, start: int) -> None:
    if magic in (0, 1):
        return
    code = ErrorCode.INVALID_RECORD if magic == 2 else ErrorCode.CORRUPT_MESSAGE
    raise KafkaError(code, f"a message of magic {magic} at {start} in a v0 or v1 set")


def _parse_message(offset: int, message: memoryview) -> Message:
    crc, magic, attributes = _MESSAGE_HEAD.unpack_from(message)
    if crc32(message[_CRC_BYTES:]) != crc:
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
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"message at offset {offset}: {problem}"
        ) from problem
    return Message(offset, magic, attributes, timestamp, key, value)


def _read_bytes(message: memoryview, pos: int) -> tuple[bytes | None, int]:
    (length,) = _I32.unpack_from(message, pos)
    pos += 4
    if length < 0:
        return None, pos
    if length > len(message) - pos:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{length} bytes in a message of {len(message)}")
    return bytes(message[pos : pos + length]), pos + length


def _decompressed(codec: Codec, magic: int, data: bytes) -> bytes:
    if codec is Codec.LZ4 and magic == 0:
        data = fix_lz4_v0_header(data)
    try:
        return decompress(codec, data)
    except KafkaError as problem:
        if problem.code is not ErrorCode.CORRUPT_MESSAGE:
            raise
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, problem.message) from problem


# --- writing -------------------------------------------------------------------------------------


def encode_message_set(
    records: Sequence[Record], magic: int, codec: Codec = Codec.NONE, *, append_time: int | None = None
) -> bytes:
    """The records, with their offsets, as a set of `magic` 0 or 1, without their headers.

    Compressed, it is one wrapper. With `append_time` (milliseconds) v1 has LogAppendTime with that
    time for every record; v0 has no timestamps. zstd is not allowed (KIP-110).
    """
    assert magic in (0, 1)
    assert codec is not Codec.ZSTD
    if not records:
        return b""
    flag = LOG_APPEND_TIME_FLAG if magic == 1 and append_time is not None else 0
    base = records[0].offset if magic == 1 and codec is not Codec.NONE else 0
    body = bytearray()
    for record in records:
        timestamp = record.timestamp if append_time is None else append_time
        _append_message(body, record.offset - base, magic, flag, timestamp, record.key, record.value)
    if codec is Codec.NONE:
        return bytes(body)
    highest = max(record.timestamp for record in records) if append_time is None else append_time
    wrapper = bytearray()
    value = compress(codec, body, v0_header=magic == 0)
    _append_message(wrapper, records[-1].offset, magic, flag | codec, highest, None, value)
    return bytes(wrapper)


def _append_message(
    out: bytearray,
    offset: int,
    magic: int,
    attributes: int,
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
) -> None:
    if magic == 1:
        # v1 has no time before 1970 but -1, "none"; a v2 batch may have one.
        head = _AFTER_CRC_V1.pack(magic, attributes, max(timestamp, NO_TIMESTAMP))
    else:
        head = _AFTER_CRC_V0.pack(magic, attributes)
    message = b"".join(
        (
            head,
            _NULL if key is None else _I32.pack(len(key)),
            key or b"",
            _NULL if value is None else _I32.pack(len(value)),
            value or b"",
        )
    )
    out += _SET_ENTRY.pack(offset, _CRC_BYTES + len(message))
    out += _U32.pack(crc32(message))
    out += message
