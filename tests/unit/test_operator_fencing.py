"""Fenced brokers, a cluster that hibernates, and the restart of one broker."""

from __future__ import annotations

from typing import Any

import pytest

from ottla_operator.planning.fencing import Fencing, fenced_brokers, plan_fencing
from ottla_operator.planning.observed import (
    BrokerInstance,
    BrokerRunState,
    KafkaState,
    Observed,
    PartitionState,
    TopicState,
    ZooKeeperState,
)
from ottla_operator.planning.scaling import Members
from ottla_operator.resources.common import RESTART_POD_ANNOTATION
from tests.worlds.kubernetes_simulation import KubernetesSimulation

# ---- the list of fenced brokers


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", set()), ("1", {1}), ("0,2", {0, 2}), (" 1 , 2 ", {1, 2})],
)
def test_the_annotation_lists_brokers(text: str, expected: set[int]) -> None:
    assert fenced_brokers({"ottla.dev/fenced": text}, range(3)) == (expected, "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [("one", "'one' is not a list of broker ids"), ("3", "broker 3 does not exist"), ("0,-1", "broker -1")],
)
def test_a_wrong_list_fences_nothing(text: str, problem: str) -> None:
    fenced, message = fenced_brokers({"ottla.dev/fenced": text}, range(3))
    assert fenced == set()
    assert problem in message


# ---- the decision


def _observed(
    isr: tuple[int, ...] = (0, 1, 2), *, min_isr: int = 2, controller: int = 0, **brokers: dict[str, Any]
) -> Observed:
    running: BrokerRunState = "Running"
    instances = {
        n: BrokerInstance(n, **{"state": running, "ready": True, **brokers.get(f"b{n}", {})})
        for n in range(3)
    }
    partition = PartitionState("orders", 0, isr[0], (0, 1, 2), isr)
    topic = TopicState("orders", "id", (partition,), min_isr=min_isr)
    registered = frozenset(n for n, instance in instances.items() if instance.ready)
    kafka = KafkaState(reachable=True, controller_id=controller, brokers=registered, topics={"orders": topic})
    return Observed(ZooKeeperState(True), instances, kafka, 0)


def _plan(observed: Observed, fenced: set[int], **annotations: str) -> Fencing:
    members = Members((0, 1, 2), (), (), fenced=frozenset(fenced))
    return plan_fencing(
        {f"ottla.dev/{k.replace('_', '-')}": v for k, v in annotations.items()}, observed, members
    )


def test_a_broker_is_fenced_when_its_partitions_can_spare_it() -> None:
    assert [str(step) for step in _plan(_observed(), {1}).steps] == ["stop broker 1: it is fenced"]


def test_a_broker_waits_to_be_fenced_while_a_partition_needs_it() -> None:
    planned = _plan(_observed(isr=(0, 1)), {1})
    assert not planned.steps
    assert planned.waiting[1].startswith("orders-0: 1 replicas would be left in sync")


@pytest.mark.parametrize("isr", [(0, 1), (1,)])
def test_a_broker_that_is_to_be_fenced_now_does_not_wait(isr: tuple[int, ...]) -> None:
    assert len(_plan(_observed(isr=isr), {1}, fence_now="true").steps) == 1


def test_brokers_are_fenced_one_after_the_other() -> None:
    planned = _plan(_observed(min_isr=1), {1, 2})
    assert [step.broker for step in planned.steps] == [1]
    assert planned.waiting == {2: "broker 1, which is being stopped, to be fenced"}


def test_a_broker_waits_to_be_fenced_while_another_one_is_down() -> None:
    planned = _plan(_observed(min_isr=1, b2={"ready": False}), {1})
    assert planned.waiting == {1: "broker 2, which is down, to be fenced"}


def test_a_broker_waits_to_be_fenced_for_a_controller() -> None:
    assert _plan(_observed(controller=-1), {1}).waiting == {1: "a controller to be elected, to be fenced"}


def test_a_fenced_broker_is_left_alone() -> None:
    assert _plan(_observed(b1={"ready": False, "fenced": True, "state": "Starting"}), {1}) == Fencing()
    assert _plan(_observed(b1={"ready": False, "state": "Stopped"}), {1}) == Fencing()


def test_a_broker_that_is_no_longer_listed_is_started_again() -> None:
    planned = _plan(_observed(b1={"ready": False, "fenced": True, "state": "Starting"}), set())
    assert [str(step) for step in planned.steps] == ["stop broker 1: it is no longer fenced"]


# ---- on Kubernetes


@pytest.fixture
def sim() -> KubernetesSimulation:
    sim = KubernetesSimulation()
    sim.apply_cluster()
    sim.reconcile_until_ready()
    return sim


def _uids(sim: KubernetesSimulation, name: str = "demo-brokers-") -> dict[str, str]:
    return {
        pod: item["metadata"]["uid"]
        for (kind, pod), item in sim.api.items.items()
        if kind == "Pod" and pod.startswith(name)
    }


def _broker(sim: KubernetesSimulation, number: int) -> dict[str, Any]:
    found: dict[str, Any] = sim.status()["brokers"][number]
    return found


def _settle(sim: KubernetesSimulation, reconciles: int = 12) -> None:
    for _ in range(reconciles):
        sim.reconcile()


