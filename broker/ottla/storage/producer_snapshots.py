"""Producer state snapshots: `<offset>.snapshot`, Kafka's format version 1.

Written and read by `producer_state_manager`. A snapshot holds the producer state after all batches before its
offset, so that opening or truncating a log does not read earlier batches. The format is big-endian: version
int16, CRC-32C of the rest uint32, number of producers int32, then 46 bytes for each producer. As in Kafka,
only a producer's last batch is included.

Invariant: a snapshot only saves time. A damaged snapshot is removed, and an older one is used.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from crc32c import crc32c

from ottla.ports.files import Files, read_file, unlink_if_exists, write_file
from ottla.protocol.records import INT32_MAX
from ottla.storage.producer_state import BatchMetadata, ProducerStateEntry
from ottla.storage.segment_files import SNAPSHOT_SUFFIX, segment_name

logger = logging.getLogger(__name__)

VERSION = 1
_HEAD = struct.Struct(">hIi")
_CRC_START = 6
# producer id, epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch,
# first offset of the open transaction
_ENTRY = struct.Struct(">qhiqiqiq")
_NONE = -1


class CorruptSnapshot(Exception):
    """A snapshot file is invalid; the message names the problem."""


def encode(producers: Mapping[int, ProducerStateEntry]) -> bytes:
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
    return VERSION.to_bytes(2, "big") + crc32c(covered).to_bytes(4, "big") + covered


def decode(data: bytes) -> dict[int, ProducerStateEntry]:
    """Raises CorruptSnapshot."""
    if len(data) < _HEAD.size:
        raise CorruptSnapshot(f"{len(data)} bytes are too few")
    version, crc, count = _HEAD.unpack_from(data)
    if version != VERSION:
        raise CorruptSnapshot(f"version {version} is not known; expected {VERSION}")
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
        write_file(self._files, self.path(offset), encode(producers), sync=sync)
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
                return offset, decode(read_file(self._files, path))
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
