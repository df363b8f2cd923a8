"""Assignors make the assignments of Kafka 3.9.1 for the same groups; subscriptions and assignments survive
encoding."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.core.assignment import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from ottla.client.core.assignors import BY_NAME
from ottla.client.core.sticky import decode_share, encode_share
from ottla.client.core.types import TopicPartition
from ottla.protocol.errors import ProtocolError
from tests.assignor_cases import Case, scenario, shown

DECISIONS = Path(__file__).with_name("assignor_decisions.txt")
"""A line for each rebalance of the first stories: what `Assignors.java` printed with Kafka 3.9.1."""

places = st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 20))
subscriptions = st.builds(
    Subscription,
    topics=st.lists(st.sampled_from("abc"), unique=True).map(lambda names: tuple(sorted(names))),
    user_data=st.none() | st.binary(max_size=8),
    owned=st.lists(places, unique=True).map(lambda owned: tuple(sorted(owned))),
    generation=st.integers(-1, 2**31 - 1),
    rack=st.none() | st.text(max_size=3),
    instance_id=st.none(),
)


def test_assignments_equal_those_of_kafka() -> None:
    lines = DECISIONS.read_text().splitlines()
    seen: set[str] = set()
    cases: list[Case] = []
    for seed in range(50):
        cases += scenario(seed)
    assert len(lines) == len(cases)
    for case, line in zip(cases, lines, strict=True):
        seen.add(case.assignor)
        assert shown(case.decide()) == line, case.line()
    assert seen == set(BY_NAME)


@given(subscriptions)
def test_a_subscription_comes_back_from_its_bytes(subscription: Subscription) -> None:
    assert decode_subscription(encode_subscription(subscription)) == subscription


@given(st.lists(places, unique=True), st.integers(0, 100))
def test_assignments_come_back_from_their_bytes(share: list[TopicPartition], generation: int) -> None:
    assert decode_assignment(encode_assignment(share, b"u")) == (tuple(sorted(share)), b"u")
    assert decode_share(encode_share(share, generation)) == (tuple(sorted(share)), generation)


def test_bytes_that_are_not_a_subscription_are_refused() -> None:
    for data in (b"", b"\0", b"\0\1\0\0\0\5", b"\xff\xff\0\0\0\0"):
        with pytest.raises(ProtocolError):
            decode_subscription(data)


def test_a_partition_moves_between_cooperative_members_only_after_its_revocation() -> None:
    topic = {"t": (frozenset[str](),) * 4}
    everything = tuple(TopicPartition("t", n) for n in range(4))
    assignor = BY_NAME["cooperative-sticky"]()
    members = {"a": Subscription(("t",), owned=everything, generation=1), "b": Subscription(("t",))}
    first = assignor.assign(topic, members)
    assert len(first["a"]) == 2
    assert first["b"] == []
    members["a"] = members["a"]._replace(owned=tuple(first["a"]), generation=2)
    second = assignor.assign(topic, members)
    assert second["a"] == first["a"]
    assert sorted(second["a"] + second["b"]) == list(everything)
