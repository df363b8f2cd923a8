"""The Secrets of a secured cluster on Kubernetes: creation, renewal, replacement and repair."""

from __future__ import annotations

import base64
import json
import os
from typing import Any

import pytest

from ottla.security.clients import ClientSecurity
from ottla_operator.kubernetes import certificates, naming
from ottla_operator.kubernetes.api import ApiError, Forbidden, NotFound
from ottla_operator.kubernetes.metrics import Metrics
from ottla_operator.kubernetes.observing import Listed
from ottla_operator.planning.certificates import (
    Lifetime,
    Pair,
    Subject,
    certificates_in,
    is_issued_by,
    issue,
    new_authority,
)
from ottla_operator.resources.common import RENEW_ANNOTATION, REPLACE_KEY_ANNOTATION
from tests.worlds.kubernetes_simulation import Item, KubernetesSimulation

NAMES = {
    *("demo-brokers", "demo-cluster-operator-certs", "demo-zookeeper"),
    *("demo-cluster-ca", "demo-cluster-ca-cert", "demo-clients-ca", "demo-clients-ca-cert"),
}
DAY_MS = 86_400_000


@pytest.fixture
def sim() -> KubernetesSimulation:
    sim = KubernetesSimulation()
    sim.apply_cluster(listeners=[{"name": "secure", "port": 9093, "tls": True}])
    sim.reconcile_until_ready()
    return sim


def secrets(sim: KubernetesSimulation) -> dict[str, Item]:
    return {name: item for (kind, name), item in sim.api.items.items() if kind == "Secret"}


def data(sim: KubernetesSimulation) -> dict[str, Any]:
    return {name: item["data"] for name, item in secrets(sim).items()}


def pods(sim: KubernetesSimulation) -> set[str]:
    """The uids of the broker pods. Brokers reload certificates; ZooKeeper servers restart."""
    return {
        item["metadata"]["uid"]
        for (kind, name), item in sim.api.items.items()
        if kind == "Pod" and name.startswith("demo-brokers-")
    }


def event_messages(sim: KubernetesSimulation) -> list[str]:
    return [message for _, reason, message, _ in sim.recorder.events if reason == "Applied"]


def test_a_cluster_without_security_has_no_secrets() -> None:
    sim = KubernetesSimulation()
    sim.apply_cluster()
    sim.reconcile_until_ready()
    assert not secrets(sim)
    assert not any(kind == "Secret" for _, kind, _ in sim.api.calls)


def test_secrets_exist_before_the_first_broker_and_do_not_change(sim: KubernetesSimulation) -> None:
    assert set(secrets(sim)) == NAMES
    applied = [(kind, name) for verb, kind, name in sim.api.calls if verb == "apply"]
    assert applied.index(("Secret", "demo-brokers")) < applied.index(("StatefulSet", "demo-brokers"))
    before = data(sim)
    sim.api.calls.clear()
    sim.reconcile()
    assert data(sim) == before
    assert not sim.api.writes
    for item in secrets(sim).values():
        assert item["metadata"]["labels"][naming.CLUSTER_LABEL] == "demo"
        assert item["metadata"]["ownerReferences"][0]["kind"] == "BrokerCluster"


def test_the_status_has_the_certificates_that_clients_trust(sim: KubernetesSimulation) -> None:
    sim.reconcile()
    (listener,) = sim.status()["listeners"]
    assert listener["bootstrapServers"] == "demo-bootstrap.shop.svc:9093"
    trusted = base64.b64decode(secrets(sim)["demo-cluster-ca-cert"]["data"]["ca.crt"]).decode()
    assert listener["certificates"] == [trusted]


def test_certificates_are_renewed_without_replacing_pods(
    sim: KubernetesSimulation,
) -> None:
    before, running = data(sim), pods(sim)
    sim.api.now_ms += 340 * DAY_MS
    sim.reconcile()
    sim.reconcile_until_ready()
    now = data(sim)
    assert pods(sim) == running
    assert {name for name in NAMES if now[name] == before[name]} == {"demo-cluster-ca", "demo-clients-ca"}
    (words,) = [line for line in event_messages(sim) if line.startswith("update Secret demo-brokers ")]
    assert "demo-brokers-0: it expires on " in words


