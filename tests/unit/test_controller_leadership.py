"""Leader elections when brokers fail and return."""

from __future__ import annotations

import pytest

from ottla.controller import broker_changes, leadership
from ottla.controller.context import RECOVERED, RECOVERING
from ottla.metadata.znodes import NO_LEADER, TopicPartition
from tests.worlds.simulated_controller import T0, SimulatedController


def test_a_new_partition_is_led_by_its_first_live_replica_with_all_live_ones_in_sync() -> None:
    simulation = SimulatedController(brokers=(2, 3))
    simulation.create({0: (1, 2, 3)})
    assert (simulation.lead().leader, simulation.lead().isr) == (2, (2, 3))
    assert (simulation.lead().leader_epoch, simulation.lead().partition_epoch) == (0, 0)
    assert simulation.reported() == [2, 3]
    assert all(simulation.effects.leader_and_isr[b][T0] for b in (2, 3)), "the replicas are new"


def test_a_new_partition_without_a_live_replica_waits_for_one() -> None:
    simulation = SimulatedController(brokers=(3,))
    simulation.create({0: (1, 2)})
    assert T0 not in simulation.context.leaders
    simulation.alive(2, 3)
    assert (simulation.lead().leader, simulation.lead().isr, simulation.lead().leader_epoch) == (2, (2,), 0)
    assert simulation.reported() == [2]


def test_when_a_leader_dies_the_next_in_sync_replica_in_assignment_order_leads() -> None:
    simulation = SimulatedController()
    simulation.create({0: (1, 2, 3)})
    simulation.ask_isr([1, 3])
    simulation.alive(2, 3)
    assert (simulation.lead().leader, simulation.lead().isr, simulation.lead().leader_epoch) == (3, (3,), 1)
    assert simulation.reported() == [2, 3], "the replica out of sync learns whom to follow"


def test_when_a_follower_dies_it_leaves_the_isr_under_a_new_leader_epoch() -> None:
    simulation = SimulatedController()
    simulation.create({0: (1, 2, 3)})
    simulation.alive(1, 2)
    assert (simulation.lead().leader, simulation.lead().isr, simulation.lead().leader_epoch) == (1, (1, 2), 1)
    assert simulation.reported() == [1, 2]


def test_a_partition_whose_isr_is_dead_has_no_leader_and_keeps_its_isr() -> None:
    simulation = SimulatedController()
    simulation.create({0: (1, 2, 3)})
    simulation.ask_isr([1])
    simulation.alive(2, 3)
    assert (simulation.lead().leader, simulation.lead().isr, simulation.lead().leader_epoch) == (
        NO_LEADER,
        (1,),
        1,
    )
    simulation.alive(3)
    assert simulation.lead().leader_epoch == 1, "nothing changes while nobody may lead"
    simulation.alive(1, 3)
    assert (simulation.lead().leader, simulation.lead().isr, simulation.lead().leader_epoch) == (1, (1,), 2)


def test_the_first_replica_of_a_dead_isr_to_return_leads() -> None:
    simulation = SimulatedController()
    simulation.create({0: (1, 2, 3)})
    simulation.ask_isr([1, 2])
    simulation.alive(3)
    assert (simulation.lead().leader, simulation.lead().isr) == (NO_LEADER, (1, 2))
    simulation.alive(2, 3)
    assert (simulation.lead().leader, simulation.lead().isr) == (2, (2,))


def test_an_unclean_election_needs_permission_and_marks_the_partition_recovering() -> None:
    simulation = SimulatedController()
    simulation.create({0: (1, 2, 3)})
    simulation.ask_isr([1])
    simulation.context.unclean_topics = {"t"}
    simulation.alive(2, 3)
    assert (simulation.lead().leader, simulation.lead().isr, simulation.lead().recovery) == (
        2,
        (2,),
        RECOVERING,
    )
    response = simulation.ask_isr([2, 3])
    assert response.topics[0].partitions[0].error_code == 0
    assert (simulation.lead().isr, simulation.lead().recovery) == ((2, 3), RECOVERED)


def test_a_clean_leader_is_preferred_where_unclean_election_is_allowed() -> None:
    simulation = SimulatedController()
    simulation.create({0: (1, 2, 3)})
    simulation.ask_isr([1, 3])
    simulation.context.unclean_topics = {"t"}
    simulation.alive(2, 3)
    assert (simulation.lead().leader, simulation.lead().recovery) == (3, RECOVERED)


def test_only_topics_with_no_live_in_sync_replica_need_their_settings_looked_up() -> None:
    simulation = SimulatedController()
    simulation.create({0: (1, 2)})
    assert leadership.topics_without_live_isr(simulation.context) == set()
    simulation.ask_isr([1])
    simulation.alive(2, 3)
    assert leadership.topics_without_live_isr(simulation.context) == {"t"}


