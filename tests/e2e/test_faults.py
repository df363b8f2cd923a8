"""Pods killed under load: a broker, the controller, ZooKeeper's leader. Nothing acknowledged is lost."""

from __future__ import annotations

import pytest

from tests.e2e.clients import Traffic
from tests.e2e.clusters import SYSTEM, Cluster
from tests.e2e.kube import Kube, wait_for

_MODE = (
    "import socket; c = socket.create_connection(('127.0.0.1', 2181), 2); c.sendall(b'srvr'); "
    "print(b''.join(iter(lambda: c.recv(4096), b'')).decode())"
)


def _kill(kube: Kube, cluster: Cluster, pod: str) -> None:
    kube.delete("pod", pod, cluster.namespace, "--grace-period=0", "--force", "--wait=false")


def _wait_new(cluster: Cluster, pod: str, uid: str) -> None:
    def new() -> bool:
        return {**cluster.brokers(), **cluster.zookeepers()}.get(pod, uid) != uid

    wait_for(f"{pod} is a new one", new, 60)


def test_a_broker_killed_under_load(kube: Kube, cluster: Cluster) -> None:
    controller = int(cluster.status["controllerId"])
    pod = f"demo-brokers-{next(broker for broker in range(3) if broker != controller)}"
    with Traffic(cluster, "events") as traffic:
        uid = cluster.brokers()[pod]
        _kill(kube, cluster, pod)
        _wait_new(cluster, pod, uid)
        cluster.wait_ready()
        wait_for("all is in sync", cluster.is_in_sync, 120)
        traffic.wait_for_more(200)
        traffic.assert_lost_nothing()


def test_the_controller_killed_under_load(kube: Kube, cluster: Cluster) -> None:
    pod = f"demo-brokers-{cluster.status['controllerId']}"
    with Traffic(cluster, "events") as traffic:
        uid = cluster.brokers()[pod]
        _kill(kube, cluster, pod)
        _wait_new(cluster, pod, uid)
        cluster.wait_ready()
        wait_for("all is in sync", cluster.is_in_sync, 120)
        traffic.wait_for_more(200)
        traffic.assert_lost_nothing()


def _zookeeper_leader(kube: Kube, cluster: Cluster) -> str:
    """Its pod; none while none leads."""
    for pod in sorted(cluster.zookeepers()):
        said = kube.kubectl(
            "exec", pod, "-n", cluster.namespace, "-c", "zookeeper", "--", "python3", "-IS", "-c", _MODE
        )
        if "Mode: leader" in said:
            return pod
    return ""


def test_the_zookeeper_leader_killed_under_load(kube: Kube, cluster: Cluster) -> None:
    leader = wait_for("one leads", lambda: _zookeeper_leader(kube, cluster), 30)
    with Traffic(cluster, "events") as traffic:
        uid = cluster.zookeepers()[leader]
        _kill(kube, cluster, leader)
        _wait_new(cluster, leader, uid)
        traffic.wait_for_more(500)
        cluster.wait_ready()
        traffic.assert_lost_nothing()
    wait_for("another leads", lambda: _zookeeper_leader(kube, cluster), 30)


def test_a_broker_whose_volume_is_lost_gets_its_replicas_back(kube: Kube, cluster: Cluster) -> None:
    controller = int(cluster.status["controllerId"])
    broker = next(broker for broker in range(3) if broker != controller)
    pod, claim = f"demo-brokers-{broker}", f"data-demo-brokers-{broker}"
    with Traffic(cluster, "events") as traffic:
        uid = cluster.brokers()[pod]
        kube.delete("pvc", claim, cluster.namespace, "--wait=false")
        _kill(kube, cluster, pod)
        _wait_new(cluster, pod, uid)
        cluster.wait_ready()
        wait_for("all is in sync", lambda: cluster.status["underReplicatedPartitions"] == 0, 120)
        traffic.wait_for_more(200)
        traffic.assert_lost_nothing()


def _holder(kube: Kube) -> str:
    lease = kube.get("lease", "ottla", SYSTEM) or {"spec": {}}
    return str(lease["spec"].get("holderIdentity", ""))


@pytest.mark.parametrize("how", [("--grace-period=0", "--force"), ()], ids=["killed", "deleted"])
def test_a_second_operator_takes_over(
    kube: Kube, operator: str, cluster: Cluster, how: tuple[str, ...]
) -> None:
    """Of one that is killed the Lease must end; one that is deleted frees it."""
    of_operator = ("-n", SYSTEM, f"deployment/{operator}")
    kube.kubectl("scale", *of_operator, "--replicas=2")
    try:
        kube.kubectl("rollout", "status", *of_operator, "--timeout=120s")
        before = _holder(kube)
        kube.delete("pod", before, SYSTEM, "--wait=false", *how)
        wait_for("another holds the Lease", lambda: _holder(kube) not in ("", before), 60)
        kube.delete("service", "demo-bootstrap", cluster.namespace)
        wait_for("it works", lambda: kube.get("service", "demo-bootstrap", cluster.namespace), 60)
    finally:
        kube.kubectl("scale", *of_operator, "--replicas=1")
