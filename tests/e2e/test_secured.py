"""A cluster whose listeners are secured, seen by those who are let in and by those who are not.

One small cluster for all tests of the file, in a namespace of its own. Clients run on the node, where
Services have names: Kafka's own for Java with the stores that the Secrets hold, librdkafka with PEM files,
and OpenSSL for those who are turned away.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench.apache_kafka import java_command
from ottla_operator.planning.certificates import Lifetime, Pair, Subject, issue, pkcs12
from tests.certificates import Authority
from tests.e2e.clusters import NAMESPACE, Cluster, cluster_spec
from tests.e2e.kube import Kube, wait_for
from tests.judges import needs_kafka_jars

_READY_S = 240
_CERTIFIED, _PASSWORDED, _REPLICATION = 9093, 9094, 9091
_TOPIC = "orders"

# What each server in the list does with an ApiVersions request. Who is turned away need not see the alert:
# the connection may be reset behind it.
_KNOCK = """
import json, socket, ssl, sys
for host, port, trusted, certificate in json.load(open(sys.argv[1])):
    context = ssl.create_default_context(cafile=trusted)
    if certificate:
        context.load_cert_chain(certificate)
    try:
        with socket.create_connection((host, port), 60) as plain:
            with context.wrap_socket(plain, server_hostname=host) as tls:
                tls.sendall(bytes.fromhex("0000000a0012000000000001ffff"))
                print("answered" if tls.recv(4) else "refused")
    except ssl.SSLCertVerificationError:
        raise
    except (ssl.SSLError, ConnectionResetError, BrokenPipeError):
        print("refused")
"""

# The certificate that each server shows, in PEM.
_SHOWN = """
import json, ssl, sys
print(json.dumps([ssl.get_server_certificate(tuple(at), timeout=60) for at in json.loads(sys.argv[1])]))
"""

# Writes a value, and reads from the beginning until it comes; all that was read, or the topic's error.
_WRITE_AND_READ = """
import json, sys
from confluent_kafka import Consumer, Producer
config, topic, value = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
producer = Producer({**config, "message.timeout.ms": 90000})
failures = []
producer.produce(topic, value.encode(), on_delivery=lambda error, _: failures.append(error and error.name()))
assert producer.flush(100) == 0
if failures != [None]:
    print(json.dumps(failures))
    raise SystemExit
consumer = Consumer({**config, "group.id": value, "auto.offset.reset": "earliest"})
consumer.subscribe([topic])
seen = []
for _ in range(400):
    message = consumer.poll(0.25)
    if message is not None and message.error() is None:
        seen.append(message.value().decode())
        if seen[-1] == value:
            break
