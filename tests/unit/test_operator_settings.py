"""Dynamic broker settings: altered in the cluster without a bounce, with ownership in the status."""

from __future__ import annotations

import pytest

from ottla_operator.planning.revision import target_revision
from ottla_operator.planning.steps import AlterBrokerSettings
from ottla_operator.platform.interfaces import StepFailed
from ottla_operator.resources import BrokerClusterStatus
from ottla_operator.resources.cluster import BrokerClusterSpec
from tests.worlds.operator_simulation import OperatorSimulation

STATIC = {"replica.fetch.max.bytes": "1048576"}


@pytest.fixture
def sim() -> OperatorSimulation:
    sim = OperatorSimulation()
    sim.apply_cluster(3, config={**STATIC, "log.retention.ms": "1000"})
    sim.apply_topic("orders")
    sim.reconcile_until_ready()
    sim.cluster.log.clear()
    return sim


def status(sim: OperatorSimulation) -> BrokerClusterStatus:
    found = sim.status()
    assert isinstance(found, BrokerClusterStatus)
    return found


def test_dynamic_settings_are_not_part_of_the_revision() -> None:
    config = {**STATIC, "log.segment.bytes": "2000", "num.io.threads": "9"}
    revision = target_revision(BrokerClusterSpec.model_validate({"replicas": 3, "config": config}))
    assert revision.live == {"log.segment.bytes": "2000"}
    assert revision.static == {**STATIC, "num.io.threads": "9"}
    other = target_revision(
        BrokerClusterSpec.model_validate({"replicas": 3, "config": {**config, "log.segment.bytes": "3000"}})
    )
    assert other.hash == revision.hash


def test_a_changed_dynamic_setting_is_altered_without_a_bounce(sim: OperatorSimulation) -> None:
    assert sim.cluster.settings == {"log.retention.ms": "1000"}
    sim.apply_cluster(3, config={**STATIC, "log.retention.ms": "2000", "message.max.bytes": "5000"})
    sim.reconcile_until_ready()
    assert sim.cluster.settings == {"log.retention.ms": "2000", "message.max.bytes": "5000"}
    assert sim.cluster.log == ["alter the brokers' settings: log.retention.ms=2000, message.max.bytes=5000"]


def test_a_removed_setting_is_reset_to_its_default(sim: OperatorSimulation) -> None:
    sim.apply_cluster(3, config=STATIC)
    sim.reconcile_until_ready()
    assert sim.cluster.settings == {}
    assert sim.cluster.log == ["alter the brokers' settings: log.retention.ms to default"]


def test_only_owned_settings_are_reverted_and_others_are_listed(
    sim: OperatorSimulation,
) -> None:
    others = {
        "leader.replication.throttled.rate": "1000",
        "message.max.bytes": "9000",
        "num.network.threads": "2",
        "some.plugin": None,
    }
    sim.cluster.settings.update(others, **{"log.retention.ms": "7"})
    sim.reconcile_until_ready()
    assert sim.cluster.settings == {"log.retention.ms": "1000", **others}
    assert sim.cluster.log == ["alter the brokers' settings: log.retention.ms=1000"]
    assert sim.reconcile() == []
    assert status(sim).managed_settings == ["log.retention.ms"]
    shown = {each.name: each.value for each in status(sim).unmanaged_settings}
    assert shown == others
    assert list(shown) == sorted(shown)


def test_a_setting_that_the_resource_no_longer_names_is_reset_once(sim: OperatorSimulation) -> None:
    sim.apply_cluster(3, config=STATIC)
    sim.reconcile_until_ready()
    assert sim.cluster.settings == {}
    assert status(sim).managed_settings == []
    sim.cluster.settings["log.retention.ms"] = "5"
    for _ in range(3):
        assert sim.reconcile() == []
    assert sim.cluster.settings == {"log.retention.ms": "5"}
    assert [each.name for each in status(sim).unmanaged_settings] == ["log.retention.ms"]


