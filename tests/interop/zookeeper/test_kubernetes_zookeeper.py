"""ZooKeeper of a secured cluster on Kubernetes; ZooKeeper's server with the operator's zoo.cfg is the oracle.

Three servers go through the stages of an upgrade, one restarted at a time, with the certificates that the
operator issues; only addresses, ports and folders are others than in pods.
"""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from ottla.local.processes import free_port, wait_until
from ottla.local.zookeeper import JavaUnusable, ZooKeeperUnavailable, find_java, spark_jars
from ottla.metadata.kazoo_adapter import node_acls
from ottla.metadata.kazoo_connection import new_client
from ottla.metadata.zookeeper_access import ZooKeeperAccess
from ottla.security.tls import TlsSettings
from ottla_operator.kubernetes import manifests_zookeeper
from ottla_operator.kubernetes.zookeeper_client import set_acls
from ottla_operator.kubernetes.zookeeper_planning import ServerStage
from ottla_operator.planning.certificates import (
    Lifetime,
    Pair,
    Subject,
    issue,
    new_authority,
    pkcs12_truststore,
)
from ottla_operator.planning.cluster_secrets import ZOOKEEPER_STORE_PASSWORD, plan_secrets
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.loading import parse_resource

pytestmark = pytest.mark.timeout(420)
WAIT_S = 90.0
SERVERS = range(3)
BROKERS = "CN=demo-brokers,O=ottla.dev"
_JARS = ("zookeeper-", "slf4j-api-", "log4j-", "netty-", "snappy-java-", "commons-io-", "metrics-core-")


def a_cluster() -> BrokerCluster:
    spec = {"replicas": 1, "authorization": {"type": "simple"}, "zookeeper": {"managed": {"replicas": 3}}}
    cluster, problems = parse_resource("BrokerCluster", {"name": "demo", "namespace": "shop"}, spec)
    assert isinstance(cluster, BrokerCluster), problems
    return cluster


