"""Clusters and namespaces deleted: everything goes, within a minute, in whatever order."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.clusters import NAMESPACE, Cluster, cluster_spec
from tests.e2e.installing import install_operator, uninstall_operator
from tests.e2e.kills import KilledAtEachStep
from tests.e2e.kube import Kube, wait_for

_GONE_S = 60
"""Where the machine has as many cores as there is to do; else as much longer as there is more. The time in
which something waited for a core (PSI) does not count."""


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


def test_the_operator_killed_at_each_step_of_a_deletion(kube: Kube, brief: Cluster) -> None:
    def left() -> dict[str, int]:
        found = kube.list("statefulset,pod,pvc,configmap,service", brief.namespace, "ottla.dev/cluster=brief")
        return Counter(item["kind"] for item in found)

    with KilledAtEachStep(kube, left) as killed:
        kube.delete("brokercluster", "brief", brief.namespace, "--wait=false")
        wait_for(
            "everything is gone",
            lambda: kube.get("brokercluster", "brief", brief.namespace) is None and not left(),
            180,
        )
    assert killed.at
    # What refers to it stays, and says so; it goes without the cluster, too.
    wait_for(
        "the topic says so",
        lambda: brief.condition("Ready", "topic", "some").get("reason") == "ClusterNotFound",
        60,
    )
    for kind, name in (("topic", "some"), ("topic", "kept"), ("quota", "all"), ("consumergroup", "group")):
        kube.delete(kind, name, brief.namespace, "--timeout=60s")


def test_a_cluster_created_again_at_once_is_a_new_one(kube: Kube, brief: Cluster) -> None:
    """Its objects are made when the garbage collector has deleted those of the former one."""
    found = kube.get("brokercluster", "brief", brief.namespace)
    assert found is not None
    before = set(brief.brokers().values())
    kube.delete("brokercluster", "brief", brief.namespace)
    brief.create(found["spec"])
    brief.wait_ready()
    assert not before & set(brief.brokers().values())


def test_without_an_operator_no_namespace_is_held_up(kube: Kube, brief: Cluster) -> None:
    kube.kubectl("wait", "topic.ottla.dev/some", "-n", brief.namespace, "--for=condition=Ready")
    uninstall_operator(kube)
    try:
        for kind, name in (("brokercluster", "brief"), ("topic", "some"), ("quota", "all")):
            condition = brief.condition("Ready", kind, name)
            assert (condition["status"], condition["reason"]) == ("Unknown", "NotWatched")
        kube.kubectl("delete", "namespace", brief.namespace, "--wait=true", timeout_s=300)
    finally:
        install_operator(kube)


def test_a_namespace_deleted_in_one_go_is_gone_within_a_minute(kube: Kube, brief: Cluster) -> None:
    began, waited_s = time.monotonic(), _waited_for_cores_s()
    kube.kubectl("delete", "namespace", brief.namespace, "--wait=true", timeout_s=600)
    length_s = time.monotonic() - began
    waited_s = _waited_for_cores_s() - waited_s
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    print(f"namespace gone: {length_s:.0f} s, {waited_s:.0f} s short of cores, at load {load:.1f} a core")
    assert length_s - waited_s < _GONE_S * max(1.0, load)


def _waited_for_cores_s() -> float:
    """Since the machine began; 0 where the kernel does not say."""
    try:
        some = Path("/proc/pressure/cpu").read_text().splitlines()[0]
    except OSError:
        return 0.0
    return int(some.rpartition("total=")[2]) / 1e6
