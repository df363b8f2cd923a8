"""Fetched bytes to records, at speed: the consumer's hot path.

Called by `fetcher` with what a broker answered for one partition. Takes one batch after the other, so that no
more is decoded than is asked for. Invariants: records come in the order of their offsets, none below the one
that was asked for; with read_committed none of an aborted transaction (KIP-98); control records never.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from ottla.client import errors
from ottla.client.core.types import ConsumerRecord, TopicPartition
from ottla.protocol import legacy_records
from ottla.protocol.compression import decompress
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages import FetchResponse
from ottla.protocol.records import (
    BATCH_HEADER,
    CODEC_MASK,
    CONTROL_FLAG,
    CRC_START,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAGIC_V2,
    RECORD_BATCH_OVERHEAD,
    TRANSACTIONAL_FLAG,
    ControlType,
    codec_of,
    read_varint,
)

_MAGIC_AT: Final = 16
_OLD_HEAD: Final = struct.Struct(">qi")
"""Offset and size of a message from before 0.11; a wrapper's offset is that of the last one in it."""
_NO_TIMESTAMP_TYPE: Final = -1
_NO_HEADERS: Final = ()


class Batch(NamedTuple):
    """Where the whole batches of an answer end."""

    next_offset: int
    epoch: int
    """The leader's of the last one; -1 where it is not known."""


def last_batch(data: memoryview, offset: int) -> Batch | None:
    """What the last whole batch ends at: where to fetch from next; None where there is none. A log whose
    message format was changed has messages of the older one first, and batches behind them."""
    at, end = 0, len(data)
    found = None
    while at + _MAGIC_AT < end:
        if data[at + _MAGIC_AT] != MAGIC_V2:
            last, size = _OLD_HEAD.unpack_from(data, at)
            least, next_offset, epoch = legacy_records.MESSAGE_OVERHEAD_V0, max(last + 1, offset), -1
        elif at + RECORD_BATCH_OVERHEAD <= end:
            header = BATCH_HEADER.unpack_from(data, at)
            size, epoch, next_offset = header[1], header[2], header[0] + header[6] + 1
            least = RECORD_BATCH_OVERHEAD - LOG_OVERHEAD
        else:
            break
        at += LOG_OVERHEAD + size
        if size < least or at > end:
            break
        found = Batch(next_offset, epoch)
    return found


class PartitionData:
    """One answer for one partition, batch by batch."""

    __slots__ = ("_aborted", "_aborting", "_at", "_check_crcs", "_data", "_tp", "epoch", "next_offset")

    def __init__(
        self,
        tp: TopicPartition,
        data: memoryview,
        offset: int,
        *,
        check_crcs: bool,
        aborted: Sequence[FetchResponse.AbortedTransaction] | None,
    ) -> None:
        """`aborted`: None for read_uncommitted."""
        self._tp = tp
        self._data = data
        self._at = 0
        self._check_crcs = check_crcs
        self._aborted: list[tuple[int, int]] | None = None
        if aborted is not None:
            self._aborted = [(each.first_offset, each.producer_id) for each in aborted]
            heapq.heapify(self._aborted)
        self._aborting: set[int] = set()
        """Producers whose records are of an aborted transaction here."""
        self.next_offset = offset
        """What is before this is done with."""
        self.epoch = -1
        """The leader's, of the last batch."""

    def next_batch(self) -> list[ConsumerRecord] | None:
        """The records of the next batch, which may be none; None at the end. Raises ClientError."""
        data = self._data
        at = self._at
        if at + _MAGIC_AT >= len(data):
            return None
        if data[at + _MAGIC_AT] != MAGIC_V2:
            return self._old_messages()
        if at + RECORD_BATCH_OVERHEAD > len(data):
            return None
        header = BATCH_HEADER.unpack_from(data, at)
        base_offset, length, epoch, _, crc, attributes, last_delta, *_, producer_id, _, _, _ = header
        end = at + LOG_OVERHEAD + length
        if length < RECORD_BATCH_OVERHEAD - LOG_OVERHEAD or end > len(data):
            return None
        if self._check_crcs and crc32c(data[at + CRC_START : end]) != crc:
            raise self._corrupt(base_offset, "its checksum is wrong")
        self.epoch = epoch
        wanted, next_offset = self.next_offset, base_offset + last_delta + 1
        body = data[at + RECORD_BATCH_OVERHEAD : end]
        try:
            if attributes & CONTROL_FLAG:
                self._end_of_transaction(producer_id, attributes, body)
                records: list[ConsumerRecord] = []
            elif self._is_aborted(producer_id, attributes, next_offset - 1):
                records = []
            else:
                codec = attributes & CODEC_MASK
                plain = decompress(codec_of(attributes), body) if codec else bytes(body)
                records = decode(self._tp, header, plain)
        except (IndexError, ValueError, KafkaError) as problem:
            raise self._corrupt(base_offset, str(problem)) from problem
        self._at = end
        self.next_offset = max(next_offset, wanted)
        if records and records[0].offset < wanted:
            return [record for record in records if record.offset >= wanted]
        return records

    def _is_aborted(self, producer_id: int, attributes: int, last_offset: int) -> bool:
        aborted = self._aborted
        if aborted is None or not attributes & TRANSACTIONAL_FLAG:
            return False
        while aborted and aborted[0][0] <= last_offset:
            self._aborting.add(heapq.heappop(aborted)[1])
        return producer_id in self._aborting

    def _end_of_transaction(self, producer_id: int, attributes: int, body: memoryview) -> None:
        if self._aborted is None:
            return
        plain = decompress(codec_of(attributes), body)
        _, at = read_varint(plain, 0)
        _, at = read_varint(plain, at + 1)
        _, at = read_varint(plain, at)
        _, at = read_varint(plain, at)  # the key's length; then its version, and the type
        if int.from_bytes(plain[at + 2 : at + 4], "big") == ControlType.ABORT:
            self._aborting.discard(producer_id)

    def _old_messages(self) -> list[ConsumerRecord] | None:
        """All that is here of a format from before 0.11, at once; its messages have their own checksums."""
        topic, partition = self._tp
        at, wanted = self._at, self.next_offset
        data = self._data[at : self._end_of_old_messages()]
        if not data:
            return None
        records = []
        offset = wanted
        try:
            for message in legacy_records.iter_messages(data):
                offset = message.offset
                kind = _NO_TIMESTAMP_TYPE if message.magic == 0 else int(message.has_append_time)
                records += [
                    ConsumerRecord(topic, partition, r.offset, r.timestamp, kind, r.key, r.value)
                    for r in legacy_records.open_message(message)
                    if r.offset >= wanted
                ]
        except KafkaError as problem:
            raise self._corrupt(offset, str(problem)) from problem
        self._at = at + len(data)
        self.next_offset = max(wanted, offset + 1)
        self.epoch = -1
        return records

    def _end_of_old_messages(self) -> int:
        """Where a batch of format 2 follows, or a message that is not whole."""
        data, at = self._data, self._at
        while at + _MAGIC_AT < len(data) and data[at + _MAGIC_AT] != MAGIC_V2:
            offset, size = _OLD_HEAD.unpack_from(data, at)
            if size < legacy_records.MESSAGE_OVERHEAD_V0:
                raise self._corrupt(offset, f"a message of {size} bytes")
            if at + LOG_OVERHEAD + size > len(data):
                break
            at += LOG_OVERHEAD + size
        return at

    def _corrupt(self, offset: int, what: str) -> errors.ClientError:
        tp = self._tp
        return errors.DeserializationError(tp.topic, tp.partition, offset, f"a batch is corrupt: {what}")


