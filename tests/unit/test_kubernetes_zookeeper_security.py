"""A secured cluster of an earlier version gets mutual TLS to its ZooKeeper, step by step, while it runs.

Every pass is made by a new operator, so that each run is one of an operator that is killed between any two
passes.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from ottla_operator.kubernetes import naming, platform
from ottla_operator.kubernetes.zookeeper_planning import ServerStage, ZooKeeperSecurity, stage_of
from tests.unit.kubernetes_world import Item, KubernetesWorld

SECURED = [{"name": "secure", "port": 9093, "tls": True}]
SECURE = ",".join(f"demo-zookeeper-{n}.demo-zookeeper.shop.svc:2182" for n in range(3))


def pods(world: KubernetesWorld, component: str) -> dict[str, Item]:
    return {
        name: item
        for (kind, name), item in world.api.items.items()
        if kind == "Pod" and name.startswith(f"demo-{component}-")
    }


def uids(world: KubernetesWorld) -> set[str]:
    found = {**pods(world, "brokers"), **pods(world, "zookeeper")}
    return {pod["metadata"]["uid"] for pod in found.values()}


def stages(world: KubernetesWorld) -> set[ServerStage]:
    return {stage_of(pod) for pod in pods(world, "zookeeper").values()}


def properties(world: KubernetesWorld, broker: int) -> dict[str, str]:
    text = world.api.items["ConfigMap", f"demo-broker-{broker}"]["data"]["server.properties"]
    return dict(line.split("=", 1) for line in text.splitlines())


def is_done(world: KubernetesWorld) -> bool:
    return world.ready() and stages(world) == {ServerStage.TLS} and len(pods(world, "zookeeper")) == 3


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> KubernetesWorld:
    """A secured cluster as the version before made it: no server and no broker has TLS to ZooKeeper."""
    world = KubernetesWorld()
    with monkeypatch.context() as before:
        before.setattr(platform, "plan_security", lambda *_: ZooKeeperSecurity())
        world.cluster(listeners=SECURED)
        world.settle()
    assert stages(world) == {ServerStage.PLAIN}
    world.api.most_down = 0
    return world


def test_a_new_cluster_has_tls_alone_from_its_first_pod_on() -> None:
    world = KubernetesWorld()
    world.cluster(listeners=SECURED)
    world.settle()
    before = uids(world)
    assert is_done(world)
    assert properties(world, 0)["zookeeper.connect"] == SECURE
    assert properties(world, 0)["zookeeper.set.acl"] == "true"
    for _ in range(5):
        world.step()
    assert uids(world) == before
    assert not world.secured_nodes


def test_a_cluster_without_security_and_one_with_a_zookeeper_of_others_stay_as_they_are() -> None:
    for spec in ({}, {"listeners": SECURED, "zookeeper": {"connect": "zk:2181"}}):
        world = KubernetesWorld()
        world.cluster(**spec)
        world.settle()
        assert stages(world) <= {ServerStage.PLAIN}
        assert "zookeeper.ssl.client.enable" not in properties(world, 0)


class Watched:
    """Each step of an upgrade is one that the version before and the one after can stand beside."""

    def __init__(self, world: KubernetesWorld) -> None:
        self.world = world
        self.seen: list[tuple[set[ServerStage], list[str], int]] = []

    def step(self) -> None:
        world = self.world
        world.step()
        servers = pods(world, "zookeeper")
        found = stages(world)
        assert max(found) - min(found) <= 1, "servers of stages that do not speak to each other"
        assert sum(world.api.is_ready(pod) for pod in servers.values()) >= 2, "no quorum"
        for name, pod in pods(world, "brokers").items():
            if pod["metadata"].get("deletionTimestamp"):
                continue
            settings = properties(world, int(name[-1]))
            annotations = world.api.items["ConfigMap", f"demo-broker-{name[-1]}"]["metadata"]["annotations"]
            replaced = annotations.get(naming.REPLACES_ANNOTATION) == pod["metadata"]["uid"]
            if replaced:
                continue
            if "zookeeper.ssl.client.enable" in settings:
                assert min(found) >= ServerStage.ADD_TLS, "a broker connects to a port that is not there yet"
            else:
                assert max(found) < ServerStage.TLS, "a broker is left without a port"
        assert world.api.most_down <= 1

    def until_done(self) -> None:
        for _ in range(300):
            if is_done(self.world):
                return
            self.step()
        raise AssertionError(f"{stages(self.world)}, {self.world.status()}")


def test_a_running_cluster_is_upgraded_one_pod_at_a_time(old: KubernetesWorld) -> None:
    before = uids(old)
    Watched(old).until_done()
    assert not before & uids(old)
    assert old.secured_nodes == [(SECURE, "CN=demo-brokers,O=ottla.dev")]
    for broker in range(3):
        assert properties(old, broker)["zookeeper.connect"] == SECURE
        assert properties(old, broker)["zookeeper.set.acl"] == "true"
    policy = old.api.items["NetworkPolicy", "demo-zookeeper"]["spec"]["ingress"][0]["ports"]
    assert [port["port"] for port in policy] == [2182]
    after = uids(old)
    for _ in range(5):
        old.step()
    assert uids(old) == after


def test_acls_that_cannot_be_set_keep_the_plain_port_open_and_are_tried_again(old: KubernetesWorld) -> None:
    old.acls_fail = True
    old.until(lambda: old.condition() == ("False", "ZooKeeperAclsNotSet"), 300)
    for _ in range(5):
        old.step()
    assert stages(old) == {ServerStage.QUORUM_TLS}
    old.api.delete_one("ConfigMap", "demo-broker-1")
    old.step()
    assert properties(old, 1)["zookeeper.set.acl"] == "true", "all else is kept meanwhile"
    old.acls_fail = False
    Watched(old).until_done()


@pytest.mark.parametrize("passes", range(3, 40, 9))
@pytest.mark.parametrize("lost", [("StatefulSet", "demo-zookeeper"), ("ConfigMap", "demo-zookeeper")])
def test_what_is_lost_on_the_way_comes_back_and_nothing_is_left_out(
    old: KubernetesWorld, passes: int, lost: tuple[str, str]
) -> None:
    for _ in range(passes):
        old.step()
    old.api.delete_one(*lost)
    old.until(lambda: is_done(old), 400)
    assert old.secured_nodes
    for broker in range(3):
        assert properties(old, broker)["zookeeper.connect"] == SECURE


def test_servers_are_restarted_when_their_certificates_change_and_brokers_are_not() -> None:
    world = KubernetesWorld()
    world.cluster(listeners=SECURED)
    world.settle()
    brokers = {pod["metadata"]["uid"] for pod in pods(world, "brokers").values()}
    servers = {pod["metadata"]["uid"] for pod in pods(world, "zookeeper").values()}
    before: dict[str, Any] = copy.deepcopy(world.api.items["Secret", "demo-zookeeper"]["data"])
    world.api.now_ms += 340 * 86_400_000

    def replaced() -> bool:
        return not servers & {pod["metadata"]["uid"] for pod in pods(world, "zookeeper").values()}

    world.until(lambda: replaced() and world.ready())
    assert world.api.items["Secret", "demo-zookeeper"]["data"] != before
    assert brokers == {pod["metadata"]["uid"] for pod in pods(world, "brokers").values()}
