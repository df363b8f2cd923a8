"""Clusters and namespaces deleted: everything goes, within a minute, in whatever order."""

from __future__ import annotations

import time

import pytest

from tests.e2e.clusters import Cluster, cluster_spec
from tests.e2e.conftest import NAMESPACE, kill_operator
from tests.e2e.kube import Kube, wait_for

_GONE_S = 60


@pytest.fixture
def brief(kube: Kube, operator: str) -> Cluster:
    """A cluster of two brokers, Ready, in a namespace of its own, and one of every kind that refers to it."""
    namespace = f"{NAMESPACE}-gone"
    kube.ensure_namespace(namespace)
    cluster = Cluster(kube, namespace, "brief")
    reference = {"clusterRef": {"name": "brief"}}
    quota = {"entity": {"user": "<default>"}, "limits": {"producerByteRate": 1000000}}
    one = {"managed": {"replicas": 1, "storage": {"size": "64Mi", "deleteClaim": True}}}
    cluster.create(cluster_spec(zookeeper=one) | {"replicas": 2, "config": {"min.insync.replicas": 1}})
    kube.apply(
        cluster.resource("Topic", "some", {**reference, "partitions": 2, "replicas": 2}),
        cluster.resource("Topic", "kept", {**reference, "partitions": 1, "reclaimPolicy": "Retain"}),
        cluster.resource("Quota", "all", {**reference, **quota}),
        cluster.resource("ConsumerGroup", "group", {**reference, "groupId": "group"}),
    )
    cluster.wait_ready()
    return cluster


def test_the_operator_killed_while_it_deletes_a_cluster(kube: Kube, brief: Cluster) -> None:
    kube.delete("brokercluster", "brief", brief.namespace, "--wait=false")
    kill_operator(kube)

    def all_gone() -> bool:
        if kube.get("brokercluster", "brief", brief.namespace) is not None:
            return False
        kinds = "statefulset,pod,pvc,configmap,service"
        return not kube.list(kinds, brief.namespace, "ottla.dev/cluster=brief")

    wait_for("everything is gone", all_gone, 120)
    # What refers to it stays, and says so; it goes without the cluster, too.
    assert brief.condition("Ready", "topic", "some").get("reason") == "ClusterNotFound"
    for kind, name in (("topic", "some"), ("topic", "kept"), ("quota", "all"), ("consumergroup", "group")):
        kube.delete(kind, name, brief.namespace, "--timeout=60s")


def test_a_namespace_deleted_in_one_go_is_gone_within_a_minute(kube: Kube, brief: Cluster) -> None:
    began = time.monotonic()
    kube.kubectl("delete", "namespace", brief.namespace, "--wait=true", timeout_s=180)
    length_s = time.monotonic() - began
    print(f"namespace gone: {length_s:.0f} s")
    assert length_s < _GONE_S
