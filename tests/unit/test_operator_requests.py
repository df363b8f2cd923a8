"""`ottla.dev/reassign`: asked for once, done once; brokers that are emptied stay empty as long as asked."""

from __future__ import annotations

import json

import pytest
from operator_cluster import World

from ottla_operator.planning.reassign_requests import ReassignRequest, request_of
from ottla_operator.resources import BrokerClusterStatus
from ottla_operator.resources.cluster import ReassignRequestStatus


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"id": "1"}', ""),
        ('{"id": "1", "empty": [2]}', ""),
        ("rebalance", "is not JSON"),
        ("[1]", "allowed fields"),
        ('{"id": "1", "brokers": [1]}', "allowed fields"),
        ('{"empty": [1]}', '"id" must be'),
        ('{"id": 7}', '"id" must be'),
        ('{"id": "1", "empty": 2}', "must be a list"),
        ('{"id": "1", "empty": ["2"]}', "must be a list"),
        ('{"id": "1", "empty": [true]}', "must be a list"),
        ('{"id": "1", "empty": [5]}', "broker 5 does not exist"),
        ('{"id": "1", "empty": [0, 1, 2]}', "at least one broker must be left"),
    ],
)
def test_what_may_be_asked(text: str, problem: str) -> None:
    request = request_of({"ottla.dev/reassign": text}, 3)
    assert request is not None
    assert problem in request.problem
    assert bool(problem) == bool(request.problem)


def test_nothing_is_asked_by_an_empty_annotation() -> None:
    assert request_of({}, 3) is None
    assert request_of({"ottla.dev/reassign": " "}, 3) is None
    assert request_of({"ottla.dev/reassign": '{"id": "a", "empty": []}'}, 3) == ReassignRequest("a")


def cluster_status(world: World) -> BrokerClusterStatus:
    status = world.status()
    assert isinstance(status, BrokerClusterStatus)
    return status


def asked(world: World) -> ReassignRequestStatus:
    request = cluster_status(world).reassign_request
    assert request is not None
    return request


def phase(world: World) -> str:
    request = cluster_status(world).reassign_request
    return request.phase if request is not None else ""


def loads(world: World) -> dict[int, int]:
    counts = dict.fromkeys(world.cluster.brokers, 0)
    for topic in world.cluster.topics.values():
        for partition in topic.partitions:
            for broker in partition.replicas:
                counts[broker] += 1
    return counts


def ask(world: World, *, replicas: int = 4, on_scale_up: bool = True, **request: object) -> None:
    spec = {"replicas": replicas, "config": {}, "rebalance": {"onScaleUp": on_scale_up}}
    annotations = {"reassign": json.dumps(request)} if request else {}
    world.apply("BrokerCluster", "demo", spec, **annotations)


def move_count(world: World) -> int:
    return sum(line.startswith("reassign") for line in world.cluster.log)


@pytest.fixture
def world() -> World:
    """Four brokers; the topics are on three of them, a little on the fourth."""
    world = World()
    ask(world, on_scale_up=False)
    world.settle()
    world.cluster.create_topic("lopsided", 8, 3, assignment={n: [0, 1, 2] for n in range(8)})
    world.cluster.create_topic("tiny", 1, 1, assignment={0: [3]})
    world.step()
    return world


def test_a_rebalance_makes_all_brokers_even_once(world: World) -> None:
    ask(world, id="one")
    world.until(lambda: phase(world) == "Moving")
    moving = cluster_status(world).reassignment
    assert moving is not None
    assert moving.reason == "Rebalance"
    assert world.condition("BrokerCluster/demo", "Scaling")[:2] == ("True", "Rebalance")
    world.settle()
    assert asked(world).phase == "Completed"
    assert asked(world).completed_at is not None
    assert max(loads(world).values()) - min(loads(world).values()) <= 1
    done = move_count(world)
    world.cluster.create_topic("more", 9, 3, assignment={n: [0, 1, 2] for n in range(9)})
    for _ in range(10):
        world.step()
    assert move_count(world) == done, "what was asked for is done; new unevenness is no part of it"
    ask(world, id="two")
    world.settle()
    assert asked(world).id == "two"
    assert move_count(world) > done


def test_brokers_are_emptied_and_stay_so_until_the_annotation_goes(world: World) -> None:
    ask(world, id="e", empty=[1])
    world.until(lambda: phase(world) == "Moving")
    assert cluster_status(world).brokers[1].waiting_for == "8 replicas to move off"
    world.settle()
    assert asked(world).phase == "Completed"
    assert loads(world)[1] == 0
    assert not world.cluster.violations
    # Neither a new topic nor scaling up brings anything there.
    world.topic("new", partitions=6)
    world.settle()
    assert loads(world)[1] == 0
    ask(world, replicas=5, id="e", empty=[1])
    world.settle()
    assert loads(world)[1] == 0
    assert loads(world)[4] > 0
    ask(world, replicas=5)
    world.settle()
    assert loads(world)[1] > 0
    assert cluster_status(world).reassign_request is None


def test_what_strays_onto_an_emptied_broker_is_moved_off(world: World) -> None:
    ask(world, id="e", empty=[3])
    world.settle()
    world.cluster.create_topic("stray", 1, 2, assignment={0: [3, 0]})
    world.step()
    world.settle()
    assert loads(world)[3] == 0


def test_a_dead_broker_can_be_emptied(world: World) -> None:
    world.cluster.topics.pop("tiny")
    world.cluster.broken_hashes.add(world.cluster.brokers[2].launch.config_hash)
    world.cluster.crash(2)
    ask(world, id="e", empty=[2])
    world.until(lambda: phase(world) == "Completed")
    assert loads(world)[2] == 0


def test_what_cannot_be_placed_is_said_and_not_begun(world: World) -> None:
    ask(world, replicas=4, id="e", empty=[0, 1])
    world.step()
    world.step()
    status, reason, message = world.condition("BrokerCluster/demo")
    assert (status, reason) == ("False", "EmptyBlocked")
    assert "3 replicas" in message
    assert asked(world).phase == "Waiting"
    assert move_count(world) == 0


def test_what_makes_no_sense_is_refused_and_hurts_nothing(world: World) -> None:
    ask(world, id="e", empty=[9])
    world.step()
    assert (asked(world).phase, asked(world).message) == ("Refused", "broker 9 does not exist")
    assert world.condition("BrokerCluster/demo")[0] == "True"


def test_a_request_waits_for_a_roll(world: World) -> None:
    spec = {"replicas": 4, "config": {"num.io.threads": 4}, "rebalance": {"onScaleUp": False}}
    world.apply("BrokerCluster", "demo", spec, reassign='{"id": "r"}')
    world.step()
    assert asked(world).message == "waiting for the rolling restart"
    world.settle()
    world.until(lambda: phase(world) == "Completed")
    stops = [n for n, line in enumerate(world.cluster.log) if line.startswith("stop")]
    moves = [n for n, line in enumerate(world.cluster.log) if line.startswith("reassign")]
    assert max(stops) < min(moves)


def test_a_request_waits_for_brokers_that_leave(world: World) -> None:
    ask(world, replicas=3, id="r")
    world.step()
    assert asked(world).message == "waiting for the scale-down"
    world.settle()
    world.until(lambda: phase(world) == "Completed")
    assert sorted(world.cluster.brokers) == [0, 1, 2]
