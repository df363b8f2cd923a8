"""Requested restarts: each new value of a request restarts every broker once, in a roll."""

from __future__ import annotations

from typing import Any

import pytest

from ottla_operator.kubernetes import naming
from ottla_operator.planning.restarts import RECORDED_MAX
from ottla_operator.resources import BrokerClusterStatus
from ottla_operator.resources.pods import RESTARTED_ANNOTATION
from tests.worlds.kubernetes_simulation import KubernetesSimulation
from tests.worlds.operator_simulation import OperatorSimulation

SPEC: dict[str, Any] = {"replicas": 3}
ON_APPROVAL: dict[str, Any] = {"replicas": 3, "rollingUpdate": {"strategy": "OnApproval"}}


@pytest.fixture
def sim() -> OperatorSimulation:
    sim = OperatorSimulation()
    apply(sim)
    sim.apply_topic("orders")
    sim.reconcile_until_ready()
    return sim


def apply(sim: OperatorSimulation, spec: dict[str, Any] = SPEC, **annotations: str) -> None:
    sim.apply("BrokerCluster", "demo", spec, **annotations)


def restarted(sim: OperatorSimulation) -> list[int]:
    """The brokers that are restarted until the cluster is Ready, in order."""
    sim.cluster.log.clear()
    sim.reconcile()
    sim.reconcile_until_ready()
    assert not sim.cluster.violations
    assert sim.cluster.max_unavailable <= 1
    return [int(line.split()[1]) for line in sim.cluster.log if line.startswith("stop")]


def status(sim: OperatorSimulation) -> BrokerClusterStatus:
    found = sim.status()
    assert isinstance(found, BrokerClusterStatus)
    return found


def test_an_annotation_restarts_all_brokers_once_and_its_removal_none(sim: OperatorSimulation) -> None:
    apply(sim, restart_requested_at="one")
    sim.reconcile()
    reasons = {reason for broker in status(sim).brokers for reason in broker.restart_reasons}
    assert reasons == {"a restart was requested: one"}
    assert len(restarted(sim)) == 2, "and one by the reconciliation before"
    assert restarted(sim) == []
    apply(sim)
    assert restarted(sim) == []
    apply(sim, restart_requested_at="two")
    assert sorted(restarted(sim)) == [0, 1, 2]
    apply(sim, restart_requested_at="one")
    assert restarted(sim) == [], "a GitOps tool that sets an earlier value back restarts nothing"


def test_a_request_on_the_platform_counts_like_an_annotation(sim: OperatorSimulation) -> None:
    sim.cluster.restart_requested = "one"
    assert sorted(restarted(sim)) == [0, 1, 2]
    apply(sim, restart_requested_at="one")
    assert restarted(sim) == []
    sim.cluster.restart_requested = ""
    assert restarted(sim) == []


def test_a_request_in_the_pod_template_by_an_earlier_plugin_counts_too() -> None:
    spec = {**SPEC, "template": {"pod": {"metadata": {"annotations": {RESTARTED_ANNOTATION: "one"}}}}}
    sim = OperatorSimulation()
    apply(sim)
    sim.reconcile_until_ready()
    apply(sim, spec)
    assert sorted(restarted(sim)) == [0, 1, 2]
    apply(sim)
    assert restarted(sim) == []


def test_a_new_cluster_is_not_restarted_for_the_request_it_begins_with() -> None:
    sim = OperatorSimulation()
    apply(sim, restart_requested_at="one")
    assert restarted(sim) == []


def test_a_broker_that_is_added_runs_with_the_last_request(sim: OperatorSimulation) -> None:
    apply(sim, restart_requested_at="one")
    restarted(sim)
    apply(sim, {"replicas": 4})
    assert restarted(sim) == []


def test_a_request_that_is_removed_in_the_middle_of_its_roll_is_completed(sim: OperatorSimulation) -> None:
    before = sim.cluster.brokers[0].launch
    apply(sim, restart_requested_at="one")
    sim.reconcile()
    apply(sim)
    restarted(sim)
    hashes = {broker.launch.config_hash for broker in sim.cluster.brokers.values()}
    assert len(hashes) == 1
    assert before.config_hash not in hashes


def test_a_lost_status_restarts_nothing(sim: OperatorSimulation) -> None:
    apply(sim, restart_requested_at="one")
    restarted(sim)
    key = "BrokerCluster/demo"
    for request in ({}, {"restart_requested_at": "one"}):
        apply(sim, **request)
        found = sim.store.stored[key]
        sim.store.stored[key] = found.model_copy(update={"status": BrokerClusterStatus()})
        assert restarted(sim) == []