consumer.close()
print(json.dumps(seen))
"""


@dataclass(frozen=True)
class Clients:
    """Of the secured cluster, with their files in `folder`."""

    cluster: Cluster
    folder: Path

    def secret(self, name: str) -> dict[str, bytes]:
        found = self.cluster.kube.get("secret", f"{self.cluster.name}-{name}", self.cluster.namespace)
        assert found is not None, f"there is no Secret {name}"
        return {entry: base64.b64decode(text) for entry, text in found["data"].items()}

    def write(self, name: str, content: bytes) -> str:
        path = self.folder / name
        path.write_bytes(content)
        return str(path)

    def host(self, broker: int) -> str:
        """A node need not reach Services' own addresses."""
        service = f"{self.cluster.name}-brokers"
        return f"{service}-{broker}.{service}.{self.cluster.namespace}.svc"

    def certificate_of(self, name: str) -> Pair:
        """Signed by the authority whose key the Secret holds."""
        authority = Pair(self.secret("clients-ca")["ca.key"], self.secret("clients-ca-cert")["ca.crt"])
        return issue(authority, Subject(name), Lifetime(), time.time_ns() // 1_000_000)

    def librdkafka(self, name: str, authority: bytes) -> dict[str, str]:
        own = self.write(f"{name}.pem", self.certificate_of(name).pem)
        return {
            "bootstrap.servers": f"{self.host(0)}:{_CERTIFIED}",
            "security.protocol": "SSL",
            "ssl.ca.location": self.write(f"{name}-ca.crt", authority),
            "ssl.certificate.location": own,
            "ssl.key.location": own,
        }

    def java(self, name: str) -> str:
        """A properties file, with the stores that Java knows best."""
        public = self.secret("cluster-ca-cert")
        store = pkcs12(self.certificate_of(name), self.secret("clients-ca-cert")["ca.crt"], "of-the-test")
        properties = {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PKCS12",
            "ssl.truststore.location": self.write("ca.p12", public["ca.p12"]),
            "ssl.truststore.password": public["ca.password"].decode(),
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": self.write(f"{name}.p12", store),
            "ssl.keystore.password": "of-the-test",
        }
        text = "".join(f"{setting}={value}\n" for setting, value in properties.items())
        return self.write(f"{name}.properties", text.encode())

    def run(self, program: str, *arguments: str) -> str:
        return self.cluster.kube.run_on_node(sys.executable, "-c", program, *arguments, timeout_s=300)

    def write_and_read(self, config: dict[str, str], value: str) -> list[str]:
        seen: list[str] = json.loads(self.run(_WRITE_AND_READ, json.dumps(config), _TOPIC, value))
        return seen

    def shown(self) -> list[str]:
        """What each broker shows to those who come."""
        at = [(self.host(broker), _PASSWORDED) for broker in range(len(self.cluster.brokers()))]
        found: list[str] = json.loads(self.run(_SHOWN, json.dumps(at)))
        return found


@pytest.fixture(scope="module")
def secured(kube: Kube, operator: str) -> Iterator[Cluster]:
    if not kube.has_node:
        pytest.skip("needs OTTLA_KUBE: real clients run on its node, where Services have names")
    namespace = f"{NAMESPACE}-secured"
    kube.ensure_namespace(namespace)
    cluster = Cluster(kube, namespace, "demo")
    small = {"size": "64Mi", "deleteClaim": True}
    listeners: list[dict[str, Any]] = [
        {"name": "certified", "port": _CERTIFIED, "tls": True, "authentication": {"type": "tls"}},
        {"name": "passworded", "port": _PASSWORDED, "tls": True, "authentication": {"type": "scram-sha-512"}},
    ]
    cluster.create(
        cluster_spec(
            replicas=2,
            listeners=listeners,
            authorization={"type": "simple", "superUsers": ["CN=tester"]},
            storage=small,
            zookeeper={"managed": {"replicas": 1, "storage": small}},
            config={"min.insync.replicas": 1, "offsets.topic.replication.factor": 2},
        )
    )
    print(f"apply to Ready: {cluster.wait_ready(_READY_S):.0f} s")
    cluster.create_topic(_TOPIC, partitions=4, replicas=2)
    yield cluster
    kube.kubectl("delete", "namespace", namespace, "--wait=false")


@pytest.fixture
def clients(secured: Cluster, tmp_path: Path) -> Clients:
    return Clients(secured, tmp_path)


def test_javas_clients_write_and_read_with_the_stores_of_the_secrets(clients: Clients) -> None:
    needs_kafka_jars()
    properties, at = clients.java("tester"), f"{clients.host(1)}:{_CERTIFIED}"
    wrote = clients.cluster.kube.run_on_node(
        *java_command("org.apache.kafka.tools.VerifiableProducer", "--bootstrap-server", at),
        *("--topic", _TOPIC, "--max-messages", "20", "--producer.config", properties),
        timeout_s=300,
    )
    assert wrote.count("producer_send_success") == 20, wrote
    read = clients.cluster.kube.run_on_node(
        *java_command("org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", at),
        *("--topic", _TOPIC, "--from-beginning", "--max-messages", "20", "--timeout-ms", "90000"),
        *("--consumer.config", properties),
        timeout_s=300,
    )
    assert sorted(map(int, read.split())) == list(range(20))


def test_strangers_are_turned_away_at_every_door(clients: Clients) -> None:
    trusted = clients.write("ca.crt", clients.secret("cluster-ca-cert")["ca.crt"])
    tester = clients.write("tester.pem", clients.certificate_of("tester").pem)
    eve = str(Authority().sign("tester").write_pem(clients.folder / "eve.pem"))
    own = clients.secret("cluster-operator-certs")["cluster-operator.pem"]
    of_operator = clients.write("operator.pem", own)
    doors = [
        (_CERTIFIED, tester, "answered"),
        (_CERTIFIED, None, "refused"),
        (_CERTIFIED, eve, "refused"),
        # Each authority is for its own door.
        (_CERTIFIED, of_operator, "refused"),
        (_REPLICATION, tester, "refused"),
        (_REPLICATION, None, "refused"),
        (_REPLICATION, of_operator, "answered"),
    ]
    asked = [(clients.host(0), port, trusted, certificate) for port, certificate, _ in doors]
    found = clients.run(_KNOCK, clients.write("doors.json", json.dumps(asked).encode())).split()
    assert found == [expected for _, _, expected in doors]


def test_who_is_known_and_has_no_right_is_told_so(clients: Clients) -> None:
    config = clients.librdkafka("nobody", clients.secret("cluster-ca-cert")["ca.crt"])
    assert clients.write_and_read(config, "of nobody") == ["TOPIC_AUTHORIZATION_FAILED"]


def test_certificates_are_renewed_while_brokers_run_and_clients_trust_the_old_authority(
    clients: Clients,
) -> None:
    kube, secured = clients.cluster.kube, clients.cluster
    pods, before, old = secured.brokers(), clients.shown(), clients.secret("cluster-ca-cert")["ca.crt"]
    # A year is what they were issued for: all are due at once.
    secured.patch({"clusterCa": {"validityDays": 400, "renewalDays": 370}})
    wait_for("another authority", lambda: clients.secret("cluster-ca-cert")["ca.crt"] != old, 60)
    # The kubelet looks at mounted Secrets once a minute or so, and whenever a pod has changed.
    kube.kubectl("annotate", "pod", "--all", "-n", secured.namespace, "ottla-e2e/look=again")
    wait_for("other certificates", lambda: not {*before} & {*clients.shown()}, 120, poll_s=1)
    value = "after the renewal"
    assert value in clients.write_and_read(clients.librdkafka("tester", old), value)
    secured.wait_ready(_READY_S)
    assert secured.brokers() == pods


def test_brokers_are_rolled_and_added(clients: Clients) -> None:
    secured, before = clients.cluster, clients.cluster.brokers()
    secured.patch({"replicas": 3, "config": {"num.io.threads": 4}})

    def replaced() -> bool:
        now = secured.brokers()
        return len(now) == 3 and not set(now.values()) & set(before.values())

    wait_for("every pod is a new one, and there are three", replaced, 180)
    print(f"rolled and grown: {secured.wait_ready(_READY_S):.0f} s more")
    assert secured.is_in_sync()
    assert len({*clients.shown()}) == 3
    authority = clients.secret("cluster-ca-cert")["ca.crt"]
    seen = clients.write_and_read(clients.librdkafka("tester", authority), "after the roll")
    assert seen[-1] == "after the roll"
    listeners = {each["name"]: each for each in secured.status["listeners"]}
    assert listeners["certified"]["certificates"] == [authority.decode()]


def test_a_cluster_that_is_secured_stays_so(secured: Cluster) -> None:
    with pytest.raises(AssertionError, match="would lose one another"):
        secured.patch({"listeners": [{"name": "plain", "port": 9092}], "authorization": None})
