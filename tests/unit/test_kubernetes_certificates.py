"""A secured cluster's Secrets on an API server: made, kept, renewed, never lost; and none of it otherwise."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from ottla.security.clients import ClientSecurity
from ottla_operator.kubernetes import certificates, naming
from ottla_operator.kubernetes.api import ApiError, Forbidden
from ottla_operator.kubernetes.metrics import Metrics
from ottla_operator.kubernetes.observing import Listed
from ottla_operator.planning.certificates import certificates_in
from ottla_operator.resources.common import REPLACE_KEY_ANNOTATION
from tests.unit.kubernetes_world import Item, KubernetesWorld

NAMES = {
    *("demo-brokers", "demo-cluster-operator-certs", "demo-zookeeper"),
    *("demo-cluster-ca", "demo-cluster-ca-cert", "demo-clients-ca", "demo-clients-ca-cert"),
}
DAY_MS = 86_400_000


@pytest.fixture
def world() -> KubernetesWorld:
    world = KubernetesWorld()
    world.cluster(listeners=[{"name": "secure", "port": 9093, "tls": True}])
    world.settle()
    return world


def secrets(world: KubernetesWorld) -> dict[str, Item]:
    return {name: item for (kind, name), item in world.api.items.items() if kind == "Secret"}


def data(world: KubernetesWorld) -> dict[str, Any]:
    return {name: item["data"] for name, item in secrets(world).items()}


def pods(world: KubernetesWorld) -> set[str]:
    """Of brokers, which take new certificates while they run; ZooKeeper's servers restart."""
    return {
        item["metadata"]["uid"]
        for (kind, name), item in world.api.items.items()
        if kind == "Pod" and name.startswith("demo-brokers-")
    }


def said(world: KubernetesWorld) -> list[str]:
    return [message for _, reason, message, _ in world.said.events if reason == "Applied"]


def test_a_cluster_that_is_not_secured_has_none_and_nobody_asks_for_any() -> None:
    world = KubernetesWorld()
    world.cluster()
    world.settle()
    assert not secrets(world)
    assert not any(kind == "Secret" for _, kind, _ in world.api.calls)


def test_they_are_there_before_the_first_broker_and_then_stay(world: KubernetesWorld) -> None:
    assert set(secrets(world)) == NAMES
    applied = [(kind, name) for verb, kind, name in world.api.calls if verb == "apply"]
    assert applied.index(("Secret", "demo-brokers")) < applied.index(("StatefulSet", "demo-brokers"))
    before = data(world)
    world.api.calls.clear()
    world.step()
    assert data(world) == before
    assert not world.api.writes
    for item in secrets(world).values():
        assert item["metadata"]["labels"][naming.CLUSTER_LABEL] == "demo"
        assert item["metadata"]["ownerReferences"][0]["kind"] == "BrokerCluster"


def test_the_status_has_what_clients_trust(world: KubernetesWorld) -> None:
    world.step()
    (listener,) = world.status()["listeners"]
    assert listener["bootstrapServers"] == "demo-bootstrap.shop.svc:9093"
    trusted = base64.b64decode(secrets(world)["demo-cluster-ca-cert"]["data"]["ca.crt"]).decode()
    assert listener["certificates"] == [trusted]


def test_certificates_are_renewed_before_their_end_with_no_pod_replaced(world: KubernetesWorld) -> None:
    before, running = data(world), pods(world)
    world.api.now_ms += 340 * DAY_MS
    world.step()
    world.settle()
    now = data(world)
    assert pods(world) == running
    assert {name for name in NAMES if now[name] == before[name]} == {"demo-cluster-ca", "demo-clients-ca"}
    (words,) = [line for line in said(world) if line.startswith("update Secret demo-brokers ")]
    assert "demo-brokers-0: it expires on " in words


@pytest.mark.parametrize("lost", sorted(NAMES))
def test_one_that_is_deleted_comes_back(world: KubernetesWorld, lost: str) -> None:
    running = pods(world)
    del world.api.items["Secret", lost]
    world.step()
    assert set(secrets(world)) == NAMES
    assert pods(world) == running


