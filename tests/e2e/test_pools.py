"""Broker pools under load: a pool joins, any broker leaves, the cluster moves to a pool and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tests.e2e.clients import Traffic
from tests.e2e.clusters import Cluster
from tests.e2e.kube import Kube, wait_for

_SCALE_S = 300


@pytest.fixture
def pooled(kube: Kube, cluster: Cluster) -> Iterator[Cluster]:
    """The cluster's own three brokers, and no pool, again afterwards."""
    yield cluster
    cluster.scale(3)
    cluster.wait_ready(_SCALE_S)
    for pool in ("fast", "other"):
        kube.kubectl("delete", "brokerpool", pool, "-n", cluster.namespace, "--ignore-not-found")
    wait_for("the own brokers are left", partial(_has_brokers, cluster, 0, 1, 2), _SCALE_S)
    cluster.wait_ready(_SCALE_S)


def _apply_pool(cluster: Cluster, name: str, replicas: int, **annotations: str) -> None:
    spec = {
        "clusterRef": {"name": cluster.name},
        "replicas": replicas,
        "rack": name,
        "storage": {"size": "1Gi", "deleteClaim": True},
    }
    resource = cluster.resource("BrokerPool", name, spec)
    resource["metadata"]["annotations"] = {
        f"ottla.dev/{key.replace('_', '-')}": value for key, value in annotations.items()
    }
    cluster.kube.apply(resource)


def _has_brokers(cluster: Cluster, *ids: int) -> bool:
    """Whether these are all brokers, and all in service."""
    found = {broker["id"]: broker.get("ready", False) for broker in cluster.status.get("brokers", ())}
    return found == dict.fromkeys(ids, True)


def _pool_status(cluster: Cluster, name: str) -> dict[str, Any]:
    found = cluster.kube.get("brokerpool", name, cluster.namespace) or {}
    status: dict[str, Any] = found.get("status") or {}
    return status


def _settled(cluster: Cluster, *ids: int) -> Callable[[], bool]:
    return lambda: _has_brokers(cluster, *ids) and cluster.is_ready()


def test_a_cluster_moves_to_pools_and_back_under_load(kube: Kube, pooled: Cluster) -> None:
    kept = pooled.brokers()
    with Traffic(pooled, "events") as traffic:
        _apply_pool(pooled, "fast", 4)
        wait_for("the pool has joined", _settled(pooled, 0, 1, 2, 1000, 1001, 1002, 1003), _SCALE_S)
        wait_for("its brokers hold replicas", partial(pooled.holds_replicas, 1001), 120)
        assert kept.items() <= pooled.brokers().items(), "no other broker restarts"

        _apply_pool(pooled, "fast", 4, remove_broker_ids="[1001]")
        kube.kubectl("scale", "brokerpool/fast", "-n", pooled.namespace, "--replicas=3")
        wait_for("broker 1001 has left", _settled(pooled, 0, 1, 2, 1000, 1002, 1003), _SCALE_S)
        assert _pool_status(pooled, "fast")["brokerIds"] == [1000, 1002, 1003]

        pooled.scale(0)
        wait_for("the own pool has left", _settled(pooled, 1000, 1002, 1003), _SCALE_S)
        traffic.wait_for_more(200)

        _apply_pool(pooled, "other", 3)
        kube.kubectl("scale", "brokerpool/fast", "-n", pooled.namespace, "--replicas=0")
        wait_for(
            "the other pool has all", lambda: _pool_status(pooled, "fast").get("replicas") == 0, _SCALE_S
        )
        others = _pool_status(pooled, "other")["brokerIds"]
        assert len(others) == 3
        wait_for("it is ready", _settled(pooled, *others), _SCALE_S)

        pooled.scale(3)
        wait_for("the own pool is back", _settled(pooled, 0, 1, 2, *others), _SCALE_S)
        kube.kubectl("delete", "brokerpool", "other", "-n", pooled.namespace, "--timeout=10s")
        wait_for("the deleted pool's brokers have left", _settled(pooled, 0, 1, 2), _SCALE_S)
        traffic.wait_for_more(200)
        traffic.assert_lost_nothing()
    left = [name for kind, name, _ in pooled.children() if "-broker-10" in name]
    assert left == []
    claims = [item["metadata"]["name"] for item in kube.list("pvc", pooled.namespace)]
    assert not [name for name in claims if "-broker-10" in name]