def test_a_new_broker_is_sent_all_its_replicas() -> None:
    simulation = SimulatedController()
    simulation.create({0: (1, 2), 1: (2, 3), 2: (1, 3)})
    simulation.alive(2, 3)
    simulation.alive(1, 2, 3)
    assert simulation.effects.full_metadata == {1}
    assert simulation.effects.full_leader_and_isr == {1}
    assert set(simulation.effects.leader_and_isr[1]) == {T0, TopicPartition("t", 2)}
    assert simulation.effects.brokers_changed


def test_a_broker_that_restarted_unnoticed_has_left_its_isrs() -> None:
    simulation = SimulatedController()
    simulation.create({0: (1, 2, 3), 1: (2, 1, 3), 2: (1,)})
    simulation.alive(1, 2, 3, bounced=[1])
    led, followed, alone = (simulation.lead(TopicPartition("t", p)) for p in range(3))
    assert (led.leader, led.isr, led.leader_epoch) == (2, (2, 3), 1)
    assert (followed.leader, followed.isr, followed.leader_epoch) == (2, (2, 3), 1)
    assert (alone.leader, alone.isr, alone.leader_epoch) == (1, (1,), 1)
    assert simulation.effects.full_leader_and_isr == {1}


@pytest.mark.parametrize(
    ("isr", "alive", "leads"),
    [
        ([1, 2, 3], (1, 2, 3), True),
        ([2, 3], (1, 2, 3), False),
        ([2, 3], (2, 3), False),
    ],
)
def test_the_preferred_replica_is_elected_if_alive_and_in_sync(
    isr: list[int], alive: tuple[int, ...], leads: bool
) -> None:
    simulation = SimulatedController()
    simulation.create({0: (1, 2, 3)})
    simulation.alive(2, 3)
    simulation.alive(1, 2, 3)
    assert simulation.lead().leader == 2
    simulation.ask_isr(isr)
    simulation.alive(*alive)
    assert simulation.decide(lambda s, e: leadership.elect_preferred(s, e, T0)) is leads
    assert simulation.lead().leader == (1 if leads else 2)
    assert set(simulation.lead().isr) == set(isr)


def test_preferred_leaders_are_elected_only_beyond_the_allowed_imbalance() -> None:
    simulation = SimulatedController()
    simulation.create(dict.fromkeys(range(10), (1, 2, 3)))
    away = TopicPartition("t", 4)

    def move(partition: TopicPartition) -> None:
        simulation.decide(lambda s, e: leadership.change(s, e, partition, 2, s.leaders[partition].isr))

    move(away)
    assert leadership.imbalanced(simulation.context, 10) == [], "one of ten is 10 %, no more"
    move(TopicPartition("t", 7))
    assert leadership.imbalanced(simulation.context, 10) == [away, TopicPartition("t", 7)]
    simulation.decide(lambda s, e: broker_changes.controlled_shutdown(s, e, 1))
    assert leadership.imbalanced(simulation.context, 10) == [], "not to a broker that is about to go"


def test_controlled_shutdown_moves_leaders_and_shrinks_isrs_before_the_broker_goes() -> None:
    simulation = SimulatedController()
    simulation.create({0: (1, 2, 3), 1: (2, 1, 3), 2: (1,), 3: (1, 2)})
    only = TopicPartition("t", 3)
    simulation.ask_isr([1], tp=only)
    remaining = simulation.decide(lambda s, e: broker_changes.controlled_shutdown(s, e, 1))
    assert remaining == [only], "nobody else is in sync there"
    led, followed = simulation.lead(T0), simulation.lead(TopicPartition("t", 1))
    assert (led.leader, led.isr) == (2, (2, 3))
    assert (followed.leader, followed.isr) == (2, (2, 3))
    assert simulation.stopped(TopicPartition("t", 1)) == {1: (False, followed.leader_epoch)}
    assert simulation.reported(T0) == [1, 2, 3], "the old leader hears that it follows now"
    assert simulation.lead(TopicPartition("t", 2)).leader == 1, "a single replica is served to the end"
    simulation.ask_isr([1, 2], tp=only)
    assert simulation.decide(lambda s, e: broker_changes.controlled_shutdown(s, e, 1)) == []
    assert simulation.lead(only).leader == 2
    epochs = {tp: lead.leader_epoch for tp, lead in simulation.context.leaders.items()}
    simulation.alive(2, 3)
    changed = {
        tp.partition for tp, lead in simulation.context.leaders.items() if lead.leader_epoch != epochs[tp]
    }
    assert changed == {2}, "its going is no event for the partitions that it had left"


def test_a_broker_in_controlled_shutdown_leads_only_if_no_other_replica_is_in_sync() -> None:
    simulation = SimulatedController()
    simulation.create({0: (1, 2, 3), 1: (1, 2, 3)})
    alone = TopicPartition("t", 1)
    simulation.ask_isr([1, 2], tp=alone)
    simulation.context.shutting_down = {2}
    simulation.alive(2, 3)
    assert (simulation.lead(T0).leader, simulation.lead(T0).isr) == (3, (3,))
    assert (simulation.lead(alone).leader, simulation.lead(alone).isr) == (2, (2,))