def test_a_setting_of_another_tool_is_owned_once_the_spec_names_it(
    sim: OperatorSimulation,
) -> None:
    sim.cluster.settings["message.max.bytes"] = "9000"
    sim.apply_cluster(3, config={**STATIC, "message.max.bytes": "9000"})
    sim.reconcile_until_ready()
    sim.reconcile()
    assert status(sim).managed_settings == ["message.max.bytes"]
    assert status(sim).unmanaged_settings == []
    sim.apply_cluster(3, config=STATIC)
    sim.reconcile_until_ready()
    assert sim.cluster.settings == {}


def test_ownership_is_recorded_in_the_status_before_a_setting_is_set() -> None:
    """An operator that is restarted with another spec resets the settings that it has set."""
    sim = OperatorSimulation()
    sim.apply_cluster(3, config=STATIC)
    sim.reconcile_until_ready()
    sim.apply_cluster(3, config={**STATIC, "log.retention.ms": "1000"})
    recorded: list[str] = []
    while "log.retention.ms" not in sim.cluster.settings:
        recorded = status(sim).managed_settings
        sim.reconcile()
    assert recorded == ["log.retention.ms"]


def test_a_paused_resource_takes_no_ownership(sim: OperatorSimulation) -> None:
    config = {**STATIC, "log.retention.ms": "1000"}
    spec = {"replicas": 3, "config": {**config, "message.max.bytes": "5000"}}
    sim.apply("BrokerCluster", "demo", spec, pause_reconciliation="true")
    sim.cluster.settings["message.max.bytes"] = "9000"
    sim.reconcile()
    sim.reconcile()
    sim.apply_cluster(3, config=config)
    sim.reconcile_until_ready()
    assert sim.cluster.settings == {"log.retention.ms": "1000", "message.max.bytes": "9000"}


def test_per_broker_settings_are_not_altered_cluster_wide() -> None:
    config = {"sasl.enabled.mechanisms": "PLAIN", "log.segment.bytes": "2000"}
    revision = target_revision(BrokerClusterSpec.model_validate({"replicas": 3, "config": config}))
    assert revision.live == {"log.segment.bytes": "2000"}


def test_lists_are_compared_without_blanks(sim: OperatorSimulation) -> None:
    config = {**STATIC, "log.retention.ms": "1000", "log.cleanup.policy": "compact, delete"}
    sim.apply_cluster(3, config=config)
    sim.reconcile_until_ready()
    sim.cluster.settings["log.cleanup.policy"] = "compact,delete"
    assert sim.reconcile() == []


def test_a_rejected_setting_is_a_condition_until_it_is_corrected(sim: OperatorSimulation) -> None:
    refusal = StepFailed("KafkaError", "INVALID_REQUEST: no")
    sim.cluster.step_failures[AlterBrokerSettings] = refusal
    sim.apply_cluster(3, config={**STATIC, "log.retention.ms": "3000"})
    sim.reconcile()
    assert sim.condition("BrokerCluster/demo") == ("False", "KafkaError", "INVALID_REQUEST: no")
    assert sim.condition("BrokerCluster/demo", "ConfigApplied")[:2] == ("False", "Applying")
    sim.cluster.step_failures.clear()
    sim.reconcile_until_ready()
    assert sim.cluster.settings == {"log.retention.ms": "3000"}


def test_the_cluster_is_ready_only_with_its_settings_applied(sim: OperatorSimulation) -> None:
    sim.apply_cluster(3, config={**STATIC, "log.retention.ms": "4000"})
    sim.reconcile()
    assert sim.condition("BrokerCluster/demo")[:2] == ("False", "Configuring")
    sim.reconcile()
    assert sim.condition("BrokerCluster/demo")[0] == "True"


def test_dynamic_settings_of_a_new_cluster_are_set_before_topics_are_created() -> None:
    sim = OperatorSimulation()
    sim.apply_cluster(3, config={"min.insync.replicas": "2"})
    sim.apply_topic("orders")
    sim.reconcile_until_ready()
    log = sim.cluster.log
    assert log.index("alter the brokers' settings: min.insync.replicas=2") < next(
        n for n, line in enumerate(log) if line.startswith("create topic")
    )
