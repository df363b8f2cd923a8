"""Migration of a running secured cluster of an earlier version to mutual TLS with its ZooKeeper.

Each reconciliation has a new operator, so the tests also cover an operator that is killed in between.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from ottla_operator.kubernetes import naming, zookeeper_servers
from ottla_operator.kubernetes.zookeeper_planning import ServerStage, ZooKeeperSecurity, stage_of
from tests.worlds.kubernetes_simulation import Item, KubernetesSimulation

SECURED = [{"name": "secure", "port": 9093, "tls": True}]
SECURE = ",".join(f"demo-zookeeper-{n}.demo-zookeeper.shop.svc:2182" for n in range(3))


def pods(sim: KubernetesSimulation, component: str) -> dict[str, Item]:
    return {
        name: item
        for (kind, name), item in sim.api.items.items()
        if kind == "Pod" and name.startswith(f"demo-{component}-")
    }


def uids(sim: KubernetesSimulation) -> set[str]:
    found = {**pods(sim, "brokers"), **pods(sim, "zookeeper")}
    return {pod["metadata"]["uid"] for pod in found.values()}


def stages(sim: KubernetesSimulation) -> set[ServerStage]:
    return {stage_of(pod) for pod in pods(sim, "zookeeper").values()}


def properties(sim: KubernetesSimulation, broker: int) -> dict[str, str]:
    text = sim.api.items["ConfigMap", f"demo-broker-{broker}"]["data"]["server.properties"]
    return dict(line.split("=", 1) for line in text.splitlines())


def is_done(sim: KubernetesSimulation) -> bool:
    return sim.ready() and stages(sim) == {ServerStage.TLS} and len(pods(sim, "zookeeper")) == 3


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> KubernetesSimulation:
    """A secured cluster of the earlier version: no server and no broker uses TLS with ZooKeeper."""
    sim = KubernetesSimulation()
    with monkeypatch.context() as before:
        before.setattr(zookeeper_servers, "plan_security", lambda *_: ZooKeeperSecurity())
        sim.apply_cluster(listeners=SECURED)
        sim.reconcile_until_ready()
    assert stages(sim) == {ServerStage.PLAIN}
    sim.api.max_unavailable = 0
    return sim


def test_a_new_secured_cluster_starts_with_tls_only() -> None:
    sim = KubernetesSimulation()
    sim.apply_cluster(listeners=SECURED)
    sim.reconcile_until_ready()
    before = uids(sim)
    assert is_done(sim)
    assert properties(sim, 0)["zookeeper.connect"] == SECURE
    assert properties(sim, 0)["zookeeper.set.acl"] == "true"
    for _ in range(5):
        sim.reconcile()
    assert uids(sim) == before
    assert not sim.acl_migrations


def test_clusters_without_security_or_with_an_external_zookeeper_are_not_migrated() -> None:
    for spec in ({}, {"listeners": SECURED, "zookeeper": {"connect": "zk:2181"}}):
        sim = KubernetesSimulation()
        sim.apply_cluster(**spec)
        sim.reconcile_until_ready()
        assert stages(sim) <= {ServerStage.PLAIN}
        assert "zookeeper.ssl.client.enable" not in properties(sim, 0)


class MigrationOracle:
    """Checks after each reconciliation that servers and brokers can connect to each other."""

    def __init__(self, sim: KubernetesSimulation) -> None:
        self.sim = sim
        self.seen: list[tuple[set[ServerStage], list[str], int]] = []

    def reconcile(self) -> None:
        sim = self.sim
        sim.reconcile()
        servers = pods(sim, "zookeeper")
        found = stages(sim)
        assert max(found) - min(found) <= 1, "servers of stages that do not speak to each other"
        assert sum(sim.api.is_ready(pod) for pod in servers.values()) >= 2, "no quorum"
        for name, pod in pods(sim, "brokers").items():
            if pod["metadata"].get("deletionTimestamp"):
                continue
            settings = properties(sim, int(name[-1]))
            annotations = sim.api.items["ConfigMap", f"demo-broker-{name[-1]}"]["metadata"]["annotations"]
            replaced = annotations.get(naming.REPLACES_ANNOTATION) == pod["metadata"]["uid"]
            if replaced:
                continue
            if "zookeeper.ssl.client.enable" in settings:
                assert min(found) >= ServerStage.ADD_TLS, "a broker connects to a port that is not there yet"
            else:
                assert max(found) < ServerStage.TLS, "a broker is left without a port"
        assert sim.api.max_unavailable <= 1

    def until_done(self) -> None:
        for _ in range(300):
            if is_done(self.sim):
                return
            self.reconcile()
        raise AssertionError(f"{stages(self.sim)}, {self.sim.status()}")


def test_a_running_cluster_is_migrated_one_pod_at_a_time(old: KubernetesSimulation) -> None:
    before = uids(old)
    MigrationOracle(old).until_done()
    assert not before & uids(old)
    assert old.acl_migrations == [(SECURE, "CN=demo-brokers,O=ottla.dev")]
    for broker in range(3):
        assert properties(old, broker)["zookeeper.connect"] == SECURE
        assert properties(old, broker)["zookeeper.set.acl"] == "true"
    policy = old.api.items["NetworkPolicy", "demo-zookeeper"]["spec"]["ingress"][0]["ports"]
    assert [port["port"] for port in policy] == [2182]
    after = uids(old)
    for _ in range(5):
        old.reconcile()
    assert uids(old) == after


def test_failed_acls_keep_the_plain_port_open_and_are_retried(
    old: KubernetesSimulation,
) -> None:
    old.acl_migration_fails = True
    old.reconcile_until(lambda: old.condition() == ("False", "ZooKeeperAclsNotSet"), 300)
    for _ in range(5):
        old.reconcile()
    assert stages(old) == {ServerStage.QUORUM_TLS}
    old.api.delete_resource("ConfigMap", "demo-broker-1")
    old.reconcile()
    assert properties(old, 1)["zookeeper.set.acl"] == "true", "all else is kept meanwhile"
    old.acl_migration_fails = False
    MigrationOracle(old).until_done()


@pytest.mark.parametrize("reconciles_max", range(3, 40, 9))
@pytest.mark.parametrize("lost", [("StatefulSet", "demo-zookeeper"), ("ConfigMap", "demo-zookeeper")])
def test_objects_lost_during_the_migration_are_recreated_and_it_completes(
    old: KubernetesSimulation, reconciles_max: int, lost: tuple[str, str]
) -> None:
    for _ in range(reconciles_max):
        old.reconcile()
    old.api.delete_resource(*lost)
    old.reconcile_until(lambda: is_done(old), 400)
    assert old.acl_migrations
    for broker in range(3):
        assert properties(old, broker)["zookeeper.connect"] == SECURE


def test_only_zookeeper_servers_restart_when_certificates_change() -> None:
    sim = KubernetesSimulation()
    sim.apply_cluster(listeners=SECURED)
    sim.reconcile_until_ready()
    brokers = {pod["metadata"]["uid"] for pod in pods(sim, "brokers").values()}
    servers = {pod["metadata"]["uid"] for pod in pods(sim, "zookeeper").values()}
    before: dict[str, Any] = copy.deepcopy(sim.api.items["Secret", "demo-zookeeper"]["data"])
    sim.api.now_ms += 340 * 86_400_000

    def replaced() -> bool:
        return not servers & {pod["metadata"]["uid"] for pod in pods(sim, "zookeeper").values()}

    sim.reconcile_until(lambda: replaced() and sim.ready())
    assert sim.api.items["Secret", "demo-zookeeper"]["data"] != before
    assert brokers == {pod["metadata"]["uid"] for pod in pods(sim, "brokers").values()}
