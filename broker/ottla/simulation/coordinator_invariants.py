"""What must hold of coordinators: what they know is in the logs of their internal topics, and they hand out
each producer id once.

Called by `invariants.Monitor`. The records of a partition of `__consumer_offsets` or `__transaction_state`
are read from the simulated disk, each once, from the log's start after its leader has loaded it. Checked:

- *coordinator state*: after it has loaded, a coordinator knows the last committed offsets, the last
  generation with its assignment, the open transactional commits (and no others) and the last state of each
  transactional id, as they were in the log then; later it knows these or what was written since, and never
  goes back;
- *unique producer ids*: the blocks of producer ids of two brokers, and of two starts of one, are disjoint.

As in Kafka, memory and log differ after a write that has failed:

- One that takes too long may be in the log, and is not in the coordinator's memory until the next one loads
  it.
- The new id of a static member that has restarted is in memory while it is written, and is taken back if this
  fails, though records of other members that were written meanwhile have it. So ids are compared member by
  member, and one that is being written is no version that the coordinator has known.
- A group that has become Empty is so in memory only, if its record cannot be written. This may be the first
  record of a group since its tombstone. Such a group is another one than that before the tombstone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from operator import eq
from typing import Any, Final, NamedTuple

from ottla.coordinators.group import Group, GroupState
from ottla.coordinators.records import (
    OffsetRecordKey,
    parse_group_value,
    parse_key,
    parse_offset_value,
)
from ottla.coordinators.transactions.records import parse_key as parse_transaction_key
from ottla.coordinators.transactions.records import parse_value as parse_transaction
from ottla.coordinators.transactions.transaction import NO_EPOCH, State
from ottla.protocol.records import ControlType, decode_batch, iter_batches, parse_control_record
from ottla.protocol.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from ottla.replication.partition import Partition
from ottla.simulation.cluster import Cluster, Machine, Violation
from ottla.storage.segment_files import LOG_SUFFIX, segment_name


class _StaticMember(NamedTuple):
    """The key of a static member's id, of which each record of its group is a version: generation and id."""

    group_id: str
    instance_id: str


LOOKS: Final = 4
"""So often in a row a contradiction must be seen: memory and log do not change in one step."""

_PARTITIONS: Final = {
    OFFSETS_TOPIC: "offsets.topic.num.partitions",
    TRANSACTIONS_TOPIC: "transaction.state.log.num.partitions",
}

_Key = tuple[int, int, str, int]
"""Broker, its start, topic and partition."""
_Version = tuple[int, Any]
"""The offset of what made a value valid, and the value; None for a tombstone."""


@dataclass
class _Led:
    """One partition of an internal topic since a broker has loaded it: it is not loaded again in the next
    leader epoch of the same leader."""

    started_at: int
    """The log ended there, or later, when it was loaded."""
    next_offset: int = 0
    segment: object = None
    """The segment that was read last, up to this position."""
    position: int = 0
    history: defaultdict[Hashable, list[_Version]] = field(default_factory=lambda: defaultdict(list))
    """By key, in the order of the log."""
    own_offsets: dict[Hashable, int] = field(default_factory=dict)
    """By key, the offset of the record of the last version."""
    pending: defaultdict[int, dict[Hashable, _Version]] = field(default_factory=lambda: defaultdict(dict))
    """By producer: commits of open transactions."""
    markers: dict[int, int] = field(default_factory=dict)
    """By producer: the offset of its last marker."""
    floors: dict[Hashable, int] = field(default_factory=dict)
    """By key, the index of the version that the coordinator has known."""
    contradictions: dict[Hashable, int] = field(default_factory=dict)
    """How often in a row each was seen."""

    def add(self, key: Hashable, own_offset: int, at: int, value: Any) -> None:
        if own_offset > self.own_offsets.get(key, -1):
            self.own_offsets[key] = own_offset
            self.history[key].append((at, value))
            if isinstance(value, Group):
                for instance_id, member_id in value.static_members.items():
                    static = _StaticMember(value.group_id, instance_id)
                    self.add(static, own_offset, at, (value.generation, member_id))

    def floor(self, key: Hashable) -> int:
        """The index of the oldest version that the coordinator may know; -1 if it may know none."""
        if key not in self.floors:
            before = [at for at, _ in self.history[key] if at < self.started_at]
            self.floors[key] = len(before) - 1
        return self.floors[key]


