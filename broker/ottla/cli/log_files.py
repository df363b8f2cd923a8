"""Readers for `ottla log dump`: one function for each kind of file that a broker writes, by file name."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from ottla.cli.log_records import Content, text
from ottla.ports.files import OS_FILES
from ottla.protocol.errors import KafkaError
from ottla.protocol.legacy_records import iter_messages
from ottla.protocol.records import (
    DELETE_HORIZON_FLAG,
    BatchHeader,
    ControlType,
    Record,
    decode_batch,
    parse_control_record,
)
from ottla.storage.checkpoints import (
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    read_offsets,
)
from ottla.storage.cleaner.planning import CHECKPOINT_FILE as CLEANER_FILE
from ottla.storage.indexes import OffsetIndex, TimeIndex, TransactionIndex
from ottla.storage.leader_epochs import CHECKPOINT_FILE as EPOCHS_FILE
from ottla.storage.leader_epochs import read_epochs
from ottla.storage.log_dir import (
    CLEAN_SHUTDOWN_FILE,
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    read_properties,
    read_topic_id,
)
from ottla.storage.producer_state_manager import decode_snapshot
from ottla.storage.segment_checks import index_entries, read_batches, viewed
from ottla.storage.segment_files import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)

Row = dict[str, Any]
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX)
_TEMPORARY_SUFFIXES = (DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX)


class DumpOptions(NamedTuple):
    """The parts of a segment's records to print."""

    metadata: bool = False
    content: Callable[[Record], Content] | None = None
    bytes_max: int | None = None
    """Stop before the first batch that ends after this position."""


def plain_name(path: Path) -> str:
    """The name without the suffix of a file that is being replaced or deleted."""
    name = path.name
    for suffix in _TEMPORARY_SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def rows_of(path: Path) -> list[Row]:
    """The rows of any file except a segment's log. Raises OSError; ValueError for a name that no file of a
    broker has; CorruptSnapshot, CorruptIndex, MalformedCheckpoint or LogDirProblem for a corrupt file."""
    name = plain_name(path)
    reader = _BY_NAME.get(name) or _BY_SUFFIX.get(Path(name).suffix)
    if reader is None:
        names = ", ".join([*(f"*{suffix}" for suffix in SEGMENT_SUFFIXES), *_BY_NAME])
        raise ValueError(f"{path.name} is not a file of a broker: {names}")
    return list(reader(path))


def base_offset_of(path: Path) -> int:
    """The segment's base offset, from the file's name. Raises ValueError."""
    stem = path.name.partition(".")[0]
    if not stem.isdigit():
        raise ValueError(f"{path.name} does not begin with an offset")
    return int(stem)


def _offset_index(path: Path) -> Iterator[Row]:
    base = base_offset_of(path)
    for relative, position in index_entries(OS_FILES, path, OffsetIndex):
        yield {"offset": base + relative, "position": position}


def _time_index(path: Path) -> Iterator[Row]:
    base = base_offset_of(path)
    for timestamp, relative in index_entries(OS_FILES, path, TimeIndex):
        yield {"timestamp": timestamp, "time": time_text(timestamp), "offset": base + relative}


def _transaction_index(path: Path) -> Iterator[Row]:
    index = TransactionIndex(OS_FILES, path, base_offset_of(path))
    index.check()
    for aborted in index.entries():
        yield {"version": 0, **aborted._asdict()}


def _snapshot(path: Path) -> Iterator[Row]:
    for producer_id, entry in decode_snapshot(path.read_bytes()).items():
        last = entry.batches[-1] if entry.batches else None
        yield {
            "producer_id": producer_id,
            "producer_epoch": entry.epoch,
            "coordinator_epoch": entry.coordinator_epoch,
            "transaction_first_offset": entry.transaction_start,
            "last_timestamp": entry.last_timestamp,
            "first_sequence": last.first_sequence if last else None,
            "last_sequence": last.last_sequence if last else None,
            "last_offset": last.last_offset if last else None,
            "offset_delta": last.offset_delta if last else None,
            "timestamp": last.timestamp if last else None,
        }


def _epochs(path: Path) -> Iterator[Row]:
    for epoch, start in read_epochs(OS_FILES, path.parent):
        yield {"epoch": epoch, "start_offset": start}


def _offsets(path: Path) -> Iterator[Row]:
    for (topic, partition), offset in read_offsets(OS_FILES, path).items():
        yield {"topic": topic, "partition": partition, "offset": offset}


def _properties(path: Path) -> Iterator[Row]:
    for name, value in read_properties(OS_FILES, path).items():
        yield {"name": name, "value": value}


def _partition_metadata(path: Path) -> Iterator[Row]:
    topic_id = read_topic_id(OS_FILES, path.parent)
    if topic_id is not None:
        encoded = base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()
        yield {"version": 0, "topic_id": encoded}


