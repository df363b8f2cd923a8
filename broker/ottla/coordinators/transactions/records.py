"""The records of `__transaction_state` in Kafka's format, and the transactions restored from them.

A key is an int16 version and the transactional id. A value is an int16 version and a struct; a record without
a value is a tombstone. Records are written in the versions of Kafka 3.9 in ZooKeeper mode, newer versions are
read. Called by `coordinator` to write, and to load a partition that this broker leads now.
"""

from __future__ import annotations

import logging
import struct

from ottla.coordinators.transactions.transaction import Entry, State, Transaction
from ottla.protocol.codec import decode, encode
from ottla.protocol.errors import MalformedMessage, ProtocolError
from ottla.protocol.records import BatchHeader, Record, decode_batch
from ottla.protocol.topics import indexes_by_topic
from ottla.protocol.types import Int8, Int16, Int32, Int64, Message, String, Struct, field

KEY_VERSION = 0
VALUE_VERSION = 0

_VERSION = struct.Struct(">h")

logger = logging.getLogger(__name__)


class TransactionLogKey(Message, versions="0"):
    transactional_id: String = field("0+")


class TransactionLogValue(Message, versions="0-1", flexible="1+"):
    class PartitionsSchema(Struct):
        topic: String = field("0+")
        partition_ids: list[Int32] = field("0+")

    producer_id: Int64 = field("0+")
    producer_epoch: Int16 = field("0+")
    transaction_timeout_ms: Int32 = field("0+")
    transaction_status: Int8 = field("0+")
    transaction_partitions: list[TransactionLogValue.PartitionsSchema] | None = field("0+", nullable="0+")
    transaction_last_update_timestamp_ms: Int64 = field("0+")
    transaction_start_timestamp_ms: Int64 = field("0+")


def key_bytes(transactional_id: str) -> bytes:
    key = TransactionLogKey(transactional_id=transactional_id)
    return _VERSION.pack(KEY_VERSION) + encode(key, KEY_VERSION)


def value_bytes(entry: Entry) -> bytes:
    assert entry.state is not State.EMPTY or not entry.partitions
    partitions = indexes_by_topic(entry.partitions)
    value = TransactionLogValue(
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
        transaction_timeout_ms=entry.timeout_ms,
        transaction_status=entry.state,
        transaction_partitions=(
            None
            if entry.state is State.EMPTY
            else [
                TransactionLogValue.PartitionsSchema(topic=topic, partition_ids=indexes)
                for topic, indexes in partitions.items()
            ]
        ),
        transaction_last_update_timestamp_ms=entry.updated_ms,
        transaction_start_timestamp_ms=entry.started_ms,
    )
    return _VERSION.pack(VALUE_VERSION) + encode(value, VALUE_VERSION)


def parse_key(key: bytes) -> str | None:
    """The transactional id; None for unknown record types. Raises MalformedMessage."""
    if len(key) < _VERSION.size:
        raise MalformedMessage("record key in __transaction_state", "it is shorter than its version")
    (version,) = _VERSION.unpack_from(key)
    if version != KEY_VERSION:
        return None
    return decode(TransactionLogKey, version, key, _VERSION.size).transactional_id


def key_schema(version: int) -> type[Message] | None:
    """The schema of keys with this version; None for unknown record types."""
    return TransactionLogKey if version == KEY_VERSION else None


def parse_value(value: bytes) -> Entry:
    """Raises MalformedMessage."""
    what = TransactionLogValue.__name__
    if len(value) < _VERSION.size:
        raise MalformedMessage(what, "it is shorter than its version")
    (version,) = _VERSION.unpack_from(value)
    if not TransactionLogValue.min_version <= version <= TransactionLogValue.max_version:
        raise MalformedMessage(what, f"version {version}; this broker reads 0 and 1")
    stored = decode(TransactionLogValue, version, value, _VERSION.size)
    try:
        state = State(stored.transaction_status)
    except ValueError as problem:
        raise MalformedMessage(what, f"unknown transaction state {stored.transaction_status}") from problem
    return Entry(
        stored.producer_id,
        stored.producer_epoch,
        stored.transaction_timeout_ms,
        state,
        frozenset(
            (topic.topic, index)
            for topic in stored.transaction_partitions or ()
            for index in topic.partition_ids
        ),
        stored.transaction_start_timestamp_ms,
        stored.transaction_last_update_timestamp_ms,
    )


class TransactionReplay:
    """Call `apply_batch` with every batch in order, then read `transactions`. Later records win; a tombstone
    removes."""

    def __init__(self) -> None:
        self.transactions: dict[str, Transaction] = {}
        self.record_count = 0

    def apply_batch(self, buffer: bytes | memoryview, position: int, header: BatchHeader) -> None:
        if header.is_control:
            return
        batch = decode_batch(buffer, position)
        self.record_count += len(batch)
        for record in batch:
            try:
                self._apply(record)
            except ProtocolError as problem:
                logger.error("Skipping offset %d of __transaction_state: %s", record.offset, problem)

    def _apply(self, record: Record) -> None:
        transactional_id = None if record.key is None else parse_key(record.key)
        if transactional_id is None:
            logger.warning("Unknown record type at offset %d of __transaction_state", record.offset)
        elif record.value is None:
            self.transactions.pop(transactional_id, None)
        else:
            entry = parse_value(record.value)
            self.transactions[transactional_id] = Transaction(transactional_id, entry)
