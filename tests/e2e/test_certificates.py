"""Certificates that others make: of a listener, of an authority, by cert-manager; and what clients trust.

One cluster with one broker, in a namespace of its own, whose authority is the test's. Certificates change
while the broker runs.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ottla_operator.planning.certificates import (
    Lifetime,
    Pair,
    Subject,
    certificates_in,
    is_issued_by,
    issue,
    new_authority,
)
from tests.e2e.cert_manager import apply_issuer, cert_manager
from tests.e2e.clusters import NAMESPACE, Cluster, cluster_spec
from tests.e2e.kube import Kube, wait_for
from tests.e2e.secured_clients import TOPIC, Clients

INNER, PUBLIC = 9093, 9094
_READY_S = 240
_LIFETIME = Lifetime()


def authority(name: str) -> Pair:
    return new_authority(name, _LIFETIME, time.time_ns() // 1_000_000, os.urandom)


def server(signed_by: Pair, namespace: str) -> Pair:
    """A certificate with the names that clients of the listener connect to, and the chain."""
    names = (
        f"demo-bootstrap.{namespace}.svc",
        f"*.demo-brokers.{namespace}.svc",
    )
    subject = Subject("kafka.example.org", names=names)
    made = issue(signed_by, subject, _LIFETIME, time.time_ns() // 1_000_000, os.urandom)
    return Pair(made.key, made.certificate + signed_by.certificate)


def apply_secret(cluster: Cluster, name: str, **files: bytes) -> None:
    """The entry of `tls_crt` is tls.crt."""
    data = {entry.replace("_", "."): base64.b64encode(data).decode() for entry, data in files.items()}
    metadata = {"name": name, "namespace": cluster.namespace, "labels": {"ottla.dev/cluster": cluster.name}}
    cluster.kube.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})


def given(cluster: Cluster, pair: Pair) -> None:
    apply_secret(cluster, "kafka-public", tls_crt=pair.certificate, tls_key=pair.key)


LISTENERS = [
    {"name": "inner", "port": INNER, "tls": True},
    {
        "name": "public",
        "port": PUBLIC,
        "tls": True,
        "configuration": {"brokerCertChainAndKey": {"secretName": "kafka-public"}},
    },
]


@pytest.fixture(scope="module")
def ours() -> Pair:
    """The authority that is given as the cluster's."""
    return authority("ours")


@pytest.fixture(scope="module")
def cluster_with_own(kube: Kube, operator: str, ours: Pair) -> Iterator[Cluster]:
    if not kube.has_node:
        pytest.skip("needs OTTLA_KUBE: real clients run on its node, where Services have names")
    namespace = f"{NAMESPACE}-certificates"
    kube.ensure_namespace(namespace)
    cluster = Cluster(kube, namespace, "demo")
    apply_secret(cluster, "demo-cluster-ca", ca_key=ours.key)
    apply_secret(cluster, "demo-cluster-ca-cert", ca_crt=ours.certificate)
    given(cluster, server(authority("public"), namespace))
    small = {"size": "64Mi", "deleteClaim": True}
    cluster.create(
        cluster_spec(
            replicas=1,
            listeners=LISTENERS,
            clusterCa={"generateCertificateAuthority": False},
            storage=small,
            zookeeper={"managed": {"replicas": 1, "storage": small}},
            config={"min.insync.replicas": 1, "offsets.topic.replication.factor": 1},
        )
    )
    print(f"apply to Ready: {cluster.wait_ready(_READY_S):.0f} s")
    cluster.create_topic(TOPIC, partitions=1, replicas=1)
    yield cluster
    kube.kubectl("delete", "namespace", namespace, "--wait=false")


@pytest.fixture
def clients(cluster_with_own: Cluster, tmp_path: Path) -> Iterator[Clients]:
    """Of the cluster, which is restored; no pod may change meanwhile."""
    cluster = cluster_with_own
    pods = cluster.brokers()
    yield Clients(cluster, tmp_path)
    assert cluster.brokers() == pods, "certificates change without a roll"


def bundle(cluster: Cluster, entry: str) -> bytes:
    found = cluster.kube.get("configmap", "demo-ca-bundle", cluster.namespace)
    assert found is not None
    assert found["metadata"]["labels"]["ottla.dev/trust-bundle"] == "demo"
    return str(found["data"][entry]).encode()


