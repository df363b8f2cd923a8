"""Every object that the operator created is deleted once, and restored; changed fields are restored too."""

from __future__ import annotations

import json
from functools import partial

from tests.e2e.clients import Traffic
from tests.e2e.clusters import CHILD_KINDS, Cluster
from tests.e2e.kube import CommandFailed, Kube, wait_for


def test_every_child_object_deleted_comes_back_without_a_bounce(kube: Kube, cluster: Cluster) -> None:
    children = cluster.children()
    assert {kind for kind, _, _ in children} == set(CHILD_KINDS)
    pods = {**cluster.brokers(), **cluster.zookeepers()}
    with Traffic(cluster, "events") as traffic:
        for kind, name, _ in children:
            # The pods of a set stay, so that it is the set's own return that is seen.
            more = ["--cascade=orphan"] if kind == "statefulset" else []
            kube.delete(kind, name, cluster.namespace, *more)
        for kind, name, uid in children:
            back = partial(_new, cluster, kind, name, uid)
            wait_for(f"{kind} {name} is back", back, 60)
        traffic.wait_for_more(200)
        traffic.assert_lost_nothing(min_isr=3)
    cluster.wait_ready()
    assert {**cluster.brokers(), **cluster.zookeepers()} == pods


def test_pods_deleted_one_after_the_other_come_back(kube: Kube, cluster: Cluster) -> None:
    """In order, as `kubectl delete pod` does it; a broker takes its leave of the controller."""
    pods = {**cluster.brokers(), **cluster.zookeepers()}
    with Traffic(cluster, "events") as traffic:
        for name, uid in pods.items():
            kube.delete("pod", name, cluster.namespace, "--wait=false")
            wait_for(f"{name} is a new one", partial(_new, cluster, "pod", name, uid), 120)
            wait_for("all pods are ready", partial(_all_ready, cluster), 180)
            cluster.wait_ready()
            wait_for("all is in sync", cluster.is_in_sync, 120)
        traffic.wait_for_more(200)
        traffic.assert_lost_nothing()


def _all_ready(cluster: Cluster) -> bool:
    stages = [*cluster.stages("broker").values(), *cluster.stages("zookeeper").values()]
    return stages == ["ready"] * 6


def test_a_drain_of_nodes_gets_one_broker_at_a_time(kube: Kube, cluster: Cluster) -> None:
    """Evictions are asked of the API server, which asks the budget."""
    wait_for("all is in sync", cluster.is_in_sync, 120)
    before = cluster.brokers()
    with Traffic(cluster, "events") as traffic:
        wait_for("the budget allows one", partial(_evicted, kube, cluster, "demo-brokers-0"), 60)
        assert not _evicted(kube, cluster, "demo-brokers-1")
        assert not _evicted(kube, cluster, "demo-brokers-2")
        wait_for(
            "the evicted one is replaced",
            partial(_new, cluster, "pod", "demo-brokers-0", before["demo-brokers-0"]),
            120,
        )
        cluster.wait_ready()
        traffic.wait_for_more(200)
        traffic.assert_lost_nothing()
    after = cluster.brokers()
    assert [name for name in before if after[name] != before[name]] == ["demo-brokers-0"]


def _evicted(kube: Kube, cluster: Cluster, pod: str) -> bool:
    """False when the budget forbids it."""
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": cluster.namespace},
    }
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/{pod}/eviction"
    try:
        kube.kubectl("create", "--raw", path, "-f", "-", text=json.dumps(eviction))
    except CommandFailed as error:
        if "disruption budget" not in str(error):
            raise
        return False
    return True


def _new(cluster: Cluster, kind: str, name: str, old_uid: str) -> bool:
    found = cluster.kube.get(kind, name, cluster.namespace)
    return found is not None and found["metadata"]["uid"] != old_uid


def test_a_changed_field_is_restored(kube: Kube, cluster: Cluster) -> None:
    budget = "demo-brokers"
    kube.patch("poddisruptionbudget", budget, cluster.namespace, {"spec": {"maxUnavailable": 2}})

    def repaired() -> bool:
        found = kube.get("poddisruptionbudget", budget, cluster.namespace)
        return found is not None and found["spec"].get("maxUnavailable") == 1

    wait_for("the budget is put right", repaired, 60)


def test_a_topic_deleted_behind_our_back_comes_back(kube: Kube, cluster: Cluster) -> None:
    cluster.create_topic("precious", partitions=2)
    cluster.in_pod("ottla", "topics", "delete", "precious", "--yes", "-b", cluster.status["bootstrapServers"])

    def back() -> bool:
        listed = cluster.in_pod("ottla", "topics", "list", "-b", cluster.status["bootstrapServers"])
        return "precious" in listed

    try:
        wait_for("the topic is back", back, 60)
    finally:
        kube.delete("topic", "precious", cluster.namespace)