def _clean_shutdown(path: Path) -> Iterator[Row]:
    yield {"content": path.read_text()}


_BY_SUFFIX: dict[str, Callable[[Path], Iterator[Row]]] = {
    INDEX_SUFFIX: _offset_index,
    TIME_INDEX_SUFFIX: _time_index,
    TXN_INDEX_SUFFIX: _transaction_index,
    SNAPSHOT_SUFFIX: _snapshot,
}
_BY_NAME: dict[str, Callable[[Path], Iterator[Row]]] = {
    EPOCHS_FILE: _epochs,
    PARTITION_METADATA_FILE: _partition_metadata,
    RECOVERY_POINT_FILE: _offsets,
    LOG_START_FILE: _offsets,
    REPLICATION_FILE: _offsets,
    CLEANER_FILE: _offsets,
    META_PROPERTIES_FILE: _properties,
    CLEAN_SHUTDOWN_FILE: _clean_shutdown,
}


# --- logs ----------------------------------------------------------------------------------------


def batch_rows(path: Path, wanted: DumpOptions) -> Iterator[tuple[Row, str | None]]:
    """(row, problem or None) for each batch of a segment's log. A row with `position` only stands for
    bytes that are not a batch. Raises OSError."""
    with viewed(OS_FILES, path) as data:
        for batch in read_batches(data):
            if wanted.bytes_max is not None and batch.position >= wanted.bytes_max:
                return
            if batch.header is None:
                yield from _legacy_messages(data, batch.position, batch.problem, wanted)
                return
            if wanted.bytes_max is not None and batch.position + batch.header.size > wanted.bytes_max:
                return
            row = _batch(batch.position, batch.header, is_valid=batch.problem is None)
            problem = batch.problem
            if batch.problem is None and (wanted.metadata or wanted.content is not None):
                try:
                    records = decode_batch(data, batch.position)
                    row["batch"] = [_record(batch.header, record, wanted) for record in records]
                except KafkaError as error:
                    problem = f"its records cannot be read: {error}"
            yield row, problem


def _legacy_messages(
    data: memoryview, position: int, problem: str | None, wanted: DumpOptions
) -> Iterator[tuple[Row, str | None]]:
    """The rest of the file as messages of format v0 or v1, or as one row when it has none."""
    try:
        messages = list(iter_messages(data[position:]))
    except KafkaError:
        messages = []
    for message in messages:
        row: Row = {"offset": message.offset, "magic": message.magic, "time": time_text(message.timestamp)}
        if wanted.content is not None:
            row |= {"key": text(message.key), "value": text(message.value)}
        yield row, None
    if not messages:
        yield {"position": position}, problem


def _batch(position: int, header: BatchHeader, *, is_valid: bool) -> Row:
    producer = None
    if header.has_producer_id:
        producer = f"{header.producer_id}/{header.producer_epoch} from {header.base_sequence}"
    try:
        codec = header.codec.name.lower()
    except KafkaError:
        codec = f"unknown ({header.attributes & 7})"
    return {
        "position": position,
        "first_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "bytes": header.size,
        "last_time": time_text(header.max_timestamp),
        "epoch": header.partition_leader_epoch,
        "codec": codec,
        "producer": producer,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "checksum_ok": is_valid,
        "timestamp_type": "LogAppendTime" if header.timestamp_type else "CreateTime",
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "delete_horizon_ms": header.base_timestamp if header.attributes & DELETE_HORIZON_FLAG else None,
        "magic": header.magic,
        "crc": header.crc,
    }


TABLE_COLUMNS = (
    *("position", "first_offset", "last_offset", "records", "bytes", "last_time", "epoch", "codec"),
    *("producer", "transactional", "control", "checksum_ok"),
)
"""The columns of a batch in tables; JSON has all."""


def _record(header: BatchHeader, record: Record, wanted: DumpOptions) -> Row:
    row: Row = {"offset": record.offset}
    if wanted.metadata:
        sequence = (
            -1 if header.base_sequence < 0 else header.base_sequence + record.offset - header.base_offset
        )
        row |= {
            "time": time_text(record.timestamp),
            "timestamp": record.timestamp,
            "key_size": -1 if record.key is None else len(record.key),
            "value_size": -1 if record.value is None else len(record.value),
            "sequence": sequence & 0x7FFFFFFF if sequence >= 0 else -1,
            "headers": [f"{name}={text(value)}" for name, value in record.headers],
        }
    if header.is_control:
        marker = parse_control_record(record)
        known = marker.type in (ControlType.ABORT, ControlType.COMMIT)
        row["marker"] = ControlType(marker.type).name if known else f"type {marker.type}"
        row["coordinator_epoch"] = marker.coordinator_epoch
    elif wanted.content is not None:
        row |= wanted.content(record)._asdict()
    return row


def time_text(timestamp_ms: int) -> str | None:
    if timestamp_ms < 0:
        return None
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)  # some producers count in microseconds
