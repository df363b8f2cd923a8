"""The reconciler over a cluster in memory: from nothing to Ready, through every change, and back.

The reconciler is made anew for every pass, so whatever works here survives a restart at any point.
"""

from __future__ import annotations

import pytest
from operator_cluster import FakeCluster, World

from ottla_operator.planning.groups import query_of
from ottla_operator.planning.observed import GroupState
from ottla_operator.planning.steps import CreateTopic
from ottla_operator.platform.interfaces import StepFailed
from ottla_operator.resources import BrokerClusterStatus, ConsumerGroup, QuotaStatus, TopicStatus
from ottla_operator.resources.common import UnmanagedSetting


def cluster_status(world: World) -> BrokerClusterStatus:
    status = world.status()
    assert isinstance(status, BrokerClusterStatus)
    return status


def topic_status(world: World, name: str) -> TopicStatus:
    status = world.status(f"Topic/{name}")
    assert isinstance(status, TopicStatus)
    return status


def loads(world: World) -> dict[int, int]:
    counts: dict[int, int] = {}
    for topic in world.cluster.topics.values():
        for partition in topic.partitions:
            for broker in partition.replicas:
                counts[broker] = counts.get(broker, 0) + 1
    return counts


@pytest.fixture
def world() -> World:
    """Three brokers and a topic, all Ready."""
    world = World()
    world.brokers(3, config={"replica.fetch.max.bytes": "1048576"})
    world.topic("orders", config={"min.insync.replicas": 2})
    world.settle()
    assert not world.cluster.violations
    return world


def test_zookeeper_comes_first_then_all_brokers_then_topics(world: World) -> None:
    starts = [line.split()[0:2] for line in world.cluster.log]
    assert [s for s in starts if s[0] == "start"] == [["start", "0"], ["start", "1"], ["start", "2"]]
    assert world.cluster.log[-1].startswith("create topic orders with 4 partitions of 3 replicas")
    assert topic_status(world, "orders").topic_id
    assert cluster_status(world).bootstrap_servers == "host:9092,host:9093,host:9094"


def test_nothing_is_done_when_all_is_as_desired(world: World) -> None:
    world.step(5_000)
    assert world.step() == []


def test_scaling_up_adds_the_broker_first_and_then_moves_replicas_onto_it(world: World) -> None:
    world.brokers(4, config={"replica.fetch.max.bytes": "1048576"})
    world.settle()
    log = world.cluster.log
    start = next(i for i, line in enumerate(log) if line.startswith("start 3"))
    move = next(i for i, line in enumerate(log) if line.startswith("reassign"))
    assert start < move
    assert loads(world) == {0: 3, 1: 3, 2: 3, 3: 3}
    assert cluster_status(world).reassignment is None
    assert world.condition("BrokerCluster/demo", "Scaling")[:2] == ("False", "NotScaling")


def test_a_rebalance_goes_on_in_batches_until_it_is_done(world: World) -> None:
    world.topic("many", partitions=60)
    world.settle()
    world.brokers(4, config={"replica.fetch.max.bytes": "1048576"})
    world.until(lambda: cluster_status(world).reassignment is not None)
    seen = []
    while cluster_status(world).reassignment is not None:
        seen.append(cluster_status(world).reassignment.moved)  # type: ignore[union-attr]
        world.step()
    assert seen == sorted(seen), "progress never goes back"
    assert len(set(seen)) > 1
    assert max(loads(world).values()) - min(loads(world).values()) <= 1


def test_without_on_scale_up_the_new_broker_stays_empty(world: World) -> None:
    world.brokers(4, config={"replica.fetch.max.bytes": "1048576"}, rebalance={"onScaleUp": False})
    world.settle()
    assert 3 not in loads(world)


def test_scaling_down_drains_the_last_broker_before_it_is_stopped(world: World) -> None:
    world.brokers(4, config={"replica.fetch.max.bytes": "1048576"})
    world.settle()
    world.brokers(3, config={"replica.fetch.max.bytes": "1048576"})
    world.settle()
    assert sorted(world.cluster.brokers) == [0, 1, 2]
    assert loads(world) == {0: 4, 1: 4, 2: 4}
    assert not world.cluster.violations
    assert world.cluster.log[-2:] == ["stop 3", "remove 3"]


