"""What a mirrored topic is called, and that nothing goes round in circles."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla_pipeline.mirroring.target import (
    PATH_HEADER,
    NameRefused,
    ReplicationPolicy,
    forwarded_headers,
    path_of,
)

EAST_TO_WEST = ReplicationPolicy("east", "west")
PARTS = st.sampled_from(["east", "west", "north", "orders", "x-internal", "internal", "__x", "", "westward"])
TOPICS = st.lists(PARTS, min_size=1, max_size=5).map(".".join)


def test_a_topic_gets_the_alias_of_its_cluster_in_front() -> None:
    assert EAST_TO_WEST.target_topic("orders") == "east.orders"
    assert ReplicationPolicy("east", "west", separator="_").target_topic("orders") == "east_orders"
    assert ReplicationPolicy("east", "west", "identity").target_topic("orders") == "orders"


@pytest.mark.parametrize(
    "topic", ["west.orders", "north.west.orders", "west.north.orders", "__consumer_offsets"]
)
def test_topics_of_the_target_and_internal_topics_are_left_out(topic: str) -> None:
    assert EAST_TO_WEST.excludes(topic)
    with pytest.raises(NameRefused, match=re.escape(topic)):
        EAST_TO_WEST.check_named([topic])


@pytest.mark.parametrize("topic", ["orders", "west", "orders.west", "westward.orders", "north.orders"])
def test_other_topics_are_mirrored(topic: str) -> None:
    assert not EAST_TO_WEST.excludes(topic)
    EAST_TO_WEST.check_named([topic])


@given(TOPICS, st.sampled_from(["prefix", "identity"]), st.sampled_from([".", "_"]))
def test_the_pattern_for_the_source_leaves_out_the_same_topics(
    topic: str, policy: str, separator: str
) -> None:
    naming = ReplicationPolicy("east", "west", policy, separator)  # type: ignore[arg-type]
    for match in (re.fullmatch, re.search):  # whichever of the two Spark does
        assert (match(naming.source_pattern(".*"), topic) is None) == naming.excludes(topic)


def test_a_users_alternatives_stay_together() -> None:
    pattern = EAST_TO_WEST.source_pattern("orders|west.orders|flights")
    topics = ("orders", "flights", "west.orders", "xflights", "orders2")
    for match in (re.fullmatch, re.search):
        assert [topic for topic in topics if match(pattern, topic)] == ["orders", "flights"]


@given(st.permutations(["a", "b", "c"]), TOPICS)
def test_a_ring_of_clusters_comes_to_rest(ring: list[str], topic: str) -> None:
    """Each cluster mirrors all it has to the next; no topic passes the cluster it began in."""
    topic = f"t{topic}"  # of the first cluster's own
    hops = 0
    for place in range(10):
        naming = ReplicationPolicy(ring[place % 3], ring[(place + 1) % 3])
        if naming.excludes(topic):
            break
        topic = naming.target_topic(topic)
        hops += 1
    assert hops <= 2


def test_a_name_that_would_be_too_long_is_refused() -> None:
    with pytest.raises(NameRefused, match="250 characters"):
        EAST_TO_WEST.check_named(["x" * 245])


IDENTITY, BACK = ReplicationPolicy("east", "west", "identity"), ReplicationPolicy("west", "east", "identity")


def test_a_record_carries_its_path_and_is_not_sent_where_it_has_been() -> None:
    sent = forwarded_headers([("a", b"1"), ("a", None)], IDENTITY)
    assert sent == [("a", b"1"), ("a", None), (PATH_HEADER, b"east")]
    assert forwarded_headers(sent, BACK) is None
    further = forwarded_headers(sent, ReplicationPolicy("west", "north", "identity"))
    assert further is not None
    assert path_of(further) == ("east", "west")
    assert forwarded_headers(further, ReplicationPolicy("north", "east", "identity")) is None


def test_a_record_without_headers_gets_its_path() -> None:
    assert forwarded_headers(None, IDENTITY) == [(PATH_HEADER, b"east")]


@given(
    st.lists(st.tuples(st.sampled_from(["a", PATH_HEADER]), st.none() | st.binary(max_size=8)), max_size=4)
)
def test_other_headers_stay_in_order_whatever_the_path_says(headers: list[tuple[str, bytes | None]]) -> None:
    sent = forwarded_headers(headers, IDENTITY)
    if sent is not None:
        assert [h for h in sent if h[0] != PATH_HEADER] == [h for h in headers if h[0] != PATH_HEADER]
        assert "east" in path_of(sent)
