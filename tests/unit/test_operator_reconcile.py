"""The reconciler over a simulated cluster, from creation through changes to deletion.

Each reconciliation has a new Reconciler, so the tests also cover a restart of the operator at any point.
"""

from __future__ import annotations

import pytest

from ottla_operator.planning.groups import query_of
from ottla_operator.planning.observed import GroupState
from ottla_operator.planning.steps import CreateTopic
from ottla_operator.platform.interfaces import StepFailed
from ottla_operator.resources import BrokerClusterStatus, ConsumerGroup, QuotaStatus, TopicStatus
from ottla_operator.resources.common import UnmanagedSetting
from tests.worlds.operator_simulation import OperatorSimulation, SimulatedCluster


def cluster_status(sim: OperatorSimulation) -> BrokerClusterStatus:
    status = sim.status()
    assert isinstance(status, BrokerClusterStatus)
    return status


def topic_status(sim: OperatorSimulation, name: str) -> TopicStatus:
    status = sim.status(f"Topic/{name}")
    assert isinstance(status, TopicStatus)
    return status


def replica_counts(sim: OperatorSimulation) -> dict[int, int]:
    counts: dict[int, int] = {}
    for topic in sim.cluster.topics.values():
        for partition in topic.partitions:
            for broker in partition.replicas:
                counts[broker] = counts.get(broker, 0) + 1
    return counts


@pytest.fixture
def sim() -> OperatorSimulation:
    """Three brokers and a topic, all Ready."""
    sim = OperatorSimulation()
    sim.apply_cluster(3, config={"replica.fetch.max.bytes": "1048576"})
    sim.apply_topic("orders", config={"min.insync.replicas": 2})
    sim.reconcile_until_ready()
    assert not sim.cluster.violations
    return sim


def test_zookeeper_starts_before_the_brokers_and_topics_are_created_last(sim: OperatorSimulation) -> None:
    starts = [line.split()[0:2] for line in sim.cluster.log]
    assert [s for s in starts if s[0] == "start"] == [["start", "0"], ["start", "1"], ["start", "2"]]
    assert sim.cluster.log[-1].startswith("create topic orders with 4 partitions of 3 replicas")
    assert topic_status(sim, "orders").topic_id
    assert cluster_status(sim).bootstrap_servers == "host:9092,host:9093,host:9094"


def test_a_converged_cluster_needs_no_steps(sim: OperatorSimulation) -> None:
    sim.reconcile(5_000)
    assert sim.reconcile() == []


def test_scaling_up_starts_the_broker_before_it_moves_replicas(
    sim: OperatorSimulation,
) -> None:
    sim.apply_cluster(4, config={"replica.fetch.max.bytes": "1048576"})
    sim.reconcile_until_ready()
    log = sim.cluster.log
    start = next(i for i, line in enumerate(log) if line.startswith("start 3"))
    move = next(i for i, line in enumerate(log) if line.startswith("reassign"))
    assert start < move
    assert replica_counts(sim) == {0: 3, 1: 3, 2: 3, 3: 3}
    assert cluster_status(sim).reassignment is None
    assert sim.condition("BrokerCluster/demo", "Scaling")[:2] == ("False", "NotScaling")


def test_a_rebalance_continues_in_batches_until_it_is_complete(sim: OperatorSimulation) -> None:
    sim.apply_topic("many", partitions=60)
    sim.reconcile_until_ready()
    sim.apply_cluster(4, config={"replica.fetch.max.bytes": "1048576"})
    sim.reconcile_until(lambda: cluster_status(sim).reassignment is not None)
    seen = []
    while cluster_status(sim).reassignment is not None:
        seen.append(cluster_status(sim).reassignment.moved)  # type: ignore[union-attr]
        sim.reconcile()
    assert seen == sorted(seen), "progress never goes back"
    assert len(set(seen)) > 1
    assert max(replica_counts(sim).values()) - min(replica_counts(sim).values()) <= 1


def test_without_on_scale_up_the_new_broker_stays_empty(sim: OperatorSimulation) -> None:
    sim.apply_cluster(4, config={"replica.fetch.max.bytes": "1048576"}, rebalance={"onScaleUp": False})
    sim.reconcile_until_ready()
    assert 3 not in replica_counts(sim)


