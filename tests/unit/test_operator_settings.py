"""Settings that brokers take while they run: altered in the cluster, and nobody is bounced for them."""

from __future__ import annotations

import pytest
from operator_cluster import World

from ottla_operator.planning.revision import target_revision
from ottla_operator.planning.steps import AlterBrokerSettings
from ottla_operator.platform.interfaces import StepFailed
from ottla_operator.resources import BrokerClusterStatus
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


def status(world: World) -> BrokerClusterStatus:
    found = world.status()
    assert isinstance(found, BrokerClusterStatus)
    return found


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


def test_what_the_resource_names_is_set_back_and_what_other_tools_set_stays_and_is_shown(
    world: World,
) -> None:
    others = {
        "leader.replication.throttled.rate": "1000",
        "message.max.bytes": "9000",
        "num.network.threads": "2",
        "some.plugin": None,
    }
    world.cluster.settings.update(others, **{"log.retention.ms": "7"})
    world.settle()
    assert world.cluster.settings == {"log.retention.ms": "1000", **others}
    assert world.cluster.log == ["alter the brokers' settings: log.retention.ms=1000"]
    assert world.step() == []
    assert status(world).managed_settings == ["log.retention.ms"]
    shown = {each.name: each.value for each in status(world).unmanaged_settings}
    assert shown == others
    assert list(shown) == sorted(shown)


def test_one_that_the_resource_no_longer_names_is_reset_once(world: World) -> None:
    world.brokers(3, config=STATIC)
    world.settle()
    assert world.cluster.settings == {}
    assert status(world).managed_settings == []
    world.cluster.settings["log.retention.ms"] = "5"
    for _ in range(3):
        assert world.step() == []
    assert world.cluster.settings == {"log.retention.ms": "5"}
    assert [each.name for each in status(world).unmanaged_settings] == ["log.retention.ms"]


def test_one_that_another_tool_has_set_becomes_the_resources_when_it_names_it(world: World) -> None:
    world.cluster.settings["message.max.bytes"] = "9000"
    world.brokers(3, config={**STATIC, "message.max.bytes": "9000"})
    world.settle()
    world.step()
    assert status(world).managed_settings == ["message.max.bytes"]
    assert status(world).unmanaged_settings == []
    world.brokers(3, config=STATIC)
    world.settle()
    assert world.cluster.settings == {}


def test_nothing_is_set_before_the_status_says_that_it_is_the_resources() -> None:
    """An operator that is stopped in between, and finds another spec when it starts, resets what it set."""
    world = World()
    world.brokers(3, config=STATIC)
    world.settle()
    world.brokers(3, config={**STATIC, "log.retention.ms": "1000"})
    recorded: list[str] = []
    while "log.retention.ms" not in world.cluster.settings:
        recorded = status(world).managed_settings
        world.step()
    assert recorded == ["log.retention.ms"]


def test_a_paused_resource_takes_possession_of_nothing(world: World) -> None:
    config = {**STATIC, "log.retention.ms": "1000"}
    spec = {"replicas": 3, "config": {**config, "message.max.bytes": "5000"}}
    world.apply("BrokerCluster", "demo", spec, pause_reconciliation="true")
    world.cluster.settings["message.max.bytes"] = "9000"
    world.step()
    world.step()
    world.brokers(3, config=config)
    world.settle()
    assert world.cluster.settings == {"log.retention.ms": "1000", "message.max.bytes": "9000"}


def test_a_setting_of_single_brokers_is_no_setting_of_all() -> None:
    config = {"sasl.enabled.mechanisms": "PLAIN", "log.segment.bytes": "2000"}
    revision = target_revision(BrokerClusterSpec.model_validate({"replicas": 3, "config": config}))
    assert revision.live == {"log.segment.bytes": "2000"}


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