def test_a_replica_that_lands_on_a_broker_being_drained_is_moved_off_first(world: World) -> None:
    world.brokers(4, config={"replica.fetch.max.bytes": "1048576"})
    world.settle()
    world.brokers(3, config={"replica.fetch.max.bytes": "1048576"})
    world.step()
    world.cluster.create_topic("stray", 2, 2, assignment={0: [3, 0], 1: [1, 3]})
    world.settle()
    assert 3 not in loads(world)
    assert not world.cluster.violations


def test_new_topics_stay_off_a_broker_that_is_being_drained(world: World) -> None:
    world.brokers(4, config={"replica.fetch.max.bytes": "1048576"})
    world.settle()
    world.brokers(3, config={"replica.fetch.max.bytes": "1048576"})
    world.topic("late", partitions=8)
    world.step()
    created = [p.replicas for p in world.cluster.topics["late"].partitions]
    assert all(3 not in replicas for replicas in created)


def test_a_drain_that_cannot_be_done_is_blocked_and_says_why(world: World) -> None:
    world.brokers(2, config={"replica.fetch.max.bytes": "1048576"})
    for _ in range(5):
        world.step()
    status, reason, message = world.condition("BrokerCluster/demo", "Scaling")
    assert (status, reason) == ("False", "ScaleDownBlocked")
    assert "orders-0 needs 3 replicas; 2 brokers are available" in message
    assert sorted(world.cluster.brokers) == [0, 1, 2]
    world.brokers(3, config={"replica.fetch.max.bytes": "1048576"})
    world.settle()


def test_policy_block_names_the_broker_that_still_holds_replicas(world: World) -> None:
    world.brokers(2, config={"replica.fetch.max.bytes": "1048576"}, scaleDown={"policy": "Block"})
    world.step()
    assert "broker 2 holds 4 replicas" in world.condition("BrokerCluster/demo", "Scaling")[2]
    assert not any(line.startswith(("stop", "reassign")) for line in world.cluster.log)


def test_a_changed_static_setting_bounces_the_brokers_one_by_one_the_controller_last(world: World) -> None:
    controller = world.cluster.controller
    world.brokers(3, config={"replica.fetch.max.bytes": "2097152"})
    world.step()
    rollout = cluster_status(world).rollout
    assert rollout is not None
    assert (rollout.updated, rollout.total) == (0, 3)
    reasons = {reason for broker in cluster_status(world).brokers for reason in broker.restart_reasons}
    assert reasons == {"replica.fetch.max.bytes has changed"}
    world.settle()
    stops = [line for line in world.cluster.log if line.startswith("stop")]
    assert stops[-1] == f"stop {controller}"
    assert sorted(stops) == ["stop 0", "stop 1", "stop 2"]
    assert world.cluster.max_down == 1
    assert not world.cluster.violations
    hashes = {broker.launch.config_hash for broker in world.cluster.brokers.values()}
    assert hashes == {rollout.target_hash}


def test_a_roll_is_over_when_the_last_broker_is_back_in_every_isr(world: World) -> None:
    world.brokers(3, config={"replica.fetch.max.bytes": "2097152"})
    world.settle()
    assert all(len(p.isr) == 3 for p in world.cluster.topics["orders"].partitions)
    assert cluster_status(world).rollout is None


def test_while_brokers_wait_the_status_says_for_what(world: World) -> None:
    world.brokers(3, config={"replica.fetch.max.bytes": "2097152"})
    world.step()
    waiting = {b.id: b.waiting_for for b in cluster_status(world).brokers}
    assert "controller" in waiting[0]
    assert "broker 1" in waiting[2]


def test_a_setting_that_brokers_cannot_start_with_stops_the_roll_and_taking_it_back_heals(
    world: World,
) -> None:
    before = world.cluster.brokers[0].launch.config_hash
    world.brokers(3, config={"replica.fetch.max.bytes": "15"})
    world.step()
    rollout = cluster_status(world).rollout
    assert rollout is not None
    world.cluster.broken_hashes.add(rollout.target_hash)
    for _ in range(40):
        world.step()
    assert world.condition("BrokerCluster/demo")[1] == "RollStalled"
    assert world.condition("BrokerCluster/demo", "Available")[0] == "True"
    still = [b.id for b in world.cluster.brokers.values() if b.launch.config_hash == before and b.up]
    assert len(still) == 2
    world.brokers(3, config={"replica.fetch.max.bytes": "1048576"})
    world.settle()
    assert {b.launch.config_hash for b in world.cluster.brokers.values()} == {before}
    assert not world.cluster.violations