def test_scaling_down_drains_the_last_broker_before_it_is_stopped(sim: OperatorSimulation) -> None:
    sim.apply_cluster(4, config={"replica.fetch.max.bytes": "1048576"})
    sim.reconcile_until_ready()
    sim.apply_cluster(3, config={"replica.fetch.max.bytes": "1048576"})
    sim.reconcile_until_ready()
    assert sorted(sim.cluster.brokers) == [0, 1, 2]
    assert replica_counts(sim) == {0: 4, 1: 4, 2: 4}
    assert not sim.cluster.violations
    assert sim.cluster.log[-2:] == ["stop 3", "remove 3"]


def test_a_replica_created_on_a_draining_broker_is_moved_before_the_stop(
    sim: OperatorSimulation,
) -> None:
    sim.apply_cluster(4, config={"replica.fetch.max.bytes": "1048576"})
    sim.reconcile_until_ready()
    sim.apply_cluster(3, config={"replica.fetch.max.bytes": "1048576"})
    sim.reconcile()
    sim.cluster.create_topic("stray", 2, 2, assignment={0: [3, 0], 1: [1, 3]})
    sim.reconcile_until_ready()
    assert 3 not in replica_counts(sim)
    assert not sim.cluster.violations


def test_new_topics_get_no_replicas_on_a_draining_broker(sim: OperatorSimulation) -> None:
    sim.apply_cluster(4, config={"replica.fetch.max.bytes": "1048576"})
    sim.reconcile_until_ready()
    sim.apply_cluster(3, config={"replica.fetch.max.bytes": "1048576"})
    sim.apply_topic("late", partitions=8)
    sim.reconcile()
    created = [p.replicas for p in sim.cluster.topics["late"].partitions]
    assert all(3 not in replicas for replicas in created)


def test_an_impossible_drain_is_blocked_with_the_reason(sim: OperatorSimulation) -> None:
    sim.apply_cluster(2, config={"replica.fetch.max.bytes": "1048576"})
    for _ in range(5):
        sim.reconcile()
    status, reason, message = sim.condition("BrokerCluster/demo", "Scaling")
    assert (status, reason) == ("False", "ScaleDownBlocked")
    assert "orders-0 needs 3 replicas; 2 brokers are available" in message
    assert sorted(sim.cluster.brokers) == [0, 1, 2]
    sim.apply_cluster(3, config={"replica.fetch.max.bytes": "1048576"})
    sim.reconcile_until_ready()


def test_scale_down_policy_block_names_the_brokers_with_replicas(sim: OperatorSimulation) -> None:
    sim.apply_cluster(2, config={"replica.fetch.max.bytes": "1048576"}, scaleDown={"policy": "Block"})
    sim.reconcile()
    assert "broker 2 holds 4 replicas" in sim.condition("BrokerCluster/demo", "Scaling")[2]
    assert not any(line.startswith(("stop", "reassign")) for line in sim.cluster.log)


def test_a_static_setting_rolls_the_brokers_one_by_one_the_controller_last(
    sim: OperatorSimulation,
) -> None:
    controller = sim.cluster.controller
    sim.apply_cluster(3, config={"replica.fetch.max.bytes": "2097152"})
    sim.reconcile()
    rollout = cluster_status(sim).rollout
    assert rollout is not None
    assert (rollout.updated, rollout.total) == (0, 3)
    reasons = {reason for broker in cluster_status(sim).brokers for reason in broker.restart_reasons}
    assert reasons == {"replica.fetch.max.bytes has changed"}
    sim.reconcile_until_ready()
    stops = [line for line in sim.cluster.log if line.startswith("stop")]
    assert stops[-1] == f"stop {controller}"
    assert sorted(stops) == ["stop 0", "stop 1", "stop 2"]
    assert sim.cluster.max_unavailable == 1
    assert not sim.cluster.violations
    hashes = {broker.launch.config_hash for broker in sim.cluster.brokers.values()}
    assert hashes == {rollout.target_hash}


