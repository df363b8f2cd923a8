"""Clients outside of pods reach each broker by every type of listener, and trust its certificate.

Load balancers are in `test_outside`. There is no Ingress controller and no Gateway: haproxy plays both, on
the node. It has the routes of the Ingresses and TLSRoutes that the API server has, and passes TLS through by
SNI. TLSRoutes are tested where the CustomResourceDefinition of the Gateway API is installed.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.clusters import NAMESPACE, Cluster, cluster_spec
from tests.e2e.kube import Kube, Object, wait_for

_READY_S = 240
_BROKERS = 2
_HOSTS = {
    "web": ["kafka.example.org", "kafka.example.com", *(f"broker-{n}.example.org" for n in range(_BROKERS))],
    "gateway": ["kafka.example.net", *(f"broker-{n}.example.net" for n in range(_BROKERS))],
}
"""The host names of each listener. kafka.example.com is an alternative name."""
_LISTENERS = [
    {"name": "plain", "port": 9092},
    {"name": "ported", "port": 9094, "type": "nodeport", "tls": True},
    {"name": "proxied", "port": 9095, "type": "cluster-ip"},
    {
        "name": "web",
        "port": 9096,
        "type": "ingress",
        "tls": True,
        "configuration": {
            "class": "none-is-installed",
            "bootstrap": {"host": "kafka.example.org", "alternativeNames": ["kafka.example.com"]},
            "hostTemplate": "broker-{nodeId}.example.org",
        },
    },
    {
        "name": "gateway",
        "port": 9097,
        "type": "tlsroute",
        "tls": True,
        "configuration": {
            "parentRefs": [{"name": "kafka", "sectionName": "tls"}],
            "bootstrap": {"host": "kafka.example.net"},
            "hostTemplate": "broker-{nodeId}.example.net",
        },
    },
]

_CLIENT = """
import json, sys
from confluent_kafka import Consumer, Producer, TopicPartition
configuration, topic, partitions = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
sent = configuration["bootstrap.servers"].encode()
producer = Producer({**configuration, "message.timeout.ms": 60000})
for partition in range(partitions):
    producer.produce(topic, sent, partition=partition)
assert producer.flush(70) == 0
consumer = Consumer({**configuration, "group.id": "unused", "auto.offset.reset": "earliest"})
consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
seen = set()
for _ in range(240):
    message = consumer.poll(0.25)
    if message is not None and message.error() is None and message.value() == sent:
        seen.add(message.partition())
    if len(seen) == partitions:
        break