def test_a_broker_that_crashes_during_a_roll_comes_back_as_it_was(world: World) -> None:
    before = world.cluster.brokers[0].launch.config_hash
    world.brokers(3, config={"replica.fetch.max.bytes": "2097152"})
    world.step()
    world.cluster.crash(2)
    world.step()
    assert world.cluster.log[-1] == f"start 2 {before}"
    world.settle()
    assert len({b.launch.config_hash for b in world.cluster.brokers.values()}) == 1


def test_on_approval_the_roll_waits_for_the_annotation(world: World) -> None:
    spec = {"rollingUpdate": {"strategy": "OnApproval"}}
    world.brokers(3, config={"replica.fetch.max.bytes": "2097152"}, **spec)
    for _ in range(5):
        world.step()
    rollout = cluster_status(world).rollout
    assert rollout is not None
    assert rollout.updated == 0
    assert {b.waiting_for for b in cluster_status(world).brokers} == {"approval of the rollout"}
    world.apply(
        "BrokerCluster",
        "demo",
        {"replicas": 3, "config": {"replica.fetch.max.bytes": "2097152"}, **spec},
        approve_rollout=rollout.target_hash,
    )
    world.settle()


def test_a_crashed_broker_is_started_again_and_gets_its_leaders_back(world: World) -> None:
    victim = world.cluster.topics["orders"].partitions[0].leader
    world.cluster.crash(victim)
    world.step()
    assert world.condition("BrokerCluster/demo")[1] == "BrokersNotReady"
    assert world.condition("BrokerCluster/demo", "FullyReplicated")[0] == "False"
    world.settle()
    world.until(lambda: world.cluster.topics["orders"].partitions[0].leader == victim)


def test_topic_settings_are_applied_and_drift_is_corrected(world: World) -> None:
    world.topic("orders", config={"min.insync.replicas": 2, "retention.ms": 60000})
    world.settle()
    assert world.cluster.topics["orders"].config == {"min.insync.replicas": "2", "retention.ms": "60000"}
    world.cluster.topics["orders"].config = {"retention.ms": "5"}
    world.settle()
    assert world.cluster.topics["orders"].config == {"min.insync.replicas": "2", "retention.ms": "60000"}


def test_settings_of_a_topic_that_its_resource_never_named_stay_and_are_shown(world: World) -> None:
    world.topic("orders", config={"retention.ms": 60000, "segment.ms": 20})
    world.settle()
    config = world.cluster.topics["orders"].config
    throttle = {"leader.replication.throttled.replicas": "0:1"}
    config.update({"max.message.bytes": "5000", **throttle})
    for _ in range(3):
        assert world.step() == []
    assert topic_status(world, "orders").managed_settings == ["retention.ms", "segment.ms"]
    assert topic_status(world, "orders").unmanaged_settings == [
        UnmanagedSetting(name="max.message.bytes", value="5000")
    ]
    world.topic("orders", config={"retention.ms": 60000})
    world.settle()
    assert config == {"retention.ms": "60000", "max.message.bytes": "5000", **throttle}
    assert topic_status(world, "orders").managed_settings == ["retention.ms"]
    config["segment.ms"] = "30"
    assert world.step() == [], "it is no longer the resource's"
    world.topic("orders", config={"retention.ms": 60000, "max.message.bytes": 6000})
    world.settle()
    assert config["max.message.bytes"] == "6000"
    assert topic_status(world, "orders").unmanaged_settings == [
        UnmanagedSetting(name="segment.ms", value="30")
    ]


def test_partitions_grow_and_never_shrink(world: World) -> None:
    world.topic("orders", partitions=6, config={"min.insync.replicas": 2})
    world.settle()
    assert topic_status(world, "orders").partitions == 6
    world.topic("orders", partitions=5, config={"min.insync.replicas": 2})
    world.step()
    assert world.condition("Topic/orders")[:2] == ("False", "NotSupported")
    assert len(world.cluster.topics["orders"].partitions) == 6