@pytest.mark.parametrize("name", ["demo-cluster-ca", "demo-clients-ca"])
def test_a_key_is_replaced_when_its_secret_is_annotated(world: KubernetesWorld, name: str) -> None:
    before, running, public = data(world), pods(world), f"{name}-cert"
    annotations = secrets(world)[name]["metadata"]["annotations"]
    annotations[REPLACE_KEY_ANNOTATION] = "false"
    world.step()
    assert data(world) == before
    annotations[REPLACE_KEY_ANNOTATION] = "true"
    world.step()
    assert {each for each in NAMES if data(world)[each] != before[each]} == {name, public}
    assert f"delete Secret {name}: ottla.dev/force-replace requests a new key" in said(world)
    old, new = (base64.b64decode(each[public]["ca.crt"]) for each in (before, data(world)))
    assert certificates_in(new)[1:] == [old]
    replaced = data(world)
    world.step()
    assert data(world) == replaced, "it was asked for once"
    assert pods(world) == running


def test_an_authority_that_has_lost_its_labels_is_not_written_over(world: KubernetesWorld) -> None:
    before = data(world)
    for item in secrets(world).values():
        item["metadata"]["labels"] = {}
    world.step()
    assert data(world) == before
    assert all(naming.CLUSTER_LABEL in item["metadata"]["labels"] for item in secrets(world).values())


def test_a_broker_that_comes_has_its_certificate_before_it_starts(world: KubernetesWorld) -> None:
    world.api.resource("BrokerCluster", "demo", {**_spec(world), "replicas": 4})
    world.until(lambda: ("Pod", "demo-brokers-3") in world.api.items)
    assert set(data(world)["demo-brokers"]) == {f"demo-brokers-{n}.pem" for n in range(4)}


def _spec(world: KubernetesWorld) -> Item:
    spec: Item = world.api.items["BrokerCluster", "demo"]["spec"]
    return spec


def test_what_we_may_not_write_is_told() -> None:
    def refuse(verb: str, kind: str, name: str) -> ApiError | None:
        hidden = kind == "Secret" and verb == "apply"
        return Forbidden(403, "Forbidden", "secrets are not yours") if hidden else None

    world = KubernetesWorld()
    world.api.fail = refuse
    world.cluster(authorization={"type": "simple"})
    for _ in range(3):
        world.step()
    assert world.condition() == ("False", "ApplyFailed")


def test_the_operator_connects_with_a_certificate_of_its_own(world: KubernetesWorld) -> None:
    listed = Listed.of({"Secret": secrets(world).values()})
    properties = certificates.client_properties(listed, "demo")
    assert ClientSecurity.of_properties(properties).context() is not None
    assert certificates.client_properties(Listed(), "demo") == {}


def test_the_operator_tells_when_the_authorities_end(world: KubernetesWorld) -> None:
    listed, now_s = Listed.of({"Secret": secrets(world).values()}), world.api.now_ms / 1000
    ends = certificates.authority_ends(listed, "demo")
    assert {kind: round((end / 1000 - now_s) / 86_400) for kind, end in ends.items()} == {
        "cluster-ca": 365,
        "client-ca": 365,
    }
    metrics = Metrics()
    metrics.export_certificate_expiry("shop", "demo", ends)
    labels = {"resource_namespace": "shop", "cluster": "demo", "type": "client-ca"}
    name = "strimzi_certificate_expiration_timestamp_ms"
    assert metrics.registry.get_sample_value(name, labels) == ends["client-ca"]
    metrics.remove_cluster("shop", "demo")
    assert metrics.registry.get_sample_value(name, labels) is None


def test_an_entry_that_is_no_base64_is_made_anew(world: KubernetesWorld) -> None:
    secrets(world)["demo-brokers"]["data"]["demo-brokers-1.pem"] = "%%%"
    world.step()
    assert any("demo-brokers-1: it is missing" in line for line in said(world))
