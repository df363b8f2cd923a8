"""The invariant "coordinator state": what a coordinator may know beside what its log says."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import pytest

from ottla.coordinators.group import Group, GroupState, Member
from ottla.coordinators.offsets import CommittedOffset
from ottla.coordinators.records import GroupRecordKey
from ottla.simulation.cluster import Cluster, Violation
from ottla.simulation.coordinator_invariants import LOOKS, CoordinatorInvariants, _Led

KEY = GroupRecordKey("g")


@pytest.fixture
def invariants() -> Iterator[CoordinatorInvariants]:
    cluster = Cluster(1)
    yield CoordinatorInvariants(cluster)
    cluster.loop.close()


def group(generation: int, *members: str, since_ms: int = 0) -> Group:
    """A member "static-2" is the second one with the instance id "static"."""
    found = Group("g", GroupState.STABLE if members else GroupState.EMPTY, since_ms)
    found.generation = generation
    for member_id in members:
        instance_id, _, restarts = member_id.partition("-")
        member = Member(
            member_id, instance_id if restarts else None, "", "", 1, 1, (("range", b""),), b"assigned"
        )
        found.add(member, "consumer")
    return found


def log(*values: Group | None, loaded: int) -> _Led:
    """The log of a group, of which the first records were loaded."""
    led = _Led(started_at=loaded)
    for offset, value in enumerate(values):
        led.add(KEY, offset, offset, value)
    return led


def look(
    invariants: CoordinatorInvariants, led: _Led, known: Group | None, *, high_watermark: int = 10
) -> None:
    for _ in range(LOOKS):
        invariants._check_groups("there", led, {} if known is None else {"g": known}, high_watermark)


def refuse(invariants: CoordinatorInvariants, led: _Led, known: Group | None) -> None:
    with pytest.raises(Violation, match="coordinator state"):
        look(invariants, led, known)


def test_the_last_generation_is_known(invariants: CoordinatorInvariants) -> None:
    led = log(group(1, "a"), group(2, "b"), loaded=2)
    look(invariants, led, group(2, "b"))
    for known in (None, group(1, "a"), group(2, "a")):
        refuse(invariants, led, known)


def test_a_state_that_was_known_is_not_forgotten(invariants: CoordinatorInvariants) -> None:
    led = log(group(1, "a"), group(2, "a"), loaded=1)
    look(invariants, led, group(1, "a"))
    look(invariants, led, group(2, "a"))
    refuse(invariants, led, group(1, "a"))


def test_the_new_id_of_a_static_member_is_taken_back_if_its_write_fails(
    invariants: CoordinatorInvariants,
) -> None:
    led = log(group(1, "x-1", "y-1"), group(1, "x-2", "y-1"), group(1, "x-2", "y-2"), loaded=1)
    known = group(1, "x-2", "y-1")
    known.awaiting_join["x-2"] = object()
    look(invariants, led, known)
    look(invariants, led, group(1, "x-1", "y-2"))


def test_a_static_member_that_restarts_twice_within_a_write_has_its_first_id_again(
    invariants: CoordinatorInvariants,
) -> None:
    """The second write fails first: the member has the id of the first one, which fails, too."""
    led = log(group(1, "x-1"), group(1, "x-2"), loaded=1)
    look(invariants, led, group(1, "x-2"), high_watermark=1)
    look(invariants, led, group(1, "x-1"), high_watermark=1)


def test_no_commit_is_pending_in_a_transaction_that_has_ended(invariants: CoordinatorInvariants) -> None:
    led, known = log(group(1, "a"), loaded=1), group(1, "a")
    known.offsets.begin_transactional(7, {("t", 0): CommittedOffset(5)})
    look(invariants, led, known)
    led.markers[7] = 3
    look(invariants, led, known, high_watermark=3)
    refuse(invariants, led, known)


def test_a_static_member_keeps_its_id(invariants: CoordinatorInvariants) -> None:
    led = log(group(1, "x-1"), group(1, "x-2"), loaded=1)
    look(invariants, led, group(1, "x-2"))
    refuse(invariants, led, group(1, "x-1"))
    refuse(invariants, log(group(1, "x-1"), group(1, "x-2"), loaded=2), group(1, "x-1"))
    refuse(invariants, log(group(1, "x-1"), loaded=1), group(1, "x-2"))


def test_a_group_after_a_tombstone_is_another_one(invariants: CoordinatorInvariants) -> None:
    removed = group(2, since_ms=100)
    led = log(removed, None, loaded=2)
    look(invariants, led, None)
    look(invariants, led, Group("g", now_ms=500))
    look(invariants, led, group(2, since_ms=500))
    refuse(invariants, led, deepcopy(removed))