def trusting(clients: Clients, port: int, trusted: bytes) -> dict[str, str]:
    """A client that verifies the host's name, too."""
    return {
        "bootstrap.servers": f"{clients.host(0)}:{port}",
        "security.protocol": "SSL",
        "ssl.ca.location": clients.write("trusted.crt", trusted),
        "ssl.endpoint.identification.algorithm": "https",
    }


def look_again(cluster: Cluster) -> None:
    """The kubelet looks at mounted Secrets once a minute or so, and whenever a pod has changed."""
    again = f"ottla-e2e/look={time.time()}"
    cluster.kube.kubectl("annotate", "pod", "--all", "-n", cluster.namespace, again, "--overwrite")


def wait_shown(clients: Clients, port: int, is_wanted: Callable[[bytes], bool]) -> None:
    """Wait until the broker presents such a certificate."""
    look_again(clients.cluster)
    wait_for("the broker shows it", lambda: is_wanted(clients.shown(port)[0].encode()), 120, poll_s=1)


def test_a_listeners_own_certificate_is_reloaded_without_a_roll(clients: Clients) -> None:
    cluster = clients.cluster
    for number in range(2):
        signer = authority(f"public-{number}")
        pair = server(signer, cluster.namespace)
        given(cluster, pair)
        own = certificates_in(pair.certificate)[0]
        wait_shown(clients, PUBLIC, lambda shown, own=own: certificates_in(shown) == [own])
        wait_for(
            "the bundle has its authority",
            lambda signer=signer: signer.certificate.strip() in bundle(cluster, "public.listener.crt"),
            60,
        )
        trusted = bundle(cluster, "public.listener.crt")
        value = f"with certificate {number}"
        assert clients.write_and_read(trusting(clients, PUBLIC, trusted), value)[-1] == value
    assert cluster.condition("CertificatesValid") == {}


def test_a_certificate_that_does_not_fit_its_key_is_reported_and_not_used(clients: Clients) -> None:
    cluster = clients.cluster
    before = clients.shown(PUBLIC)
    signer = authority("another")
    one, other = (server(signer, cluster.namespace) for _ in range(2))
    given(cluster, Pair(one.key, other.certificate))
    wait_for(
        "the mismatch", lambda: cluster.condition("CertificatesValid").get("reason") == "KeyMismatch", 60
    )
    look_again(cluster)
    assert clients.shown(PUBLIC) == before
    given(cluster, one)
    wait_for("the condition is gone", lambda: cluster.condition("CertificatesValid") == {}, 60)
    wait_shown(clients, PUBLIC, lambda shown: is_issued_by(shown, signer.certificate))


def test_an_authority_of_ones_own_issues_the_brokers_certificates(clients: Clients, ours: Pair) -> None:
    cluster = clients.cluster
    assert is_issued_by(clients.shown(INNER)[0].encode(), ours.certificate)
    assert clients.secret("demo-cluster-ca") == {"ca.key": ours.key}, (
        "the operator writes none of its Secrets"
    )
    trusted = bundle(cluster, "ca.crt")
    assert ours.certificate.strip() in trusted
    for port in (INNER, PUBLIC):
        value = f"by the bundle at {port}"
        assert clients.write_and_read(trusting(clients, port, trusted), value)[-1] == value


def test_cert_manager_issues_a_listeners_certificate(clients: Clients, tmp_path: Path) -> None:
    cluster = clients.cluster
    with cert_manager(cluster.kube, tmp_path):
        apply_issuer(cluster.kube, "ours", cluster.namespace)
        issued = json.loads(json.dumps(LISTENERS))
        issued[1]["configuration"] = {"issuerRef": {"name": "ours"}}
        cluster.patch({"listeners": issued})
        name = "demo-public-listener"

        def by_cert_manager() -> bool:
            found = cluster.kube.get("secret", name, cluster.namespace)
            return found is not None and bool(found["data"].get("tls.crt"))

        wait_for("cert-manager has issued it", by_cert_manager, 60)
        wait_for("it is valid", lambda: cluster.condition("CertificatesValid") == {}, 60)
        root = clients.secret(name)["ca.crt"]
        wait_shown(clients, PUBLIC, lambda shown: is_issued_by(shown, root))
        trusted = bundle(cluster, "public.listener.crt")
        assert root.strip() in trusted
        value = "by cert-manager"
        assert clients.write_and_read(trusting(clients, PUBLIC, trusted), value)[-1] == value
        cluster.patch({"listeners": LISTENERS})
        cluster.wait_ready(_READY_S)