@pytest.mark.parametrize("lost", sorted(NAMES))
def test_a_deleted_certificate_secret_is_created_again(sim: KubernetesSimulation, lost: str) -> None:
    running = pods(sim)
    del sim.api.items["Secret", lost]
    sim.reconcile()
    assert set(secrets(sim)) == NAMES
    assert pods(sim) == running


@pytest.mark.parametrize("name", ["demo-cluster-ca", "demo-clients-ca"])
def test_a_key_is_replaced_when_its_secret_is_annotated(sim: KubernetesSimulation, name: str) -> None:
    before, running, public = data(sim), pods(sim), f"{name}-cert"
    annotations = secrets(sim)[name]["metadata"]["annotations"]
    annotations[REPLACE_KEY_ANNOTATION] = "false"
    sim.reconcile()
    assert data(sim) == before
    annotations[REPLACE_KEY_ANNOTATION] = "true"
    sim.reconcile()
    trusting = {"demo-brokers", *(["demo-zookeeper"] if name == "demo-cluster-ca" else [])}
    assert {each for each in NAMES if data(sim)[each] != before[each]} == {name, public, *trusting}
    for each in trusting:
        kept, now = before[each], data(sim)[each]
        file = f"{name.removeprefix('demo-')}.crt"
        stores = {"cluster-ca.p12"} if each == "demo-zookeeper" else set()
        assert {entry for entry in now if kept[entry] != now[entry]} == {file, *stores}
        assert now[file] == data(sim)[public]["ca.crt"]
    assert f"delete Secret {name}: ottla.dev/force-replace requests a new key" in event_messages(sim)
    old, new = (base64.b64decode(each[public]["ca.crt"]) for each in (before, data(sim)))
    assert certificates_in(new)[1:] == [old]
    replaced = data(sim)
    sim.reconcile()
    assert data(sim) == replaced, "it was asked for once"
    assert pods(sim) == running


def test_an_authority_without_labels_is_not_overwritten(sim: KubernetesSimulation) -> None:
    before = data(sim)
    for item in secrets(sim).values():
        item["metadata"]["labels"] = {}
    sim.reconcile()
    assert data(sim) == before
    assert all(naming.CLUSTER_LABEL in item["metadata"]["labels"] for item in secrets(sim).values())


def test_a_new_broker_has_its_certificate_before_it_starts(sim: KubernetesSimulation) -> None:
    sim.api.apply_resource("BrokerCluster", "demo", {**_spec(sim), "replicas": 4})
    sim.reconcile_until(lambda: ("Pod", "demo-brokers-3") in sim.api.items)
    pairs = {f"demo-brokers-{n}.pem" for n in range(4)}
    assert set(data(sim)["demo-brokers"]) == {*pairs, "cluster-ca.crt", "clients-ca.crt"}


def _spec(sim: KubernetesSimulation) -> Item:
    spec: Item = sim.api.items["BrokerCluster", "demo"]["spec"]
    return spec


def test_a_secret_that_cannot_be_written_is_reported() -> None:
    def refuse(verb: str, kind: str, name: str) -> ApiError | None:
        hidden = kind == "Secret" and verb == "apply"
        return Forbidden(403, "Forbidden", "secrets are not yours") if hidden else None

    sim = KubernetesSimulation()
    sim.api.fail = refuse
    sim.apply_cluster(authorization={"type": "simple"})
    for _ in range(3):
        sim.reconcile()
    assert sim.condition() == ("False", "ApplyFailed")


def test_the_operator_connects_with_its_own_certificate(sim: KubernetesSimulation) -> None:
    listed = Listed.of({"Secret": secrets(sim).values()})
    properties = certificates.client_properties(listed, "demo")
    assert ClientSecurity.of_properties(properties).context() is not None
    assert certificates.client_properties(Listed(), "demo") == {}


def test_metrics_have_the_expiry_of_the_authorities(sim: KubernetesSimulation) -> None:
    listed, now_s = Listed.of({"Secret": secrets(sim).values()}), sim.api.now_ms / 1000
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