def test_a_roll_ends_when_the_last_broker_is_in_all_isrs(sim: OperatorSimulation) -> None:
    sim.apply_cluster(3, config={"replica.fetch.max.bytes": "2097152"})
    sim.reconcile_until_ready()
    assert all(len(p.isr) == 3 for p in sim.cluster.topics["orders"].partitions)
    assert cluster_status(sim).rollout is None


def test_the_status_names_what_each_broker_waits_for(sim: OperatorSimulation) -> None:
    sim.apply_cluster(3, config={"replica.fetch.max.bytes": "2097152"})
    sim.reconcile()
    waiting = {b.id: b.waiting_for for b in cluster_status(sim).brokers}
    assert "controller" in waiting[0]
    assert "broker 1" in waiting[2]


def test_a_broken_setting_stalls_the_roll_and_reverting_it_recovers(
    sim: OperatorSimulation,
) -> None:
    before = sim.cluster.brokers[0].launch.config_hash
    sim.apply_cluster(3, config={"replica.fetch.max.bytes": "15"})
    sim.reconcile()
    rollout = cluster_status(sim).rollout
    assert rollout is not None
    sim.cluster.broken_hashes.add(rollout.target_hash)
    for _ in range(40):
        sim.reconcile()
    assert sim.condition("BrokerCluster/demo")[1] == "RollStalled"
    assert sim.condition("BrokerCluster/demo", "Available")[0] == "True"
    still = [b.id for b in sim.cluster.brokers.values() if b.launch.config_hash == before and b.up]
    assert len(still) == 2
    sim.apply_cluster(3, config={"replica.fetch.max.bytes": "1048576"})
    sim.reconcile_until_ready()
    assert {b.launch.config_hash for b in sim.cluster.brokers.values()} == {before}
    assert not sim.cluster.violations


def test_a_broker_that_crashes_during_a_roll_restarts_on_its_previous_revision(
    sim: OperatorSimulation,
) -> None:
    before = sim.cluster.brokers[0].launch.config_hash
    sim.apply_cluster(3, config={"replica.fetch.max.bytes": "2097152"})
    sim.reconcile()
    sim.cluster.crash(2)
    sim.reconcile()
    assert sim.cluster.log[-1] == f"start 2 {before}"
    sim.reconcile_until_ready()
    assert len({b.launch.config_hash for b in sim.cluster.brokers.values()}) == 1


def test_strategy_on_approval_waits_for_the_annotation(sim: OperatorSimulation) -> None:
    spec = {"rollingUpdate": {"strategy": "OnApproval"}}
    sim.apply_cluster(3, config={"replica.fetch.max.bytes": "2097152"}, **spec)
    for _ in range(5):
        sim.reconcile()
    rollout = cluster_status(sim).rollout
    assert rollout is not None
    assert rollout.updated == 0
    assert {b.waiting_for for b in cluster_status(sim).brokers} == {"approval of the rollout"}
    sim.apply(
        "BrokerCluster",
        "demo",
        {"replicas": 3, "config": {"replica.fetch.max.bytes": "2097152"}, **spec},
        approve_rollout=rollout.target_hash,
    )
    sim.reconcile_until_ready()


def test_a_crashed_broker_is_restarted_and_its_preferred_leaders_are_elected(sim: OperatorSimulation) -> None:
    victim = sim.cluster.topics["orders"].partitions[0].leader
    sim.cluster.crash(victim)
    sim.reconcile()
    assert sim.condition("BrokerCluster/demo")[1] == "BrokersNotReady"
    assert sim.condition("BrokerCluster/demo", "FullyReplicated")[0] == "False"
    sim.reconcile_until_ready()
    sim.reconcile_until(lambda: sim.cluster.topics["orders"].partitions[0].leader == victim)


def test_topic_settings_are_applied_and_changes_of_others_are_reverted(sim: OperatorSimulation) -> None:
    sim.apply_topic("orders", config={"min.insync.replicas": 2, "retention.ms": 60000})
    sim.reconcile_until_ready()
    assert sim.cluster.topics["orders"].config == {"min.insync.replicas": "2", "retention.ms": "60000"}
    sim.cluster.topics["orders"].config = {"retention.ms": "5"}
    sim.reconcile_until_ready()
    assert sim.cluster.topics["orders"].config == {"min.insync.replicas": "2", "retention.ms": "60000"}


