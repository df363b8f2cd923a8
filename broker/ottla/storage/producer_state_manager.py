"""Keeps a log's producer state across restarts and truncations: snapshots and replay (Kafka's
ProducerStateManager).

Owned by `Log`; `log_loader` updates it while it recovers segments. Appends are validated against `producers`
and recorded in it. After a restart the state is rebuilt from the newest snapshot at or before the wanted
offset and the headers of the later batches; after a clean shutdown there are none, and the producers' earlier
batches are read from the log's end. A truncation, for which
the event loop waits, rolls back the removed batches and reads few others. It replays only where that is
impossible (a replicated marker or more than 10,000 batches are removed, or a producer's previous batch is far
back), and at most one segment, because every roll writes a snapshot.

`<offset>.snapshot` is Kafka's format version 1, big-endian: version int16, CRC-32C of the rest uint32, number
of producers int32, then 46 bytes for each producer. As in Kafka, only a producer's last batch is included.

Invariants: a snapshot only saves time: a damaged one is removed, and an older one is used; an aborted
transaction is in its segment's index before its end is recorded here, so that the last stable offset never
passes an abort that consumers cannot skip.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from pathlib import Path

from crc32c import crc32c

from ottla.ports.files import Files, read_file, unlink_if_exists, write_file
from ottla.protocol.records import INT32_MAX, BatchHeader, decode_batch, parse_control_record
from ottla.storage.indexes import AbortedTransaction
from ottla.storage.log_segment import LogSegment, scan_headers
from ottla.storage.producer_state import ActiveProducers, BatchMetadata, ProducerStateEntry
from ottla.storage.segment_files import SNAPSHOT_SUFFIX, segment_name

logger = logging.getLogger(__name__)

_SNAPSHOT_VERSION = 1
_HEAD = struct.Struct(">hIi")
_CRC_START = 6
# producer id, epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch,
# first offset of the open transaction
_ENTRY = struct.Struct(">qhiqiqiq")
_NONE = -1

_SEGMENTS_WITH_SNAPSHOT = 2
"""A replay writes snapshots at the base offsets of this many last segments: truncations end there."""
_ROLL_BACK_BATCHES_MAX = 10_000
"""A truncation of more batches is not rolled back but replayed."""
_EARLIER_BATCHES_BYTES = (1 << 15, 1 << 20)
"""How far before the end of a log that is opened its producers' earlier batches are searched: the second time
only if there were few (`_EARLIER_BATCHES_COUNT`), that is, large ones."""
_EARLIER_BATCHES_COUNT = 64
_LOOK_BACK_BYTES = (1 << 20, 16 << 20)
"""How far before a truncated log's end its producers' last batches are searched: first and second attempt."""


class CorruptSnapshot(Exception):
    """A snapshot file is invalid; the message names the problem."""


def encode_snapshot(producers: Mapping[int, ProducerStateEntry]) -> bytes:
    body = bytearray()
    for producer_id, entry in producers.items():
        last = entry.batches[-1] if entry.batches else None
        body += _ENTRY.pack(
            producer_id,
            entry.epoch,
            entry.last_sequence,
            last.last_offset if last else _NONE,
            last.offset_delta if last else 0,
            entry.last_timestamp,
            entry.coordinator_epoch,
            _NONE if entry.transaction_start is None else entry.transaction_start,
        )
    covered = len(producers).to_bytes(4, "big") + bytes(body)
    return _SNAPSHOT_VERSION.to_bytes(2, "big") + crc32c(covered).to_bytes(4, "big") + covered


def decode_snapshot(data: bytes) -> dict[int, ProducerStateEntry]:
    """Raises CorruptSnapshot."""
    if len(data) < _HEAD.size:
        raise CorruptSnapshot(f"{len(data)} bytes are too few")
    version, crc, count = _HEAD.unpack_from(data)
    if version != _SNAPSHOT_VERSION:
        raise CorruptSnapshot(f"version {version} is not known; expected {_SNAPSHOT_VERSION}")
    if crc32c(memoryview(data)[_CRC_START:]) != crc:
        raise CorruptSnapshot(f"its checksum is not {crc:#010x}")
    if len(data) != _HEAD.size + count * _ENTRY.size:
        raise CorruptSnapshot(f"{count} producers do not fill {len(data)} bytes")
    producers = {}
    for fields in _ENTRY.iter_unpack(memoryview(data)[_HEAD.size :]):
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, transaction = fields
        entry = producers[producer_id] = ProducerStateEntry()
        entry.epoch = epoch
        entry.last_timestamp = timestamp
        entry.coordinator_epoch = coordinator_epoch
        entry.transaction_start = transaction if transaction >= 0 else None
        if offset >= 0:
            first = sequence - delta
            if first < 0:
                first += INT32_MAX + 1  # sequences wrap from 2^31-1 to 0
            entry.batches.append(BatchMetadata(first, sequence, offset, delta, timestamp))
    return producers


class SnapshotFiles:
    """The snapshot files of one log, by offset."""

    __slots__ = ("_directory", "_files", "_unsynced", "offsets")

    def __init__(self, files: Files, directory: str, names: Iterable[str]) -> None:
        """`names` are the files in the log's directory."""
        self._files = files
        self._directory = directory
        stems = (name.removesuffix(SNAPSHOT_SUFFIX) for name in names if name.endswith(SNAPSHOT_SUFFIX))
        # Tuples: the empty tuple takes no memory.
        self.offsets = tuple(sorted(int(stem) for stem in stems if stem.isdigit()))
        self._unsynced: tuple[int, ...] = ()

    @property
    def latest(self) -> int | None:
        return self.offsets[-1] if self.offsets else None

    def path(self, offset: int) -> Path:
        return Path(self._directory, segment_name(offset) + SNAPSHOT_SUFFIX)

    def update_parent_dir(self, directory: str) -> None:
        """The log's directory was renamed."""
        self._directory = directory

    def write(self, offset: int, producers: Mapping[int, ProducerStateEntry], *, sync: bool) -> None:
        """Write a snapshot. Without `sync`, the caller syncs it later (`unsynced`). Raises OSError."""
        write_file(self._files, self.path(offset), encode_snapshot(producers), sync=sync)
        if not sync:
            self._unsynced += (offset,)
        if offset not in self.offsets:
            self.offsets = tuple(sorted((*self.offsets, offset)))

    def load_newest(self) -> tuple[int, dict[int, ProducerStateEntry]] | None:
        """(offset, producers) of the newest valid snapshot. Invalid ones are removed."""
        while self.offsets:
            offset = self.offsets[-1]
            path = self.path(offset)
            try:
                return offset, decode_snapshot(read_file(self._files, path))
            except (CorruptSnapshot, OSError) as problem:
                logger.warning("Removing %s: %s", path, problem)
                self.remove(offset)
        return None

    def remove(self, offset: int) -> None:
        self.forget(offset)
        unlink_if_exists(self._files, self.path(offset))

    def forget(self, offset: int) -> None:
        """Drop a snapshot whose file is deleted with the segment that begins at `offset`."""
        self.offsets = tuple(each for each in self.offsets if each != offset)

    def keep_within(self, above: int, up_to: int) -> None:
        """Remove the snapshots at or before `above` and those after `up_to`."""
        for offset in [each for each in self.offsets if each <= above or each > up_to]:
            self.remove(offset)

    def remove_strays(self, segment_bases: Collection[int]) -> None:
        """Remove snapshots that are not at the base offset of a segment, except the latest of a clean
        shutdown."""
        last_base = max(segment_bases, default=-1)
        strays = [each for each in self.offsets if each not in segment_bases]
        if strays and strays[-1] > last_base:
            strays.pop()
        for offset in strays:
            self.remove(offset)

    def unsynced(self) -> list[Path]:
        """The files that were written without fsync since the last call; the caller syncs them."""
        offsets, self._unsynced = self._unsynced, ()
        return [self.path(offset) for offset in offsets]


