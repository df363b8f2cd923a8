"""Every object that the operator made is deleted once, and comes back; what somebody changes is put right."""

from __future__ import annotations

from functools import partial

from tests.e2e.clients import Traffic
from tests.e2e.clusters import CHILD_KINDS, Cluster
from tests.e2e.kube import Kube, wait_for


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


def _new(cluster: Cluster, kind: str, name: str, old_uid: str) -> bool:
    found = cluster.kube.get(kind, name, cluster.namespace)
    return found is not None and found["metadata"]["uid"] != old_uid


def test_a_field_that_somebody_changes_is_put_right(kube: Kube, cluster: Cluster) -> None:
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