def test_topic_settings_of_other_tools_are_kept_and_listed_in_the_status(
    sim: OperatorSimulation,
) -> None:
    sim.apply_topic("orders", config={"retention.ms": 60000, "segment.ms": 20})
    sim.reconcile_until_ready()
    config = sim.cluster.topics["orders"].config
    throttle = {"leader.replication.throttled.replicas": "0:1"}
    config.update({"max.message.bytes": "5000", **throttle})
    for _ in range(3):
        assert sim.reconcile() == []
    assert topic_status(sim, "orders").managed_settings == ["retention.ms", "segment.ms"]
    assert topic_status(sim, "orders").unmanaged_settings == [
        UnmanagedSetting(name="max.message.bytes", value="5000")
    ]
    sim.apply_topic("orders", config={"retention.ms": 60000})
    sim.reconcile_until_ready()
    assert config == {"retention.ms": "60000", "max.message.bytes": "5000", **throttle}
    assert topic_status(sim, "orders").managed_settings == ["retention.ms"]
    config["segment.ms"] = "30"
    assert sim.reconcile() == [], "it is no longer the resource's"
    sim.apply_topic("orders", config={"retention.ms": 60000, "max.message.bytes": 6000})
    sim.reconcile_until_ready()
    assert config["max.message.bytes"] == "6000"
    assert topic_status(sim, "orders").unmanaged_settings == [UnmanagedSetting(name="segment.ms", value="30")]


def test_partitions_are_increased_and_never_decreased(sim: OperatorSimulation) -> None:
    sim.apply_topic("orders", partitions=6, config={"min.insync.replicas": 2})
    sim.reconcile_until_ready()
    assert topic_status(sim, "orders").partitions == 6
    sim.apply_topic("orders", partitions=5, config={"min.insync.replicas": 2})
    sim.reconcile()
    assert sim.condition("Topic/orders")[:2] == ("False", "NotSupported")
    assert len(sim.cluster.topics["orders"].partitions) == 6


def test_the_replication_factor_changes_by_reassignment(sim: OperatorSimulation) -> None:
    sim.apply_topic("orders", replicas=2)
    sim.reconcile()
    assert sim.condition("Topic/orders", "ReplicasChanging")[0] == "True"
    sim.reconcile_until_ready()
    assert all(len(p.replicas) == 2 for p in sim.cluster.topics["orders"].partitions)
    sim.apply_topic("orders", replicas=3)
    sim.reconcile_until_ready()
    assert all(len(p.isr) == 3 for p in sim.cluster.topics["orders"].partitions)
    assert topic_status(sim, "orders").replicas_change is None


def test_a_topic_with_more_replicas_than_brokers_waits_with_a_reason(sim: OperatorSimulation) -> None:
    sim.apply_topic("wide", replicas=5)
    sim.reconcile()
    assert sim.condition("Topic/wide")[:2] == ("False", "NotEnoughBrokers")
    assert "wide" not in sim.cluster.topics


def test_the_older_of_two_resources_owns_a_topic(sim: OperatorSimulation) -> None:
    sim.apply_topic("copy", partitions=9, topicName="orders")
    sim.reconcile()
    assert sim.condition("Topic/copy")[:2] == ("False", "ResourceConflict")
    assert "Topic/orders" in sim.condition("Topic/copy")[2]
    assert len(sim.cluster.topics["orders"].partitions) == 4


def test_an_existing_topic_is_changed_only_after_adoption(sim: OperatorSimulation) -> None:
    sim.cluster.create_topic("legacy", 2, 2)
    sim.apply_topic("legacy", partitions=4, replicas=2)
    sim.reconcile()
    assert sim.condition("Topic/legacy")[:2] == ("False", "ResourceConflict")
    assert len(sim.cluster.topics["legacy"].partitions) == 2
    sim.apply_topic("legacy", partitions=4, replicas=2, adopt=True)
    sim.reconcile_until_ready()
    assert len(sim.cluster.topics["legacy"].partitions) == 4