class ProducerStateManager:
    """See the module."""

    __slots__ = ("_producers", "snapshots")

    def __init__(self, files: Files, directory: str, names: Iterable[str]) -> None:
        """`names` are the files in the log's directory."""
        self._producers: ActiveProducers | None = None
        self.snapshots = SnapshotFiles(files, directory, names)

    @property
    def producers(self) -> ActiveProducers:
        """The active producers, created on first use: most idle logs have none."""
        if self._producers is None:
            self._producers = ActiveProducers()
        return self._producers

    @property
    def has_producers(self) -> bool:
        return self._producers is not None

    def update(self, header: BatchHeader, batch: memoryview | bytes, segment: LogSegment | None) -> None:
        """Record a producer's batch that is in the log; `batch` is read for markers only. An aborted
        transaction is added to the index of `segment`; None if it is there already. Raises OSError."""
        producers = self.producers
        if not header.is_control:
            producers.append_data_batch(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.last_sequence,
                header.base_offset,
                header.last_offset,
                header.max_timestamp,
                header.is_transactional,
            )
            return
        if not header.record_count:
            return  # compaction removed the marker, and with it the whole transaction
        marker = parse_control_record(decode_batch(batch)[0])
        offset = header.last_offset
        if segment is not None:
            first_offset = producers.aborted_by(header.producer_id, marker)
            if first_offset is not None:
                next_open = producers.first_open_besides(header.producer_id)
                stable = offset + 1 if next_open is None else next_open
                segment.txn_index.append(AbortedTransaction(header.producer_id, first_offset, offset, stable))
        producers.append_end_txn_marker(
            header.producer_id, header.producer_epoch, marker, offset, header.max_timestamp
        )

    def take_snapshot(self, offset: int, log_start_offset: int, *, sync: bool) -> None:
        """Write a snapshot of the state before `offset`, if the log has data since the latest one."""
        latest = self.snapshots.latest
        if offset > (log_start_offset if latest is None else latest):
            self.snapshots.write(offset, {} if self._producers is None else self._producers.all(), sync=sync)

    def clear(self) -> None:
        """Remove all producers and snapshots."""
        self._clear_producers()
        for offset in self.snapshots.offsets:
            self.snapshots.remove(offset)

    def _clear_producers(self) -> None:
        if self._producers is not None:
            self._producers.clear()

    def rebuild(
        self, segments: Sequence[LogSegment], log_start_offset: int, end_offset: int, *, sync: bool
    ) -> None:
        """Rebuild the state of all batches before `end_offset`. Removes later snapshots and writes one
        there."""
        self.snapshots.keep_within(log_start_offset, end_offset)
        self._clear_producers()
        found = self.snapshots.load_newest()
        at = log_start_offset
        if found is not None:
            at, producers = found
            if producers:
                # A truncation, for which the event loop waits, reads the segment only that it ends in.
                _restore_earlier_batches(producers, segments if sync else segments[-1:], at)
                self.producers.load(producers)
        for index, segment in enumerate(segments):
            next_base = segments[index + 1].base_offset if index + 1 < len(segments) else end_offset
            if next_base <= at or segment.base_offset >= end_offset:
                continue
            start = max(segment.base_offset, at, log_start_offset)
            if index >= len(segments) - _SEGMENTS_WITH_SNAPSHOT:
                self.take_snapshot(start, log_start_offset, sync=sync)
            self._replay(segment, start, end_offset)
        self.take_snapshot(end_offset, log_start_offset, sync=sync)

    def roll_back(self, segments: Sequence[LogSegment], end_offset: int) -> bool:
        """Before a truncation to `end_offset`, within the first of `segments`, the last ones of the log:
        restore the state at `end_offset`. Returns False if the state must be rebuilt."""
        if self._producers is None or self._producers.is_empty:
            return True  # the removed batches have not changed it
        tail: list[BatchHeader] = []
        for segment in segments:
            for _, header in segment.headers(segment.position_of(end_offset)):
                tail.append(header)
                if len(tail) > _ROLL_BACK_BATCHES_MAX:
                    return False
        unknown = self.producers.roll_back(tail, end_offset)
        return unknown is not None and _restore_last_batches(unknown, segments[0], end_offset)

    def _replay(self, segment: LogSegment, start: int, end_offset: int) -> None:
        for position, header in segment.headers(segment.position_of(start)):
            if header.base_offset >= end_offset:
                return
            if header.producer_id >= 0:
                batch = segment.read_batch(position) if header.is_control else b""
                self.update(header, batch, None)


