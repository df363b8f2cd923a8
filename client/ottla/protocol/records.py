"""Record batches of format v2 (KIP-98): headers, checksums, and the records within.

It has two kinds of callers:

* the broker's produce, fetch and replication paths read `BatchHeader`s in place and do not decode the rest of
a
  batch. They may also use `BATCH_HEADER`, the precompiled layout;
* clients, coordinators, tools and slow paths build batches of records and decode them (`build_batch`,
  `decode_batch`).

Invariants: the CRC-32C covers everything from the attributes on, so the base offset, the length,
the leader epoch and the magic (bytes 0 to 16) can be rewritten without touching it; offsets are
`base_offset + delta`; a batch's size on disk is `12 + batch_length`.

Old message sets (magic 0 and 1) are in `legacy_records`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from crc32c import crc32c

from ottla.protocol.compression import Buffer, Codec, compress, decompress
from ottla.protocol.errors import ErrorCode, KafkaError

RECORD_BATCH_OVERHEAD = 61
LOG_OVERHEAD = 12
CRC_START = 21
"""The offset of the first byte that the CRC covers."""
HEAD_BYTES = 16
"""Base offset, length and leader epoch: a broker rewrites these, and the CRC does not cover them."""

MAGIC_V2 = 2
NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1
INT32_MAX = 2**31 - 1

CODEC_MASK = 0x07
LOG_APPEND_TIME_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40

BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")
"""base offset, length, leader epoch, magic, crc, attributes, last offset delta, base timestamp,
max timestamp, producer id, producer epoch, base sequence, record count."""
_AFTER_CRC = struct.Struct(">hiqqqhii")
_BEFORE_CRC = struct.Struct(">qiibI")
assert BATCH_HEADER.size == RECORD_BATCH_OVERHEAD


class TimestampType(IntEnum):
    """The source of the timestamps of a batch (message.timestamp.type, KIP-32)."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class ControlType(IntEnum):
    """The type in the key of a control record (KIP-98)."""

    ABORT = 0
    COMMIT = 1


class BatchHeader(NamedTuple):
    """The 61 bytes at the front of a batch; timestamps are milliseconds since the epoch."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        """Raises KafkaError(UNSUPPORTED_COMPRESSION_TYPE) for an unknown codec id."""
        return codec_of(self.attributes)

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType((self.attributes >> 3) & 1)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        """The last record's sequence number; sequences wrap from 2^31-1 to 0."""
        return last_sequence(self.base_sequence, self.last_offset_delta)


class Record(NamedTuple):
    """One record; `timestamp` in milliseconds, -1 for none; header values may be null."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


def codec_of(attributes: int) -> Codec:
    code = attributes & CODEC_MASK
    if code > Codec.ZSTD:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"no compression codec has the id {code}")
    return Codec(code)


def last_sequence(base_sequence: int, last_offset_delta: int) -> int:
    """The sequence number `last_offset_delta` after `base_sequence`, or -1 without a sequence."""
    if base_sequence < 0:
        return NO_SEQUENCE
    return (base_sequence + last_offset_delta) & INT32_MAX


# --- reading -------------------------------------------------------------------------------------


def parse_batch_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """The header at `pos`. Raises KafkaError(CORRUPT_MESSAGE) when there are fewer than 61 bytes."""
    if pos + RECORD_BATCH_OVERHEAD > len(buf):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{len(buf) - pos} bytes cannot hold a batch header")
    return BatchHeader(*BATCH_HEADER.unpack_from(buf, pos))


def iter_batches(buf: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of every whole batch; stops at a partial one, with which fetched data may end.

    Raises KafkaError(CORRUPT_MESSAGE) for an impossible length, and
    KafkaError(UNSUPPORTED_FOR_MESSAGE_FORMAT) for messages of an older format.
    """
    pos = 0
    end = len(buf)
    while pos + RECORD_BATCH_OVERHEAD <= end:
        header = BatchHeader(*BATCH_HEADER.unpack_from(buf, pos))
        if header.magic != MAGIC_V2:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, f"magic {header.magic} at {pos} is not a v2 batch"
            )
        next_pos = pos + header.size
        if header.size < RECORD_BATCH_OVERHEAD:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"batch length {header.batch_length} at {pos}")
        if next_pos > end:
            return
        yield pos, header
        pos = next_pos


def verify_crc(buf: Buffer, pos: int, header: BatchHeader) -> bool:
    """Whether the batch at `pos` is whole and its CRC-32C matches."""
    end = pos + header.size
    if header.size < RECORD_BATCH_OVERHEAD or end > len(buf):
        return False
    return int(crc32c(memoryview(buf)[pos + CRC_START : end])) == header.crc


def decode_batch(buf: Buffer, pos: int = 0) -> list[Record]:
    """The records of the batch at `pos`, decompressed. The CRC is not checked here.

    Raises KafkaError(CORRUPT_MESSAGE) when the batch does not match its header.
    """
    header, data = _open_batch(buf, pos)
    try:
        return _decode_body(data, header)
    except (IndexError, ValueError) as problem:
        raise _malformed(header, problem) from problem