def test_the_replication_factor_changes_by_reassignment(world: World) -> None:
    world.topic("orders", replicas=2)
    world.step()
    assert world.condition("Topic/orders", "ReplicasChanging")[0] == "True"
    world.settle()
    assert all(len(p.replicas) == 2 for p in world.cluster.topics["orders"].partitions)
    world.topic("orders", replicas=3)
    world.settle()
    assert all(len(p.isr) == 3 for p in world.cluster.topics["orders"].partitions)
    assert topic_status(world, "orders").replicas_change is None


def test_a_topic_wider_than_the_cluster_waits_and_says_so(world: World) -> None:
    world.topic("wide", replicas=5)
    world.step()
    assert world.condition("Topic/wide")[:2] == ("False", "NotEnoughBrokers")
    assert "wide" not in world.cluster.topics


def test_of_two_resources_for_one_topic_the_older_wins(world: World) -> None:
    world.topic("copy", partitions=9, topicName="orders")
    world.step()
    assert world.condition("Topic/copy")[:2] == ("False", "ResourceConflict")
    assert "Topic/orders" in world.condition("Topic/copy")[2]
    assert len(world.cluster.topics["orders"].partitions) == 4


def test_a_topic_made_by_others_is_left_alone_until_adopted(world: World) -> None:
    world.cluster.create_topic("legacy", 2, 2)
    world.topic("legacy", partitions=4, replicas=2)
    world.step()
    assert world.condition("Topic/legacy")[:2] == ("False", "ResourceConflict")
    assert len(world.cluster.topics["legacy"].partitions) == 2
    world.topic("legacy", partitions=4, replicas=2, adopt=True)
    world.settle()
    assert len(world.cluster.topics["legacy"].partitions) == 4


@pytest.mark.parametrize(("policy", "left"), [("Delete", False), ("Retain", True)])
def test_deleting_a_topic_resource_follows_its_reclaim_policy(world: World, policy: str, left: bool) -> None:
    world.topic("orders", reclaimPolicy=policy)
    world.settle()
    world.store.delete("Topic/orders")
    world.until(lambda: "Topic/orders" not in world.store.kept)
    assert ("orders" in world.cluster.topics) is left


def test_deleting_the_loser_of_a_conflict_deletes_no_topic(world: World) -> None:
    world.topic("copy", topicName="orders")
    world.step()
    world.store.delete("Topic/copy")
    world.until(lambda: "Topic/copy" not in world.store.kept)
    assert "orders" in world.cluster.topics


def test_deleting_the_cluster_stops_everything_and_lets_topics_go(world: World) -> None:
    world.store.delete("BrokerCluster/demo")
    world.until(lambda: "BrokerCluster/demo" not in world.store.kept)
    assert not world.cluster.zookeeper
    world.cluster.violations.clear()
    world.step()
    assert world.condition("Topic/orders")[:2] == ("False", "ClusterNotFound")
    world.store.delete("Topic/orders")
    world.step()
    assert not world.store.kept


def test_a_paused_resource_is_observed_and_not_touched(world: World) -> None:
    world.apply(
        "Topic",
        "orders",
        {"clusterRef": {"name": "demo"}, "partitions": 9, "replicas": 3},
        pause_reconciliation="true",
    )
    world.step()
    assert world.condition("Topic/orders", "ReconciliationPaused")[:2] == ("True", "Paused")
    ready = world.condition("Topic/orders")
    assert ready[:2] == ("False", "Paused")
    assert ready[2].startswith("not executed, because an annotation of the resource pauses reconciliation: ")
    assert len(world.cluster.topics["orders"].partitions) == 4


def test_an_unmanaged_topic_outlives_its_resource(world: World) -> None:
    world.apply(
        "Topic", "orders", {"clusterRef": {"name": "demo"}, "partitions": 4, "replicas": 3}, managed="false"
    )
    world.step()
    world.store.delete("Topic/orders")
    world.step()
    assert "Topic/orders" not in world.store.kept
    assert "orders" in world.cluster.topics


def test_a_step_that_fails_becomes_a_condition_and_is_tried_again(world: World) -> None:
    world.cluster.refuse[CreateTopic] = StepFailed("KafkaError", "POLICY_VIOLATION: no")
    world.topic("refused")
    world.step()
    assert world.condition("Topic/refused")[:2] == ("False", "KafkaError")
    assert world.condition("Topic/orders")[0] == "True"
    world.cluster.refuse.clear()
    world.settle()


