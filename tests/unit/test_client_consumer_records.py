"""Records that a consumer returns, the range of a commit, and settings that it refuses."""

from __future__ import annotations

import weakref

import pytest

from ottla.client.consumer_records import PrefetchedRecords, deserializing
from ottla.client.core.assigned import Assigned, OffsetAndMetadata
from ottla.client.core.consumer_config import ConsumerConfig
from ottla.client.core.decoding import PartitionData
from ottla.client.core.fetch_buffer import FetchBuffer
from ottla.client.core.types import ConsumerRecord, TopicPartition
from ottla.client.errors import ConfigError, DeserializationError
from ottla.protocol.records import Record, build_batch

ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


def config(**settings: object) -> ConsumerConfig:
    return ConsumerConfig.of(bootstrap_servers="h:1", **settings)


def rows(tp: TopicPartition, *offsets: int) -> list[ConsumerRecord]:
    return [ConsumerRecord(*tp, offset, 0, 0, None, b"") for offset in offsets]


def test_a_commit_covers_the_consumed_part_of_a_batch() -> None:
    prefetched = PrefetchedRecords()
    prefetched.add({ONE: rows(ONE, 10, 11, 12), OTHER: rows(OTHER, 5, 7)})
    consumed = {ONE: OffsetAndMetadata(13), OTHER: OffsetAndMetadata(8)}

    def offsets(*, finished: bool = True) -> list[int]:
        return [each.offset for each in prefetched.before(consumed, finished=finished).values()]

    assert offsets() == [10, 5]
    assert [record.offset for record in (prefetched.next(), prefetched.next()) if record] == [10, 11]
    assert offsets() == [12, 5]
    assert offsets(finished=False) == [11, 5]
    assert prefetched.next() is not None
    assert offsets() == [13, 5]
    assert offsets(finished=False) == [12, 5]
    assert [record.offset for record in prefetched.take()[OTHER]] == [5, 7]
    assert offsets() == [13, 8]


def test_a_seek_ends_the_iteration() -> None:
    prefetched = PrefetchedRecords()
    prefetched.add({ONE: rows(ONE, 1, 2, 3), OTHER: rows(OTHER, 8)})
    seen = []
    for rest in prefetched.each():
        for record in rest:
            seen.append((record.partition, record.offset))
            if record.offset == 1:
                prefetched.drop(ONE)
    assert seen == [(0, 1), (1, 8)]


def test_an_undecodable_record_stops_its_partition_until_it_is_skipped() -> None:
    assigned = Assigned()
    assigned.assign([ONE])
    state = assigned[ONE]
    state.seek(0)
    buffer = FetchBuffer(assigned, deserializing(config(value_deserializer=int)))
    values = [b"0", b"1", b"two", b"3"]
    data = build_batch([Record(0, 1, None, value) for value in values])

    def fetch(offset: int) -> None:
        found = PartitionData(ONE, memoryview(data), offset, check_crcs=True, aborted=None)
        buffer.add(state, found, len(data))

    fetch(0)
    assert [record.value for record in buffer.take(10)[ONE]] == [0, 1]
    assert state.position == 2
    for _ in range(2):
        with pytest.raises(DeserializationError, match="t-0 at offset 2: the value cannot be read"):
            buffer.take(10)
    state.seek(3)
    fetch(3)
    assert [(record.offset, record.value) for record in buffer.take(10)[ONE]] == [(3, 3)]
    assert state.position == 4
    assert buffer.take(10) == {}
    assert (buffer.bytes, state.buffered_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"auto_offset_reset": "oldest"},
            "auto.offset.reset='oldest': must be one of latest, earliest, none",
        ),
        ({"partition_assignment_strategy": "best"}, "range, roundrobin, sticky"),
        ({"enable_auto_commit": True}, "enable.auto.commit=True: cannot be true without a group.id"),
        ({"group_id": "g", "heartbeat_interval_ms": 50_000}, "must be lower than session.timeout.ms"),
        ({"fetch_max_wait_ms": 40_000}, "must be lower than request.timeout.ms, which is 30000"),
        ({"group_protocol": "consumer"}, "must be one of classic"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config(**settings)
    assert message in str(refused.value)


def test_settings_of_a_java_client_are_accepted() -> None:
    made = ConsumerConfig.of(
        {
            "bootstrap.servers": "a:1,b:2",
            "group.id": "g",
            "partition.assignment.strategy": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
            "isolation.level": "read_committed",
            "max.poll.records": "7",
        }
    )
    assert made.partition_assignment_strategy == ("cooperative-sticky",)
    assert (made.isolation, made.max_poll_records, made.enable_auto_commit) == (1, 7, True)
    assert not config().enable_auto_commit


class Frame(bytearray):
    """A received response, which can be referenced weakly."""


def test_records_of_a_paused_partition_do_not_keep_the_whole_response() -> None:
    assigned = Assigned()
    assigned.assign([ONE, OTHER])
    buffer = FetchBuffer(assigned, None)
    small = build_batch([Record(n, 1, None, b"%d" % n) for n in range(2)])
    large = build_batch([Record(0, 1, None, bytes(10_000))])
    frame = Frame(small + large)
    alive = weakref.ref(frame)
    view = memoryview(frame)
    for place, part in ((ONE, view[: len(small)]), (OTHER, view[len(small) :])):
        assigned[place].seek(0)
        buffer.add(assigned[place], PartitionData(place, part, 0, check_crcs=True, aborted=None), len(part))
    del frame, view, part
    assert [record.offset for record in buffer.take(1)[ONE]] == [0]
    assigned[ONE].paused = True
    assert [record.offset for record in buffer.take(10)[OTHER]] == [0]
    assert alive() is None
    assigned[ONE].paused = False
    assert [record.offset for record in buffer.take(10)[ONE]] == [1]
    assert buffer.bytes == 0