class CoordinatorInvariants:
    """See the module."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._led: dict[_Key, tuple[object, _Led]] = {}
        """The ownership, which begins with the loading, and what was read since."""
        self._ends: dict[_Key, int] = {}
        """The log end offsets of the last look."""
        self._blocks: dict[int, tuple[int, int]] = {}
        """First producer id of each block -> broker and its start."""

    def check(self, machine: Machine) -> None:
        """Raises Violation."""
        process, broker = machine.process, machine.broker
        if not machine.is_serving or machine.is_stopping or machine.has_flipped_bit:
            return
        assert process is not None
        assert broker is not None
        if process.paused:
            return
        self._check_producer_ids(machine)
        groups, transactions = broker.coordinators.groups, broker.coordinators.transactions.coordinator
        for topic, owned in (
            (OFFSETS_TOPIC, groups._manager.partitions._partitions),
            (TRANSACTIONS_TOPIC, transactions._partitions._partitions),
        ):
            for number in range(int(self._cluster.settings[_PARTITIONS[topic]])):
                partition = broker.replication.replicas.find(topic, number)
                if partition is None or partition.log.closed:
                    continue
                key = (machine.id, machine.starts, topic, number)
                ownership = owned.get(number)
                if partition.is_leader and ownership is not None and ownership.loaded:
                    where = f"{topic}-{number} on broker {machine.id}"
                    led = self._read(machine, key, partition, ownership)
                    if topic == OFFSETS_TOPIC:
                        loaded = groups._manager._of_partition.get(number, {})
                        self._check_groups(where, led, loaded, partition.high_watermark)
                    elif number in transactions._owned:
                        self._check_transactions(where, led, transactions._owned[number].transactions)
                self._ends[key] = partition.log.log_end_offset

    # --- the log ---

    def _read(self, machine: Machine, key: _Key, partition: Partition, ownership: object) -> _Led:
        owned, led = self._led.get(key, (None, None))
        log = partition.log
        if led is None or owned is not ownership:
            before = self._ends.get(key)
            if before is None:  # the broker has just started; it may have led in the epoch before
                before = min(start for _, start in log.epochs()[-2:])
            led = _Led(min(before, partition.leader_epoch_start))
            self._led[key] = (ownership, led)
        if led.next_offset >= log.log_end_offset:
            return led
        segments = log.segments
        for at, segment in enumerate(segments):
            if at + 1 < len(segments) and segments[at + 1].base_offset <= led.next_offset:
                continue
            path = f"{log.directory}/{segment_name(segment.base_offset)}{LOG_SUFFIX}"
            start = led.position if segment is led.segment else 0
            data = bytes(memoryview(machine.disk.names[path].data)[start : segment.size])
            for position, header in iter_batches(data):
                if header.base_offset >= led.next_offset:
                    self._apply(led, partition.topic, header, decode_batch(data, position))
            led.segment, led.position = segment, segment.size
        led.next_offset = log.log_end_offset
        return led

    @staticmethod
    def _apply(led: _Led, topic: str, header: Any, records: Any) -> None:
        if header.is_control:
            pending = led.pending.pop(header.producer_id, {})
            led.markers[header.producer_id] = header.base_offset
            if any(parse_control_record(record).type == ControlType.COMMIT for record in records):
                for committed, (own_offset, offset) in pending.items():
                    led.add(committed, own_offset, header.base_offset, offset)
            return
        for record in records:
            value: Any
            if topic == TRANSACTIONS_TOPIC:
                value = None if record.value is None else parse_transaction(record.value)
                led.add(parse_transaction_key(record.key), record.offset, record.offset, value)
                continue
            key = parse_key(record.key)
            if record.value is None:
                value = None
            elif isinstance(key, OffsetRecordKey):
                value = parse_offset_value(record.value)
            else:
                assert key is not None
                value = parse_group_value(key.group_id, record.value)
            if header.is_transactional:
                led.pending[header.producer_id][key] = (record.offset, value)
            else:
                led.add(key, record.offset, record.offset, value)

    # --- groups ---

    def _check_groups(self, where: str, led: _Led, groups: Mapping[str, Group], high_watermark: int) -> None:
        for key in list(led.history):
            if isinstance(key, OffsetRecordKey):
                group = groups.get(key.group_id)
                known = None if group is None else group.offsets.committed.get(key.partition)
                self._compare(where, led, key, known, partial(eq, known))
            elif isinstance(key, _StaticMember):
                self._check_static_member(where, led, key, groups.get(key.group_id), high_watermark)
            else:
                group_id = key[0]  # type: ignore[index]
                self._check_group(where, led, key, groups.get(group_id))
        known_offsets = {
            OffsetRecordKey(group_id, partition)
            for group_id, group in groups.items()
            for partition in group.offsets.committed
        }
        for key in sorted(known_offsets - led.history.keys()):
            self._count(where, led, ("unwritten", key), f"has an offset for {key}, which is not in the log")
        for producer_id, pending in led.pending.items():
            for key, (own_offset, value) in pending.items():
                if own_offset >= led.started_at or not isinstance(key, OffsetRecordKey):
                    continue
                group = groups.get(key.group_id)
                held = {} if group is None else group.offsets.pending_transactional.get(producer_id, {})
                if key.partition not in held:
                    text = f"lacks {value} of {key} in the open transaction of producer {producer_id}"
                    self._count(where, led, (producer_id, key), text)
                else:
                    led.contradictions.pop((producer_id, key), None)
        self._check_ended(where, led, groups, high_watermark)

    def _check_ended(self, where: str, led: _Led, groups: Mapping[str, Group], high_watermark: int) -> None:
        """No commit is pending in a transaction whose marker is replicated."""
        for group_id, group in groups.items():
            for producer_id in group.offsets.pending_transactional:
                marker = led.markers.get(producer_id, high_watermark)
                if producer_id in led.pending or marker >= high_watermark:
                    led.contradictions.pop((group_id, producer_id), None)
                else:
                    text = (
                        f"holds offsets of {group_id} for producer {producer_id}, with its marker at {marker}"
                    )
                    self._count(where, led, (group_id, producer_id), text)

    def _check_group(self, where: str, led: _Led, key: Hashable, found: Group | None) -> None:
        written = {
            (value.generation, value.state_since_ms) for _, value in led.history[key] if value is not None
        }

        def is_same(value: Group | None) -> bool:
            if value is None and found is not None:
                return (found.generation, found.state_since_ms) not in written
            return _is_same_group(value, found)

        self._compare(where, led, key, found, is_same)

    def _check_static_member(
        self, where: str, led: _Led, key: _StaticMember, group: Group | None, high_watermark: int
    ) -> None:
        if (
            group is None
            or group.state is not GroupState.STABLE
            or key.instance_id not in group.static_members
        ):
            return
        generation, _ = led.history[key][-1][1]
        member_id = group.static_members[key.instance_id]
        known = (generation, member_id)
        # In a Stable group only a member whose new id is being written waits to join. It waits no longer when
        # it restarts once more, and gets this id back if the write of the next one fails first.
        is_written = all(at < high_watermark for at, value in led.history[key] if value == known)
        if generation == group.generation and member_id not in group.awaiting_join and is_written:
            self._compare(where, led, key, known, partial(eq, known))

    # --- transactions ---

    def _check_transactions(self, where: str, led: _Led, transactions: Mapping[str, Any]) -> None:
        for key in list(led.history):
            transaction = transactions.get(key)  # type: ignore[call-overload]
            entry = None if transaction is None else transaction.entry
            if entry is not None and transaction.fencing:
                # The epoch that no producer has may be in the log, or not.
                entry = replace(entry, producer_epoch=entry.producer_epoch - 1)
            if entry is not None and entry.producer_epoch == NO_EPOCH:
                entry = None  # its first record is being written
            self._compare(where, led, key, entry, partial(_is_same_entry, entry=entry))
        for name, transaction in transactions.items():
            if name not in led.history and transaction.entry.producer_epoch != NO_EPOCH:
                self._count(where, led, ("unwritten", name), f"has {transaction}, which is not in the log")

    def _compare(
        self, where: str, led: _Led, key: Hashable, known: Any, is_same: Callable[[Any], bool]
    ) -> None:
        """Compare what a coordinator knows with the versions in the log that it may know."""
        history, floor = led.history[key], led.floor(key)
        for at in range(len(history) - 1, max(floor, 0) - 1, -1):
            if is_same(history[at][1]):
                led.floors[key] = at
                led.contradictions.pop(key, None)
                return
        if known is None and floor < 0:
            return
        versions = "; ".join(
            f"{_describe(value)} at offset {at}" for at, value in history[max(floor, 0) :][:3]
        )
        self._count(where, led, key, f"has {_describe(known)} for {key}, and the log has {versions}")

    @staticmethod
    def _count(where: str, led: _Led, key: Hashable, text: str) -> None:
        led.contradictions[key] = led.contradictions.get(key, 0) + 1
        if led.contradictions[key] >= LOOKS:
            raise Violation(f"coordinator state: {where}: the coordinator {text}")

    # --- producer ids ---

    def _check_producer_ids(self, machine: Machine) -> None:
        assert machine.broker is not None
        ids = machine.broker.coordinators.transactions._producer_ids
        for block in (ids._block, ids._next_block):
            if block is None or not block.size:
                continue
            holder = self._blocks.setdefault(block.first, (machine.id, machine.starts))
            if holder != (machine.id, machine.starts):
                raise Violation(
                    f"unique producer ids: broker {machine.id} has the block {block}, which broker "
                    f"{holder[0]} had got before"
                )


def _describe(value: Any) -> str:
    return f"{value!r} of {sorted(value.members)}" if isinstance(value, Group) else str(value)


def _is_same_group(value: Group | None, known: Group | None) -> bool:
    if value is None or known is None:
        return value is known
    if known.generation != value.generation:
        # A new generation is in memory before its assignment is written.
        return known.generation > value.generation
    if known.state is not GroupState.STABLE:
        return True
    return _assignments(value) == _assignments(known)


def _assignments(group: Group) -> dict[str, bytes]:
    return {member.instance_id or name: member.assignment for name, member in group.members.items()}


def _is_same_entry(value: Any, entry: Any) -> bool:
    if value is None or entry is None:
        return value is entry
    return (
        (value.producer_id, value.producer_epoch, value.timeout_ms, value.state)
        == (entry.producer_id, entry.producer_epoch, entry.timeout_ms, entry.state)
        and value.partitions >= entry.partitions
        and (entry.state is not State.ONGOING or value.partitions == entry.partitions)
    )
