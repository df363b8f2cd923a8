"""Clients of a secured cluster, on the node, where Service names resolve;
used by `test_secured` and `test_certificates`.

Kafka's Java client with the stores of the Secrets, librdkafka with PEM files, and OpenSSL for clients that
brokers refuse.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from ottla_operator.planning.certificates import Lifetime, Pair, Subject, issue, pkcs12
from tests.e2e.clusters import Cluster

CERTIFIED, PASSWORDED, REPLICATION = 9093, 9094, 9091
TOPIC = "orders"

# What each server in the list does with an ApiVersions request. Who is turned away need not see the alert:
# the connection may be reset behind it.
KNOCK = """
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

# What ZooKeeper does with a four-letter word: at each port in the list, without TLS or with it.
ASK_ZOOKEEPER = """
import json, socket, ssl, sys
for host, port, tls, certificate in json.load(open(sys.argv[1])):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate:
        context.load_cert_chain(certificate)
    try:
        with socket.create_connection((host, port), 60) as plain:
            asked = context.wrap_socket(plain) if tls else plain
            asked.sendall(b"srvr")
            print("answered" if asked.recv(4) else "refused")
    except OSError:
        print("refused")
"""

# The ACLs of nodes in ZooKeeper, and what a server's certificate may read of the first.
NODES = """
import json, sys
from kazoo.exceptions import NoAuthError
from ottla.metadata.kazoo_connection import new_client
from ottla.metadata.zookeeper_access import ZooKeeperAccess
from ottla.security.tls import TlsSettings
hosts, trusted, operator, other, paths = json.loads(sys.argv[1])
def client(pem):
    key, begin, chain = open(pem).read().partition("-----BEGIN CERTIFICATE-----")
    found = {"ssl.keystore.type": "PEM", "ssl.keystore.key": key, "ssl.truststore.type": "PEM"}
    found |= {"ssl.keystore.certificate.chain": begin + chain, "ssl.truststore.location": trusted}
    made = new_client(hosts, 10.0, ZooKeeperAccess(tls=TlsSettings.of(found.get)))
    made.start(timeout=60)
    return made
asking = client(operator)
acls = [sorted([a.id.scheme, a.id.id, a.perms] for a in asking.get_acls(path)[0]) for path in paths]
asking.stop()
asking = client(other)
try:
    seen = str(asking.get(paths[0])[0])
except NoAuthError:
    seen = "denied"
asking.stop()
print(json.dumps([seen, acls]))
"""

# The certificate that each server shows, in PEM.
SHOWN = """
import json, ssl, sys
print(json.dumps([ssl.get_server_certificate(tuple(at), timeout=60) for at in json.loads(sys.argv[1])]))
"""

# Writes a value, and reads from the beginning until it comes; all that was read, or the topic's error.
WRITE_AND_READ = """
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

# Who has SCRAM credentials, and whom ACLs are about.
KNOWN = """
import json, sys
from confluent_kafka.admin import AclBindingFilter, AclOperation, AclPermissionType, AdminClient
from confluent_kafka.admin import ResourcePatternType, ResourceType
admin = AdminClient(json.loads(sys.argv[1]))
users = admin.describe_user_scram_credentials(request_timeout=60).result(timeout=100)
of_all = (None, None, AclOperation.ANY, AclPermissionType.ANY)
every = AclBindingFilter(ResourceType.ANY, None, ResourcePatternType.ANY, *of_all)
acls = admin.describe_acls(every, request_timeout=60).result(timeout=100)
print(json.dumps([sorted(users), sorted({acl.principal for acl in acls})]))
"""


@dataclass(frozen=True)
class Clients:
    """Clients of the secured cluster, with their files in `folder`."""

    cluster: Cluster
    folder: Path

    def secret(self, name: str) -> dict[str, bytes]:
        found = self.cluster.kube.get("secret", name, self.cluster.namespace)
        assert found is not None, f"there is no Secret {name}"
        return {entry: base64.b64decode(text) for entry, text in found["data"].items()}

    def write(self, name: str, content: bytes) -> str:
        """Writes a new file for every call."""
        path = self.folder / f"{len(list(self.folder.iterdir()))}-{name}"
        path.write_bytes(content)
        return str(path)

    def authority(self) -> bytes:
        """The certificate authority in the Secret at present."""
        return self.secret("demo-cluster-ca-cert")["ca.crt"]

    def host(self, broker: int) -> str:
        """An address that the node reaches: it cannot always reach cluster IPs."""
        service = f"{self.cluster.name}-brokers"
        return f"{service}-{broker}.{service}.{self.cluster.namespace}.svc"

    def zookeeper(self, member: int = 0) -> str:
        service = f"{self.cluster.name}-zookeeper"
        return f"{service}-{member}.{service}.{self.cluster.namespace}.svc"

    def asks_zookeeper(self, doors: list[tuple[int, bool, str | None]]) -> list[str]:
        """`answered` or `refused`; a door is a port, whether to use TLS, and a certificate's file."""
        at = [(self.zookeeper(), *door) for door in doors]
        return self.run(ASK_ZOOKEEPER, self.write("doors.json", json.dumps(at).encode())).split()

    def certificate_of(self, name: str, organization: str = "") -> Pair:
        """Signed by the authority whose key the Secret holds."""
        public = self.secret("demo-clients-ca-cert")
        authority = Pair(self.secret("demo-clients-ca")["ca.key"], public["ca.crt"])
        return issue(
            authority, Subject(name, organization), Lifetime(), time.time_ns() // 1_000_000, os.urandom
        )

    def java(self, name: str) -> str:
        """A properties file for Java's stores."""
        public = self.secret("demo-cluster-ca-cert")
        signed_by = self.secret("demo-clients-ca-cert")["ca.crt"]
        store = pkcs12(self.certificate_of(name), signed_by, "of-the-test")
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
        seen: list[str] = json.loads(self.run(WRITE_AND_READ, json.dumps(config), TOPIC, value))
        return seen

    def shown(self, port: int = PASSWORDED) -> list[str]:
        """The certificate that each broker presents."""
        at = [(self.host(broker), port) for broker in range(len(self.cluster.brokers()))]
        found: list[str] = json.loads(self.run(SHOWN, json.dumps(at)))
        return found

    def by_password(self, name: str) -> dict[str, str]:
        return {
            "bootstrap.servers": f"{self.host(0)}:{PASSWORDED}",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": name,
            "sasl.password": self.secret(name)["password"].decode(),
            "ssl.ca.location": self.write("ca.crt", self.authority()),
        }

    def by_certificate(
        self, own: Pair, *, port: int = CERTIFIED, authority: bytes | None = None
    ) -> dict[str, str]:
        """`authority`: the trusted authority, if not the Secret's present one."""
        certificate = self.write("own.pem", own.pem)
        return {
            "bootstrap.servers": f"{self.host(0)}:{port}",
            "security.protocol": "SSL",
            "ssl.ca.location": self.write("ca.crt", authority or self.authority()),
            "ssl.certificate.location": certificate,
            "ssl.key.location": certificate,
        }
