"""Settings that brokers take while they run: altered in the cluster, and nobody is bounced for them."""

from __future__ import annotations

import pytest
from operator_cluster import World

from ottla_operator.planning.revision import target_revision
from ottla_operator.planning.steps import AlterBrokerSettings
from ottla_operator.platform.port import StepFailed
from ottla_operator.resources.cluster import BrokerClusterSpec

STATIC = {"replica.fetch.max.bytes": "1048576"}


@pytest.fixture
def world() -> World:
    world = World()
    world.brokers(3, config={**STATIC, "log.retention.ms": "1000"})
    world.topic("orders")
    world.settle()
    world.cluster.log.clear()
    return world


def test_what_brokers_take_while_they_run_is_not_part_of_what_they_are_started_with() -> None:
    config = {**STATIC, "log.segment.bytes": "2000", "num.io.threads": "9"}
    revision = target_revision(BrokerClusterSpec.model_validate({"replicas": 3, "config": config}))
    assert revision.live == {"log.segment.bytes": "2000"}
    assert revision.static == {**STATIC, "num.io.threads": "9"}
    other = target_revision(
        BrokerClusterSpec.model_validate({"replicas": 3, "config": {**config, "log.segment.bytes": "3000"}})
    )
    assert other.hash == revision.hash


def test_a_changed_one_reaches_the_cluster_and_no_broker_is_bounced(world: World) -> None:
    assert world.cluster.settings == {"log.retention.ms": "1000"}
    world.brokers(3, config={**STATIC, "log.retention.ms": "2000", "message.max.bytes": "5000"})
    world.settle()
    assert world.cluster.settings == {"log.retention.ms": "2000", "message.max.bytes": "5000"}
    assert world.cluster.log == ["alter the brokers' settings: log.retention.ms=2000, message.max.bytes=5000"]


def test_one_that_is_no_longer_wanted_goes_back_to_its_default(world: World) -> None:
    world.brokers(3, config=STATIC)
    world.settle()
    assert world.cluster.settings == {}
    assert world.cluster.log == ["alter the brokers' settings: log.retention.ms to default"]


def test_what_somebody_else_set_is_put_right_but_for_the_rates_of_throttled_replicas(world: World) -> None:
    throttle = {"leader.replication.throttled.rate": "1000", "some.plugin": "x"}
    world.cluster.settings.update(throttle, **{"log.retention.ms": "7", "num.network.threads": "2"})
    world.settle()
    assert world.cluster.settings == {"log.retention.ms": "1000", "num.network.threads": "2", **throttle}


def test_a_list_with_blanks_is_the_same_list(world: World) -> None:
    config = {**STATIC, "log.retention.ms": "1000", "log.cleanup.policy": "compact, delete"}
    world.brokers(3, config=config)
    world.settle()
    world.cluster.settings["log.cleanup.policy"] = "compact,delete"
    assert world.step() == []


def test_what_the_brokers_refuse_is_a_condition_until_it_is_mended(world: World) -> None:
    refusal = StepFailed("KafkaError", "INVALID_REQUEST: no")
    world.cluster.refuse[AlterBrokerSettings] = refusal
    world.brokers(3, config={**STATIC, "log.retention.ms": "3000"})
    world.step()
    assert world.condition("BrokerCluster/demo") == ("False", "KafkaError", "INVALID_REQUEST: no")
    assert world.condition("BrokerCluster/demo", "ConfigApplied")[:2] == ("False", "Applying")
    world.cluster.refuse.clear()
    world.settle()
    assert world.cluster.settings == {"log.retention.ms": "3000"}


def test_ready_waits_until_the_settings_are_there(world: World) -> None:
    world.brokers(3, config={**STATIC, "log.retention.ms": "4000"})
    world.step()
    assert world.condition("BrokerCluster/demo")[:2] == ("False", "Configuring")
    world.step()
    assert world.condition("BrokerCluster/demo")[0] == "True"


def test_a_new_cluster_has_its_settings_before_its_topics() -> None:
    world = World()
    world.brokers(3, config={"min.insync.replicas": "2"})
    world.topic("orders")
    world.settle()
    log = world.cluster.log
    assert log.index("alter the brokers' settings: min.insync.replicas=2") < next(
        n for n, line in enumerate(log) if line.startswith("create topic")
    )