@pytest.mark.parametrize(("policy", "left"), [("Delete", False), ("Retain", True)])
def test_deleting_a_topic_resource_follows_its_reclaim_policy(
    sim: OperatorSimulation, policy: str, left: bool
) -> None:
    sim.apply_topic("orders", reclaimPolicy=policy)
    sim.reconcile_until_ready()
    sim.store.delete("Topic/orders")
    sim.reconcile_until(lambda: "Topic/orders" not in sim.store.stored)
    assert ("orders" in sim.cluster.topics) is left


def test_deleting_the_conflicting_resource_keeps_the_topic(sim: OperatorSimulation) -> None:
    sim.apply_topic("copy", topicName="orders")
    sim.reconcile()
    sim.store.delete("Topic/copy")
    sim.reconcile_until(lambda: "Topic/copy" not in sim.store.stored)
    assert "orders" in sim.cluster.topics


def test_deleting_the_cluster_stops_all_brokers_and_releases_its_topics(sim: OperatorSimulation) -> None:
    sim.store.delete("BrokerCluster/demo")
    sim.reconcile_until(lambda: "BrokerCluster/demo" not in sim.store.stored)
    assert not sim.cluster.zookeeper
    sim.cluster.violations.clear()
    sim.reconcile()
    assert sim.condition("Topic/orders")[:2] == ("False", "ClusterNotFound")
    sim.store.delete("Topic/orders")
    sim.reconcile()
    assert not sim.store.stored


def test_a_paused_resource_is_observed_and_not_changed(sim: OperatorSimulation) -> None:
    sim.apply(
        "Topic",
        "orders",
        {"clusterRef": {"name": "demo"}, "partitions": 9, "replicas": 3},
        pause_reconciliation="true",
    )
    sim.reconcile()
    assert sim.condition("Topic/orders", "ReconciliationPaused")[:2] == ("True", "Paused")
    ready = sim.condition("Topic/orders")
    assert ready[:2] == ("False", "Paused")
    assert ready[2].startswith("not executed, because an annotation of the resource pauses reconciliation: ")
    assert len(sim.cluster.topics["orders"].partitions) == 4


def test_deleting_an_unmanaged_resource_keeps_the_topic(sim: OperatorSimulation) -> None:
    sim.apply(
        "Topic", "orders", {"clusterRef": {"name": "demo"}, "partitions": 4, "replicas": 3}, managed="false"
    )
    sim.reconcile()
    sim.store.delete("Topic/orders")
    sim.reconcile()
    assert "Topic/orders" not in sim.store.stored
    assert "orders" in sim.cluster.topics


def test_a_failed_step_becomes_a_condition_and_is_retried(sim: OperatorSimulation) -> None:
    sim.cluster.step_failures[CreateTopic] = StepFailed("KafkaError", "POLICY_VIOLATION: no")
    sim.apply_topic("refused")
    sim.reconcile()
    assert sim.condition("Topic/refused")[:2] == ("False", "KafkaError")
    assert sim.condition("Topic/orders")[0] == "True"
    sim.cluster.step_failures.clear()
    sim.reconcile_until_ready()


def test_groups_are_observed_and_their_lag_is_compared_with_the_limit(sim: OperatorSimulation) -> None:
    sim.apply("ConsumerGroup", "readers", {"clusterRef": {"name": "demo"}, "maxLag": 10})
    sim.reconcile_until_ready()
    assert sim.condition("ConsumerGroup/readers")[:2] == ("True", "NoSuchGroup")
    sim.cluster.groups["readers"] = GroupState("readers", "Stable", 2, 1, {"orders": 11})
    sim.reconcile()
    assert sim.condition("ConsumerGroup/readers")[:2] == ("True", "Observed")
    assert sim.condition("ConsumerGroup/readers", "LagWithinLimit")[:2] == ("False", "LagTooHigh")
    group = sim.store.stored["ConsumerGroup/readers"]
    assert isinstance(group, ConsumerGroup)
    assert (group.status.members, group.status.total_lag) == (2, 11)


