"""`spec.topicDefaults` of a BrokerCluster: what holds for Topics that do not say it themselves."""

from __future__ import annotations

import pytest

from ottla_operator.resources.loading import parse_resource
from tests.worlds.operator_simulation import OperatorSimulation

REFERENCE = {"clusterRef": {"name": "demo"}}


def defaults(sim: OperatorSimulation, **topic_defaults: object) -> None:
    sim.apply_cluster(3, topicDefaults=topic_defaults)


@pytest.fixture
def sim() -> OperatorSimulation:
    """A topic with defaults of the cluster, and one that says all itself."""
    sim = OperatorSimulation()
    defaults(sim, partitions=6, replicas=2, config={"retention.ms": 1000, "segment.ms": 500})
    sim.apply("Topic", "plain", REFERENCE)
    sim.apply_topic("own", partitions=4, replicas=3, config={"retention.ms": 7})
    sim.reconcile_until_ready()
    assert not sim.cluster.violations
    return sim


def factors(sim: OperatorSimulation, topic: str) -> set[int]:
    return {len(partition.replicas) for partition in sim.cluster.topics[topic].partitions}


def test_a_topic_gets_what_its_spec_does_not_say(sim: OperatorSimulation) -> None:
    plain, own = sim.cluster.topics["plain"], sim.cluster.topics["own"]
    assert (len(plain.partitions), factors(sim, "plain")) == (6, {2})
    assert plain.config == {"retention.ms": "1000", "segment.ms": "500"}
    assert (len(own.partitions), factors(sim, "own")) == (4, {3})
    assert own.config == {"retention.ms": "7", "segment.ms": "500"}


def test_a_change_of_the_defaults_is_applied_as_if_it_were_in_the_topic(sim: OperatorSimulation) -> None:
    defaults(sim, partitions=8, replicas=3, config={"retention.ms": 2000})
    sim.reconcile_until_ready()
    plain = sim.cluster.topics["plain"]
    assert (len(plain.partitions), factors(sim, "plain")) == (8, {3})
    assert plain.config == {"retention.ms": "2000"}, "segment.ms is reset"
    assert len(sim.cluster.topics["own"].partitions) == 4


def test_a_topic_keeps_more_partitions_than_the_default_with_a_warning(sim: OperatorSimulation) -> None:
    defaults(sim, partitions=2)
    sim.reconcile_until_ready()
    assert len(sim.cluster.topics["plain"].partitions) == 6
    assert sim.store.stored["Topic/plain"].status.warnings == [
        "the cluster's topicDefaults.partitions is 2, and the topic keeps its 6"
    ]
    assert sim.store.stored["Topic/own"].status.warnings == []


def test_without_defaults_settings_are_reset_and_the_rest_stays(sim: OperatorSimulation) -> None:
    sim.apply_cluster(3)
    sim.reconcile_until_ready()
    plain = sim.cluster.topics["plain"]
    assert (len(plain.partitions), factors(sim, "plain"), plain.config) == (6, {2}, {})


@pytest.mark.parametrize(
    ("default", "own", "left"),
    [
        (None, None, False),
        ("Retain", None, True),
        ("Retain", "Delete", False),
        ("Delete", "Retain", True),
        ("Delete", None, False),
    ],
)
def test_the_reclaim_policy_of_a_topic_comes_before_that_of_the_cluster(
    default: str | None, own: str | None, left: bool
) -> None:
    sim = OperatorSimulation()
    defaults(sim, **({"reclaimPolicy": default} if default else {}))
    sim.apply("Topic", "orders", {**REFERENCE, **({"reclaimPolicy": own} if own else {})})
    sim.reconcile_until_ready()
    sim.store.delete("Topic/orders")
    sim.reconcile_until(lambda: "Topic/orders" not in sim.store.stored)
    assert ("orders" in sim.cluster.topics) is left


def test_an_existing_topic_that_differs_from_the_defaults_is_not_taken_over() -> None:
    sim = OperatorSimulation()
    defaults(sim, config={"retention.ms": 1000})
    sim.reconcile_until_ready()
    sim.cluster.create_topic("legacy", 2, 2)
    sim.apply("Topic", "legacy", REFERENCE)
    sim.reconcile()
    assert sim.condition("Topic/legacy")[:2] == ("False", "ResourceConflict")
    assert sim.cluster.topics["legacy"].config == {}


def test_an_invalid_setting_in_the_defaults_is_refused_by_name() -> None:
    spec = {"replicas": 3, "topicDefaults": {"config": {"retention.ms": "long"}}}
    resource, problems = parse_resource("BrokerCluster", {"name": "demo"}, spec)
    assert resource is None
    assert [problem.path for problem in problems] == ["spec.topicDefaults.config[retention.ms]"]


def test_more_default_replicas_than_brokers_are_a_warning() -> None:
    spec = {"replicas": 1, "topicDefaults": {"replicas": 3}}
    resource, _ = parse_resource("BrokerCluster", {"name": "demo"}, spec)
    assert resource is not None
    assert "spec.topicDefaults.replicas: 3 is more than spec.replicas, which is 1" in list(resource.notes())