def test_an_entry_that_is_not_base64_is_created_again(sim: KubernetesSimulation) -> None:
    secrets(sim)["demo-brokers"]["data"]["demo-brokers-1.pem"] = "%%%"
    sim.reconcile()
    assert any("demo-brokers-1: it is missing" in line for line in event_messages(sim))


# ---- certificates of users


def put_pair(sim: KubernetesSimulation, name: str = "theirs", days: int = 100) -> Pair:
    """A Secret of a user with a certificate for all hosts of the listener."""
    authority = new_authority("their authority", Lifetime(3000), sim.api.now_ms, os.urandom)
    hosts = [f"demo-brokers-{n}.demo-brokers.shop.svc" for n in range(4)]
    subject = Subject("theirs", names=("demo-bootstrap.shop.svc", *hosts))
    pair = issue(authority, subject, Lifetime(days), sim.api.now_ms, os.urandom)
    entries = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": authority.certificate}
    encoded = {entry: base64.b64encode(content).decode() for entry, content in entries.items()}
    before = sim.api.items.get(("Secret", name))
    if before is None:
        sim.api.put("Secret", name, {"type": "kubernetes.io/tls", "data": encoded})
    else:
        sim.api.edit("Secret", name, lambda item: item.update(data=encoded))
    return pair


def own_listener(**configuration: Any) -> list[Any]:
    own = configuration or {"brokerCertChainAndKey": {"secretName": "theirs"}}
    return [{"name": "secure", "port": 9093, "tls": True, "configuration": own}]


def presented(sim: KubernetesSimulation) -> Pair:
    return Pair.of_pem(base64.b64decode(data(sim)["demo-brokers"]["secure.listener.pem"]))


def test_a_listeners_own_certificate_is_applied_and_renewed_without_a_roll() -> None:
    sim = KubernetesSimulation()
    pair = put_pair(sim)
    theirs = data(sim)["theirs"]
    sim.apply_cluster(listeners=own_listener())
    sim.reconcile_until_ready()
    assert presented(sim) == pair
    settings = sim.api.items["ConfigMap", "demo-broker-0"]["data"]["server.properties"]
    assert (
        "listener.name.secure.ssl.keystore.location=/etc/ottla-certificates/secure.listener.pem\n" in settings
    )
    assert sim.condition("CertificatesValid") == ("", "")
    sim.reconcile()
    (listener,) = sim.status()["listeners"]
    assert listener["certificates"] == [base64.b64decode(theirs["ca.crt"]).decode()]
    running = pods(sim)
    pair = put_pair(sim)
    sim.reconcile()
    assert presented(sim) == pair
    assert pods(sim) == running
    assert any("secure.listener: from Secret theirs" in line for line in event_messages(sim))
    assert "labels" not in secrets(sim)["theirs"]["metadata"], "the user's Secret is the user's"


def test_a_missing_certificate_is_a_condition_and_the_cluster_becomes_ready() -> None:
    sim = KubernetesSimulation()
    sim.apply_cluster(listeners=own_listener())
    sim.reconcile_until_ready()
    assert sim.condition("CertificatesValid") == ("False", "SecretNotFound")
    pair = put_pair(sim)
    sim.reconcile()
    sim.reconcile()
    assert sim.condition("CertificatesValid") == ("", "")
    assert presented(sim) == pair


def test_an_own_certificate_is_taken_back_while_every_broker_has_the_files_that_it_needs() -> None:
    sim = KubernetesSimulation()
    put_pair(sim)
    sim.apply_cluster(listeners=own_listener())
    sim.reconcile_until_ready()
    running = pods(sim)
    sim.api.apply_resource(
        "BrokerCluster",
        "demo",
        {**_spec(sim), "listeners": [{"name": "secure", "port": 9093, "tls": True}]},
    )
    for _ in range(100):
        configs = [item for (kind, name), item in sim.api.items.items() if name.startswith("demo-broker-")]
        used = any(
            "secure.listener.pem" in json.dumps(item) for item in configs if item["kind"] == "ConfigMap"
        )
        if used:
            assert "secure.listener.pem" in data(sim)["demo-brokers"]
        elif "secure.listener.pem" not in data(sim)["demo-brokers"] and sim.ready():
            break
        sim.reconcile()
    else:
        raise AssertionError("the certificate stays")
    assert not pods(sim) & running


