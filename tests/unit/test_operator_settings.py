"""Dynamic broker settings: altered in the cluster without a bounce, with ownership in the status."""

from __future__ import annotations

import pytest

from ottla.metadata.broker_config_table import BROKER_CONFIGS
from ottla.metadata.config import BrokerConfig
from ottla.metadata.config_def import ConfigType
from ottla.metadata.dynamic_broker_config import THREAD_COUNTS, ConfigRejected, DynamicBrokerConfig
from ottla_operator.planning.revision import target_revision
from ottla_operator.planning.steps import AlterBrokerSettings
from ottla_operator.platform.interfaces import StepFailed
from ottla_operator.resources import BrokerClusterStatus
from ottla_operator.resources.cluster import BrokerClusterSpec
from ottla_operator.resources.settings import is_live_setting, next_value
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
    config = {**STATIC, "log.segment.bytes": "2000", "num.io.threads": "9", "queued.max.requests": "9"}
    revision = target_revision(BrokerClusterSpec.model_validate({"replicas": 3, "config": config}))
    assert revision.live == {"log.segment.bytes": "2000", "num.io.threads": "9"}
    assert revision.static == {**STATIC, "queued.max.requests": "9"}
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


def test_limits_of_a_listener_are_altered_without_a_bounce(sim: OperatorSimulation) -> None:
    listener = {"name": "outer-one", "port": 9094}
    limits = {"maxConnections": 100, "maxConnectionCreationRate": 7}
    sim.apply_cluster(3, config=STATIC, listeners=[{**listener, "configuration": limits}])
    sim.reconcile_until_ready()
    assert sim.cluster.settings == {
        "listener.name.outer_one.max.connections": "100",
        "listener.name.outer_one.max.connection.creation.rate": "7",
    }
    sim.apply_cluster(3, config=STATIC, listeners=[listener])
    sim.reconcile_until_ready()
    assert sim.cluster.settings == {}
    assert not any(entry.startswith("stop") for entry in sim.cluster.log)


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


def verdict(name: str, value: str) -> str:
    """What brokers answer to the setting for all of them."""
    try:
        DynamicBrokerConfig(BrokerConfig.from_properties({"broker.id": "0"})).check(
            {name: value}, per_broker=False
        )
    except ConfigRejected as refusal:
        return str(refusal)
    return ""


_VALUES = {ConfigType.STRING: "x", ConfigType.CLASS: "x", ConfigType.PASSWORD: "x"}


def test_the_settings_that_need_no_restart_are_those_that_brokers_take_for_all_of_them() -> None:
    names = dict(BROKER_CONFIGS.keys)
    of_listeners = {f"listener.name.plain.{name}": key for name, key in names.items()}
    live = set()
    for name, key in {**names, **of_listeners}.items():
        default = key.default
        value = _VALUES.get(key.type, "1") if default is None else str(default)
        accepted = not verdict(name, value)
        assert is_live_setting(name) == accepted, name
        live |= {name} if accepted else set()
    assert live >= {*THREAD_COUNTS, "message.max.bytes", "log.retention.ms", "metric.reporters"}
    assert live >= {"listener.name.plain.max.connections", "listener.name.plain.num.network.threads"}
    assert not live & {"queued.max.requests", "log.retention.hours", "sasl.enabled.mechanisms", "listeners"}


@pytest.mark.parametrize("name", [*sorted(THREAD_COUNTS), "listener.name.plain.num.network.threads"])
@pytest.mark.parametrize(
    ("file", "wanted"), [(None, "100"), (None, "1"), ("50", "3"), ("2", "2"), ("7", None)]
)
def test_brokers_accept_each_step_of_a_thread_count(name: str, file: str | None, wanted: str | None) -> None:
    of_file = {} if file is None else {name: file}
    listener = {"broker.id": "0", "listeners": "PLAIN://:1", "inter.broker.listener.name": "PLAIN"}
    protocols = {"listener.security.protocol.map": "PLAIN:PLAINTEXT"}
    broker = DynamicBrokerConfig(BrokerConfig.from_properties({**listener, **protocols, **of_file}))
    stored: dict[str, str] = {} if wanted is not None else {name: "90"}
    broker.on_entity_changed("<default>", stored)
    for _ in range(10):
        value = next_value(name, wanted, stored, of_file)
        stored = {} if value is None else {name: value}
        broker.check(stored, per_broker=False)
        broker.on_entity_changed("<default>", stored)
        if value == wanted:
            return
    raise AssertionError(stored)


def test_thread_counts_change_in_steps_without_a_bounce(sim: OperatorSimulation) -> None:
    def altered(config: dict[str, str]) -> list[str]:
        sim.cluster.log.clear()
        sim.apply_cluster(3, config=config)
        sim.reconcile_until_ready()
        assert not [line for line in sim.cluster.log if not line.startswith("alter")]
        return [line.removeprefix("alter the brokers' settings: num.io.threads") for line in sim.cluster.log]

    config = {**STATIC, "log.retention.ms": "1000"}
    assert altered({**config, "num.io.threads": "100"}) == ["=16", "=32", "=64", "=100"]
    assert status(sim).managed_settings == ["log.retention.ms", "num.io.threads"]
    assert altered(config) == ["=50", "=25", "=12", " to default"]
    assert status(sim).managed_settings == ["log.retention.ms"]


def test_a_thread_count_that_another_tool_has_damaged_is_set(sim: OperatorSimulation) -> None:
    sim.cluster.settings["num.io.threads"] = "many"
    sim.apply_cluster(3, config={**STATIC, "log.retention.ms": "1000", "num.io.threads": "9"})
    sim.reconcile_until_ready()
    assert sim.cluster.settings["num.io.threads"] == "9"


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
