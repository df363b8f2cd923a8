"""Reassignment of partitions (KIP-455), one test per kind."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ottla.controller import reassignment, topic_deletion
from ottla.controller.context import ReplicaAssignment
from ottla.metadata import znodes
from ottla.metadata.znodes import NO_LEADER, TopicPartition
from ottla.protocol.errors import ErrorCode, KafkaError
from tests.worlds.simulated_controller import T0, SimulatedController


def move(simulation: SimulatedController, target: Sequence[int] | None, tp: TopicPartition = T0) -> None:
    simulation.decide(lambda s, e: reassignment.alter(s, e, tp, target))


def assignment(simulation: SimulatedController) -> ReplicaAssignment:
    found = simulation.context.assignment(T0)
    assert found is not None
    return found


def test_a_reassignment_adds_replicas_waits_for_them_and_removes_the_old_ones() -> None:
    simulation = SimulatedController(brokers=(1, 2, 3, 4))
    simulation.create({0: (1, 2)})
    move(simulation, [3, 4])
    assert assignment(simulation) == ReplicaAssignment((3, 4, 1, 2), adding=(3, 4), removing=(1, 2))
    assert (simulation.lead().leader, simulation.lead().isr, simulation.lead().leader_epoch) == (1, (1, 2), 1)
    assert simulation.reported() == [1, 2, 3, 4]
    assert [simulation.effects.leader_and_isr[b][T0] for b in (1, 3, 4)] == [False, True, True]
    assert len(simulation.effects.writes) == 1, "assignment and leadership are one multi"

    simulation.ask_isr([1, 2, 3])
    assert assignment(simulation).is_being_reassigned, "one of the two is not enough"

    answer = simulation.ask_isr([1, 2, 3, 4]).topics[0].partitions[0]
    assert (answer.error_code, answer.isr) == (0, [1, 2, 3, 4])
    assert assignment(simulation) == ReplicaAssignment((3, 4))
    assert (simulation.lead().leader, simulation.lead().isr, simulation.lead().leader_epoch) == (3, (3, 4), 2)
    assert simulation.reported() == [3, 4]
    assert simulation.stopped() == {1: (True, 2), 2: (True, 2)}
    assert T0 in simulation.effects.metadata


def test_a_controller_that_takes_over_stops_the_removed_replicas_again() -> None:
    """One that lost ZooKeeper's answer resigned before it had sent StopReplica, and its successor knew of no
    reassignment: the removed broker kept its replica (found by the operator's simulation, seed 60)."""
    simulation = SimulatedController(brokers=(1, 2, 3, 4))
    simulation.create({0: (1, 2)})
    move(simulation, [3, 4])
    moving = assignment(simulation)
    simulation.ask_isr([1, 2, 3, 4])
    assert simulation.stopped() == {1: (True, 2), 2: (True, 2)}
    written = {op.path for group in simulation.effects.writes for op in group}
    assert written == {znodes.state_path(*T0)}
    assert [op.path for group in simulation.effects.last_writes for op in group] == [znodes.topic_path("t")]

    simulation.context.topics["t"].assignments[0] = moving  # as without the last write
    simulation.decide(reassignment.advance_all)
    assert simulation.stopped() == {1: (True, 3), 2: (True, 3)}
    assert assignment(simulation) == ReplicaAssignment((3, 4))


def test_a_leader_in_the_target_stays_leader() -> None:
    simulation = SimulatedController()
    simulation.create({0: (1, 2)})
    move(simulation, [3, 1])
    simulation.ask_isr([1, 2, 3])
    assert assignment(simulation) == ReplicaAssignment((3, 1))
    assert (simulation.lead().leader, simulation.lead().isr) == (1, (1, 3))
    assert simulation.stopped() == {2: (True, simulation.lead().leader_epoch)}


def test_fewer_replicas_take_effect_at_once() -> None:
    simulation = SimulatedController()
    simulation.create({0: (1, 2, 3)})
    move(simulation, [2])
    assert assignment(simulation) == ReplicaAssignment((2,))
    assert (simulation.lead().leader, simulation.lead().isr) == (2, (2,))
    assert sorted(simulation.stopped()) == [1, 3]


def test_more_replicas_wait_for_the_new_one() -> None:
    simulation = SimulatedController()
    simulation.create({0: (1,)})
    move(simulation, [1, 2])
    assert assignment(simulation) == ReplicaAssignment((1, 2), adding=(2,))
    simulation.ask_isr([1, 2])
    assert assignment(simulation) == ReplicaAssignment((1, 2))
    assert simulation.stopped() == {}


def test_another_order_of_the_same_replicas_changes_the_preferred_leader_only() -> None:
    simulation = SimulatedController()
    simulation.create({0: (1, 2, 3)})
    move(simulation, [3, 2, 1])
    assert assignment(simulation) == ReplicaAssignment((3, 2, 1))
    assert (simulation.lead().leader, set(simulation.lead().isr)) == (1, {1, 2, 3})
    assert simulation.stopped() == {}


def test_the_same_assignment_again_is_no_change() -> None:
    simulation = SimulatedController()
    simulation.create({0: (1, 2)})
    move(simulation, [1, 2])
    assert simulation.effects.empty
    move(simulation, [1, 3])
    move(simulation, [1, 3])
    assert simulation.effects.empty


def test_a_cancelled_reassignment_removes_its_adding_replicas() -> None:
    simulation = SimulatedController(brokers=(1, 2, 3, 4))
    simulation.create({0: (1, 2)})
    move(simulation, [3, 4])
    simulation.ask_isr([1, 2, 3])
    move(simulation, None)
    assert assignment(simulation) == ReplicaAssignment((1, 2))
    assert (simulation.lead().leader, simulation.lead().isr) == (1, (1, 2))
    assert simulation.stopped() == {b: (True, simulation.lead().leader_epoch) for b in (3, 4)}


def test_a_replaced_reassignment_starts_from_the_original_replicas() -> None:
    simulation = SimulatedController(brokers=(1, 2, 3, 4, 5))
    simulation.create({0: (1, 2)})
    move(simulation, [3, 4])
    simulation.ask_isr([1, 2, 3])
    move(simulation, [4, 5])
    assert assignment(simulation) == ReplicaAssignment((4, 5, 1, 2), adding=(4, 5), removing=(1, 2))
    assert set(simulation.lead().isr) == {1, 2}
    assert sorted(simulation.stopped()) == [3]
    assert [simulation.effects.leader_and_isr[b][T0] for b in (4, 5)] == [False, True]


@pytest.mark.parametrize("target", [None, [4, 5]], ids=["cancel", "replace"])
def test_a_change_without_an_in_sync_replica_is_refused(target: list[int] | None) -> None:
    simulation = SimulatedController(brokers=(1, 2, 3, 4, 5))
    simulation.create({0: (1, 2)})
    move(simulation, [3, 4])
    simulation.ask_isr([1, 2, 3])
    simulation.alive(3, 4, 5)
    assert simulation.lead().isr == (3,)
    before = (assignment(simulation), simulation.lead())
    with pytest.raises(KafkaError) as refused:
        move(simulation, target)
    assert refused.value.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert (assignment(simulation), simulation.lead()) == before


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
def test_invalid_reassignments_are_refused(
    tp: TopicPartition, target: list[int] | None, error: ErrorCode
) -> None:
    simulation = SimulatedController()
    simulation.create({0: (1, 2)})
    with pytest.raises(KafkaError) as refused:
        move(simulation, target, tp)
    assert refused.value.code == error


def test_a_reassignment_continues_when_its_target_returns() -> None:
    simulation = SimulatedController()
    simulation.create({0: (1, 2)})
    move(simulation, [1, 3])
    simulation.alive(1, 2)
    assert assignment(simulation).is_being_reassigned
    simulation.alive(1, 2, 3)
    assert 3 in simulation.reported()
    simulation.ask_isr([1, 2, 3])
    assert assignment(simulation) == ReplicaAssignment((1, 3))


def test_a_reassignment_off_a_dead_broker_completes() -> None:
    simulation = SimulatedController()
    simulation.create({0: (1, 2)})
    simulation.alive(2, 3)
    move(simulation, [2, 3])
    simulation.ask_isr([2, 3])
    assert assignment(simulation) == ReplicaAssignment((2, 3))
    assert simulation.stopped() == {}, "there is nobody to tell"


def test_a_reassignment_with_dead_in_sync_targets_waits_for_a_leader() -> None:
    simulation = SimulatedController()
    simulation.create({0: (1, 2)})
    move(simulation, [3])
    simulation.alive(3)
    assert simulation.lead().leader == NO_LEADER
    simulation.alive(1, 3)
    simulation.ask_isr([1, 3])
    assert assignment(simulation) == ReplicaAssignment((3,))
    assert simulation.lead().leader == 3


def test_a_topic_in_deletion_is_not_reassigned() -> None:
    simulation = SimulatedController()
    simulation.create({0: (1, 2)})
    simulation.decide(lambda s, e: topic_deletion.request(s, e, ["t"]))
    with pytest.raises(KafkaError) as refused:
        move(simulation, [3])
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