def test_the_offsets_of_a_zookeeper_group_are_observed(sim: OperatorSimulation) -> None:
    spec = {"clusterRef": {"name": "demo"}, "offsetsStorage": "zookeeper", "maxLag": 10}
    sim.apply("ConsumerGroup", "readers", spec)
    sim.cluster.groups["readers"] = GroupState("readers", "Unknown", lags={"orders": 11})
    sim.reconcile_until_ready()
    assert sim.condition("ConsumerGroup/readers") == (
        "True",
        "Observed",
        "the group commits to ZooKeeper; its members are not observed",
    )
    assert sim.condition("ConsumerGroup/readers", "LagWithinLimit")[:2] == ("False", "LagTooHigh")
    group = sim.store.stored["ConsumerGroup/readers"]
    assert isinstance(group, ConsumerGroup)
    assert query_of(group).in_zookeeper


def a_quota(**limits: float) -> dict[str, object]:
    return {"clusterRef": {"name": "demo"}, "entity": {"user": "a"}, "limits": limits}


def test_a_quota_is_applied_and_changes_of_others_are_reverted(sim: OperatorSimulation) -> None:
    sim.apply("Quota", "first", a_quota(producerByteRate=1024))
    sim.reconcile_until_ready()
    assert sim.cluster.quotas["a", None] == {"producer_byte_rate": 1024}
    assert sim.condition("Quota/first", "Effective")[:2] == ("True", "Enforced")
    sim.cluster.quotas["a", None] = {"producer_byte_rate": 1}
    sim.reconcile()
    assert sim.cluster.quotas["a", None] == {"producer_byte_rate": 1024}


def test_limits_of_other_tools_are_kept_and_listed_in_the_status(sim: OperatorSimulation) -> None:
    sim.apply("Quota", "first", a_quota(producerByteRate=1024, requestPercentage=50))
    sim.reconcile_until_ready()
    sim.cluster.quotas["a", None]["consumer_byte_rate"] = 0.0
    for _ in range(3):
        assert sim.reconcile() == []
    limits = {"producer_byte_rate": 1024, "request_percentage": 50, "consumer_byte_rate": 0}
    assert sim.cluster.quotas["a", None] == limits
    status = sim.status("Quota/first")
    assert isinstance(status, QuotaStatus)
    assert status.unmanaged_limits == [UnmanagedSetting(name="consumerByteRate", value="0")]
    sim.apply("Quota", "first", a_quota(producerByteRate=1024))
    sim.reconcile_until_ready()
    left = {"producer_byte_rate": 1024, "consumer_byte_rate": 0.0}
    assert sim.cluster.quotas["a", None] == left, "what was named once is lifted once"
    sim.cluster.quotas["a", None]["request_percentage"] = 5
    assert sim.reconcile() == []
    sim.store.delete("Quota/first")
    sim.reconcile()
    sim.reconcile()
    assert "Quota/first" not in sim.store.stored
    assert sim.cluster.quotas["a", None] == {"consumer_byte_rate": 0.0, "request_percentage": 5}


def test_the_older_of_two_quotas_owns_an_entity(sim: OperatorSimulation) -> None:
    sim.apply("Quota", "first", a_quota(producerByteRate=1024))
    sim.reconcile_until_ready()
    sim.apply("Quota", "second", a_quota(producerByteRate=1))
    sim.reconcile()
    assert sim.condition("Quota/second")[:2] == ("False", "ResourceConflict")
    sim.store.delete("Quota/second")
    sim.reconcile()
    assert "Quota/second" not in sim.store.stored
    assert sim.cluster.quotas["a", None] == {"producer_byte_rate": 1024}


def test_default_quotas_of_the_cluster_take_precedence_over_quota_resources(sim: OperatorSimulation) -> None:
    sim.apply_cluster(defaultQuotas={"producerByteRate": 1024})
    entity = {"clientId": "<default>"}
    sim.reconcile_until_ready()
    sim.apply("Quota", "mine", {**a_quota(producerByteRate=1), "entity": entity})
    for _ in range(3):
        sim.reconcile()
    assert sim.cluster.quotas[None, "<default>"] == {"producer_byte_rate": 1024}
    assert sim.condition("Quota/mine")[:2] == ("False", "ResourceConflict")


DEFAULT = (None, "<default>")


