"""The annotation `ottla.dev/reassign`: rebalances, and brokers that must stay empty."""

from __future__ import annotations

import json

import pytest

from ottla_operator.planning.reassign_requests import ReassignRequest, request_of
from ottla_operator.resources import BrokerClusterStatus
from ottla_operator.resources.cluster_status import ReassignRequestStatus
from tests.worlds.operator_simulation import OperatorSimulation


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
def test_requests_are_parsed_and_validated(text: str, problem: str) -> None:
    request = request_of({"ottla.dev/reassign": text}, range(3))
    assert request is not None
    assert problem in request.problem
    assert bool(problem) == bool(request.problem)


def test_an_empty_annotation_is_no_request() -> None:
    assert request_of({}, range(3)) is None
    assert request_of({"ottla.dev/reassign": " "}, range(3)) is None
    assert request_of({"ottla.dev/reassign": '{"id": "a", "empty": []}'}, range(3)) == ReassignRequest("a")


def cluster_status(sim: OperatorSimulation) -> BrokerClusterStatus:
    status = sim.status()
    assert isinstance(status, BrokerClusterStatus)
    return status


def asked(sim: OperatorSimulation) -> ReassignRequestStatus:
    request = cluster_status(sim).reassign_request
    assert request is not None
    return request


def phase(sim: OperatorSimulation) -> str:
    request = cluster_status(sim).reassign_request
    return request.phase if request is not None else ""


def loads(sim: OperatorSimulation) -> dict[int, int]:
    counts = dict.fromkeys(sim.cluster.brokers, 0)
    for topic in sim.cluster.topics.values():
        for partition in topic.partitions:
            for broker in partition.replicas:
                counts[broker] += 1
    return counts


def request_reassignment(
    sim: OperatorSimulation, *, replicas: int = 4, on_scale_up: bool = True, **request: object
) -> None:
    spec = {"replicas": replicas, "config": {}, "rebalance": {"onScaleUp": on_scale_up}}
    annotations = {"reassign": json.dumps(request)} if request else {}
    sim.apply("BrokerCluster", "demo", spec, **annotations)


def move_count(sim: OperatorSimulation) -> int:
    return sum(line.startswith("reassign") for line in sim.cluster.log)


@pytest.fixture
def sim() -> OperatorSimulation:
    """Four brokers; most replicas are on three of them."""
    sim = OperatorSimulation()
    request_reassignment(sim, on_scale_up=False)
    sim.reconcile_until_ready()
    sim.cluster.create_topic("lopsided", 8, 3, assignment={n: [0, 1, 2] for n in range(8)})
    sim.cluster.create_topic("tiny", 1, 1, assignment={0: [3]})
    sim.reconcile()
    return sim


def test_a_requested_rebalance_is_done_once_per_id(sim: OperatorSimulation) -> None:
    request_reassignment(sim, id="one")
    sim.reconcile_until(lambda: phase(sim) == "Moving")
    moving = cluster_status(sim).reassignment
    assert moving is not None
    assert moving.reason == "Rebalance"
    assert sim.condition("BrokerCluster/demo", "Scaling")[:2] == ("True", "Rebalance")
    sim.reconcile_until_ready()
    assert asked(sim).phase == "Completed"
    assert asked(sim).completed_at is not None
    assert max(loads(sim).values()) - min(loads(sim).values()) <= 1
    done = move_count(sim)
    sim.cluster.create_topic("more", 9, 3, assignment={n: [0, 1, 2] for n in range(9)})
    for _ in range(10):
        sim.reconcile()
    assert move_count(sim) == done, "what was asked for is done; new unevenness is no part of it"
    request_reassignment(sim, id="two")
    sim.reconcile_until_ready()
    assert asked(sim).id == "two"
    assert move_count(sim) > done


def test_emptied_brokers_stay_empty_while_the_annotation_exists(sim: OperatorSimulation) -> None:
    request_reassignment(sim, id="e", empty=[1])
    sim.reconcile_until(lambda: phase(sim) == "Moving")
    assert cluster_status(sim).brokers[1].waiting_for == "8 replicas to move off"
    sim.reconcile_until_ready()
    assert asked(sim).phase == "Completed"
    assert loads(sim)[1] == 0
    assert not sim.cluster.violations
    # Neither a new topic nor a scale-up places replicas there.
    sim.apply_topic("new", partitions=6)
    sim.reconcile_until_ready()
    assert loads(sim)[1] == 0
    request_reassignment(sim, replicas=5, id="e", empty=[1])
    sim.reconcile_until_ready()
    assert loads(sim)[1] == 0
    assert loads(sim)[4] > 0
    request_reassignment(sim, replicas=5)
    sim.reconcile_until_ready()
    assert loads(sim)[1] > 0
    assert cluster_status(sim).reassign_request is None


def test_replicas_created_on_an_emptied_broker_are_moved_off(sim: OperatorSimulation) -> None:
    request_reassignment(sim, id="e", empty=[3])
    sim.reconcile_until_ready()
    sim.cluster.create_topic("stray", 1, 2, assignment={0: [3, 0]})
    sim.reconcile()
    sim.reconcile_until_ready()
    assert loads(sim)[3] == 0


def test_a_dead_broker_can_be_emptied(sim: OperatorSimulation) -> None:
    sim.cluster.topics.pop("tiny")
    sim.cluster.broken_hashes.add(sim.cluster.brokers[2].launch.config_hash)
    sim.cluster.crash(2)
    request_reassignment(sim, id="e", empty=[2])
    sim.reconcile_until(lambda: phase(sim) == "Completed")
    assert loads(sim)[2] == 0


def test_a_request_without_enough_brokers_waits_with_a_reason(sim: OperatorSimulation) -> None:
    request_reassignment(sim, replicas=4, id="e", empty=[0, 1])
    sim.reconcile()
    sim.reconcile()
    status, reason, message = sim.condition("BrokerCluster/demo")
    assert (status, reason) == ("False", "EmptyBlocked")
    assert "3 replicas" in message
    assert asked(sim).phase == "Waiting"
    assert move_count(sim) == 0


def test_an_invalid_request_is_refused_without_steps(sim: OperatorSimulation) -> None:
    request_reassignment(sim, id="e", empty=[9])
    sim.reconcile()
    assert (asked(sim).phase, asked(sim).message) == ("Refused", "broker 9 does not exist")
    assert sim.condition("BrokerCluster/demo")[0] == "True"


def test_a_request_waits_for_a_roll(sim: OperatorSimulation) -> None:
    spec = {"replicas": 4, "config": {"queued.max.requests": 4}, "rebalance": {"onScaleUp": False}}
    sim.apply("BrokerCluster", "demo", spec, reassign='{"id": "r"}')
    sim.reconcile()
    assert asked(sim).message == "waiting for the rolling restart"
    sim.reconcile_until_ready()
    sim.reconcile_until(lambda: phase(sim) == "Completed")
    stops = [n for n, line in enumerate(sim.cluster.log) if line.startswith("stop")]
    moves = [n for n, line in enumerate(sim.cluster.log) if line.startswith("reassign")]
    assert max(stops) < min(moves)


def test_a_request_waits_for_a_scale_down(sim: OperatorSimulation) -> None:
    request_reassignment(sim, replicas=3, id="r")
    sim.reconcile()
    assert asked(sim).message == "waiting for the scale-down"
    sim.reconcile_until_ready()
    sim.reconcile_until(lambda: phase(sim) == "Completed")
    assert sorted(sim.cluster.brokers) == [0, 1, 2]