def test_a_secret_that_the_operator_may_not_read_counts_as_missing() -> None:
    sim = KubernetesSimulation()
    put_pair(sim)

    def refuse(verb: str, kind: str, name: str) -> ApiError | None:
        return Forbidden(403, "Forbidden", "not yours") if (verb, name) == ("get", "theirs") else None

    sim.api.fail = refuse
    sim.apply_cluster(listeners=own_listener())
    sim.reconcile_until_ready()
    assert sim.condition("CertificatesValid") == ("False", "SecretNotFound")


@pytest.mark.parametrize("name", ["demo-cluster-ca-cert", "demo-brokers"])
def test_certificates_are_renewed_once_when_their_secret_is_annotated(
    sim: KubernetesSimulation, name: str
) -> None:
    sim.api.now_ms += DAY_MS
    before, running = data(sim), pods(sim)
    secrets(sim)[name]["metadata"]["annotations"][RENEW_ANNOTATION] = "true"
    sim.reconcile()
    renewed = data(sim)
    assert renewed[name] != before[name]
    assert renewed["demo-cluster-ca"] == before["demo-cluster-ca"]
    assert RENEW_ANNOTATION not in secrets(sim)[name]["metadata"]["annotations"]
    sim.reconcile()
    assert data(sim) == renewed
    assert pods(sim) == running


def put_authority(sim: KubernetesSimulation) -> Pair:
    authority = new_authority("corporate", Lifetime(1000), sim.api.now_ms, os.urandom)
    for name in ("demo-cluster-ca", "demo-clients-ca"):
        of_secrets = {name: {"ca.key": authority.key}, f"{name}-cert": {"ca.crt": authority.certificate}}
        for secret, entries in of_secrets.items():
            encoded = {entry: base64.b64encode(content).decode() for entry, content in entries.items()}
            if ("Secret", secret) in sim.api.items:
                sim.api.edit("Secret", secret, lambda item, data=encoded: item.update(data=data))
            else:
                sim.api.put("Secret", secret, {"data": encoded})
    return authority


GIVEN: dict[str, Any] = {
    "clusterCa": {"generateCertificateAuthority": False},
    "clientsCa": {"generateCertificateAuthority": False},
}


def test_authorities_of_others_are_read_only_and_can_be_replaced_without_a_roll() -> None:
    sim = KubernetesSimulation()
    put_authority(sim)
    theirs = {name: data(sim)[name] for name in ("demo-cluster-ca", "demo-clients-ca-cert")}
    sim.apply_cluster(listeners=[{"name": "secure", "port": 9093, "tls": True}], **GIVEN)
    sim.reconcile_until_ready()
    assert {name: data(sim)[name] for name in theirs} == theirs
    assert all("labels" not in secrets(sim)[name]["metadata"] for name in theirs)
    running = pods(sim)
    new = put_authority(sim)
    sim.reconcile()
    trusted = certificates_in(base64.b64decode(data(sim)["demo-brokers"]["cluster-ca.crt"]))
    assert trusted[0] == new.certificate
    assert len(trusted) == 2
    sim.reconcile()
    (listener,) = sim.status()["listeners"]
    assert certificates_in(listener["certificates"][0].encode()) == trusted
    for _ in range(3):
        sim.api.now_ms += 301_000
        sim.reconcile()
    assert base64.b64decode(data(sim)["demo-brokers"]["cluster-ca.crt"]) == new.certificate
    own = Pair.of_pem(base64.b64decode(data(sim)["demo-brokers"]["demo-brokers-0.pem"]))
    assert is_issued_by(own.certificate, new.certificate)
    sim.reconcile_until_ready()
    assert pods(sim) == running