def test_groups_are_observed_and_lag_is_judged(world: World) -> None:
    world.apply("ConsumerGroup", "readers", {"clusterRef": {"name": "demo"}, "maxLag": 10})
    world.settle()
    assert world.condition("ConsumerGroup/readers")[:2] == ("True", "NoSuchGroup")
    world.cluster.groups["readers"] = GroupState("readers", "Stable", 2, 1, {"orders": 11})
    world.step()
    assert world.condition("ConsumerGroup/readers")[:2] == ("True", "Observed")
    assert world.condition("ConsumerGroup/readers", "LagWithinLimit")[:2] == ("False", "LagTooHigh")
    group = world.store.kept["ConsumerGroup/readers"]
    assert isinstance(group, ConsumerGroup)
    assert (group.status.members, group.status.total_lag) == (2, 11)


def test_a_group_that_commits_to_zookeeper_is_observed_there(world: World) -> None:
    spec = {"clusterRef": {"name": "demo"}, "offsetsStorage": "zookeeper", "maxLag": 10}
    world.apply("ConsumerGroup", "readers", spec)
    world.cluster.groups["readers"] = GroupState("readers", "Unknown", lags={"orders": 11})
    world.settle()
    assert world.condition("ConsumerGroup/readers") == (
        "True",
        "Observed",
        "the group commits to ZooKeeper; its members are not observed",
    )
    assert world.condition("ConsumerGroup/readers", "LagWithinLimit")[:2] == ("False", "LagTooHigh")
    group = world.store.kept["ConsumerGroup/readers"]
    assert isinstance(group, ConsumerGroup)
    assert query_of(group).in_zookeeper


def a_quota(**limits: float) -> dict[str, object]:
    return {"clusterRef": {"name": "demo"}, "entity": {"user": "a"}, "limits": limits}


def test_a_quota_is_applied_and_kept(world: World) -> None:
    world.apply("Quota", "first", a_quota(producerByteRate=1024))
    world.settle()
    assert world.cluster.quotas["a", None] == {"producer_byte_rate": 1024}
    assert world.condition("Quota/first", "Effective")[:2] == ("True", "Enforced")
    world.cluster.quotas["a", None] = {"producer_byte_rate": 1}
    world.step()
    assert world.cluster.quotas["a", None] == {"producer_byte_rate": 1024}


def test_limits_that_a_quota_never_named_stay_and_are_shown(world: World) -> None:
    world.apply("Quota", "first", a_quota(producerByteRate=1024, requestPercentage=50))
    world.settle()
    world.cluster.quotas["a", None]["consumer_byte_rate"] = 0.0
    for _ in range(3):
        assert world.step() == []
    limits = {"producer_byte_rate": 1024, "request_percentage": 50, "consumer_byte_rate": 0}
    assert world.cluster.quotas["a", None] == limits
    status = world.status("Quota/first")
    assert isinstance(status, QuotaStatus)
    assert status.unmanaged_limits == [UnmanagedSetting(name="consumerByteRate", value="0")]
    world.apply("Quota", "first", a_quota(producerByteRate=1024))
    world.settle()
    left = {"producer_byte_rate": 1024, "consumer_byte_rate": 0.0}
    assert world.cluster.quotas["a", None] == left, "what was named once is lifted once"
    world.cluster.quotas["a", None]["request_percentage"] = 5
    assert world.step() == []
    world.store.delete("Quota/first")
    world.step()
    world.step()
    assert "Quota/first" not in world.store.kept
    assert world.cluster.quotas["a", None] == {"consumer_byte_rate": 0.0, "request_percentage": 5}


def test_of_two_quotas_for_one_entity_the_older_has_it(world: World) -> None:
    world.apply("Quota", "first", a_quota(producerByteRate=1024))
    world.settle()
    world.apply("Quota", "second", a_quota(producerByteRate=1))
    world.step()
    assert world.condition("Quota/second")[:2] == ("False", "ResourceConflict")
    world.store.delete("Quota/second")
    world.step()
    assert "Quota/second" not in world.store.kept
    assert world.cluster.quotas["a", None] == {"producer_byte_rate": 1024}


