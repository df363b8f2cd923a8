"""Decodes fetched bytes to records; the hot path of the consumer.

Called by `fetcher` with the response for one partition. It decodes one batch at a time, so that no more is
decoded than is requested. Invariants: records are in the order of their offsets, none below the fetch offset;
with read_committed, none of an aborted transaction (KIP-98); control records are skipped.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Sequence
from itertools import repeat
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
"""Offset and size of a message of format 0 or 1; the offset of a compressed wrapper is that of its last
message."""
_NO_TIMESTAMP_TYPE: Final = -1
_NO_HEADERS: Final = ()
_NULL: Final = 1
"""The varint -1 in place of a length."""
_RECORD_BYTES_MIN: Final = 7
_OFFSET_WIDTHS: Final = ((1, 1 << 6), (2, 1 << 13), (3, 1 << 20), (4, 1 << 27), (5, 1 << 31))
"""(width, limit): offset deltas below the limit have varints of this width."""
_NEW: Final = tuple.__new__
"""Creates a ConsumerRecord without calling its class."""


class Batch(NamedTuple):
    """The end of the complete batches of a response."""

    next_offset: int
    epoch: int
    """The leader epoch of the last batch; -1 if unknown."""


def last_batch(data: memoryview, offset: int) -> Batch | None:
    """The end of the last complete batch, where the next fetch continues; None if there is no complete batch.
    A log whose message format was upgraded has messages of the old format first."""
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
    """The response for one partition, decoded batch by batch."""

    __slots__ = (
        "_aborted",
        "_aborting",
        "_at",
        "_check_crcs",
        "_data",
        "_detached",
        "_tp",
        "epoch",
        "next_offset",
    )

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
        self._detached = False
        self._check_crcs = check_crcs
        self._aborted: list[tuple[int, int]] | None = None
        if aborted is not None:
            self._aborted = [(each.first_offset, each.producer_id) for each in aborted]
            heapq.heapify(self._aborted)
        self._aborting: set[int] = set()
        """Producer ids that are in an aborted transaction at the current batch."""
        self.next_offset = offset
        """The offset after the last decoded batch."""
        self.epoch = -1
        """The leader epoch of the last decoded batch."""

    def detach(self) -> None:
        """Copy the remaining bytes, once, so that they do not keep the whole response in memory."""
        if not self._detached:
            self._data = memoryview(bytes(self._data[self._at :]))
            self._at = 0
            self._detached = True

    def next_batch(self) -> list[ConsumerRecord] | None:
        """The records of the next batch, possibly none; None at the end. Raises ClientError."""
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
            raise self._corrupt(base_offset, "its CRC is wrong")
        self.epoch = epoch
        wanted, next_offset = self.next_offset, base_offset + last_delta + 1
        body = data[at + RECORD_BATCH_OVERHEAD : end]
        try:
            if attributes & CONTROL_FLAG:
                self._read_control_batch(producer_id, attributes, next_offset - 1, body)
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
        if self._aborted is None or not attributes & TRANSACTIONAL_FLAG:
            return False
        self._begin_aborted(last_offset)
        return producer_id in self._aborting

    def _begin_aborted(self, last_offset: int) -> None:
        aborted = self._aborted
        while aborted and aborted[0][0] <= last_offset:
            self._aborting.add(heapq.heappop(aborted)[1])

    def _read_control_batch(
        self, producer_id: int, attributes: int, last_offset: int, body: memoryview
    ) -> None:
        if self._aborted is None or not body:  # compaction may leave a marker's batch without its record
            return
        # The records before the marker may be in an earlier fetch, or removed by compaction: the transaction
        # begins and ends here.
        self._begin_aborted(last_offset)
        plain = decompress(codec_of(attributes), body)
        _, at = read_varint(plain, 0)
        _, at = read_varint(plain, at + 1)
        _, at = read_varint(plain, at)
        _, at = read_varint(plain, at)  # the length of the key; then its version and type
        if int.from_bytes(plain[at + 2 : at + 4], "big") == ControlType.ABORT:
            self._aborting.discard(producer_id)

    def _old_messages(self) -> list[ConsumerRecord] | None:
        """All messages of format 0 or 1 at the current position; each has its own checksum."""
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
        """The position of the first batch of format 2, or of an incomplete message."""
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
    """The records of a batch. Raises IndexError, ValueError.

    If the batch has as many records as offsets, the offset deltas are consecutive and their widths are known:
    they are skipped. If that fails, because a producer wrote longer varints than needed, they are decoded.
    """
    if header[-1] != header[6] + 1:
        return _decode(tp, header, data, is_dense=False)
    try:
        return _decode(tp, header, data, is_dense=True)
    except (IndexError, ValueError):
        return _decode(tp, header, data, is_dense=False)


def _decode(
    tp: TopicPartition, header: tuple[Any, ...], data: bytes, *, is_dense: bool
) -> list[ConsumerRecord]:
    """Short varints are decoded inline. Fields are collected in columns, from which the records are built by
    C code."""
    base_offset, _, epoch, _, _, attributes, _, first_time, last_time, _, _, _, count = header
    size = len(data)
    if not 0 <= count <= size // _RECORD_BYTES_MIN:
        raise ValueError(f"{count} records in {size} bytes")
    offsets: list[int] = []
    times: list[int] = []
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    headers: dict[int, Sequence[tuple[str, bytes | None]]] = {}
    add_time, add_key, add_value = times.append, keys.append, values.append
    at = 0
    for width, stop in _OFFSET_WIDTHS if is_dense else ((0, count),):
        for _ in range(len(values), min(stop, count)):
            # Skip the length of the record and its attributes, which are unused.
            if data[at] < 0x80:
                at += 2
            elif data[at + 1] < 0x80:
                at += 3
            else:
                at = read_varint(data, at)[1] + 1
            number = data[at]
            if number < 0x80:
                at += 1
                add_time((number >> 1) ^ -(number & 1))
            elif (high := data[at + 1]) < 0x80:
                at += 2
                add_time((number >> 1 & 0x3F | high << 6) ^ -(number & 1))
            else:
                number, at = read_varint(data, at)
                add_time(number)
            if width:
                at += width
            else:
                number, at = read_varint(data, at)
                offsets.append(base_offset + number)
            number = data[at]
            if number == _NULL:
                at += 1
                add_key(None)
            else:
                if number < 0x80:
                    at += 1
                    length = number >> 1
                elif (high := data[at + 1]) < 0x80:
                    at += 2
                    length = number >> 1 & 0x3F | high << 6
                else:
                    length, at = _length(data, at)
                add_key(data[at : (at := at + length)])
            number = data[at]
            if number == _NULL:
                at += 1
                add_value(None)
            else:
                if number < 0x80:
                    at += 1
                    length = number >> 1
                elif (high := data[at + 1]) < 0x80:
                    at += 2
                    length = number >> 1 & 0x3F | high << 6
                else:
                    length, at = _length(data, at)
                add_value(data[at : (at := at + length)])
            if data[at]:
                headers[len(values) - 1], at = _headers(data, at, size)
            else:
                at += 1
    if at != size:
        raise ValueError(f"{count} records that end at {at}, not at {size}")
    is_appended = attributes & LOG_APPEND_TIME_FLAG
    columns = zip(
        repeat(tp.topic),
        repeat(tp.partition),
        range(base_offset, base_offset + count) if is_dense else offsets,
        repeat(last_time) if is_appended else [first_time + each for each in times],
        repeat(1 if is_appended else 0),
        keys,
        values,
        [headers.get(number, _NO_HEADERS) for number in range(count)] if headers else repeat(_NO_HEADERS),
        repeat(epoch),
    )
    return list(map(_NEW, repeat(ConsumerRecord), columns))


def _length(data: bytes, at: int) -> tuple[int, int]:
    length, at = read_varint(data, at)
    if length < 0:
        raise ValueError(f"a length of {length} at {at}")
    return length, at


def _headers(data: bytes, at: int, end: int) -> tuple[list[tuple[str, bytes | None]], int]:
    count, at = read_varint(data, at)
    if not 0 <= count <= end - at:
        raise ValueError(f"header count {count}")
    headers = []
    for _ in range(count):
        length, at = read_varint(data, at)
        if not 0 <= length <= end - at:
            raise ValueError(f"a header name of {length} bytes")
        name = data[at : at + length].decode(errors="replace")
        length, at = read_varint(data, at + length)
        if length > end - at:
            raise ValueError(f"a header value of {length} bytes")
        headers.append((name, None if length < 0 else data[at : at + length]))
        at += max(length, 0)
    return headers, at