class Ensemble:
    def __init__(self, directory: Path, now_ms: int) -> None:
        self.cluster, self.directory = a_cluster(), directory
        self.secrets = plan_secrets(
            self.cluster, {"demo-brokers-0": ["localhost"]}, {}, now_ms, os.urandom, zookeeper=["localhost"]
        ).data
        self.now_ms = now_ms
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.ports = {server: [free_port() for _ in range(4)] for server in SERVERS}
        self.jars = directory / "jars"
        self.jars.mkdir(parents=True)
        for jar in spark_jars().glob("*.jar"):
            if jar.name.startswith(_JARS):
                (self.jars / jar.name).symlink_to(jar)
        certificates = directory / "certificates"
        certificates.mkdir()
        for file, content in self.secrets["demo-zookeeper"].items():
            (certificates / file).write_bytes(content)

    def start(self, server: int, stage: ServerStage) -> None:
        config = manifests_zookeeper.build_config(self.cluster, stage)["data"]
        text = config[
            "zoo.cfg" if stage == ServerStage.PLAIN else f"{stage.name.lower().replace('_', '-')}.cfg"
        ]
        plain, secure, _, _ = self.ports[server]
        folder = self.directory / f"server-{server}"
        folder.mkdir(exist_ok=True)
        for member in SERVERS:
            quorum, election = self.ports[member][2:]
            address = f"{manifests_zookeeper.member_host(self.cluster, member)}:2888:3888"
            text = text.replace(address, f"localhost:{quorum}:{election}")
        text = text.replace("clientPort=2181", f"clientPort={plain}")
        text = text.replace("secureClientPort=2182", f"secureClientPort={secure}")
        text = text.replace("/etc/ottla-certificates", str(self.directory / "certificates"))
        text = text.replace("/var/lib/zookeeper/data", str(folder / "data"))
        (folder / "data").mkdir(exist_ok=True)
        (folder / "data/myid").write_text(f"{server + 1}\n")
        (folder / "zoo.cfg").write_text(text)
        with (folder / "zookeeper.log").open("ab") as log:
            self.processes[server] = subprocess.Popen(
                [sys.executable, "-m", "ottla.cli.main", "zookeeper", "--config", str(folder / "zoo.cfg")],
                env={
                    **os.environ,
                    "OTTLA_ZOOKEEPER_JARS": str(self.jars),
                    "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1",  # half the time to start
                },
                stdout=log,
                stderr=log,
            )

    def roll(self, stage: ServerStage) -> None:
        """One restart at a time, as the operator does it, with a quorum all the while."""
        for server in SERVERS:
            self.stop(server)
            self.wait_serving(*(other for other in SERVERS if other != server))
            self.start(server, stage)
            self.wait_serving(server)

    def wait_serving(self, *servers: int) -> None:
        served = wait_until(lambda: all(map(self.serves, servers)), timeout_s=WAIT_S)
        assert served, [self.log(server) for server in servers if not self.serves(server)]

    def serves(self, server: int) -> bool:
        """By the readiness probe of its pod: the program is the manifest's own."""
        has_tls = self.speaks_tls(server)
        *command, program = manifests_zookeeper.four_letter_probe("srvr", "Mode:", has_tls)
        plain, secure, *_ = self.ports[server]
        program = program.replace("2181", str(plain)).replace("2182", str(secure))
        if not has_tls:
            return listens(plain) and subprocess.run([*command, program], check=False).returncode == 0
        program = program.replace("/etc/ottla-certificates", str(self.directory / "certificates"))
        # In this process: a Python of its own, twenty times a second, takes the time of what it waits for.
        variables: dict[str, Any] = {}
        try:
            exec(program, variables)
        except (OSError, AssertionError):
            return False
        finally:
            if "c" in variables:
                variables["c"].close()
        return True

    def speaks_tls(self, server: int) -> bool:
        return "secureClientPort" in (self.directory / f"server-{server}/zoo.cfg").read_text()

    def log(self, server: int) -> str:
        return (self.directory / f"server-{server}/zookeeper.log").read_text()[-3000:]

    def stop(self, server: int) -> None:
        process = self.processes.pop(server, None)
        if process is not None:
            process.terminate()
            process.wait(60)

    def ensure_closed(self) -> None:
        """All servers with TLS alone, and a node that belongs to the brokers."""
        if self.processes:
            return
        for server in SERVERS:
            self.start(server, ServerStage.TLS)
        self.wait_serving(*SERVERS)
        with self.client(self.broker) as broker:
            broker.create("/brokers/ids", makepath=True, acl=node_acls("/brokers/ids", secure=True))
            broker.create("/config/users/anna", makepath=True, acl=node_acls("/config/users", secure=True))

    # ---- clients

    def connect(self, port: int) -> str:
        return ",".join(f"localhost:{self.ports[server][port]}" for server in SERVERS)

    @property
    def plain(self) -> str:
        return self.connect(0)

    @property
    def secure(self) -> str:
        return self.connect(1)

    def tls(self, pair: Pair | None) -> TlsSettings:
        settings = {
            "ssl.keystore.type": "PEM",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": self.secrets["demo-cluster-ca-cert"]["ca.crt"].decode(),
        }
        if pair is not None:
            settings["ssl.keystore.key"] = pair.key.decode()
            settings["ssl.keystore.certificate.chain"] = pair.certificate.decode()
        return TlsSettings.of(settings.get)

    def certificate(self, authority: str, subject: Subject) -> Pair:
        signing = Pair(self.secrets[authority]["ca.key"], self.secrets[f"{authority}-cert"]["ca.crt"])
        return issue(signing, subject, Lifetime(), self.now_ms, os.urandom)

    def client(self, pair: Pair | None) -> AbstractContextManager[KazooClient]:
        return connected(new_client(self.secure, 10.0, ZooKeeperAccess(tls=self.tls(pair))))

    @property
    def broker(self) -> Pair:
        return Pair.of_pem(self.secrets["demo-brokers"]["demo-brokers-0.pem"])

    @property
    def operator(self) -> Pair:
        return Pair.of_pem(self.secrets["demo-cluster-operator-certs"]["cluster-operator.pem"])


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def connected(client: KazooClient) -> Iterator[KazooClient]:
    try:
        client.start(timeout=WAIT_S)
        yield client
    finally:
        client.stop()
        client.close()


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    try:
        find_java()
        found = Ensemble(tmp_path_factory.mktemp("ensemble"), time.time_ns() // 1_000_000)
    except (JavaUnusable, ZooKeeperUnavailable) as missing:
        pytest.skip(f"ZooKeeper's server needs Java and PySpark's jars: {missing}")
    try:
        yield found
    finally:
        for server in SERVERS:
            found.stop(server)


@pytest.mark.budget(30)  # twelve starts of a server, one after the other
def test_servers_migrate_from_plaintext_to_tls_with_a_quorum_at_all_times(ensemble: Ensemble) -> None:
    for server in SERVERS:
        ensemble.start(server, ServerStage.PLAIN)
    ensemble.wait_serving(*SERVERS)
    with ExitStack() as closed:
        old = closed.enter_context(connected(KazooClient(ensemble.plain, timeout=30)))
        for path, data in (
            ("/config/users/anna", b"secret"),
            ("/brokers/ids", b""),
            ("/consumers/of-0.8", b""),
        ):
            old.create(path, data, makepath=True)
        session = old.client_id
        ensemble.roll(ServerStage.ADD_TLS)
        ensemble.roll(ServerStage.QUORUM_TLS)
        assert old.retry(old.get, "/config/users/anna")[0] == b"secret"
        assert old.client_id == session, "the session of a broker that has no TLS yet is lost"
        broker = closed.enter_context(ensemble.client(ensemble.broker))
        assert broker.get("/config/users/anna")[0] == b"secret"
        assert set_acls(ensemble.secure, ensemble.tls(ensemble.operator), BROKERS) >= 6
        assert set_acls(ensemble.secure, ensemble.tls(ensemble.operator), BROKERS) == 0
        with pytest.raises(NoAuthError):
            old.get("/config/users/anna")
        old.create("/consumers/of-0.8/member", b"")
        old.stop()
        acls = {
            path: {(a.id.scheme, a.id.id, a.perms) for a in broker.get_acls(path)[0]}
            for path in ("/", "/brokers/ids", "/config/users/anna", "/consumers")
        }
        owned, readable = ("x509", BROKERS, 31), ("world", "anyone", 1)
        assert acls == {
            "/": {owned, readable},
            "/brokers/ids": {owned, readable},
            "/config/users/anna": {owned},
            "/consumers": {("world", "anyone", 31)},
        }
        ensemble.roll(ServerStage.TLS)
        assert broker.retry(broker.get, "/config/users/anna")[0] == b"secret"
        broker.set("/config/users/anna", b"another")


def test_only_brokers_of_the_cluster_can_read(ensemble: Ensemble) -> None:
    ensemble.ensure_closed()
    users = ensemble.certificate("demo-clients-ca", Subject("anna"))
    # Even with the very name of the brokers: it is of another authority.
    posing = ensemble.certificate("demo-clients-ca", Subject("demo-brokers", "ottla.dev"))
    for server in SERVERS:
        plain, secure, *_ = ensemble.ports[server]
        with pytest.raises(ConnectionRefusedError):
            answer(plain, None)
        assert "Mode:" in answer(secure, context(ensemble.broker))
        for secured in (None, *map(context, (None, users, posing))):
            assert answer(secure, secured) == ""
    # Of the cluster's own authority, and no broker.
    with ensemble.client(Pair.of_pem(ensemble.secrets["demo-zookeeper"]["zookeeper.pem"])) as server:
        with pytest.raises(NoAuthError):
            server.get("/config/users/anna")
        with pytest.raises(NoAuthError):
            server.create("/brokers/ids/7", b"")


def test_servers_trust_each_generation_of_the_authority(ensemble: Ensemble) -> None:
    """They have the same subject. A replaced key comes first in the file, as the operator writes it."""
    ensemble.ensure_closed()
    new = new_authority("demo-cluster-ca", Lifetime(), ensemble.now_ms, os.urandom)
    both = new.certificate + ensemble.secrets["demo-cluster-ca-cert"]["ca.crt"]
    store = ensemble.directory / "certificates/cluster-ca.p12"
    before = store.read_bytes()
    store.write_bytes(pkcs12_truststore(both, ZOOKEEPER_STORE_PASSWORD))
    ensemble.roll(ServerStage.TLS)
    brokers = Subject("demo-brokers", "ottla.dev")
    of_new = issue(new, brokers, Lifetime(), ensemble.now_ms, os.urandom)
    for server in SERVERS:
        for pair in (ensemble.broker, of_new):
            assert "Mode:" in answer(ensemble.ports[server][1], context(pair)), server
    store.write_bytes(before)


def test_servers_refuse_peers_without_a_certificate_of_the_clusters_authority(ensemble: Ensemble) -> None:
    ensemble.ensure_closed()
    for server in SERVERS:
        for port in ensemble.ports[server][2:]:
            assert refuses(port, None), (server, port)
            assert refuses(port, ensemble.certificate("demo-clients-ca", Subject("anna"))), (server, port)


def refuses(port: int, pair: Pair | None) -> bool:
    """Also a port that no server listens on: only the leader listens for the others."""
    try:
        with (
            socket.create_connection(("localhost", port), 10) as plain,
            context(pair).wrap_socket(plain) as tls,
        ):
            tls.sendall(b"\0" * 64)
            return tls.recv(4) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def answer(port: int, secured: ssl.SSLContext | None) -> str:
    """What the server says of itself; nothing if it closes the connection. Raises ConnectionRefusedError."""
    with ExitStack() as stack:
        client = stack.enter_context(socket.create_connection(("localhost", port), WAIT_S))
        try:
            if secured is not None:
                client = stack.enter_context(secured.wrap_socket(client))
            client.sendall(b"srvr\n")  # not TLS: its header has five bytes
            return b"".join(iter(lambda: client.recv(4096), b"")).decode()
        except TimeoutError:
            raise
        except OSError:
            return ""


def context(pair: Pair | None) -> ssl.SSLContext:
    made = ssl.create_default_context()
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    if pair is not None:
        with tempfile.NamedTemporaryFile() as file:
            file.write(pair.pem)
            file.flush()
            made.load_cert_chain(file.name)
    return made
