"""From a partition of `__consumer_offsets` back to the groups it holds.

Called by `registry` when this broker becomes the partition's leader. Later records win; a tombstone
removes; offsets committed in a transaction count once its commit marker is read.
"""

from __future__ import annotations

import logging

from ottla.coordinators import records
from ottla.coordinators.group import Group
from ottla.coordinators.offsets import CommittedOffset, TopicPartition
from ottla.protocol.errors import ProtocolError
from ottla.protocol.records import BatchHeader, ControlType, Record, decode_batch, parse_control_record

logger = logging.getLogger(__name__)


class _Loaded:
    """An offset with the log position of its record: of two, the one written later wins."""

    __slots__ = ("offset", "position")

    def __init__(self, offset: CommittedOffset, position: int) -> None:
        self.offset = offset
        self.position = position


class Replay:
    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}
        self._offsets: dict[str, dict[TopicPartition, _Loaded]] = {}
        self._pending: dict[int, dict[tuple[str, TopicPartition], _Loaded]] = {}
        self.record_count = 0

    def apply_batch(self, buffer: bytes | memoryview, position: int, header: BatchHeader) -> None:
        batch = decode_batch(buffer, position)
        self.record_count += len(batch)
        if header.is_control:
            for record in batch:
                self._end_transaction(header.producer_id, record)
            return
        producer_id = header.producer_id if header.is_transactional else None
        for record in batch:
            try:
                self._apply(record, producer_id)
            except (ProtocolError, AssertionError) as problem:
                logger.error("offset %d of __consumer_offsets is skipped: %s", record.offset, problem)

    def finish(self) -> list[Group]:
        """The groups as of the last record."""
        for group_id, offsets in self._offsets.items():
            if not offsets:
                continue
            self._group(group_id).offsets.committed.update(
                (partition, loaded.offset) for partition, loaded in offsets.items()
            )
        for producer_id, pending in self._pending.items():
            for (group_id, partition), loaded in pending.items():
                committed = self._offsets.get(group_id, {}).get(partition)
                self._group(group_id).offsets.restore_transactional(
                    producer_id,
                    partition,
                    loaded.offset,
                    overtaken=committed is not None and committed.position > loaded.position,
                )
        return list(self._groups.values())

    def _group(self, group_id: str) -> Group:
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = Group(group_id)
        return group

    def _apply(self, record: Record, producer_id: int | None) -> None:
        if record.key is None:
            return
        key = records.parse_key(record.key)
        match key:
            case records.OffsetRecordKey(group_id, partition):
                self._apply_offset(group_id, partition, record, producer_id)
            case records.GroupRecordKey(group_id):
                if record.value is None:
                    self._groups.pop(group_id, None)
                else:
                    self._groups[group_id] = records.parse_group_value(group_id, record.value)
            case None:
                logger.warning("offset %d of __consumer_offsets: an unknown kind of record", record.offset)

    def _apply_offset(
        self, group_id: str, partition: TopicPartition, record: Record, producer_id: int | None
    ) -> None:
        loaded = (
            None if record.value is None else _Loaded(records.parse_offset_value(record.value), record.offset)
        )
        if producer_id is not None:
            pending = self._pending.setdefault(producer_id, {})
            if loaded is None:
                pending.pop((group_id, partition), None)
            else:
                pending[group_id, partition] = loaded
        elif loaded is None:
            self._offsets.get(group_id, {}).pop(partition, None)
        else:
            self._offsets.setdefault(group_id, {})[partition] = loaded

    def _end_transaction(self, producer_id: int, record: Record) -> None:
        pending = self._pending.pop(producer_id, {})
        if parse_control_record(record).type != ControlType.COMMIT:
            return
        for (group_id, partition), loaded in pending.items():
            offsets = self._offsets.setdefault(group_id, {})
            known = offsets.get(partition)
            if known is None or known.position < loaded.position:
                offsets[partition] = loaded