def test_a_fenced_broker_keeps_its_pod_and_volume_and_serves_nothing(sim: KubernetesSimulation) -> None:
    before = _uids(sim)
    sim.apply_cluster(annotations={"fenced": "1", "fence_now": "true"})
    _settle(sim)
    after = _uids(sim)
    assert [pod for pod in before if before[pod] != after[pod]] == ["demo-brokers-1"]
    assert "ottla.fenced=true" in sim.api.items["ConfigMap", "demo-broker-1"]["data"]["server.properties"]
    assert "fenced" not in sim.api.items["ConfigMap", "demo-broker-0"]["data"]["server.properties"]
    assert sim.condition() == ("False", "BrokersFenced")
    assert _broker(sim, 1)["state"] == "Fenced"
    sim.apply_cluster()
    sim.reconcile_until_ready()
    assert "ottla.fenced" not in sim.api.items["ConfigMap", "demo-broker-1"]["data"]["server.properties"]
    assert ("PersistentVolumeClaim", "data-demo-brokers-1") in sim.api.items


def test_a_change_of_settings_waits_while_a_broker_is_fenced(sim: KubernetesSimulation) -> None:
    sim.apply_cluster(annotations={"fenced": "1", "fence_now": "true"})
    _settle(sim)
    before = _uids(sim)
    sim.apply_cluster(annotations={"fenced": "1", "fence_now": "true"}, config={"queued.max.requests": 400})
    _settle(sim)
    assert _uids(sim) == before
    assert _broker(sim, 0)["waitingFor"] == "broker 1, which is fenced"
    sim.apply_cluster(config={"queued.max.requests": 400})
    sim.reconcile_until_ready()
    assert not set(_uids(sim).values()) & set(before.values())


def test_a_wrong_list_of_fenced_brokers_is_reported(sim: KubernetesSimulation) -> None:
    sim.apply_cluster(annotations={"fenced": "7"})
    _settle(sim, 2)
    assert sim.condition()[0] == "True"
    assert any(reason == "FenceRefused" for _, reason, _, _ in sim.recorder.events)


def test_a_cluster_that_hibernates_runs_nothing_and_keeps_its_volumes(sim: KubernetesSimulation) -> None:
    claims = sim.api.names("PersistentVolumeClaim")
    sim.apply_cluster(annotations={"hibernate": "true"})
    _settle(sim)
    assert sim.api.names("Pod") == []
    assert sim.api.names("PersistentVolumeClaim") == claims
    assert sim.condition() == ("False", "Hibernated")
    assert [broker["state"] for broker in sim.status()["brokers"]] == ["Stopped"] * 3
    servers = sim.status()["zookeeper"]["servers"]
    assert [(server["ready"], server["role"]) for server in servers] == [(False, "")] * 3
    assert not sim.reconcile()
    sim.apply_cluster()
    sim.reconcile_until_ready()
    assert len(_uids(sim)) == 3
    assert sim.api.names("PersistentVolumeClaim") == claims


def test_zookeeper_stops_after_the_last_broker(sim: KubernetesSimulation) -> None:
    sim.apply_cluster(annotations={"hibernate": "true"})
    while _uids(sim):
        servers = _uids(sim, "demo-zookeeper-")
        assert len(servers) == 3
        sim.reconcile()
    _settle(sim)
    assert not _uids(sim, "demo-zookeeper-")


def test_a_cluster_that_hibernates_can_be_changed_and_deleted(sim: KubernetesSimulation) -> None:
    sim.apply_cluster(annotations={"hibernate": "true"})
    _settle(sim)
    sim.apply_cluster(annotations={"hibernate": "true"}, config={"queued.max.requests": 400})
    _settle(sim)
    assert sim.api.names("Pod") == []
    sim.api.delete_resource("BrokerCluster", "demo")
    _settle(sim, 20)
    assert ("BrokerCluster", "demo") not in sim.api.items
    assert not [name for name in sim.api.names("PersistentVolumeClaim") if "brokers" in name]


def test_one_broker_is_restarted_once_by_an_annotation_of_its_pod(sim: KubernetesSimulation) -> None:
    before = _uids(sim)
    sim.api.items["Pod", "demo-brokers-1"]["metadata"].setdefault("annotations", {})[
        RESTART_POD_ANNOTATION
    ] = "true"
    sim.reconcile()
    assert _broker(sim, 1)["restartReasons"] == ["a restart of this broker was requested"]
    sim.reconcile_until_ready()
    after = _uids(sim)
    assert [pod for pod in before if before[pod] != after[pod]] == ["demo-brokers-1"]
    _settle(sim, 4)
    assert _uids(sim) == after


def test_the_restart_of_one_broker_needs_no_approval(sim: KubernetesSimulation) -> None:
    sim.apply_cluster(rollingUpdate={"strategy": "OnApproval", "minReadySeconds": 0})
    sim.reconcile_until_ready()
    before = _uids(sim)
    sim.api.items["Pod", "demo-brokers-2"]["metadata"].setdefault("annotations", {})[
        RESTART_POD_ANNOTATION
    ] = "true"
    sim.reconcile()
    sim.reconcile_until_ready()
    after = _uids(sim)
    assert [pod for pod in before if before[pod] != after[pod]] == ["demo-brokers-2"]