def test_a_new_key_is_not_made_for_an_authority_of_others() -> None:
    sim = KubernetesSimulation()
    put_authority(sim)
    sim.apply_cluster(listeners=[{"name": "secure", "port": 9093, "tls": True}], **GIVEN)
    sim.reconcile_until_ready()
    before = data(sim)
    secrets(sim)["demo-cluster-ca"]["metadata"]["annotations"] = {REPLACE_KEY_ANNOTATION: "true"}
    sim.reconcile()
    assert data(sim) == before
    assert sim.condition("CertificatesValid") == ("False", "NotGenerated")


def test_without_the_given_authority_brokers_have_no_secret_and_the_condition_says_why() -> None:
    sim = KubernetesSimulation()
    sim.apply_cluster(listeners=[{"name": "secure", "port": 9093, "tls": True}], **GIVEN)
    for _ in range(5):
        sim.reconcile()
    assert sim.condition("CertificatesValid") == ("False", "SecretNotFound")
    assert "demo-brokers" not in secrets(sim), "without it, no pod starts"
    put_authority(sim)
    sim.reconcile()
    assert "demo-brokers" in secrets(sim)
    assert sim.condition("CertificatesValid") == ("", "")


# ---- cert-manager


ISSUED = own_listener(issuerRef={"name": "ours", "kind": "ClusterIssuer"})
HOSTS = [
    "demo-bootstrap.shop.svc",
    *(f"demo-brokers-{broker}.demo-brokers.shop.svc" for broker in range(3)),
]


def certificate(sim: KubernetesSimulation) -> Item:
    return sim.api.items["Certificate", "demo-secure-listener"]


def issue_it(sim: KubernetesSimulation) -> Pair:
    """What cert-manager does."""
    pair = put_pair(sim, certificate(sim)["spec"]["secretName"])
    set_ready(sim, "True", "Certificate is up to date and has not expired")
    return pair


def set_ready(sim: KubernetesSimulation, status: str, message: str) -> None:
    ready = {"type": "Ready", "status": status, "reason": "x", "message": message}
    sim.api.edit(
        "Certificate", "demo-secure-listener", lambda item: item.update(status={"conditions": [ready]})
    )


def message_of(sim: KubernetesSimulation, type_: str = "CertificatesValid") -> str:
    return next(str(each["message"]) for each in sim.status()["conditions"] if each["type"] == type_)


def test_cert_manager_issues_a_certificate_for_all_hosts_of_a_listener() -> None:
    sim = KubernetesSimulation()
    sim.apply_cluster(listeners=ISSUED, clusterCa={"validityDays": 90, "renewalDays": 10})
    sim.reconcile_until_ready()
    assert certificate(sim)["apiVersion"] == "cert-manager.io/v1"
    spec = certificate(sim)["spec"]
    assert spec["issuerRef"] == {"name": "ours", "kind": "ClusterIssuer", "group": "cert-manager.io"}
    assert spec["dnsNames"] == HOSTS
    assert (spec["duration"], spec["renewBefore"]) == ("2160h0m0s", "240h0m0s")
    assert spec["secretTemplate"]["labels"] == {naming.CLUSTER_LABEL: "demo"}
    assert sim.condition("CertificatesValid") == ("False", "CertificateNotReady")
    assert message_of(sim) == (
        "listener secure: Certificate demo-secure-listener: cert-manager has not processed it yet"
    )
    running, pair = pods(sim), issue_it(sim)
    sim.reconcile()
    sim.reconcile()
    assert sim.condition("CertificatesValid") == ("", "")
    assert presented(sim) == pair
    assert pods(sim) == running
    issued_by = base64.b64decode(data(sim)["demo-secure-listener"]["ca.crt"]).decode()
    assert sim.status()["listeners"][0]["certificates"] == [issued_by]


def test_a_listener_of_addresses_has_them_in_its_certificate() -> None:
    sim = KubernetesSimulation()
    address = {"type": "InternalIP", "address": "192.0.2.1"}
    sim.api.put("Node", "one", {"status": {"addresses": [address]}})
    sim.apply_cluster(listeners=[{**ISSUED[0], "type": "nodeport"}])
    sim.reconcile()
    assert ("Certificate", "demo-secure-listener") not in sim.api.items, "no address is known yet"
    for (kind, _), item in sim.api.items.items():
        if kind == "Service" and item["spec"].get("type") == "NodePort":
            item["spec"]["ports"][0]["nodePort"] = 30_000 + len(item["metadata"]["name"])
    sim.reconcile()
    assert certificate(sim)["spec"]["ipAddresses"] == ["192.0.2.1"]