def decode(tp: TopicPartition, header: tuple[Any, ...], data: bytes) -> list[ConsumerRecord]:
    """The records of a batch. Short numbers are read in place. Raises IndexError, ValueError."""
    base_offset, _, epoch, _, _, attributes, _, base_timestamp, max_timestamp, _, _, _, count = header
    topic, partition = tp
    kind = 1 if attributes & LOG_APPEND_TIME_FLAG else 0
    timestamp = max_timestamp
    records: list[ConsumerRecord] = []
    append = records.append
    new = tuple.__new__  # as ConsumerRecord(…), without its call
    size = len(data)
    at = 0
    for _ in range(count):
        number = data[at]
        if number < 0x80:
            at += 1
            length = (number >> 1) ^ -(number & 1)
        elif (high := data[at + 1]) < 0x80:
            at += 2
            length = (number >> 1 & 0x3F | high << 6) ^ -(number & 1)
        else:
            length, at = read_varint(data, at)
        end = at + length
        if length < 0 or end > size:
            raise ValueError(f"a record of {length} bytes at {at} of {size}")
        at += 1  # attributes, which mean nothing
        number = data[at]
        if number < 0x80:
            at += 1
            number = (number >> 1) ^ -(number & 1)
        elif (high := data[at + 1]) < 0x80:
            at += 2
            number = (number >> 1 & 0x3F | high << 6) ^ -(number & 1)
        else:
            number, at = read_varint(data, at)
        if not kind:
            timestamp = base_timestamp + number
        number = data[at]
        if number < 0x80:
            at += 1
            number = (number >> 1) ^ -(number & 1)
        elif (high := data[at + 1]) < 0x80:
            at += 2
            number = (number >> 1 & 0x3F | high << 6) ^ -(number & 1)
        else:
            number, at = read_varint(data, at)
        offset = base_offset + number
        number = data[at]
        if number < 0x80:
            at += 1
            length = (number >> 1) ^ -(number & 1)
        elif (high := data[at + 1]) < 0x80:
            at += 2
            length = (number >> 1 & 0x3F | high << 6) ^ -(number & 1)
        else:
            length, at = read_varint(data, at)
        if length < 0:
            key = None
        else:
            key = data[at : at + length]
            at += length
        number = data[at]
        if number < 0x80:
            at += 1
            length = (number >> 1) ^ -(number & 1)
        elif (high := data[at + 1]) < 0x80:
            at += 2
            length = (number >> 1 & 0x3F | high << 6) ^ -(number & 1)
        else:
            length, at = read_varint(data, at)
        if length < 0:
            value = None
        else:
            value = data[at : at + length]
            at += length
        headers: Sequence[tuple[str, bytes | None]] = _NO_HEADERS
        if data[at]:
            headers, at = _headers(data, at, end)
        else:
            at += 1
        if at != end:
            raise ValueError(f"a record that ends at {at}, not at {end}")
        append(new(ConsumerRecord, (topic, partition, offset, timestamp, kind, key, value, headers, epoch)))
    return records


def _headers(data: bytes, at: int, end: int) -> tuple[list[tuple[str, bytes | None]], int]:
    count, at = read_varint(data, at)
    if not 0 <= count <= end - at:
        raise ValueError(f"header count {count}")
    headers = []
    for _ in range(count):
        length, at = read_varint(data, at)
        if not 0 <= length <= end - at:
            raise ValueError(f"a header's name of {length} bytes")
        name = data[at : at + length].decode(errors="replace")
        length, at = read_varint(data, at + length)
        if length > end - at:
            raise ValueError(f"a header's value of {length} bytes")
        headers.append((name, None if length < 0 else data[at : at + length]))
        at += max(length, 0)
    return headers, at