def test_the_record_is_bounded_and_keeps_what_is_still_requested(sim: OperatorSimulation) -> None:
    sim.cluster.restart_requested = "of the platform"
    restarted(sim)
    found = status(sim).model_copy(
        update={"handled_restarts": ["of the platform", *(f"request {n}" for n in range(RECORDED_MAX))]}
    )
    key = "BrokerCluster/demo"
    sim.store.stored[key] = sim.store.stored[key].model_copy(update={"status": found})
    apply(sim, restart_requested_at="." * 100)
    assert sorted(restarted(sim)) == [0, 1, 2]
    recorded = status(sim).handled_restarts
    assert recorded[:2] == ["of the platform", "request 1"]
    assert len(recorded) == RECORDED_MAX + 1
    assert recorded[-1] == "." * 64
    assert restarted(sim) == []


def test_a_request_needs_no_approval_unless_it_brings_other_changes() -> None:
    sim = OperatorSimulation()
    apply(sim, ON_APPROVAL)
    sim.reconcile_until_ready()
    apply(sim, ON_APPROVAL, restart_requested_at="one")
    assert sorted(restarted(sim)) == [0, 1, 2]
    apply(sim, {**ON_APPROVAL, "config": {"replica.fetch.max.bytes": "9"}}, restart_requested_at="two")
    for _ in range(5):
        sim.reconcile()
    assert {broker.waiting_for for broker in status(sim).brokers} == {"approval of the rollout"}
    assert all(len(broker.restart_reasons) == 2 for broker in status(sim).brokers)


# ---- on Kubernetes


@pytest.fixture
def kubernetes() -> KubernetesSimulation:
    sim = KubernetesSimulation()
    sim.apply_cluster()
    sim.reconcile_until_ready()
    return sim


def pods(sim: KubernetesSimulation, component: str) -> dict[str, str]:
    names = [name for name in sim.api.names("Pod") if name.startswith(f"demo-{component}-")]
    return {name: sim.api.items["Pod", name]["metadata"]["uid"] for name in names}


def rollout_restart(sim: KubernetesSimulation, component: str, value: str | None) -> None:
    """kubectl rollout restart; None: what was set is taken away."""
    item = sim.api.items["StatefulSet", f"demo-{component}"]
    annotations = item["spec"]["template"]["metadata"].setdefault("annotations", {})
    annotations.pop(naming.RESTARTED_AT_ANNOTATION, None)
    if value is not None:
        annotations[naming.RESTARTED_AT_ANNOTATION] = value
    item["metadata"]["resourceVersion"] += "0"


def replaced(sim: KubernetesSimulation, component: str, before: dict[str, str]) -> bool:
    now = pods(sim, component)
    return len(now) == len(before) and not set(now.values()) & set(before.values()) and sim.ready()


def test_rollout_restart_of_the_brokers_is_a_roll_and_the_annotation_stays(
    kubernetes: KubernetesSimulation,
) -> None:
    sim, before = kubernetes, pods(kubernetes, "brokers")
    servers = pods(sim, "zookeeper")
    sim.api.max_unavailable = 0
    rollout_restart(sim, "brokers", "2026-11-27T10:00:00Z")
    sim.reconcile_until(lambda: replaced(sim, "brokers", before))
    assert sim.api.max_unavailable == 1
    assert pods(sim, "zookeeper") == servers
    template = sim.api.items["StatefulSet", "demo-brokers"]["spec"]["template"]
    assert template["metadata"]["annotations"][naming.RESTARTED_AT_ANNOTATION] == "2026-11-27T10:00:00Z"
    after = pods(sim, "brokers")
    rollout_restart(sim, "brokers", None)
    sim.api.delete_resource("ConfigMap", "demo-broker-1")
    for _ in range(10):
        sim.reconcile()
    assert pods(sim, "brokers") == after
    rollout_restart(sim, "brokers", "2026-11-27T12:00:00+01:00")
    sim.reconcile_until(lambda: replaced(sim, "brokers", after))


def test_rollout_restart_survives_a_recreated_stateful_set(kubernetes: KubernetesSimulation) -> None:
    sim, before = kubernetes, pods(kubernetes, "brokers")
    rollout_restart(sim, "brokers", "2026-11-27T10:00:00Z")
    sim.reconcile_until(lambda: replaced(sim, "brokers", before))
    after = pods(sim, "brokers")
    sim.api.delete_resource("StatefulSet", "demo-brokers", "Orphan")
    for _ in range(10):
        sim.reconcile()
    assert sim.ready()
    assert pods(sim, "brokers") == after
