"""Every object that the operator created is deleted once, and restored; edits are undone, and what cannot be
applied is reported."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from tests.e2e.clients import Traffic
from tests.e2e.clusters import CHILD_KINDS, Cluster
from tests.e2e.kube import CommandFailed, Kube, Object, wait_for


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


def test_an_invalid_spec_stops_no_repair(kube: Kube, cluster: Cluster) -> None:
    """What the API server lets through and the operator refuses; the last valid spec stays in force."""
    pods = cluster.brokers()
    config = dict(cluster.spec.get("config") or {})
    try:
        cluster.patch({"replicas": 5, "config": {"num.io.threads": "many"}})
        refused = partial(cluster.condition, "Ready")
        wait_for("it is refused", lambda: refused().get("reason") == "InvalidSpec", 60)
        assert "spec.config[num.io.threads]: 'many' is not allowed" in refused()["message"]
        kube.delete("service", "demo-bootstrap", cluster.namespace)
        wait_for("the Service is back", lambda: kube.get("service", "demo-bootstrap", cluster.namespace), 60)
        cluster.create_topic("meanwhile", partitions=1)
        kube.delete("topic", "meanwhile", cluster.namespace)
        assert cluster.status["lastValidSpec"]["replicas"] == 3
        assert cluster.condition("Available")["status"] == "True"
    finally:
        cluster.patch({"replicas": 3, "config": {**config, "num.io.threads": config.get("num.io.threads")}})
    cluster.wait_ready()
    assert cluster.brokers() == pods


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


_LABELS = {"release": "blue"}
_POD = {
    "nodeSelector": {"disk": "none"},
    "containers": [{"name": "broker", "env": [{"name": "X", "value": "1"}], "ports": [{"containerPort": 1}]}],
}
# (kind, name, type of the patch, patch, what the Event says)
_EDITS: list[tuple[str, str, str, Any, str]] = [
    ("poddisruptionbudget", "demo-brokers", "merge", {"spec": {"maxUnavailable": 2}}, "spec.maxUnavailable"),
    ("poddisruptionbudget", "demo-zookeeper", "merge", {"spec": {"selector": {"matchLabels": _LABELS}}},
     "spec.selector"),
    ("service", "demo-bootstrap", "json", [{"op": "replace", "path": "/spec/ports/0/port", "value": 9999}],
     "spec.ports[port=9999,protocol=TCP]"),
    ("service", "demo-zookeeper", "merge", {"spec": {"selector": _LABELS}}, "spec.selector"),
    ("networkpolicy", "demo-brokers", "merge", {"spec": {"egress": [{}]}}, "spec.egress"),
    ("configmap", "demo-zookeeper", "merge", {"data": {"more": "x"}}, "data.more"),
    ("statefulset", "demo-brokers", "strategic", {"spec": {"template": {"spec": _POD}}},
     "spec.template.spec.nodeSelector"),
    ("statefulset", "demo-zookeeper", "strategic",
     {"spec": {"template": {"metadata": {"annotations": _LABELS}}}},
     "spec.template.metadata.annotations.release"),
]  # fmt: skip


def test_edits_are_undone_and_an_event_says_what_was_edited_by_whom(kube: Kube, cluster: Cluster) -> None:
    before = {(kind, name): _content(cluster, kind, name) for kind, name, *_ in _EDITS}
    pods = {**cluster.brokers(), **cluster.zookeepers()}
    for kind, name, type_, patch, _ in _EDITS:
        kube.kubectl("patch", kind, name, "-n", cluster.namespace, f"--type={type_}", "-p", json.dumps(patch))

    def edited() -> list[tuple[str, str]]:
        return [key for key, content in before.items() if _content(cluster, *key) != content]

    wait_for("all edits are undone", lambda: not edited(), 60)
    for kind, name, _, _, field in _EDITS:
        wait_for(f"an Event about {kind} {name}", partial(_reported, cluster, name, field), 30)
    cluster.wait_ready()
    assert {**cluster.brokers(), **cluster.zookeepers()} == pods


def test_labels_are_restored_and_a_set_is_scaled_back(kube: Kube, cluster: Cluster) -> None:
    pods = {**cluster.brokers(), **cluster.zookeepers()}
    relabelled = (("pod", "demo-brokers-1"), ("pvc", "data-demo-brokers-0"), ("pvc", "data-demo-zookeeper-0"))
    for kind, name in relabelled:
        kube.kubectl("label", kind, name, "-n", cluster.namespace, "ottla.dev/cluster-")
    kube.kubectl("scale", "statefulset", "demo-zookeeper", "-n", cluster.namespace, "--replicas=4")

    def restored() -> bool:
        items = [kube.get(kind, name, cluster.namespace) or {} for kind, name in relabelled]
        return all(item["metadata"]["labels"].get("ottla.dev/cluster") == "demo" for item in items)

    wait_for("the labels are back", restored, 60)
    wait_for("the set is scaled back", partial(_reported, cluster, "demo-zookeeper", "spec.replicas"), 60)
    wait_for("the fourth server is gone", lambda: len(cluster.zookeepers()) == 3, 60)
    cluster.wait_ready()
    assert {**cluster.brokers(), **cluster.zookeepers()} == pods


def _content(cluster: Cluster, kind: str, name: str) -> Object:
    found = cluster.kube.get(kind, name, cluster.namespace) or {}
    return {part: value for part, value in found.items() if part not in ("metadata", "status")}


def _reported(cluster: Cluster, name: str, field: str) -> bool:
    events = cluster.kube.list("event", cluster.namespace)
    said = [event["message"] for event in events if event["reason"] == "Applied"]
    return any(f" {name}: " in text and f"{field} by kubectl" in text for text in said)


def test_a_storage_class_is_set_and_taken_back_around_the_pods(kube: Kube, cluster: Cluster) -> None:
    pods = {**cluster.brokers(), **cluster.zookeepers()}

    def classes() -> list[str | None]:
        sets = kube.list("statefulset", cluster.namespace, f"ottla.dev/cluster={cluster.name}")
        return [found["spec"]["volumeClaimTemplates"][0]["spec"].get("storageClassName") for found in sets]

    try:
        storage: Object = {"class": "no-such-class"}
        cluster.patch({"storage": storage, "zookeeper": {"managed": {"storage": storage}}})
        wait_for("the class is in both sets", lambda: classes() == ["no-such-class"] * 2, 90)
        wait_for("the volumes are reported", lambda: cluster.condition("VolumesMatch"), 60)
        assert cluster.condition("VolumesMatch")["status"] == "False"
    finally:
        storage = {"class": None}
        cluster.patch({"storage": storage, "zookeeper": {"managed": {"storage": storage}}})
    wait_for("the class is in no set", lambda: classes() == [None] * 2, 90)
    cluster.wait_ready()
    wait_for("nothing is reported", lambda: not cluster.condition("VolumesMatch"), 60)
    assert {**cluster.brokers(), **cluster.zookeepers()} == pods


def test_an_object_that_is_refused_stops_no_other(kube: Kube, cluster: Cluster) -> None:
    """A quota refuses the brokers' budget."""
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "budgets", "namespace": cluster.namespace},
        "spec": {"hard": {"count/poddisruptionbudgets.policy": "1"}},
    }
    kube.apply(quota)
    try:
        wait_for("the quota counts", partial(_used, cluster), 60)
        kube.delete("poddisruptionbudget", "demo-brokers", cluster.namespace)
        kube.delete("networkpolicy", "demo-zookeeper", cluster.namespace)

        def refused() -> bool:
            ready = cluster.condition("Ready")
            return ready.get("reason") == "ApplyFailed" and "demo-brokers" in ready["message"]

        wait_for("it is reported", refused, 60)
        wait_for(
            "the other is back", lambda: kube.get("networkpolicy", "demo-zookeeper", cluster.namespace), 60
        )
    finally:
        kube.delete("resourcequota", "budgets", cluster.namespace)
    cluster.wait_ready()


def _used(cluster: Cluster) -> Object:
    found = cluster.kube.get("resourcequota", "budgets", cluster.namespace) or {}
    return (found.get("status") or {}).get("used") or {}


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