def decode_keys_and_values(buf: Buffer, pos: int = 0) -> list[tuple[int, bytes | None, bytes | None]]:
    """(offset, key, value) of the batch's records, for callers that read many and need no other fields.

    Raises KafkaError(CORRUPT_MESSAGE) as `decode_batch` does.
    """
    header, data = _open_batch(buf, pos)
    try:
        return _scan_body(data, header)
    except (IndexError, ValueError) as problem:
        raise _malformed(header, problem) from problem


def decode_records(buf: Buffer) -> list[Record]:
    """The records of all whole batches in `buf`."""
    records: list[Record] = []
    for pos, _ in iter_batches(buf):
        records += decode_batch(buf, pos)
    return records


def _open_batch(buf: Buffer, pos: int) -> tuple[BatchHeader, bytes]:
    """The header of a batch, and its records, decompressed."""
    header = parse_batch_header(buf, pos)
    end = pos + header.size
    if header.magic != MAGIC_V2 or header.size < RECORD_BATCH_OVERHEAD or end > len(buf):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"no whole v2 batch at {pos}")
    if header.record_count < 0:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"record count {header.record_count} at {pos}")
    body = memoryview(buf)[pos + RECORD_BATCH_OVERHEAD : end]
    return header, decompress(header.codec, body)


def _malformed(header: BatchHeader, problem: Exception) -> KafkaError:
    return KafkaError(
        ErrorCode.CORRUPT_MESSAGE, f"batch at offset {header.base_offset} is malformed: {problem}"
    )


def _scan_body(data: bytes, header: BatchHeader) -> list[tuple[int, bytes | None, bytes | None]]:
    """`_decode_body`, in less than half the time: numbers of one byte are read inline."""
    base_offset = header.base_offset
    found = []
    size = len(data)
    pos = 0
    for _ in range(header.record_count):
        number = data[pos]
        if number < 0x80:
            length = (number >> 1) ^ -(number & 1)
            pos += 1
        else:
            length, pos = read_varint(data, pos)
        end = pos + length
        if length < 0 or end > size:
            raise ValueError(f"a record of {length} bytes at {pos} of {size}")
        pos += 1  # attributes, unused
        if data[pos] < 0x80:  # the timestamp
            pos += 1
        else:
            _, pos = read_varint(data, pos)
        number = data[pos]
        if number < 0x80:
            offset_delta = (number >> 1) ^ -(number & 1)
            pos += 1
        else:
            offset_delta, pos = read_varint(data, pos)
        key, pos = _read_short_bytes(data, pos, end)
        value, pos = _read_short_bytes(data, pos, end)
        if data[pos]:
            pos = _skip_headers(data, pos, end)
        else:
            pos += 1
        if pos != end:
            raise ValueError(f"a record that ends at {pos}, not at {end}")
        found.append((base_offset + offset_delta, key, value))
    if pos != size:
        raise ValueError(f"{size - pos} bytes after the last record")
    return found


def _read_short_bytes(data: bytes, pos: int, end: int) -> tuple[bytes | None, int]:
    """`_read_bytes`, faster for fewer than 64 bytes."""
    number = data[pos]
    if number & 0x81:
        return _read_bytes(data, pos, end)
    pos += 1
    stop = pos + (number >> 1)
    if stop > end:
        raise ValueError(f"{number >> 1} bytes at {pos} reach beyond the record's end at {end}")
    return data[pos:stop], stop


def _skip_headers(data: bytes, pos: int, end: int) -> int:
    count, pos = read_varint(data, pos)
    if not 0 <= count <= end - pos:
        raise ValueError(f"header count {count}")
    for _ in range(count):
        name, pos = _read_bytes(data, pos, end)
        if name is None:
            raise ValueError("a header without a key")
        _, pos = _read_bytes(data, pos, end)
    return pos


def _decode_body(data: bytes, header: BatchHeader) -> list[Record]:
    base_offset = header.base_offset
    base_timestamp = header.base_timestamp
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME_FLAG else None
    records = []
    pos = 0
    for _ in range(header.record_count):
        length, pos = read_varint(data, pos)
        end = pos + length
        if length < 0 or end > len(data):
            raise ValueError(f"a record of {length} bytes at {pos} of {len(data)}")
        timestamp_delta, pos = read_varint(data, pos + 1)  # one byte of attributes, unused
        offset_delta, pos = read_varint(data, pos)
        key, pos = _read_bytes(data, pos, end)
        value, pos = _read_bytes(data, pos, end)
        count, pos = read_varint(data, pos)
        headers: list[tuple[str, bytes | None]] = []
        if count:
            if not 0 < count <= end - pos:
                raise ValueError(f"header count {count}")
            for _ in range(count):
                name, pos = _read_bytes(data, pos, end)
                if name is None:
                    raise ValueError("a header without a key")
                header_value, pos = _read_bytes(data, pos, end)
                headers.append((name.decode(errors="replace"), header_value))
        if pos != end:
            raise ValueError(f"a record that ends at {pos}, not at {end}")
        timestamp = base_timestamp + timestamp_delta if append_time is None else append_time
        records.append(Record(base_offset + offset_delta, timestamp, key, value, headers))
    if pos != len(data):
        raise ValueError(f"{len(data) - pos} bytes after the last record")
    return records


