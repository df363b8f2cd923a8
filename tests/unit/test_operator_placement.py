"""Reassignments keep replication factors and racks, move few replicas, and balance the load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla_operator.planning.observed import PartitionKey, PartitionState
from ottla_operator.planning.placement import Layout, Unplaceable, balance, batch, change_factor, drain

Assignment = dict[PartitionKey, tuple[int, ...]]


def applied(before: Assignment, changes: Mapping[PartitionKey, tuple[int, ...]]) -> Assignment:
    return {**before, **changes}


def load(assignment: Assignment, brokers: Sequence[int]) -> list[int]:
    counts = Counter(broker for replicas in assignment.values() for broker in replicas)
    return [counts[broker] for broker in brokers]


def moves(before: Assignment, after: Assignment) -> int:
    return sum(len(set(after[key]) - set(before[key])) for key in before)


def least_moves(before: Assignment, brokers: Sequence[int]) -> int:
    """The fewest moves after which loads differ by at most one and removed brokers are empty."""
    counts = load(before, brokers)
    total = sum(len(replicas) for replicas in before.values())
    share, extra = divmod(total, len(brokers))
    capacity = [share + 1] * extra + [share] * (len(brokers) - extra)
    kept = sum(min(has, room) for has, room in zip(sorted(counts, reverse=True), capacity, strict=True))
    return total - kept


@st.composite
def assignments(draw: st.DrawFn, size_max: int = 7) -> tuple[int, Assignment]:
    size = draw(st.integers(1, size_max))
    lists = draw(
        st.lists(
            st.lists(st.integers(0, size - 1), min_size=1, max_size=min(3, size), unique=True),
            min_size=1,
            max_size=24,
        )
    )
    topics = draw(st.lists(st.sampled_from("ab"), min_size=len(lists), max_size=len(lists)))
    return size, {(topics[i], i): tuple(replicas) for i, replicas in enumerate(lists)}


@settings(max_examples=200, deadline=None)
@given(assignments(), st.integers(0, 3))
def test_balance_is_even_with_the_fewest_moves_and_keeps_replication_factors(
    start: tuple[int, Assignment], added: int
) -> None:
    size, before = start
    brokers = list(range(size + added))
    after = applied(before, balance(before, dict.fromkeys(brokers)))
    for key, replicas in after.items():
        assert len(replicas) == len(before[key])
        assert len(set(replicas)) == len(replicas)
        assert set(replicas) <= set(brokers)
    counts = load(after, brokers)
    assert max(counts) - min(counts) <= 1
    assert moves(before, after) == least_moves(before, brokers)


@settings(max_examples=100, deadline=None)
@given(assignments(), st.integers(0, 3))
def test_balance_is_stable(start: tuple[int, Assignment], added: int) -> None:
    size, before = start
    brokers = dict.fromkeys(range(size + added))
    after = applied(before, balance(before, brokers))
    assert balance(after, brokers) == {}


@settings(max_examples=100, deadline=None)
@given(assignments(), st.integers(1, 2), st.integers(1, 5))
def test_balance_in_batches_terminates(start: tuple[int, Assignment], added: int, limit: int) -> None:
    size, assignment = start
    brokers = dict.fromkeys(range(size + added))
    for _ in range(200):
        changes = balance(assignment, brokers)
        if not changes:
            break
        assignment = applied(assignment, batch(changes, limit))
    else:
        raise AssertionError("it goes on for ever")


@settings(max_examples=100, deadline=None)
@given(assignments(), st.lists(st.sampled_from(["x", "y", "z"]), min_size=10, max_size=10), st.integers(0, 3))
def test_balance_never_reduces_the_racks_of_a_partition(
    start: tuple[int, Assignment], names: list[str], added: int
) -> None:
    size, before = start
    racks: dict[int, str | None] = {broker: names[broker] for broker in range(size + added)}
    after = applied(before, balance(before, racks))
    for key, replicas in before.items():
        assert len({racks[b] for b in after[key]}) >= len({racks[b] for b in replicas})
    counts_before, counts_after = load(before, list(racks)), load(after, list(racks))
    assert max(counts_after) - min(counts_after) <= max(1, max(counts_before) - min(counts_before))


@settings(max_examples=100, deadline=None)
@given(assignments(), st.integers(1, 6))
def test_a_drain_moves_only_replicas_on_the_leaving_brokers(start: tuple[int, Assignment], left: int) -> None:
    size, before = start
    staying = list(range(min(left, size)))
    widest = max(len(replicas) for replicas in before.values())
    if widest > len(staying):
        needs = any(set(r) - set(staying) for r in before.values() if len(r) > len(staying))
        if needs:
            with pytest.raises(Unplaceable):
                drain(before, dict.fromkeys(staying))
        return
    changes = drain(before, dict.fromkeys(staying))
    after = applied(before, changes)
    for key, replicas in after.items():
        assert set(replicas) <= set(staying)
        assert len(set(replicas)) == len(before[key])
        assert set(before[key]) & set(staying) <= set(replicas), "what may stay stays"
    assert all(set(before[key]) - set(staying) for key in changes)


def test_preferred_leaders_are_spread() -> None:
    before: Assignment = {("t", n): (0, 1, 2) for n in range(9)}
    after = applied(before, balance(before, dict.fromkeys(range(3))))
    assert Counter(replicas[0] for replicas in after.values()) == {0: 3, 1: 3, 2: 3}
    assert moves(before, after) == 0


def test_a_new_broker_gets_a_share_of_every_topic() -> None:
    before: Assignment = {(t, n): ((n % 3), (n + 1) % 3) for t in "abc" for n in range(6)}
    after = applied(before, balance(before, dict.fromkeys(range(4))))
    shares = Counter(topic for (topic, _), replicas in after.items() if 3 in replicas)
    assert shares == {"a": 3, "b": 3, "c": 3}


def test_a_closed_broker_keeps_its_replicas_and_gets_no_new_ones() -> None:
    before: Assignment = {("t", 0): (0, 1), ("t", 1): (0, 3)}
    after = applied(before, drain(before, {1: None, 2: None, 4: None, 3: None}, closed={3, 4}))
    assert after == {("t", 0): (2, 1), ("t", 1): (1, 3)} or after == {("t", 0): (2, 1), ("t", 1): (2, 3)}


def test_new_replicas_go_to_racks_that_have_none() -> None:
    racks = {0: "x", 1: "x", 2: "y", 3: "z"}
    layout = Layout({}, racks)
    placed = layout.place_new("t", 0, 4, 3)
    assert all({racks[b] for b in replicas} == {"x", "y", "z"} for replicas in placed)


def partition(number: int, replicas: tuple[int, ...], isr: tuple[int, ...]) -> PartitionState:
    return PartitionState("t", number, isr[0], replicas, isr)


def test_a_smaller_factor_removes_replicas_out_of_sync_first_and_keeps_the_leader() -> None:
    state = partition(0, (0, 1, 2), (0, 2))
    changes = change_factor([state], 2, {state.key: state.replicas}, dict.fromkeys(range(3)))
    assert changes == {("t", 0): (0, 2)}


def test_a_larger_factor_adds_replicas_on_the_least_loaded_brokers() -> None:
    state = partition(0, (0, 1), (0, 1))
    assignment: Assignment = {state.key: state.replicas, ("u", 0): (2, 0)}
    changes = change_factor([state], 3, assignment, dict.fromkeys(range(4)))
    assert changes == {("t", 0): (0, 1, 3)}


def test_a_factor_above_the_number_of_brokers_is_rejected() -> None:
    state = partition(0, (0, 1), (0, 1))
    with pytest.raises(Unplaceable, match="t-0 needs 3 replicas"):
        change_factor([state], 3, {state.key: state.replicas}, dict.fromkeys(range(2)))
