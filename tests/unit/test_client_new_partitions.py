"""The initial position in partitions without a committed offset: a consumer reads partitions that appear
after its subscription from the first record."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import pytest

from ottla.client.core.assigned import EARLIEST, LATEST, Assigned, Phase
from ottla.client.core.baseline import Baseline, unknown_to_group
from ottla.client.core.cluster import Cluster
from ottla.client.core.consumer_config import ConsumerConfig
from ottla.client.core.positions import Positions
from ottla.client.core.types import TopicPartition
from ottla.client.errors import NoOffsetForPartitionError
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode

FIRST, SECOND = UUID(int=1), UUID(int=2)


def uniform(low: float, high: float) -> float:
    return low


class Consumer:
    """The core classes that determine the initial position."""

    def __init__(self, **settings: object) -> None:
        config = ConsumerConfig.of(bootstrap_servers="h:1", group_id="g", **settings)
        self.now = 0.0
        self.cluster = Cluster(uniform=uniform)
        self.cluster.want(())
        self.assigned = Assigned()
        self.baseline = Baseline(self.cluster)
        self.positions = Positions(config, self.cluster, self.assigned, uniform, self.baseline)

    def subscribe(self, *topics: str, pattern: bool = False) -> None:
        self.baseline.begin(None if pattern else topics)
        self.cluster.want(None if pattern else topics)

    def take_metadata(self, **topics: int | ErrorCode) -> None:
        """Metadata: the partition counts of topics, or their errors."""
        self.hears_of([topic(name, found) for name, found in topics.items()])

    def hears_of(self, topics: Iterable[m.MetadataResponse.MetadataResponseTopic]) -> None:
        self.now += 10
        self.cluster.invalidate()
        assert self.cluster.request(self.now) is not None
        self.answered(topics)

    def answered(self, topics: Iterable[m.MetadataResponse.MetadataResponseTopic]) -> None:
        broker = m.MetadataResponse.MetadataResponseBroker(node_id=0, host="h", port=1)
        self.cluster.take(m.MetadataResponse(brokers=[broker], topics=list(topics)), self.now)
        self.positions.poll(self.now)

    def appeared(self, name: str) -> list[int]:
        return [n for n in range(self.cluster.partitions(name) or 0) if self.baseline.appeared(tp(name, n))]


def tp(name: str, number: int = 0) -> TopicPartition:
    return TopicPartition(name, number)


def topic(
    name: str, found: int | ErrorCode, topic_id: UUID = FIRST
) -> m.MetadataResponse.MetadataResponseTopic:
    if isinstance(found, ErrorCode):
        return m.MetadataResponse.MetadataResponseTopic(name=name, error_code=int(found))
    row = m.MetadataResponse.MetadataResponsePartition
    partitions = [row(partition_index=n, leader_id=0, leader_epoch=0) for n in range(found)]
    return m.MetadataResponse.MetadataResponseTopic(name=name, topic_id=topic_id, partitions=partitions)


def test_partitions_that_are_there_at_first_have_not_appeared() -> None:
    consumer = Consumer()
    consumer.subscribe("t")
    assert not consumer.baseline.appeared(tp("t", 5)), "nothing is known yet"
    consumer.take_metadata(t=2)
    assert consumer.appeared("t") == []
    consumer.take_metadata(t=4)
    assert consumer.appeared("t") == [2, 3]
    assert consumer.baseline.appeared(tp("t", 7)), "the leader of the group may know more"


@pytest.mark.parametrize(
    ("error", "appeared"),
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [0, 1]),
        (ErrorCode.LEADER_NOT_AVAILABLE, [0, 1]),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, []),
    ],
)
def test_a_topic_that_does_not_exist_yet(error: ErrorCode, appeared: list[int]) -> None:
    consumer = Consumer()
    consumer.subscribe("t")
    consumer.take_metadata(t=error)
    consumer.take_metadata(t=2)
    assert consumer.appeared("t") == appeared


def test_a_later_subscription_counts_from_its_time() -> None:
    consumer = Consumer()
    consumer.subscribe("t")
    consumer.take_metadata(t=1)
    consumer.baseline.begin(["t", "u"], already=["t"])
    consumer.cluster.want(["t", "u"])
    consumer.take_metadata(t=2, u=3)
    assert consumer.appeared("t") == [1]
    assert consumer.appeared("u") == []
    consumer.baseline.forget()
    assert consumer.appeared("t") == []
    consumer.baseline.begin(["t"])
    consumer.take_metadata(t=2)
    assert consumer.appeared("t") == [], "it was there when the consumer subscribed again"


def test_topics_that_a_pattern_finds_later() -> None:
    consumer = Consumer()
    consumer.subscribe(pattern=True)
    consumer.take_metadata(orders=2)
    consumer.take_metadata(orders=3, bills=2)
    assert consumer.appeared("orders") == [2]
    assert consumer.appeared("bills") == [0, 1]
    assert consumer.baseline.appeared(tp("unheard")), "the leader of the group may know more topics"
    consumer.baseline.begin(["bills", "orders"], already=["orders", "bills"])
    consumer.take_metadata(orders=3, bills=2)
    assert (consumer.appeared("orders"), consumer.appeared("bills")) == ([2], [0, 1])


def test_a_response_to_an_earlier_request_does_not_list_the_topics_of_a_pattern() -> None:
    consumer = Consumer()
    consumer.cluster.want(["a"])
    consumer.now = 1.0
    assert consumer.cluster.request(consumer.now) is not None
    consumer.subscribe(pattern=True)
    consumer.answered([topic("a", 1)])
    assert not consumer.cluster.all_listed
    asked = consumer.cluster.request(consumer.now + 1)
    assert asked is not None, "not after metadata.max.age.ms"
    assert asked.topics is None
    consumer.answered([topic("a", 1), topic("b", 1)])
    assert (consumer.appeared("a"), consumer.appeared("b")) == ([], [])


def test_a_topic_that_was_created_again_is_read_from_its_first_record() -> None:
    consumer = Consumer()
    consumer.subscribe("t")
    consumer.take_metadata(t=1)
    consumer.assigned.assign([tp("t")])
    state = consumer.assigned[tp("t")]
    consumer.take_metadata(t=1)
    state.seek(100)
    consumer.take_metadata(t=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    consumer.hears_of([topic("t", 1)])
    assert state.phase is Phase.FETCHING, "it is the same topic"
    consumer.hears_of([topic("t", 1, SECOND)])
    assert (state.phase, state.reset_to) == (Phase.RESET, EARLIEST)
    assert consumer.appeared("t") == [0]


def test_as_in_java_a_position_stays_in_a_topic_that_was_created_again() -> None:
    for settings in ({"auto_offset_reset_new_partitions": "latest"}, {"auto_offset_reset": "none"}):
        consumer = Consumer(**settings)
        consumer.subscribe("t")
        consumer.take_metadata(t=1)
        consumer.assigned.assign([tp("t")])
        consumer.take_metadata(t=1)
        consumer.assigned[tp("t")].seek(100)
        consumer.hears_of([topic("t", 1, SECOND)])
        assert consumer.assigned[tp("t")].position == 100


@pytest.mark.parametrize(
    ("settings", "old", "new"),
    [
        ({}, LATEST, EARLIEST),
        ({"auto_offset_reset": "earliest"}, EARLIEST, EARLIEST),
        ({"auto_offset_reset_new_partitions": "latest"}, LATEST, LATEST),
        ({"auto_offset_reset": "none"}, None, None),
        ({"auto_offset_reset": "none", "auto_offset_reset_new_partitions": "earliest"}, None, EARLIEST),
        ({"auto_offset_reset_new_partitions": "none"}, LATEST, None),
    ],
)
def test_settings_determine_the_position(
    settings: dict[str, object], old: int | None, new: int | None
) -> None:
    consumer = Consumer(**settings)
    consumer.assigned.assign([tp("t")])
    state = consumer.assigned[tp("t")]
    for appeared, expected in ((False, old), (True, new)):
        if expected is None:
            with pytest.raises(NoOffsetForPartitionError, match=r"auto\.offset\.reset.* is none"):
                consumer.positions.reset([state], appeared=appeared)
        else:
            consumer.positions.reset([state], appeared=appeared)
            assert state.reset_to == expected


@pytest.mark.parametrize(
    ("partition", "committed", "expected"),
    [
        (2, [0, 1], True),
        (5, [1, 0], True),
        (0, [], False),  # the group begins
        (1, [0, 2], False),  # it knew of 2, and so of 1
        (3, [0, 2], False),  # it commits here and there
        (1, [0, 1], False),
    ],
)
def test_commits_record_the_partitions_that_the_group_knew(
    partition: int, committed: list[int], expected: bool
) -> None:
    assert unknown_to_group(partition, committed) is expected


def test_a_group_that_begins_commits_no_part_of_a_topic() -> None:
    """A partial commit would make the other partitions look as if they had been added."""
    consumer = Consumer()
    consumer.subscribe("t")
    consumer.take_metadata(t=2)
    consumer.assigned.assign([tp("t", 0), tp("t", 1)])
    first, second = consumer.assigned
    consumer.positions.reset([first, second])
    (asked,) = consumer.positions.poll(consumer.now)
    listed = m.ListOffsetsResponse.ListOffsetsPartitionResponse
    rows = [listed(partition_index=0, offset=7), listed(partition_index=1, error_code=5)]
    answer = m.ListOffsetsResponse.ListOffsetsTopicResponse(name="t", partitions=rows)
    consumer.positions.on_response(asked.tag, m.ListOffsetsResponse(topics=[answer]), consumer.now)
    assert (first.position, second.phase) == (7, Phase.RESET)
    assert consumer.assigned.consumed() == {}
    first.position = 8
    assert list(consumer.assigned.consumed()) == [tp("t", 0)], "a record was read"
    first.position = 7
    second.seek(3)
    assert len(consumer.assigned.consumed()) == 2
