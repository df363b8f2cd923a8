"""Moving partitions (KIP-455): a story per kind of move."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from simulated_controller import T0, SimulatedController

from ottla.controller import reassignment, topic_deletion
from ottla.controller.context import ReplicaAssignment
from ottla.metadata.znodes import NO_LEADER, TopicPartition
from ottla.protocol.errors import ErrorCode, KafkaError


def move(world: SimulatedController, target: Sequence[int] | None, tp: TopicPartition = T0) -> None:
    world.decide(lambda s, e: reassignment.alter(s, e, tp, target))


def assignment(world: SimulatedController) -> ReplicaAssignment:
    found = world.context.assignment(T0)
    assert found is not None
    return found


def test_a_move_adds_replicas_waits_for_them_then_drops_the_old_ones() -> None:
    world = SimulatedController(brokers=(1, 2, 3, 4))
    world.create({0: (1, 2)})
    move(world, [3, 4])
    assert assignment(world) == ReplicaAssignment((3, 4, 1, 2), adding=(3, 4), removing=(1, 2))
    assert (world.lead().leader, world.lead().isr, world.lead().leader_epoch) == (1, (1, 2), 1)
    assert world.told() == [1, 2, 3, 4]
    assert [world.effects.leader_and_isr[b][T0] for b in (1, 3, 4)] == [False, True, True]
    assert len(world.effects.writes) == 1, "assignment and leadership are one multi"

    world.ask_isr([1, 2, 3])
    assert assignment(world).is_being_reassigned, "one of the two is not enough"

    answer = world.ask_isr([1, 2, 3, 4]).topics[0].partitions[0]
    assert (answer.error_code, answer.isr) == (0, [1, 2, 3, 4])
    assert assignment(world) == ReplicaAssignment((3, 4))
    assert (world.lead().leader, world.lead().isr, world.lead().leader_epoch) == (3, (3, 4), 2)
    assert world.told() == [3, 4]
    assert world.stopped() == {1: (True, 2), 2: (True, 2)}
    assert T0 in world.effects.metadata


def test_a_leader_that_stays_keeps_leading() -> None:
    world = SimulatedController()
    world.create({0: (1, 2)})
    move(world, [3, 1])
    world.ask_isr([1, 2, 3])
    assert assignment(world) == ReplicaAssignment((3, 1))
    assert (world.lead().leader, world.lead().isr) == (1, (1, 3))
    assert world.stopped() == {2: (True, world.lead().leader_epoch)}


def test_fewer_replicas_take_effect_at_once() -> None:
    world = SimulatedController()
    world.create({0: (1, 2, 3)})
    move(world, [2])
    assert assignment(world) == ReplicaAssignment((2,))
    assert (world.lead().leader, world.lead().isr) == (2, (2,))
    assert sorted(world.stopped()) == [1, 3]


def test_more_replicas_wait_for_the_new_one() -> None:
    world = SimulatedController()
    world.create({0: (1,)})
    move(world, [1, 2])
    assert assignment(world) == ReplicaAssignment((1, 2), adding=(2,))
    world.ask_isr([1, 2])
    assert assignment(world) == ReplicaAssignment((1, 2))
    assert world.stopped() == {}


def test_another_order_of_the_same_replicas_changes_the_preferred_leader_only() -> None:
    world = SimulatedController()
    world.create({0: (1, 2, 3)})
    move(world, [3, 2, 1])
    assert assignment(world) == ReplicaAssignment((3, 2, 1))
    assert (world.lead().leader, set(world.lead().isr)) == (1, {1, 2, 3})
    assert world.stopped() == {}


def test_the_same_assignment_again_is_no_change() -> None:
    world = SimulatedController()
    world.create({0: (1, 2)})
    move(world, [1, 2])
    assert world.effects.empty
    move(world, [1, 3])
    move(world, [1, 3])
    assert world.effects.empty


def test_a_cancelled_move_drops_what_it_had_added() -> None:
    world = SimulatedController(brokers=(1, 2, 3, 4))
    world.create({0: (1, 2)})
    move(world, [3, 4])
    world.ask_isr([1, 2, 3])
    move(world, None)
    assert assignment(world) == ReplicaAssignment((1, 2))
    assert (world.lead().leader, world.lead().isr) == (1, (1, 2))
    assert world.stopped() == {b: (True, world.lead().leader_epoch) for b in (3, 4)}


def test_a_move_replaced_by_another_starts_from_the_original_replicas() -> None:
    world = SimulatedController(brokers=(1, 2, 3, 4, 5))
    world.create({0: (1, 2)})
    move(world, [3, 4])
    world.ask_isr([1, 2, 3])
    move(world, [4, 5])
    assert assignment(world) == ReplicaAssignment((4, 5, 1, 2), adding=(4, 5), removing=(1, 2))
    assert set(world.lead().isr) == {1, 2}
    assert sorted(world.stopped()) == [3]
    assert [world.effects.leader_and_isr[b][T0] for b in (4, 5)] == [False, True]


@pytest.mark.parametrize("target", [None, [4, 5]], ids=["cancel", "replace"])
def test_a_change_that_leaves_nobody_in_sync_is_refused(target: list[int] | None) -> None:
    world = SimulatedController(brokers=(1, 2, 3, 4, 5))
    world.create({0: (1, 2)})
    move(world, [3, 4])
    world.ask_isr([1, 2, 3])
    world.alive(3, 4, 5)
    assert world.lead().isr == (3,)
    before = (assignment(world), world.lead())
    with pytest.raises(KafkaError) as refused:
        move(world, target)
    assert refused.value.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert (assignment(world), world.lead()) == before


@pytest.mark.parametrize(
    ("tp", "target", "error"),
    [
        (TopicPartition("none", 0), [1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TopicPartition("t", 9), [1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (T0, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (T0, [1, 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (T0, [1, -1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (T0, [1, 9], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (T0, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
    ],
)
def test_what_cannot_be_is_refused(tp: TopicPartition, target: list[int] | None, error: ErrorCode) -> None:
    world = SimulatedController()
    world.create({0: (1, 2)})
    with pytest.raises(KafkaError) as refused:
        move(world, target, tp)
    assert refused.value.code == error


def test_a_move_goes_on_when_its_target_comes_back() -> None:
    world = SimulatedController()
    world.create({0: (1, 2)})
    move(world, [1, 3])
    world.alive(1, 2)
    assert assignment(world).is_being_reassigned
    world.alive(1, 2, 3)
    assert 3 in world.told()
    world.ask_isr([1, 2, 3])
    assert assignment(world) == ReplicaAssignment((1, 3))


def test_a_move_off_a_dead_broker_ends_without_it() -> None:
    world = SimulatedController()
    world.create({0: (1, 2)})
    world.alive(2, 3)
    move(world, [2, 3])
    world.ask_isr([2, 3])
    assert assignment(world) == ReplicaAssignment((2, 3))
    assert world.stopped() == {}, "there is nobody to tell"


def test_a_move_whose_targets_are_in_sync_but_gone_waits_for_one_to_lead() -> None:
    world = SimulatedController()
    world.create({0: (1, 2)})
    move(world, [3])
    world.alive(3)
    assert world.lead().leader == NO_LEADER
    world.alive(1, 3)
    world.ask_isr([1, 3])
    assert assignment(world) == ReplicaAssignment((3,))
    assert world.lead().leader == 3


def test_a_topic_being_deleted_is_not_moved() -> None:
    world = SimulatedController()
    world.create({0: (1, 2)})
    world.decide(lambda s, e: topic_deletion.request(s, e, ["t"]))
    with pytest.raises(KafkaError) as refused:
        move(world, [3])
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
