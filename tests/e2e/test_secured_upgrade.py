"""A secured cluster that the version before made gets TLS to ZooKeeper while clients write and read.

That version's own operator and image make it: plain ZooKeeper, open nodes. Then the chart is upgraded.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.clients import Traffic
from tests.e2e.clusters import NAMESPACE, Cluster, cluster_spec
from tests.e2e.installing import install_older_operator, install_operator, load_older
from tests.e2e.kube import Kube, wait_for
from tests.e2e.secured_clients import CERTIFIED, Clients
from tests.e2e.test_rolls import PodsDown

_READY_S = 300
_UPGRADED_S = 400
_STAGE = "ottla.dev/zookeeper-stage"


@pytest.fixture
def older(kube: Kube, operator: str, tmp_path: Path) -> Iterator[Cluster]:
    """Made by the version before, whose operator looks after it alone meanwhile."""
    if not kube.has_node:
        pytest.skip("needs OTTLA_KUBE: real clients run on its node, where Services have names")
    version = load_older(tmp_path)
    if version is None:
        pytest.skip("needs the commit of the version before in this checkout")
    namespace = f"{NAMESPACE}-upgraded"
    kube.ensure_namespace(namespace)
    cluster = Cluster(kube, namespace, "demo")
    listener = {"name": "certified", "port": CERTIFIED, "tls": True, "authentication": {"type": "tls"}}
    try:
        install_older_operator(kube, version, namespace)
        authorization = {"type": "simple", "superUsers": ["CN=tester"]}
        cluster.create(cluster_spec(replicas=3, listeners=[listener], authorization=authorization))
        cluster.wait_ready(_READY_S)
        cluster.create_topic("traffic", partitions=4, replicas=3)
        yield cluster
    finally:
        install_operator(kube)
        kube.kubectl("delete", "namespace", namespace, "--wait=false")


def test_zookeeper_gets_tls_while_clients_write_and_read(older: Cluster, kube: Kube, tmp_path: Path) -> None:
    folder = tmp_path / "clients"
    folder.mkdir()
    clients = Clients(older, folder)
    assert clients.asks_zookeeper([(2181, False, None)]) == ["answered"]
    before = {**older.brokers(), **older.zookeepers()}

    def upgraded() -> bool:
        pods = kube.list("pod", older.namespace, "ottla.dev/cluster=demo,ottla.dev/component=zookeeper")
        stages = [(pod["metadata"].get("annotations") or {}).get(_STAGE) for pod in pods]
        ready = list(older.stages("zookeeper").values()) == ["ready"] * 3
        return stages == ["TLS"] * 3 and ready and older.is_ready()

    tester = clients.by_certificate(clients.certificate_of("tester"))
    with Traffic(older, "traffic", per_second=50, security=tester) as traffic, PodsDown(older) as down:
        install_operator(kube)
        wait_for("ZooKeeper has no plain port any more", upgraded, _UPGRADED_S)
        traffic.wait_for_more(100)
        traffic.assert_lost_nothing()
        print(f"pauses: {traffic.summary['produce_pause_s']} s, {traffic.summary['consume_pause_s']} s")
    assert down.most == 1
    after = {**older.brokers(), **older.zookeepers()}
    assert after.keys() == before.keys()
    assert not set(after.values()) & set(before.values())
    own = clients.write("operator.pem", clients.secret("demo-cluster-operator-certs")["cluster-operator.pem"])
    found = clients.asks_zookeeper([(2181, False, None), (2182, True, None), (2182, True, own)])
    assert found == ["refused", "refused", "answered"]
    said = kube.kubectl("get", "events", "-n", older.namespace, "-o", "jsonpath={.items[*].message}")
    assert "set the ACLs of" in said
