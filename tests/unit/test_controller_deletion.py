"""Topic deletion: it completes only when every replica has confirmed."""

from __future__ import annotations

from ottla.controller import broker_changes, topic_deletion
from ottla.controller.context import ControllerContext, TopicDeletion
from ottla.controller.effects import EPOCH_DURING_DELETE, Effects
from ottla.controller.requests import build_requests
from ottla.metadata import znodes
from ottla.metadata.cache import LEADER_DURING_DELETE
from ottla.metadata.znodes import TopicPartition
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import UpdateMetadataRequest
from tests.worlds.simulated_controller import T0, SimulatedController, broker

ALL = (True, EPOCH_DURING_DELETE)


def ask(simulation: SimulatedController) -> None:
    simulation.decide(lambda s, e: topic_deletion.request(s, e, ["t"]))


def confirm(
    simulation: SimulatedController,
    broker_id: int,
    error: ErrorCode = ErrorCode.NONE,
    tp: TopicPartition = T0,
) -> None:
    simulation.decide(lambda s, e: topic_deletion.replicas_stopped(s, e, broker_id, {tp: error}))


def test_a_deletion_stops_every_replica_and_ends_when_all_have_confirmed() -> None:
    simulation = SimulatedController()
    simulation.create({0: (1, 2)})
    ask(simulation)
    assert simulation.tree.find(znodes.delete_topic_path("t")) is not None, "a new controller would find it"
    assert simulation.stopped() == {1: ALL, 2: ALL}
    confirm(simulation, 1)
    assert simulation.effects.removed_topics == []
    assert simulation.stopped() == {}, "nobody is asked twice"
    confirm(simulation, 2)
    assert simulation.effects.removed_topics == ["t"]
    assert simulation.context.topics == {}
    assert simulation.context.leaders == {}


def test_brokers_are_sent_the_deletion_in_update_metadata() -> None:
    simulation = SimulatedController()
    simulation.create({0: (1, 2)})
    ask(simulation)
    for messages in build_requests(simulation.context, simulation.effects, "PLAINTEXT").values():
        (update,) = [m for m in messages if isinstance(m, UpdateMetadataRequest)]
        (state,) = update.topic_states[0].partition_states
        assert state.leader == LEADER_DURING_DELETE
        assert update.topic_states[0].topic_id == simulation.context.topics["t"].topic_id


def test_a_topic_with_a_replica_on_a_dead_broker_waits_for_it() -> None:
    simulation = SimulatedController()
    simulation.create({0: (1, 2)})
    simulation.alive(1, 3)
    ask(simulation)
    assert simulation.stopped() == {}
    assert not simulation.context.deletions["t"].announced
    simulation.alive(1, 2, 3)
    assert simulation.stopped() == {1: ALL, 2: ALL}
    assert T0 not in simulation.effects.leader_and_isr.get(2, {}), "it is not told to serve what is to go"


def test_a_broker_that_restarts_in_the_middle_is_asked_again() -> None:
    simulation = SimulatedController()
    simulation.create({0: (1, 2)})
    ask(simulation)
    confirm(simulation, 1)
    simulation.alive(1, 3)
    assert simulation.stopped() == {}
    simulation.alive(1, 2, 3)
    assert simulation.stopped() == {2: ALL}
    confirm(simulation, 2)
    assert simulation.effects.removed_topics == ["t"]


def test_a_broker_that_dies_after_confirming_is_not_waited_for() -> None:
    simulation = SimulatedController()
    simulation.create({0: (1, 2)})
    ask(simulation)
    confirm(simulation, 1)
    simulation.alive(2, 3)
    confirm(simulation, 2)
    assert simulation.effects.removed_topics == ["t"]


def test_a_failed_deletion_is_tried_again_later() -> None:
    simulation = SimulatedController()
    simulation.create({0: (1,)})
    ask(simulation)
    confirm(simulation, 1, ErrorCode.KAFKA_STORAGE_ERROR)
    assert simulation.stopped() == {}, "not at once"
    simulation.decide(lambda s, e: topic_deletion.retry(s, e, 1, [T0]))
    assert simulation.stopped() == {1: ALL}
    confirm(simulation, 1)
    assert simulation.effects.removed_topics == ["t"]


def test_a_topic_being_deleted_is_left_alone_by_elections() -> None:
    simulation = SimulatedController()
    simulation.create({0: (1, 2)})
    ask(simulation)
    before = simulation.lead()
    simulation.alive(2, 3)
    assert simulation.lead() == before


def test_a_new_controller_asks_all_brokers_again() -> None:
    simulation = SimulatedController()
    simulation.create({0: (1, 2)})
    ask(simulation)
    confirm(simulation, 1)

    context = ControllerContext(2, 8)
    context.brokers = {b: broker(b) for b in (1, 2, 3)}
    context.add_topic(simulation.context.topics["t"])
    context.leaders = dict(simulation.context.leaders)
    context.deletions["t"] = TopicDeletion()
    effects = Effects()
    broker_changes.on_elected(context, effects)
    assert {b: set(stops) for b, stops in effects.stop_replicas.items()} == {1: {T0}, 2: {T0}}
    assert effects.writes == []


def test_unknown_topics_and_repeated_requests_change_nothing() -> None:
    simulation = SimulatedController()
    simulation.create({0: (1, 2)})
    simulation.decide(lambda s, e: topic_deletion.request(s, e, ["none"]))
    assert simulation.effects.empty
    ask(simulation)
    ask(simulation)
    assert simulation.effects.empty
    simulation.decide(lambda s, e: topic_deletion.enqueue(s, e, ["t", "none"]))
    assert simulation.effects.empty