def read_varint(data: bytes, pos: int) -> tuple[int, int]:
    """A zigzag varint (or varlong) at `pos`, and the position after it."""
    byte = data[pos]
    pos += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), pos
    result = byte & 0x7F
    shift = 7
    while True:
        byte = data[pos]
        pos += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), pos
        shift += 7
        if shift > 63:
            raise ValueError(f"a varint of more than ten bytes at {pos}")


def _read_bytes(data: bytes, pos: int, end: int) -> tuple[bytes | None, int]:
    length, pos = read_varint(data, pos)
    if length < 0:
        if length != -1:
            raise ValueError(f"length {length} at {pos}")
        return None, pos
    stop = pos + length
    if stop > end:
        raise ValueError(f"{length} bytes at {pos} reach beyond the record's end at {end}")
    return data[pos:stop], stop


# --- building ------------------------------------------------------------------------------------


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    leader_epoch: int = NO_LEADER_EPOCH,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    transactional: bool = False,
    control: bool = False,
    keep_offsets: bool = False,
    level: int | None = None,
) -> bytes:
    """One batch of `records`, which must not be empty.

    Records are numbered from `base_offset` in the order given; their own `offset` counts only with
    `keep_offsets` (compaction keeps the offsets of the remaining records), and must then ascend
    from `base_offset` on. With LOG_APPEND_TIME the append time is the highest timestamp given.
    """
    batch_records = list(records)
    if not batch_records:
        raise ValueError("a batch needs at least one record")
    base_timestamp = batch_records[0].timestamp
    max_timestamp = max(record.timestamp for record in batch_records)
    body = bytearray()
    delta = 0
    for index, record in enumerate(batch_records):
        delta = record.offset - base_offset if keep_offsets else index
        _append_record(body, record, delta, record.timestamp - base_timestamp)
    attributes = (
        codec
        | (LOG_APPEND_TIME_FLAG if timestamp_type is TimestampType.LOG_APPEND_TIME else 0)
        | (TRANSACTIONAL_FLAG if transactional else 0)
        | (CONTROL_FLAG if control else 0)
    )
    payload = body if codec is Codec.NONE else compress(codec, body, level)
    after_crc = _AFTER_CRC.pack(
        attributes,
        delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(batch_records),
    )
    crc = crc32c(payload, crc32c(after_crc))
    length = RECORD_BATCH_OVERHEAD - LOG_OVERHEAD + len(payload)
    return b"".join((_BEFORE_CRC.pack(base_offset, length, leader_epoch, MAGIC_V2, crc), after_crc, payload))


def build_control_batch(
    control_type: ControlType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    """The control batch that ends a transaction (KIP-98)."""
    record = Record(
        base_offset, timestamp, struct.pack(">hh", 0, control_type), struct.pack(">hi", 0, coordinator_epoch)
    )
    return build_batch(
        [record],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        leader_epoch=leader_epoch,
        transactional=True,
        control=True,
    )


class ControlRecord(NamedTuple):
    """The end-of-transaction marker in a control record."""

    type: int
    """A ControlType, or a number that this version does not support."""
    coordinator_epoch: int


def parse_control_record(record: Record) -> ControlRecord:
    """Raises KafkaError(INVALID_RECORD) when the record is not an end-of-transaction marker."""
    if record.key is None or len(record.key) < 4:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a control record's key must hold a version and a type")
    _, control_type = struct.unpack_from(">hh", record.key)
    if control_type not in (ControlType.ABORT, ControlType.COMMIT):
        return ControlRecord(control_type, -1)
    if record.value is None or len(record.value) < 6:
        raise KafkaError(ErrorCode.INVALID_RECORD, "an end-of-transaction marker needs a coordinator epoch")
    _, coordinator_epoch = struct.unpack_from(">hi", record.value)
    return ControlRecord(control_type, coordinator_epoch)


def _append_record(body: bytearray, record: Record, offset_delta: int, timestamp_delta: int) -> None:
    _, _, key, value, headers = record
    fields = bytearray(b"\x00")
    append_varint(fields, timestamp_delta)
    append_varint(fields, offset_delta)
    _append_bytes(fields, key)
    _append_bytes(fields, value)
    append_varint(fields, len(headers))
    for name, header_value in headers:
        _append_bytes(fields, name.encode())
        _append_bytes(fields, header_value)
    append_varint(body, len(fields))
    body += fields


def append_varint(out: bytearray, value: int) -> None:
    """Append `value` as a zigzag varint (or varlong)."""
    zigzag = (value << 1) ^ (value >> 63)
    while zigzag >= 0x80:
        out.append((zigzag & 0x7F) | 0x80)
        zigzag >>= 7
    out.append(zigzag)


def _append_bytes(out: bytearray, data: Buffer | None) -> None:
    if data is None:
        out.append(1)  # zigzag of -1
    else:
        append_varint(out, len(data))
        out += data