consumer.close()
print("brokers:", *sorted(f"{b.host}:{b.port}" for b in producer.list_topics(timeout=10).brokers.values()))
print("read:", len(seen))
"""


@pytest.fixture(scope="module")
def access(kube: Kube, operator: str) -> Iterator[Cluster]:
    """Two brokers with a listener of each type."""
    if not kube.has_node:
        pytest.skip("needs OTTLA_KUBE: clients run on its node")
    namespace = f"{NAMESPACE}-access"
    kube.ensure_namespace(namespace)
    cluster = Cluster(kube, namespace, "demo")
    one = {"managed": {"replicas": 1, "storage": {"size": "64Mi", "deleteClaim": True}}}
    config = {"offsets.topic.replication.factor": 1, "min.insync.replicas": 1}
    routed = _LISTENERS if _has_gateway_api(kube) else _LISTENERS[:-1]
    cluster.create(cluster_spec(zookeeper=one, listeners=routed) | {"replicas": _BROKERS, "config": config})
    cluster.wait_ready(_READY_S)
    cluster.create_topic("echo", partitions=_BROKERS, replicas=1)
    yield cluster
    kube.kubectl("delete", "namespace", namespace, "--wait=false")


def _has_gateway_api(kube: Kube) -> bool:
    return bool(
        kube.kubectl("get", "crd", "tlsroutes.gateway.networking.k8s.io", "--ignore-not-found", "-o", "name")
    )


def _listener(cluster: Cluster, name: str) -> Object:
    return next(dict(each) for each in cluster.status["listeners"] if each["name"] == name)


def _client(cluster: Cluster, name: str, folder: Path, bootstrap: str = "") -> list[str]:
    """The command of a client of the listener that writes to and reads from each broker."""
    listener = _listener(cluster, name)
    configuration = {"bootstrap.servers": bootstrap or listener["bootstrapServers"]}
    if listener.get("certificates"):
        authority = folder / "ca.crt"
        authority.write_text("".join(listener["certificates"]))
        configuration |= {"security.protocol": "SSL", "ssl.ca.location": str(authority)}
    return [sys.executable, "-c", _CLIENT, json.dumps(configuration), "echo", str(_BROKERS)]


def test_node_ports_lead_to_each_broker(kube: Kube, access: Cluster, tmp_path: Path) -> None:
    said = kube.run_on_node(*_client(access, "ported", tmp_path), timeout_s=180)
    assert f"read: {_BROKERS}" in said
    for broker in range(_BROKERS):
        service = kube.get("service", f"demo-broker-{broker}-ported", access.namespace) or {}
        assert f":{service['spec']['ports'][0]['nodePort']}" in said


def test_services_of_brokers_lead_to_each_of_them(kube: Kube, access: Cluster, tmp_path: Path) -> None:
    said = kube.run_on_node(*_client(access, "proxied", tmp_path), timeout_s=180)
    assert f"read: {_BROKERS}" in said
    assert all(f"demo-broker-{n}-proxied.{access.namespace}.svc:9095" in said for n in range(_BROKERS))


@pytest.mark.parametrize(("name", "kind"), [("web", "ingress"), ("gateway", "tlsroute")])
def test_host_names_in_tls_lead_to_each_broker(
    kube: Kube, access: Cluster, tmp_path: Path, name: str, kind: str
) -> None:
    if shutil.which("haproxy") is None:
        pytest.skip("needs haproxy")
    if kind == "tlsroute" and not _has_gateway_api(kube):
        pytest.skip("the Gateway API is not installed")
    routes = [_host_and_service(item) for item in kube.list(kind, access.namespace)]
    assert len(routes) == 1 + _BROKERS
    targets = [(host, _address(kube, access, service)) for host, service in routes]
    if name == "web":
        targets.append(("kafka.example.com", targets[0][1]))
    for bootstrap in [host for host in _HOSTS[name] if host.startswith("kafka")]:
        client = _client(access, name, tmp_path, f"{bootstrap}:443")
        said = kube.run_on_node(*_behind_haproxy(tmp_path, targets, client), timeout_s=180)
        assert f"read: {_BROKERS}" in said
        assert all(f"{host}:443" in said for host in _HOSTS[name] if host.startswith("broker"))


def _host_and_service(item: Object) -> tuple[str, str]:
    """Where an Ingress or a TLSRoute leads."""
    spec = item["spec"]
    if item["kind"] == "Ingress":
        (rule,) = spec["rules"]
        assert [rule["host"]] == spec["tls"][0]["hosts"]
        return rule["host"], rule["http"]["paths"][0]["backend"]["service"]["name"]
    (host,), (rule,) = spec["hostnames"], spec["rules"]
    return host, rule["backendRefs"][0]["name"]


def _address(kube: Kube, cluster: Cluster, service: str) -> str:
    spec = (kube.get("service", service, cluster.namespace) or {})["spec"]
    return f"{spec['clusterIP']}:{spec['ports'][0]['port']}"


def _behind_haproxy(folder: Path, targets: list[tuple[str, str]], client: list[str]) -> list[str]:
    """The command that runs `client` where the host names lead to an haproxy that passes TLS through."""
    hosts, configuration, process = folder / "hosts", folder / "haproxy.cfg", folder / "haproxy.pid"
    hosts.write_text("127.0.0.1 localhost " + " ".join(host for host, _ in targets) + "\n")
    lines = [
        "defaults",
        "  mode tcp",
        *(f"  timeout {what} 60s" for what in ("connect", "client", "server")),
        "frontend tls",
        "  bind 127.0.0.1:443",
        "  tcp-request inspect-delay 5s",
        "  tcp-request content accept if { req.ssl_hello_type 1 }",
        *(f"  use_backend b{n} if {{ req.ssl_sni {host} }}" for n, (host, _) in enumerate(targets)),
    ]
    for n, (_, address) in enumerate(targets):
        lines += [f"backend b{n}", f"  server s {address}"]
    configuration.write_text("\n".join(lines) + "\n")
    script = (
        f"mount --bind {hosts} /etc/hosts && haproxy -D -p {process} -f {configuration} || exit 1; "
        f'"$@"; code=$?; kill "$(cat {process})"; exit $code'
    )
    return ["unshare", "--mount", "sh", "-c", script, "sh", *client]


def test_another_alternative_name_is_in_the_certificates_without_a_restart(
    kube: Kube, access: Cluster
) -> None:
    before = access.brokers()
    listeners = json.loads(json.dumps(access.spec["listeners"]))
    web = next(each for each in listeners if each["name"] == "web")
    web["configuration"]["bootstrap"]["alternativeNames"] = ["kafka.example.com", "kafka.example.edu"]
    access.patch({"listeners": listeners})
    wait_for("the certificate has the name", lambda: "kafka.example.edu" in _names(kube, access), 180)
    assert access.brokers() == before


def _names(kube: Kube, cluster: Cluster) -> str:
    """What openssl says of the certificate that the first broker shows."""
    address = _address(kube, cluster, "demo-broker-0-web")
    shown = f"openssl s_client -connect {address} </dev/null 2>/dev/null"
    return kube.run_on_node("sh", "-c", f"{shown} | openssl x509 -noout -ext subjectAltName")


def test_a_listener_that_becomes_internal_leaves_no_objects(kube: Kube, access: Cluster) -> None:
    access.patch({"listeners": [{"name": "plain", "port": 9092}, {"name": "web", "port": 9096, "tls": True}]})
    kinds = ["service", "ingress", *(["tlsroute"] if _has_gateway_api(kube) else [])]

    def gone() -> bool:
        names = [item["metadata"]["name"] for kind in kinds for item in kube.list(kind, access.namespace)]
        return not [name for name in names if name.startswith(("demo-broker-", "demo-bootstrap-"))]

    wait_for("their objects are gone", gone, 120)
    access.wait_ready(_READY_S)