def test_a_message_of_cert_manager_is_in_the_condition_and_the_last_certificate_stays() -> None:
    sim = KubernetesSimulation()
    sim.apply_cluster(listeners=ISSUED)
    sim.reconcile_until_ready()
    pair = issue_it(sim)
    sim.reconcile()
    set_ready(sim, "False", "Referenced issuer not found")
    sim.reconcile()
    assert message_of(sim) == (
        "listener secure: Certificate demo-secure-listener: Referenced issuer not found"
    )
    assert presented(sim) == pair
    assert sim.condition() == ("True", "AllBrokersReady")


@pytest.mark.parametrize(
    "error", [NotFound(404, "Status404", "404 page not found\n"), Forbidden(403, "F", "not yours")]
)
def test_without_cert_manager_the_condition_says_so_and_all_else_works(error: ApiError) -> None:
    sim = KubernetesSimulation()
    sim.api.fail = lambda verb, kind, name: error if kind == "Certificate" else None
    sim.apply_cluster(listeners=ISSUED)
    sim.reconcile_until_ready()
    sim.reconcile()
    assert sim.condition("CertificatesValid") == ("False", "CertManagerNotAvailable")
    why = f"cert-manager.io/v1 Certificate: {error.message.strip()}; is cert-manager installed?"
    assert message_of(sim) == f"listener secure: {why}"
    assert sim.condition() == ("True", "AllBrokersReady")
    assert "secure.listener.pem" in data(sim)["demo-brokers"]


def test_certificates_follow_the_brokers_and_go_with_the_issuer() -> None:
    sim = KubernetesSimulation()
    sim.apply_cluster(listeners=ISSUED)
    sim.reconcile_until_ready()
    labels = {naming.CLUSTER_LABEL: "demo"}
    sim.api.put("Certificate", "of-a-user", {"metadata": {"labels": labels}, "spec": {}})
    issue_it(sim)
    sim.api.apply_resource("BrokerCluster", "demo", {**_spec(sim), "replicas": 4})
    sim.reconcile()
    assert certificate(sim)["spec"]["dnsNames"] == [*HOSTS, "demo-brokers-3.demo-brokers.shop.svc"]
    listeners = [{"name": "secure", "port": 9093, "tls": True}]
    sim.api.apply_resource("BrokerCluster", "demo", {**_spec(sim), "listeners": listeners})
    sim.reconcile()
    assert sim.api.names("Certificate") == ["of-a-user"]


