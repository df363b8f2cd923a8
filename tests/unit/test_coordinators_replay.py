"""Replay of `__consumer_offsets`: the last record of each key counts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from ottla.coordinators import records
from ottla.coordinators.group import GroupState
from ottla.coordinators.offsets import CommittedOffset, TopicPartition
from ottla.coordinators.records import GroupMetadataValue
from ottla.coordinators.replay import GroupReplay
from ottla.protocol.records import ControlType, Record, build_batch, build_control_batch, iter_batches

GROUPS, PARTITIONS, PRODUCERS = ("a", "b"), (("t", 0), ("t", 1)), (7, 8)


class Commit(NamedTuple):
    """`offset` None is a tombstone; with a producer it is part of its transaction."""

    group: str
    partition: TopicPartition
    offset: int | None
    producer: int | None
    old_key: bool = False


class State(NamedTuple):
    """A group metadata record; `generation` None is a tombstone."""

    group: str
    generation: int | None


class End(NamedTuple):
    producer: int
    committed: bool


groups, producers = st.sampled_from(GROUPS), st.sampled_from(PRODUCERS)
steps = st.lists(
    st.builds(
        Commit,
        groups,
        st.sampled_from(PARTITIONS),
        st.none() | st.integers(0, 9),
        st.none() | producers,
        st.booleans(),
    )
    | st.builds(State, groups, st.none() | st.integers(1, 5))
    | st.builds(End, producers, st.booleans()),
    max_size=40,
)


def batch_of(step: Commit | State | End, at: int) -> bytes:
    match step:
        case Commit(group, partition, offset, producer, old_key):
            key = records.offset_key(group, partition)
            value = (
                None
                if offset is None
                else records.offset_value(CommittedOffset(offset, metadata="m" * offset))
            )
            record = Record(0, 0, b"\x00\x00" + key[2:] if old_key else key, value)
            if producer is None:
                return build_batch([record], base_offset=at)
            return build_batch(
                [record],
                base_offset=at,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=at,
                transactional=True,
            )
        case State(group, generation):
            stored = GroupMetadataValue(
                protocol_type="consumer", generation=generation or 0, protocol=None, leader=None, members=[]
            )
            value = None if generation is None else records.group_value_bytes(stored)
            return build_batch([Record(0, 0, records.group_key(group), value)], base_offset=at)
        case End(producer, committed):
            return build_control_batch(
                ControlType.COMMIT if committed else ControlType.ABORT,
                producer_id=producer,
                producer_epoch=0,
                coordinator_epoch=0,
                timestamp=0,
                base_offset=at,
            )


class Model:
    """A model of the replay, record by record."""

    def __init__(self, taken: Iterable[Commit | State | End]) -> None:
        self.offsets: dict[tuple[str, TopicPartition], tuple[int, int]] = {}
        self.generations: dict[str, int] = {}
        self.open: dict[int, dict[tuple[str, TopicPartition], tuple[int, int]]] = {}
        for at, step in enumerate(taken):
            match step:
                case Commit(group, partition, offset, producer):
                    into = self.offsets if producer is None else self.open.setdefault(producer, {})
                    if offset is None:
                        into.pop((group, partition), None)
                    else:
                        into[group, partition] = (at, offset)
                case State(group, generation):
                    if generation is None:
                        self.generations.pop(group, None)
                    else:
                        self.generations[group] = generation
                case End(producer, committed):
                    ended = self.open.pop(producer, {})
                    for key, stored in ended.items() if committed else ():
                        self.offsets[key] = max(self.offsets.get(key, (-1, -1)), stored)


@given(steps)
def test_the_last_record_of_each_key_counts(taken: list[Commit | State | End]) -> None:
    log = b"".join(batch_of(step, at) for at, step in enumerate(taken))
    replay = GroupReplay()
    for position, header in iter_batches(log):
        replay.apply_batch(log, position, header)
    for _ in replay.parse():
        pass
    model = Model(taken)
    found = replay.groups
    committed = {
        (name, partition): offset
        for name, group in found.items()
        for partition, offset in group.offsets.committed.items()
    }
    assert {key: offset.offset for key, offset in committed.items()} == {
        key: offset for key, (_, offset) in model.offsets.items()
    }
    assert all(offset.metadata == "m" * offset.offset for offset in committed.values())
    assert {
        (producer, name, partition): waiting.offset.offset
        for name, group in found.items()
        for producer, pending in group.offsets.pending_transactional.items()
        for partition, waiting in pending.items()
    } == {
        (producer, *key): offset
        for producer, pending in model.open.items()
        for key, (_, offset) in pending.items()
    }
    assert {name: group.generation for name, group in found.items() if group.generation} == model.generations
    assert all(group.state is GroupState.EMPTY for group in found.values())
    assert replay.record_count == len(taken)


def test_replay_yields_to_the_event_loop() -> None:
    offsets = {("t", at): CommittedOffset(at) for at in range(1_000)}
    log = build_batch([Record(0, 0, key, value) for key, value in records.offset_entries("g", offsets)])
    replay = GroupReplay()
    for position, header in iter_batches(log):
        replay.apply_batch(log, position, header)
    assert len(list(replay.parse())) >= 4
    assert replay.groups["g"].offsets.committed == offsets
