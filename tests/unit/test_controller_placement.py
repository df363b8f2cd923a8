"""Replica placement: balanced over brokers and racks."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ottla.controller.placement import alternate_racks, place_replicas


def test_the_round_robin_is_kafkas() -> None:
    """Five brokers, ten partitions, three replicas: the example in Kafka's own description."""
    placed = place_replicas(dict.fromkeys(range(5)), 10, 3, start=0, shift=0)
    assert list(placed.values()) == [
        (0, 1, 2),
        (1, 2, 3),
        (2, 3, 4),
        (3, 4, 0),
        (4, 0, 1),
        (0, 2, 3),
        (1, 3, 4),
        (2, 4, 0),
        (3, 0, 1),
        (4, 1, 2),
    ]


def test_added_partitions_continue_the_topics_round_robin() -> None:
    brokers: dict[int, str | None] = dict.fromkeys(range(4))
    whole = place_replicas(brokers, 8, 2, start=1, shift=1)
    added = place_replicas(brokers, 2, 2, start=1, shift=1, first_partition=2)
    assert [replicas[0] for replicas in added.values()] == [whole[2][0], whole[3][0]]
    assert list(added) == [2, 3]


def test_the_order_of_brokers_alternates_their_racks() -> None:
    racks = {0: "a", 1: "b", 2: "c", 3: "a", 4: "b", 5: "a"}
    assert alternate_racks(racks) == [0, 1, 2, 3, 4, 5]
    assert alternate_racks({0: "a", 1: "a", 2: "b", 3: "b"}) == [0, 2, 1, 3]


def test_racks_count_only_when_every_broker_has_one() -> None:
    mixed: dict[int, str | None] = {0: "a", 1: None, 2: "a"}
    assert place_replicas(mixed, 3, 2, start=0, shift=0) == place_replicas(
        dict.fromkeys(range(3)), 3, 2, start=0, shift=0
    )


@given(
    brokers=st.integers(1, 12),
    rack_count=st.integers(0, 5),
    partitions=st.integers(1, 40),
    data=st.data(),
)
def test_replicas_are_distinct_balanced_and_on_as_many_racks_as_can_be(
    brokers: int, rack_count: int, partitions: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, brokers))
    start = data.draw(st.integers(0, brokers - 1))
    shift = data.draw(st.integers(0, brokers - 1))
    racks: dict[int, str | None] = {
        b: f"rack{b % rack_count}" if rack_count else None for b in range(brokers)
    }
    placed = place_replicas(racks, partitions, factor, start=start, shift=shift)
    assert sorted(placed) == list(range(partitions))
    for replicas in placed.values():
        assert len(set(replicas)) == len(replicas) == factor
        if rack_count:
            used = {racks[b] for b in replicas}
            assert len(used) == min(factor, len(set(racks.values())))
    leaders = Counter(replicas[0] for replicas in placed.values())
    assert max(leaders.values()) - min(leaders.get(b, 0) for b in range(brokers)) <= 1