def _restore_earlier_batches(
    producers: Mapping[int, ProducerStateEntry], segments: Sequence[LogSegment], end_offset: int
) -> None:
    """Add the batches before the last ones, which a snapshot lacks, as far as they are near `end_offset`: a
    producer may send the last five again, if the broker stopped before it responded. Kafka refuses the
    first four then (OUT_OF_ORDER_SEQUENCE_NUMBER)."""
    # Only one segment is read; there is none if retention has deleted what was before the snapshot.
    segment = next((each for each in reversed(segments) if each.size and each.base_offset < end_offset), None)
    if segment is None:
        return
    end = segment.position_of(end_offset)
    for length in _EARLIER_BATCHES_BYTES:
        start = segment.offset_index.position_before(max(end - length, 0))
        found, count = _read_last_batches(producers, segment, start, end)
        if start == 0 or count > _EARLIER_BATCHES_COUNT:
            break
    for producer_id, last in found.items():
        entry = producers[producer_id]
        # Not their timestamps: that of a snapshot may be a marker's.
        if entry.batches and last.batches and last.batches[-1][:-1] == entry.batches[-1][:-1]:
            entry.batches = last.batches


def _restore_last_batches(
    unknown: Mapping[int, ProducerStateEntry], segment: LogSegment, end_offset: int
) -> bool:
    """Restore the last batches before `end_offset` of producers. Returns whether each has some."""
    end = segment.position_of(end_offset)
    for length in _LOOK_BACK_BYTES if unknown else ():
        start = segment.offset_index.position_before(max(end - length, 0))
        found, _ = _read_last_batches(unknown, segment, start, end)
        if len(found) == len(unknown):
            for producer_id, last in found.items():
                entry = unknown[producer_id]
                entry.epoch, entry.batches = last.epoch, last.batches
                entry.last_timestamp = last.last_timestamp
            return True
    return not unknown


def _read_last_batches(
    producers: Container[int], segment: LogSegment, start: int, end: int
) -> tuple[dict[int, ProducerStateEntry], int]:
    """Read the headers in a range of positions. Returns the last epoch, batches and timestamp of those of the
    producers that have batches there, and the number of all batches."""
    found: dict[int, ProducerStateEntry] = {}
    count = 0
    for _, header in scan_headers(segment.file.files, segment.fd, start, end):
        count += 1
        if header.producer_id not in producers or (header.is_control and header.producer_id not in found):
            continue
        entry = found.setdefault(header.producer_id, ProducerStateEntry())
        if header.producer_epoch != entry.epoch:
            entry.epoch = header.producer_epoch
            entry.batches.clear()
        if not header.is_control:
            entry.last_timestamp = header.max_timestamp
            entry.batches.append(
                BatchMetadata(
                    header.base_sequence,
                    header.last_sequence,
                    header.last_offset,
                    header.last_offset_delta,
                    header.max_timestamp,
                )
            )
    return found, count
