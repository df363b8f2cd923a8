"""Users under `ottla up`: credentials, ACLs, and their deletion.

One run of a secured broker for all tests of this module. The oracles are librdkafka with the Secrets' files,
Kafka's console consumer with the properties that are written for it, and raw SASL logins.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from bench.apache_kafka import run_tool
from ottla.local.processes import free_port, port_in_use, wait_until
from ottla.protocol.errors import ErrorCode
from tests.judges.secured import RawSaslConnection
from tests.judges.up_session import HOST, UpSession
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(420)
REF = {"clusterRef": {"name": "demo"}}
LISTENERS = [
    {"name": "passwords", "port": 9093, "tls": True, "authentication": {"type": "scram-sha-512"}},
    {"name": "certificates", "port": 9094, "tls": True, "authentication": {"type": "tls"}},
]
QUICK = {
    "group.initial.rebalance.delay.ms": 0,
    "zookeeper.session.timeout.ms": 6000,
    "zookeeper.connection.timeout.ms": 60_000,
}
SCRAM, TLS = {"type": "scram-sha-512"}, {"type": "tls"}
DENIED = KafkaError.TOPIC_AUTHORIZATION_FAILED

Acl = dict[str, object]


def on(topic: str, *operations: str) -> Acl:
    return {"resource": {"type": "topic", "name": topic}, "operations": list(operations)}


WRITES, READS = on("orders", "Write"), on("orders", "Read")
GROUPS = {"resource": {"type": "group", "name": "bill", "patternType": "prefix"}, "operations": ["Read"]}


class Users:
    """The session, and its users as clients."""

    def __init__(self, session: UpSession) -> None:
        self.session = session

    def write(self, name: str, authentication: object, *acls: Acl) -> None:
        authorization = {"type": "simple", "acls": list(acls)}
        spec = {**REF, "authentication": authentication, "authorization": authorization}
        self.session.write("User", name, spec)

        def is_ready() -> bool:
            user = self.session.resource(f"User/{name}")
            if user is None or user["spec"] != spec:
                return False
            current = user["status"]["observedGeneration"] == user["metadata"]["generation"]
            return current and self.session.condition(f"User/{name}")[0] == "True"

        self.session.wait_until(is_ready, f"{name} to be ready")

    def file(self, secret: str, entry: str) -> Path:
        return self.session.data / "secrets" / secret / entry

    def password(self, name: str) -> str:
        return self.file(name, "password").read_text()

    @property
    def _trusted(self) -> dict[str, str]:
        return {"ssl.ca.location": str(self.file("demo-cluster-ca-cert", "ca.crt")), "log_level": "2"}

    def by_password(self, name: str) -> dict[str, str]:
        return {
            "bootstrap.servers": f"{HOST}:{self.session.port}",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": name,
            "sasl.password": self.password(name),
            **self._trusted,
        }

    def by_certificate(self, name: str) -> dict[str, str]:
        return {
            "bootstrap.servers": f"{HOST}:{self.session.port + 100}",
            "security.protocol": "SSL",
            "ssl.certificate.location": str(self.file(name, "user.crt")),
            "ssl.key.location": str(self.file(name, "user.key")),
            **self._trusted,
        }

    def operator(self) -> AdminClient:
        """By the listener between brokers, which is the first one in the broker's settings."""
        settings = (self.session.data / "brokers" / "0" / "server.properties").read_text()
        port = settings.partition(f"REPLICATION://{HOST}:")[2].partition(",")[0]
        own = str(self.file("demo-cluster-operator-certs", "cluster-operator.pem"))
        pem = {"ssl.certificate.location": own, "ssl.key.location": own}
        servers = {"bootstrap.servers": f"{HOST}:{port}", "security.protocol": "SSL"}
        return AdminClient({**servers, **pem, **self._trusted})

    def login(self, name: str, password: str) -> int:
        """The error code."""
        context = ssl.create_default_context(cafile=self._trusted["ssl.ca.location"])
        with RawSaslConnection(self.session.port, context) as connection:
            return connection.log_in_by_scram("SCRAM-SHA-512", name, password).error_code


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Users]:
    session = UpSession(
        tmp_path_factory.mktemp("users"), ports=101, options=("--console-port", str(free_port()))
    )
    spec = {"replicas": 1, "listeners": LISTENERS, "authorization": {"type": "simple"}, "config": QUICK}
    session.write("BrokerCluster", "demo", spec)
    for topic in ("orders", "private"):
        session.write("Topic", topic, {**REF, "partitions": 1, "replicas": 1})
    with session:
        session.wait_ready()
        users = Users(session)
        users.write("shop", SCRAM, WRITES)
        users.write("billing", TLS, READS, GROUPS)
        yield users


def written(settings: dict[str, str], topic: str, value: bytes = b"x") -> int | None:
    """The error code of one record's delivery; None: it is there."""
    reported: list[KafkaError | None] = []
    producer = Producer({**settings, "message.timeout.ms": "120000"})
    producer.produce(topic, value, partition=0, on_delivery=lambda error, _: reported.append(error))
    assert producer.flush(180) == 0
    [error] = reported
    return None if error is None else error.code()