def test_cert_manager_issues_the_clusters_authority_and_replaces_its_key_without_a_roll() -> None:
    sim = KubernetesSimulation()
    sim.apply_cluster(
        listeners=[{"name": "secure", "port": 9093, "tls": True}], clusterCa={"issuerRef": {"name": "ours"}}
    )
    sim.reconcile()
    sim.reconcile()
    spec = sim.api.items["Certificate", "demo-cluster-ca-issued"]["spec"]
    assert (spec["isCA"], spec["commonName"], spec["usages"]) == (
        True,
        "demo-cluster-ca",
        ["digital signature", "cert sign", "crl sign"],
    )
    assert "demo-brokers" not in secrets(sim), "without it, no pod starts"
    assert message_of(sim).startswith("demo-cluster-ca: Certificate demo-cluster-ca-issued: ")
    root = new_authority("root", Lifetime(2000), sim.api.now_ms, os.urandom)

    def issue_authority() -> Pair:
        pair = new_authority("demo-cluster-ca", Lifetime(1000), sim.api.now_ms, os.urandom)
        entries = {
            "tls.crt": pair.certificate + root.certificate,
            "tls.key": pair.key,
            "ca.crt": root.certificate,
        }
        encoded = {entry: base64.b64encode(content).decode() for entry, content in entries.items()}
        if ("Secret", "demo-cluster-ca-issued") in sim.api.items:
            sim.api.edit("Secret", "demo-cluster-ca-issued", lambda item: item.update(data=encoded))
        else:
            sim.api.put("Secret", "demo-cluster-ca-issued", {"data": encoded})
        ready = {"type": "Ready", "status": "True"}
        sim.api.edit(
            "Certificate", "demo-cluster-ca-issued", lambda item: item.update(status={"conditions": [ready]})
        )
        return pair

    first = issue_authority()
    sim.reconcile()
    sim.reconcile_until_ready()
    assert sim.condition("CertificatesValid") == ("", "")
    trusted = base64.b64decode(data(sim)["demo-brokers"]["cluster-ca.crt"])
    assert trusted == first.certificate, "whom the root has signed besides could pose as a broker"
    own = Pair.of_pem(base64.b64decode(data(sim)["demo-brokers"]["demo-brokers-0.pem"]))
    assert is_issued_by(own.certificate, first.certificate)
    assert bundle(sim)["data"]["ca.crt"] == (first.certificate + root.certificate).decode()
    assert {"demo-cluster-ca", "demo-cluster-ca-cert"}.isdisjoint(secrets(sim))
    running, second = pods(sim), issue_authority()
    sim.reconcile()
    trusted = base64.b64decode(data(sim)["demo-brokers"]["cluster-ca.crt"])
    assert certificates_in(trusted) == [second.certificate, first.certificate]
    for _ in range(3):
        sim.api.now_ms += 301_000
        sim.reconcile()
    assert base64.b64decode(data(sim)["demo-brokers"]["cluster-ca.crt"]) == second.certificate
    sim.reconcile_until_ready()
    assert pods(sim) == running


def test_users_get_certificates_of_an_issued_authority() -> None:
    sim = KubernetesSimulation()
    authority = new_authority("demo-clients-ca", Lifetime(1000), sim.api.now_ms, os.urandom)
    entries = {"tls.crt": authority.certificate, "tls.key": authority.key}
    encoded = {entry: base64.b64encode(content).decode() for entry, content in entries.items()}
    sim.api.put("Secret", "demo-clients-ca-issued", {"data": encoded})
    listener = {"name": "secure", "port": 9093, "tls": True, "authentication": {"type": "tls"}}
    sim.apply_cluster(listeners=[listener], clientsCa={"issuerRef": {"name": "ours"}})
    sim.reconcile_until_ready()
    user = {"clusterRef": {"name": "demo"}, "authentication": {"type": "tls"}}
    sim.api.apply_resource("User", "carol", user)
    sim.reconcile()
    of_carol = base64.b64decode(data(sim)["carol"]["user.crt"])
    assert is_issued_by(of_carol, authority.certificate)


# ---- what clients trust


def bundle(sim: KubernetesSimulation) -> Item:
    return sim.api.items["ConfigMap", "demo-ca-bundle"]


def test_a_config_map_has_what_clients_trust_for_each_listener_and_for_all() -> None:
    sim = KubernetesSimulation()
    put_pair(sim)
    plain, other = {"name": "plain", "port": 9092}, {"name": "ca", "port": 9094, "tls": True}
    sim.apply_cluster(listeners=[plain, other, *own_listener()])
    sim.reconcile_until_ready()
    of_cluster, theirs = (
        base64.b64decode(data(sim)[name]["ca.crt"]).decode() for name in ("demo-cluster-ca-cert", "theirs")
    )
    assert bundle(sim)["data"] == {
        "ca.crt": of_cluster + theirs,
        "ca.listener.crt": of_cluster,
        "secure.listener.crt": theirs,
    }
    assert bundle(sim)["metadata"]["labels"]["ottla.dev/trust-bundle"] == "demo"
    secrets(sim)["demo-cluster-ca"]["metadata"]["annotations"][REPLACE_KEY_ANNOTATION] = "true"
    sim.reconcile()
    assert len(certificates_in(bundle(sim)["data"]["ca.listener.crt"].encode())) == 2
    sim.api.apply_resource(
        "BrokerCluster", "demo", {**_spec(sim), "listeners": [plain], "authorization": {"type": "simple"}}
    )
    sim.reconcile()
    assert ("ConfigMap", "demo-ca-bundle") not in sim.api.items