def test_default_quotas_are_removed_with_their_field(sim: OperatorSimulation) -> None:
    sim.cluster.quotas["a", None] = {"producer_byte_rate": 5}
    sim.apply_cluster(defaultQuotas={"producerByteRate": 1024, "requestPercentage": 50})
    sim.reconcile_until_ready()
    sim.cluster.quotas[DEFAULT]["controller_mutation_rate"] = 3
    sim.apply_cluster(defaultQuotas={"producerByteRate": 1024})
    sim.reconcile_until_ready()
    assert sim.cluster.quotas[DEFAULT] == {"producer_byte_rate": 1024, "controller_mutation_rate": 3}
    sim.apply_cluster()
    sim.reconcile_until_ready()
    assert sim.cluster.quotas[DEFAULT] == {"controller_mutation_rate": 3}, "which another tool has set"
    assert sim.cluster.quotas["a", None] == {"producer_byte_rate": 5}
    assert cluster_status(sim).default_quotas is None
    assert sim.reconcile() == []


def test_default_quotas_of_other_tools_are_not_removed(sim: OperatorSimulation) -> None:
    sim.cluster.quotas[DEFAULT] = {"producer_byte_rate": 9}
    sim.apply_cluster()
    sim.reconcile_until_ready()
    assert sim.cluster.quotas[DEFAULT] == {"producer_byte_rate": 9}


def test_default_quotas_are_recorded_in_the_status_before_they_are_set(sim: OperatorSimulation) -> None:
    sim.apply_cluster(defaultQuotas={"producerByteRate": 1024})
    sim.reconcile()
    assert DEFAULT not in sim.cluster.quotas
    assert cluster_status(sim).default_quotas is not None
    sim.reconcile_until_ready()
    assert sim.cluster.quotas[DEFAULT] == {"producer_byte_rate": 1024}


def test_a_quota_resource_takes_over_the_default_quotas(sim: OperatorSimulation) -> None:
    sim.apply_cluster(defaultQuotas={"producerByteRate": 1024})
    sim.reconcile_until_ready()
    limits = {"clusterRef": {"name": "demo"}, "entity": {"clientId": "<default>"}}
    sim.apply("Quota", "mine", {**limits, "limits": {"producerByteRate": 1024}})
    sim.apply_cluster()
    sim.reconcile_until_ready()
    assert sim.cluster.quotas[DEFAULT] == {"producer_byte_rate": 1024}


def test_deleting_a_quota_removes_its_limits(sim: OperatorSimulation) -> None:
    sim.apply("Quota", "first", a_quota(producerByteRate=1024, requestPercentage=50))
    sim.reconcile_until_ready()
    sim.store.delete("Quota/first")
    sim.reconcile()
    sim.reconcile()
    assert not sim.cluster.quotas["a", None]
    assert "Quota/first" not in sim.store.stored


def test_deleting_an_unmanaged_quota_keeps_its_limits(sim: OperatorSimulation) -> None:
    sim.apply("Quota", "first", a_quota(producerByteRate=1024))
    sim.reconcile_until_ready()
    sim.apply("Quota", "first", a_quota(producerByteRate=1024), managed="false")
    sim.store.delete("Quota/first")
    sim.reconcile()
    assert "Quota/first" not in sim.store.stored
    assert sim.cluster.quotas["a", None] == {"producer_byte_rate": 1024}


def test_a_resource_of_an_unknown_cluster_is_not_ready() -> None:
    sim = OperatorSimulation(SimulatedCluster())
    sim.apply_topic("orders")
    sim.reconcile()
    assert sim.condition("Topic/orders")[:2] == ("False", "ClusterNotFound")


def test_a_second_cluster_is_not_supported(sim: OperatorSimulation) -> None:
    sim.apply("BrokerCluster", "other", {"replicas": 1})
    sim.reconcile()
    assert sim.condition("BrokerCluster/other")[:2] == ("False", "NotSupported")
    assert "demo, the oldest one" in sim.condition("BrokerCluster/other")[2]
    sim.apply("Topic", "there", {"clusterRef": {"name": "other"}})
    sim.reconcile()
    assert sim.condition("Topic/there")[2].startswith("BrokerCluster other is not run: ")


def test_the_transition_time_changes_only_with_the_status(sim: OperatorSimulation) -> None:
    before = next(c for c in sim.status().conditions if c.type == "Ready")
    sim.cluster.advance(60_000)
    sim.reconcile()
    assert next(c for c in sim.status().conditions if c.type == "Ready") == before