def becomes(look: Callable[[], object], wanted: object) -> None:
    """Brokers hear of a change of ACLs and credentials by ZooKeeper, a moment later."""
    found: list[object] = []

    def looks_so() -> bool:
        found.append(look())
        return found[-1] == wanted

    assert wait_until(looks_so, timeout_s=60), found[-1]


def test_a_user_logs_in_to_the_console_and_sees_what_its_acls_allow_and_conditions(
    users: Users,
) -> None:
    line = next(line for line in users.session.lines if line.startswith("console="))
    address = line.split()[0].removeprefix("console=").rstrip("/")
    assert wait_until(lambda: port_in_use(int(address.rpartition(":")[2])), timeout_s=60)
    with httpx2.Client(base_url=address, headers={"origin": address}, timeout=60) as browser:
        form = browser.get("/c/demo/login").text
        token = form.partition('name="csrf" value="')[2].partition('"')[0]
        fields = {"csrf": token, "mechanism": "SCRAM-SHA-512", "user": "shop", "next": "/c/demo/topics"}
        refused = browser.post("/c/demo/login", data={**fields, "password": "guessed"})
        assert (refused.status_code, "refused this user" in refused.text) == (401, True)
        done = browser.post("/c/demo/login", data={**fields, "password": users.password("shop")})
        assert (done.status_code, done.headers.get("location")) == (303, "/c/demo/topics")

        def listed() -> tuple[bool, bool]:
            page = browser.get("/c/demo/topics").text
            return ">orders<" in page, ">private<" in page

        becomes(listed, (True, False))
        users.session.write("Topic", "private", {**REF, "partitions": 0})
        becomes(lambda: "spec.partitions" in browser.get("/c/demo/resources").text, True)
        assert "1 resource" in browser.get("/c/demo/").text
        users.session.write("Topic", "private", {**REF, "partitions": 1, "replicas": 1})
        becomes(lambda: "spec.partitions" in browser.get("/c/demo/resources").text, False)


def test_a_user_writes_by_password_and_another_reads_by_certificate(users: Users) -> None:
    needs_kafka_jars()
    becomes(lambda: written(users.by_password("shop"), "orders", b"an order"), None)
    assert written(users.by_password("shop"), "private") == DENIED
    assert written(users.by_certificate("billing"), "orders") == DENIED
    properties = users.session.data / "clients" / "billing.properties"
    read = run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        [
            *("--bootstrap-server", f"{HOST}:{users.session.port + 100}", "--topic", "orders"),
            *("--consumer.config", str(properties), "--group", "billing-1", "--from-beginning"),
            *("--max-messages", "1", "--timeout-ms", "60000"),
        ],
    )
    assert read.stdout.splitlines() == ["an order"], read.stderr


def test_a_changed_acl_takes_effect(users: Users) -> None:
    users.write("shop", SCRAM, on("private", "Write", "Describe"))
    becomes(lambda: written(users.by_password("shop"), "private"), None)
    becomes(lambda: written(users.by_password("shop"), "orders"), DENIED)
    users.write("shop", SCRAM, WRITES)
    becomes(lambda: written(users.by_password("shop"), "orders"), None)


def test_a_password_is_restored_and_generated_again_when_its_secret_is_deleted(users: Users) -> None:
    first = users.password("shop")
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    theirs = UserScramCredentialUpsertion("shop", info, b"theirs")
    operator = users.operator()
    operator.alter_user_scram_credentials([theirs], request_timeout=60)["shop"].result(timeout=120)

    def iterations() -> int:
        described = operator.describe_user_scram_credentials(["shop"], request_timeout=60)
        return int(described["shop"].result(timeout=120).scram_credential_infos[0].iterations)

    assert wait_until(lambda: iterations() != 4096, timeout_s=60)
    becomes(lambda: users.login("shop", "theirs"), ErrorCode.SASL_AUTHENTICATION_FAILED)
    becomes(lambda: users.login("shop", first), 0)
    for entry in users.file("shop", "").iterdir():
        entry.unlink()
    users.file("shop", "").rmdir()
    users.session.wait_until(lambda: users.password("shop") != first, "another password")
    becomes(lambda: users.login("shop", users.password("shop")), 0)
    becomes(lambda: users.login("shop", first), ErrorCode.SASL_AUTHENTICATION_FAILED)


def test_the_next_run_knows_the_users(users: Users) -> None:
    before = users.password("shop"), users.file("billing", "user.crt").read_text()
    assert users.session.stop() == 0
    users.session.start()
    users.session.wait_ready()
    assert before == (users.password("shop"), users.file("billing", "user.crt").read_text())
    assert written(users.by_password("shop"), "orders") is None
    assert written(users.by_certificate("billing"), "orders") == DENIED


def test_deleting_a_user_revokes_its_access(users: Users) -> None:
    users.write("guest", SCRAM, WRITES)
    word = users.password("guest")
    becomes(lambda: users.login("guest", word), 0)
    users.session.remove("User", "guest")
    users.session.wait_line("User/guest is deleted")
    becomes(lambda: users.login("guest", word), ErrorCode.SASL_AUTHENTICATION_FAILED)
    assert not users.file("guest", "").exists()
    assert not (users.session.data / "clients" / "guest.properties").exists()
    anything = AclBindingFilter(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        "User:guest",
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    operator = users.operator()
    assert operator.describe_acls(anything, request_timeout=60).result(timeout=120) == []
