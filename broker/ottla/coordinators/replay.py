"""Restores groups and offsets from a partition of `__consumer_offsets`.

Called by `group_metadata_manager` when this broker becomes the partition's leader. Later records win; a
tombstone removes; offsets of a transaction count once its commit marker is read.

There are two passes, because most records of a log that is not compacted yet are superseded: reading keeps
only the bytes of each key's last value, then `parse` parses these. Both run in slices, so that the broker
continues to serve requests.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TypeAlias

from ottla.coordinators import records
from ottla.coordinators.group import Group
from ottla.coordinators.offsets import CommittedOffset, TopicPartition
from ottla.protocol.errors import ProtocolError
from ottla.protocol.records import (
    BatchHeader,
    ControlType,
    Record,
    decode_batch,
    decode_keys_and_values,
    parse_control_record,
)

logger = logging.getLogger(__name__)

PARSED_PER_SLICE = 200
"""Values parsed before other tasks run, about 1 ms."""
_OLDEST_KEY = b"\x00\x00"
_SAME_KEY_TODAY = b"\x00\x01"


_Stored: TypeAlias = tuple[int, bytes]
"""The offset of a record and its value; of two for one key, the higher offset wins. A plain tuple of atomic
values, which the garbage collector does not track."""


class GroupReplay:
    """Call `apply_batch` with every batch in order, exhaust `parse`, then read `groups`."""

    def __init__(self) -> None:
        self.record_count = 0
        self.groups: dict[str, Group] = {}
        self._latest: dict[bytes, _Stored] = {}
        self._pending: dict[int, dict[bytes, _Stored]] = {}
        self._partitions: dict[bytes, TopicPartition] = {}
        self._group_ids: dict[bytes, str] = {}

    # -- reading -------------------------------------------------------------------------------------

    def apply_batch(self, buffer: bytes | memoryview, position: int, header: BatchHeader) -> None:
        if header.is_control:
            for record in decode_batch(buffer, position):
                self._end_transaction(header.producer_id, record)
            self.record_count += header.record_count
            return
        found = decode_keys_and_values(buffer, position)
        self.record_count += len(found)
        # Transactions write offsets only, so all their records wait for the marker.
        stored = self._pending.setdefault(header.producer_id, {}) if header.is_transactional else self._latest
        for offset, key, value in found:
            if key is None:
                continue
            if key.startswith(_OLDEST_KEY):
                key = _SAME_KEY_TODAY + key[len(_OLDEST_KEY) :]
            if value is None:
                stored.pop(key, None)
            else:
                stored[key] = (offset, value)

    def _end_transaction(self, producer_id: int, record: Record) -> None:
        pending = self._pending.pop(producer_id, {})
        if parse_control_record(record).type != ControlType.COMMIT:
            return
        for key, stored in pending.items():
            known = self._latest.get(key)
            if known is None or known[0] < stored[0]:
                self._latest[key] = stored

    # -- parsing -------------------------------------------------------------------------------------

    def parse(self) -> Iterator[None]:
        """Create the groups as of the last record; yields after every slice of the work."""
        committed: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        for count, (key, stored) in enumerate(self._latest.items(), 1):
            self._parse(key, stored, committed)
            if count % PARSED_PER_SLICE == 0:
                yield
        for count, (group_id, offsets) in enumerate(committed.items(), 1):
            self._group(group_id).offsets.committed = offsets
            if count % PARSED_PER_SLICE == 0:
                yield
        for producer_id, pending in self._pending.items():
            for key, stored in pending.items():
                self._restore(producer_id, key, stored)

    def _parse(
        self, key: bytes, stored: _Stored, committed: dict[str, dict[TopicPartition, CommittedOffset]]
    ) -> None:
        position, value = stored
        try:
            parsed_key = self._parse_key(key)
            match parsed_key:
                case records.OffsetRecordKey(group_id, partition):
                    offset = records.parse_offset_value(value)
                    committed.setdefault(group_id, {})[partition] = offset
                case records.GroupRecordKey(group_id):
                    self.groups[group_id] = records.parse_group_value(group_id, value)
                case None:
                    logger.warning("Unknown record type at offset %d of __consumer_offsets", position)
        except (ProtocolError, AssertionError) as problem:
            logger.error("Skipping offset %d of __consumer_offsets: %s", position, problem)

    def _parse_key(self, key: bytes) -> records.RecordKey | None:
        """`records.parse_key`, with each group id and partition parsed and kept in memory once."""
        parts = records.split_offset_key(key)
        if parts is None:
            return records.parse_key(key)
        group_id, partition = self._group_ids.get(parts[0]), self._partitions.get(parts[1])
        if group_id is None or partition is None:
            parsed = records.parse_key(key)
            assert isinstance(parsed, records.OffsetRecordKey)
            group_id = self._group_ids.setdefault(parts[0], parsed.group_id)
            partition = self._partitions.setdefault(parts[1], parsed.partition)
        return records.OffsetRecordKey(group_id, partition)

    def _restore(self, producer_id: int, key: bytes, stored: _Stored) -> None:
        """Restore an offset of a transaction without a marker."""
        position, value = stored
        try:
            parsed_key = self._parse_key(key)
            if isinstance(parsed_key, records.OffsetRecordKey):
                known = self._latest.get(key)
                self._group(parsed_key.group_id).offsets.restore_transactional(
                    producer_id,
                    parsed_key.partition,
                    records.parse_offset_value(value),
                    superseded=known is not None and known[0] > position,
                )
        except (ProtocolError, AssertionError) as problem:
            logger.error("Skipping offset %d of __consumer_offsets: %s", position, problem)

    def _group(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id)
        return group
