"""A namespace deleted in one go, with a cluster and all that refers to it, is gone within a minute."""

from __future__ import annotations

import time

from tests.e2e.clusters import Cluster, cluster_spec
from tests.e2e.conftest import NAMESPACE
from tests.e2e.kube import Kube

_GONE_S = 60


def test_a_namespace_deleted_in_one_go_is_gone_within_a_minute(kube: Kube, operator: str) -> None:
    namespace = f"{NAMESPACE}-gone"
    kube.ensure_namespace(namespace)
    cluster = Cluster(kube, namespace, "brief")
    reference = {"clusterRef": {"name": "brief"}}
    few = {"managed": {"replicas": 1, "storage": {"size": "64Mi"}}}
    cluster.create(cluster_spec(zookeeper=few) | {"replicas": 2, "config": {"min.insync.replicas": 1}})
    kube.apply(
        cluster.resource("Topic", "some", {**reference, "partitions": 2, "replicas": 2}),
        cluster.resource("Topic", "kept", {**reference, "partitions": 1, "reclaimPolicy": "Retain"}),
        cluster.resource(
            "Quota",
            "all",
            {**reference, "entity": {"user": "<default>"}, "limits": {"producerByteRate": 1000000}},
        ),
        cluster.resource("ConsumerGroup", "group", {**reference, "groupId": "group"}),
    )
    cluster.wait_ready()
    began = time.monotonic()
    kube.kubectl("delete", "namespace", namespace, "--wait=true", timeout_s=180)
    length_s = time.monotonic() - began
    print(f"namespace gone: {length_s:.0f} s")
    assert length_s < _GONE_S
