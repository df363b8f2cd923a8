"""A record batch of one partition, from its first record to the response of the broker.

Called by the accumulator (append) and the sender (encode, stamp). Appending only adds a record to a list; one
loop encodes all records when the batch is sent. This costs half of encoding record by record, and makes
splitting easy. Invariants: once encoded, a batch takes no record; its sequence numbers are set before it is
sent for the first time, and only `stamp` changes them (KIP-98, KIP-360).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

from crc32c import crc32c

from ottla.client.core.types import Header, TopicPartition
from ottla.protocol.compression import Codec, compress
from ottla.protocol.records import (
    CRC_START,
    LOG_OVERHEAD,
    MAGIC_V2,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    RECORD_BATCH_OVERHEAD,
    TRANSACTIONAL_FLAG,
)

BATCH_OVERHEAD: Final = RECORD_BATCH_OVERHEAD
SMALL_RECORD: Final = 8192
SMALL_OVERHEAD: Final = 13
"""The overhead of a record below 8 KiB, at most, in a batch that spans up to a minute."""
LARGE_OVERHEAD: Final = 21
HEADER_OVERHEAD: Final = 10

_HEAD: Final = struct.Struct(">qiibIhiqqqhii")
_PRODUCER: Final = struct.Struct(">qhi")
_PRODUCER_AT: Final = 43
_CRC: Final = struct.Struct(">I")
_CRC_AT: Final = 17
_VARINTS_MAX: Final = 65_536
assert _HEAD.size == RECORD_BATCH_OVERHEAD
assert CRC_START == _CRC_AT + 4


class _Varints(dict[int, bytes]):
    """Zigzag varints by number, cached."""

    def __missing__(self, number: int) -> bytes:
        zigzag = (number << 1) ^ (number >> 63)
        out = bytearray()
        while zigzag >= 0x80:
            out.append((zigzag & 0x7F) | 0x80)
            zigzag >>= 7
        out.append(zigzag)
        encoded = bytes(out)
        if len(self) < _VARINTS_MAX:
            self[number] = encoded
        return encoded


_VARINT: Final = _Varints()

Entry = tuple[int, bytes | None, bytes | None, Sequence[Header]]
"""Timestamp in milliseconds, key, value, headers."""


def headers_size(headers: Sequence[Header]) -> int:
    """The size of headers, at most."""
    return sum(
        HEADER_OVERHEAD + 3 * len(name) + (0 if value is None else len(value)) for name, value in headers
    )


class Batch:
    """Records of one partition with their deliveries, sequence numbers and state. Times are seconds."""

    __slots__ = (
        "attempts",
        "backoff_until",
        "base_sequence",
        "compression_ratio",
        "created_at",
        "data",
        "deliveries",
        "done",
        "epoch",
        "in_flight",
        "leader_epoch",
        "maybe_written",
        "number",
        "producer_id",
        "records",
        "size",
        "tp",
    )

    def __init__(self, tp: TopicPartition, now: float, number: int) -> None:
        self.tp = tp
        self.created_at = now
        self.number = number
        """Batches are numbered in the order in which they are begun; the parts of a split batch have its
        number."""
        self.records: list[Entry] = []
        self.deliveries: list[Any] = []
        """The delivery of each record; None if nothing needs the result."""
        self.size = BATCH_OVERHEAD
        """Bytes before compression, at most."""
        self.data: bytearray | None = None
        self.compression_ratio = 1.0
        """Encoded size of the records, divided by their size before compression."""
        self.producer_id = NO_PRODUCER_ID
        self.epoch = NO_PRODUCER_EPOCH
        self.base_sequence = NO_SEQUENCE
        self.attempts = 0
        self.backoff_until = 0.0
        self.leader_epoch = NO_LEADER_EPOCH
        """The leader epoch of the partition when it was sent last."""
        self.in_flight = False
        """Whether it was sent and no response was received yet."""
        self.maybe_written = False
        """Whether an attempt has ended without the broker saying that the batch was not written."""
        self.done = False

    @property
    def count(self) -> int:
        return len(self.records)

    @property
    def stamped(self) -> bool:
        return self.base_sequence != NO_SEQUENCE

    @property
    def next_sequence(self) -> int:
        return (self.base_sequence + len(self.records)) & 0x7FFFFFFF

    def __repr__(self) -> str:
        return (
            f"Batch({self.tp}, {self.count} records, sequence {self.base_sequence}, {self.attempts} attempts)"
        )

    def encode(self, codec: Codec, level: int | None, *, transactional: bool = False) -> bytearray:
        """The encoded batch; cached until `stamp` changes it."""
        data = self.data
        if data is None:
            data, plain_bytes = _encoded(self.records, codec, level, transactional)
            self.data = data
            self.compression_ratio = (len(data) - RECORD_BATCH_OVERHEAD) / plain_bytes
            _PRODUCER.pack_into(data, _PRODUCER_AT, self.producer_id, self.epoch, self.base_sequence)
            _CRC.pack_into(data, _CRC_AT, crc32c(memoryview(data)[CRC_START:]))
        return data

    def stamp(self, producer_id: int, epoch: int, base_sequence: int) -> None:
        """Set the producer id, epoch and base sequence."""
        assert not self.in_flight, f"{self!r} is in flight with other sequence numbers"
        self.producer_id = producer_id
        self.epoch = epoch
        self.base_sequence = base_sequence
        self.data = None

    def split(self) -> list[Batch]:
        """Two halves, for a broker that finds the batch too large; sequence numbers continue from one to the
        next."""
        half = len(self.records) // 2
        assert half > 0, "one record cannot be split"
        parts = []
        at = 0
        for records in (self.records[:half], self.records[half:]):
            part = Batch(self.tp, self.created_at, self.number)
            part.records = records
            part.deliveries = self.deliveries[at : at + len(records)]
            part.size = BATCH_OVERHEAD + sum(map(record_size, records))
            part.attempts = self.attempts
            if self.stamped:
                sequence = (self.base_sequence + at) & 0x7FFFFFFF
                part.stamp(self.producer_id, self.epoch, sequence)
            at += len(records)
            parts.append(part)
        return parts


def record_size(record: Entry) -> int:
    """The encoded size of a record, at most."""
    _, key, value, headers = record
    size = (0 if key is None else len(key)) + (0 if value is None else len(value))
    if headers:
        size += headers_size(headers)
    return size + (SMALL_OVERHEAD if size < SMALL_RECORD else LARGE_OVERHEAD)


def _encoded(
    records: list[Entry], codec: Codec, level: int | None, transactional: bool
) -> tuple[bytearray, int]:
    """The encoded batch, and the size of its records before compression."""
    varint = _VARINT
    base_timestamp = max_timestamp = last_timestamp = records[0][0]
    # The header is filled in at the end, to avoid a copy.
    parts: list[bytes] = [bytes(RECORD_BATCH_OVERHEAD)] if codec is Codec.NONE else []
    add = parts.extend
    begin = b"\0\0"  # attributes and timestamp delta
    for delta, (timestamp, key, value, headers) in enumerate(records):
        # Consecutive records mostly have the same timestamp: its bytes are reused.
        if timestamp != last_timestamp:
            last_timestamp = timestamp
            begin = b"\0" + varint[timestamp - base_timestamp]
            if timestamp > max_timestamp:
                max_timestamp = timestamp
        place = varint[delta]
        if value is None:
            value_length, value = b"\x01", b""
        else:
            value_length = varint[len(value)]
        size = len(begin) + len(place) + len(value_length) + len(value)
        tail = _headers(headers) if headers else b"\0"
        if key is None:
            add((varint[size + 1 + len(tail)], begin, place, b"\x01", value_length, value, tail))
        else:
            key_length = varint[len(key)]
            size += len(key_length) + len(key) + len(tail)
            add((varint[size], begin, place, key_length, key, value_length, value, tail))
    if codec is Codec.NONE:
        data = bytearray().join(parts)
        plain_bytes = len(data) - RECORD_BATCH_OVERHEAD
    else:
        plain = b"".join(parts)
        plain_bytes = len(plain)
        data = bytearray(RECORD_BATCH_OVERHEAD) + compress(codec, plain, level)
    _HEAD.pack_into(
        data,
        0,
        0,
        len(data) - LOG_OVERHEAD,
        NO_LEADER_EPOCH,
        MAGIC_V2,
        0,
        codec | (TRANSACTIONAL_FLAG if transactional else 0),
        len(records) - 1,
        base_timestamp,
        max_timestamp,
        NO_PRODUCER_ID,
        NO_PRODUCER_EPOCH,
        NO_SEQUENCE,
        len(records),
    )
    return data, plain_bytes


def _headers(headers: Sequence[Header]) -> bytes:
    parts = [_VARINT[len(headers)]]
    for name, value in headers:
        encoded = name.encode()
        parts += (_VARINT[len(encoded)], encoded)
        parts += (b"\x01",) if value is None else (_VARINT[len(value)], value)
    return b"".join(parts)