def test_the_clusters_default_limits_are_applied_and_are_nobody_elses(world: World) -> None:
    world.brokers(defaultQuotas={"producerByteRate": 1024})
    entity = {"clientId": "<default>"}
    world.settle()
    world.apply("Quota", "mine", {**a_quota(producerByteRate=1), "entity": entity})
    for _ in range(3):
        world.step()
    assert world.cluster.quotas[None, "<default>"] == {"producer_byte_rate": 1024}
    assert world.condition("Quota/mine")[:2] == ("False", "ResourceConflict")


DEFAULT = (None, "<default>")


def test_the_clusters_default_limits_are_lifted_with_them(world: World) -> None:
    world.cluster.quotas["a", None] = {"producer_byte_rate": 5}
    world.brokers(defaultQuotas={"producerByteRate": 1024, "requestPercentage": 50})
    world.settle()
    world.cluster.quotas[DEFAULT]["controller_mutation_rate"] = 3
    world.brokers(defaultQuotas={"producerByteRate": 1024})
    world.settle()
    assert world.cluster.quotas[DEFAULT] == {"producer_byte_rate": 1024, "controller_mutation_rate": 3}
    world.brokers()
    world.settle()
    assert world.cluster.quotas[DEFAULT] == {"controller_mutation_rate": 3}, "which somebody else has set"
    assert world.cluster.quotas["a", None] == {"producer_byte_rate": 5}
    assert cluster_status(world).default_quotas is None
    assert world.step() == []


def test_default_limits_that_the_operator_never_set_are_not_lifted(world: World) -> None:
    world.cluster.quotas[DEFAULT] = {"producer_byte_rate": 9}
    world.brokers()
    world.settle()
    assert world.cluster.quotas[DEFAULT] == {"producer_byte_rate": 9}


def test_default_limits_are_recorded_as_ours_before_they_are_set(world: World) -> None:
    world.brokers(defaultQuotas={"producerByteRate": 1024})
    world.step()
    assert DEFAULT not in world.cluster.quotas
    assert cluster_status(world).default_quotas is not None
    world.settle()
    assert world.cluster.quotas[DEFAULT] == {"producer_byte_rate": 1024}


def test_a_quota_takes_over_the_limits_of_the_clusters_spec(world: World) -> None:
    world.brokers(defaultQuotas={"producerByteRate": 1024})
    world.settle()
    limits = {"clusterRef": {"name": "demo"}, "entity": {"clientId": "<default>"}}
    world.apply("Quota", "mine", {**limits, "limits": {"producerByteRate": 1024}})
    world.brokers()
    world.settle()
    assert world.cluster.quotas[DEFAULT] == {"producer_byte_rate": 1024}


def test_the_limits_go_with_the_quota(world: World) -> None:
    world.apply("Quota", "first", a_quota(producerByteRate=1024, requestPercentage=50))
    world.settle()
    world.store.delete("Quota/first")
    world.step()
    world.step()
    assert not world.cluster.quotas["a", None]
    assert "Quota/first" not in world.store.kept


def test_a_quota_that_nobody_manages_leaves_its_limits_behind(world: World) -> None:
    world.apply("Quota", "first", a_quota(producerByteRate=1024))
    world.settle()
    world.apply("Quota", "first", a_quota(producerByteRate=1024), managed="false")
    world.store.delete("Quota/first")
    world.step()
    assert "Quota/first" not in world.store.kept
    assert world.cluster.quotas["a", None] == {"producer_byte_rate": 1024}


def test_a_resource_of_an_unknown_cluster_says_so() -> None:
    world = World(FakeCluster())
    world.topic("orders")
    world.step()
    assert world.condition("Topic/orders")[:2] == ("False", "ClusterNotFound")


def test_a_second_cluster_is_not_run(world: World) -> None:
    world.apply("BrokerCluster", "other", {"replicas": 1})
    world.step()
    assert world.condition("BrokerCluster/other")[:2] == ("False", "NotSupported")
    assert "demo, the oldest one" in world.condition("BrokerCluster/other")[2]
    world.apply("Topic", "there", {"clusterRef": {"name": "other"}})
    world.step()
    assert world.condition("Topic/there")[2].startswith("BrokerCluster other is not run: ")


def test_a_transition_time_moves_only_with_the_status(world: World) -> None:
    before = next(c for c in world.status().conditions if c.type == "Ready")
    world.cluster.advance(60_000)
    world.step()
    assert next(c for c in world.status().conditions if c.type == "Ready") == before
