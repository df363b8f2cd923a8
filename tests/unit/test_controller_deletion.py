"""Deleting topics: nothing is forgotten before every replica has confirmed."""

from __future__ import annotations

from simulated_controller import T0, SimulatedController, broker

from ottla.controller import broker_changes, topic_deletion
from ottla.controller.context import ControllerContext, TopicDeletion
from ottla.controller.effects import EPOCH_DURING_DELETE, Effects
from ottla.controller.requests import build_requests
from ottla.metadata import znodes
from ottla.metadata.cache import LEADER_DURING_DELETE
from ottla.metadata.znodes import TopicPartition
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import UpdateMetadataRequest

ALL = (True, EPOCH_DURING_DELETE)


def ask(world: SimulatedController) -> None:
    world.decide(lambda s, e: topic_deletion.request(s, e, ["t"]))


def confirm(
    world: SimulatedController, broker_id: int, error: ErrorCode = ErrorCode.NONE, tp: TopicPartition = T0
) -> None:
    world.decide(lambda s, e: topic_deletion.replicas_stopped(s, e, broker_id, {tp: error}))


def test_a_deletion_stops_every_replica_and_ends_when_all_have_confirmed() -> None:
    world = SimulatedController()
    world.create({0: (1, 2)})
    ask(world)
    assert world.tree.find(znodes.delete_topic_path("t")) is not None, "a new controller would find it"
    assert world.stopped() == {1: ALL, 2: ALL}
    confirm(world, 1)
    assert world.effects.removed_topics == []
    assert world.stopped() == {}, "nobody is asked twice"
    confirm(world, 2)
    assert world.effects.removed_topics == ["t"]
    assert world.context.topics == {}
    assert world.context.leaders == {}


def test_brokers_hear_that_the_topic_is_going() -> None:
    world = SimulatedController()
    world.create({0: (1, 2)})
    ask(world)
    for messages in build_requests(world.context, world.effects, "PLAINTEXT").values():
        (update,) = [m for m in messages if isinstance(m, UpdateMetadataRequest)]
        (state,) = update.topic_states[0].partition_states
        assert state.leader == LEADER_DURING_DELETE
        assert update.topic_states[0].topic_id == world.context.topics["t"].topic_id


def test_a_topic_with_a_replica_on_a_dead_broker_waits_for_it() -> None:
    world = SimulatedController()
    world.create({0: (1, 2)})
    world.alive(1, 3)
    ask(world)
    assert world.stopped() == {}
    assert not world.context.deletions["t"].announced
    world.alive(1, 2, 3)
    assert world.stopped() == {1: ALL, 2: ALL}
    assert T0 not in world.effects.leader_and_isr.get(2, {}), "it is not told to serve what is to go"


def test_a_broker_that_restarts_in_the_middle_is_asked_again() -> None:
    world = SimulatedController()
    world.create({0: (1, 2)})
    ask(world)
    confirm(world, 1)
    world.alive(1, 3)
    assert world.stopped() == {}
    world.alive(1, 2, 3)
    assert world.stopped() == {2: ALL}
    confirm(world, 2)
    assert world.effects.removed_topics == ["t"]


def test_a_broker_that_dies_after_confirming_is_not_waited_for() -> None:
    world = SimulatedController()
    world.create({0: (1, 2)})
    ask(world)
    confirm(world, 1)
    world.alive(2, 3)
    confirm(world, 2)
    assert world.effects.removed_topics == ["t"]


def test_a_failed_deletion_is_tried_again_later() -> None:
    world = SimulatedController()
    world.create({0: (1,)})
    ask(world)
    confirm(world, 1, ErrorCode.KAFKA_STORAGE_ERROR)
    assert world.stopped() == {}, "not at once"
    world.decide(lambda s, e: topic_deletion.retry(s, e, 1, [T0]))
    assert world.stopped() == {1: ALL}
    confirm(world, 1)
    assert world.effects.removed_topics == ["t"]


def test_a_topic_being_deleted_is_left_alone_by_elections() -> None:
    world = SimulatedController()
    world.create({0: (1, 2)})
    ask(world)
    before = world.lead()
    world.alive(2, 3)
    assert world.lead() == before


def test_a_new_controller_asks_everybody_again() -> None:
    world = SimulatedController()
    world.create({0: (1, 2)})
    ask(world)
    confirm(world, 1)

    context = ControllerContext(2, 8)
    context.brokers = {b: broker(b) for b in (1, 2, 3)}
    context.add_topic(world.context.topics["t"])
    context.leaders = dict(world.context.leaders)
    context.deletions["t"] = TopicDeletion()
    effects = Effects()
    broker_changes.on_elected(context, effects)
    assert {b: set(stops) for b, stops in effects.stop_replicas.items()} == {1: {T0}, 2: {T0}}
    assert effects.writes == []


def test_unknown_topics_and_repeated_requests_change_nothing() -> None:
    world = SimulatedController()
    world.create({0: (1, 2)})
    world.decide(lambda s, e: topic_deletion.request(s, e, ["none"]))
    assert world.effects.empty
    ask(world)
    ask(world)
    assert world.effects.empty
    world.decide(lambda s, e: topic_deletion.enqueue(s, e, ["t", "none"]))
    assert world.effects.empty
