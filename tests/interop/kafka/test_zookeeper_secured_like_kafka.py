"""Node ACLs as Apache Kafka 3.9.1 leaves them, node by node, and both kinds of brokers on secured ZooKeeper.

Both brokers do the same deeds, each under a chroot of its own; then ours joins Kafka's cluster, and Kafka's
zookeeper-security-migration opens and closes the tree that ours has made.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from bench.apache_kafka import LEAN_JVM, SMALL_BROKER_JVM, KafkaBroker, java_command
from ottla.client.admin import AdminClient
from ottla.local.brokers import BrokerProcess
from ottla.local.cluster import run_admin
from ottla.local.processes import ChildProcess, free_port, wait_until
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode
from ottla.security.acls import (
    AclBinding,
    Entry,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from ottla.security.scram import salted_password
from ottla.wire.connection import BrokerConnection
from tests.judges.acl_scenarios import offsets_to_commit
from tests.judges.request_recorder import until as until_async
from tests.judges.secured import JAAS, RawSaslConnection
from tests.judges.secured_zookeeper import USER, Acl, SecuredZooKeeper
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(500)

WAIT_S = 90.0
JAVA, OURS = 1, 2
SUBJECT = "CN=broker,OU=Tests,O=Ottla,C=SI"
CREATOR = {("sasl", USER, 31), ("x509", SUBJECT, 31)}
SECRET, OPEN = frozenset(CREATOR), frozenset({*CREATOR, ("world", "anyone", 1)})
EVERYBODY = frozenset({("world", "anyone", 31)})


class Brokers(NamedTuple):
    zookeeper: SecuredZooKeeper
    java: KafkaBroker
    ours: BrokerProcess
    """Alone under /ottla."""
    joining: BrokerProcess
    """Not started yet; of the cluster under /kafka."""


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    needs_kafka_jars()
    directory: Path = tmp_path_factory.mktemp("like_kafka")
    zookeeper = SecuredZooKeeper(directory / "secured")
    options = zookeeper.java_options()

    def settings(port: int) -> dict[str, str]:
        return {
            **zookeeper.tls(zookeeper.broker_p12),
            "zookeeper.set.acl": "true",
            "zookeeper.session.timeout.ms": "30000",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{free_port()}",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": "User:ANONYMOUS;User:anna",
            "delegation.token.secret.key": "the secret of all brokers",
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
        }

    def ottla(number: int, name: str, chroot: str) -> BrokerProcess:
        broker = BrokerProcess(number, directory / name, free_port(), prefix=zookeeper.environment(options))
        broker.write_properties(f"{zookeeper.secure}{chroot}", settings(broker.port))
        return broker

    port = free_port()
    java = KafkaBroker(
        directory / "java",
        f"{zookeeper.secure}/kafka",
        broker_id=JAVA,
        port=port,
        settings=settings(port),
        jvm=[*SMALL_BROKER_JVM, options],
    )
    ours, joining = ottla(JAVA, "ours", "/ottla"), ottla(OURS, "joining", "/kafka")
    with ExitStack() as running:
        running.callback(zookeeper.stop)
        zookeeper.start()
        for broker in (java, ours, joining):
            running.callback(broker.stop)
        ours.start_and_wait()
        java.start()
        yield Brokers(zookeeper, java, ours, joining)


async def deeds(port: int) -> None:
    """What leaves nodes of every kind."""
    admin = AdminClient(bootstrap_servers=[("127.0.0.1", port)])
    try:
        for topic in ("orders", "gone"):
            await admin.create_topic(
                topic, partitions=2, replication_factor=1, config={"retention.ms": "1000"}
            )
        await admin.delete_topic("gone")
        await admin.alter_topic_config("orders", set_values={"retention.ms": "2000"})
        await admin.alter_broker_config(JAVA, set_values={"message.max.bytes": "2000000"})
        await admin.alter_broker_config(None, set_values={"message.max.bytes": "3000000"})
        for quota in ({"user": "anna"}, {"user": "anna", "client-id": "one"}, {"client-id": "one"}):
            await admin.alter_client_quota(quota, {"producer_byte_rate": 1e6})
        await admin.alter_client_quota({"ip": "10.0.0.1"}, {"connection_creation_rate": 10})
        entry = Entry("User:bert", "*", Operation.READ, Permission.ALLOW)
        patterns = [
            ResourcePattern(ResourceType.TOPIC, "orders", kind)
            for kind in (PatternType.LITERAL, PatternType.PREFIXED)
        ]
        (await admin.create_acls([AclBinding(pattern, entry) for pattern in patterns])).raise_first()
    finally:
        await admin.close()
    connection = await BrokerConnection.open("127.0.0.1", port, timeout_s=60)
    try:
        scram = m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
            name="anna",
            mechanism=1,
            iterations=4096,
            salt=b"salz",
            salted_password=salted_password("SCRAM-SHA-256", "x", b"salz", 4096),
        )
        answer: Any = await connection.request(m.AlterUserScramCredentialsRequest(upsertions=[scram]))
        assert [result.error_code for result in answer.results] == [0]

        async def has_id() -> bool:
            """Brokers may be fetching their block of ids."""
            answer: Any = await connection.request(m.InitProducerIdRequest(transactional_id=None))
            assert answer.error_code in (ErrorCode.NONE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            return answer.error_code == ErrorCode.NONE

        await asyncio.wait_for(until_async(has_id), WAIT_S)
        answer = await connection.request(offsets_to_commit("group", "orders"), version=0)
        assert [p.error_code for t in answer.topics for p in t.partitions] == [0]
    finally:
        connection.close()


def token(port: int) -> None:
    with RawSaslConnection(port) as raw:
        raw.log_in()
        answer: Any = raw.ask(m.CreateDelegationTokenRequest(max_lifetime_ms=-1), 3)
        assert answer.error_code == 0


def sasl_port(properties: Path) -> int:
    found = re.search(r"SASL_PLAINTEXT://127\.0\.0\.1:([0-9]+)", properties.read_text())
    assert found is not None
    return int(found[1])


def comparable(acls: dict[str, frozenset[Acl]]) -> dict[str, frozenset[Acl]]:
    """Without what brokers invent: numbers of notifications, and the token's id."""
    names = {re.sub(r"_\d{10}$", "_N", path): found for path, found in acls.items()}
    return {re.sub(r"^(/delegation_token/tokens)/.+", r"\1/ID", path): found for path, found in names.items()}


def is_quiescent(tree: Any, chroot: str) -> bool:
    """The controller has done its part: partitions are led, and what was deleted is gone."""
    led = tree.exists(f"{chroot}/brokers/topics/orders/partitions/1/state")
    return bool(led) and not tree.get_children(f"{chroot}/admin/delete_topics")


def until(condition: Callable[[], object], what: str) -> None:
    assert wait_until(lambda: bool(condition()), timeout_s=WAIT_S), f"never came true: {what}"


def test_every_node_has_kafkas_acl(brokers: Brokers) -> None:
    places = {
        "/kafka": (brokers.java.port, brokers.java.directory / "server.properties"),
        "/ottla": (brokers.ours.port, brokers.ours.properties_file),
    }
    found = {}
    for chroot, (port, properties) in places.items():
        asyncio.run(deeds(port))
        token(sasl_port(properties))
        until(partial(is_quiescent, brokers.zookeeper.tree, chroot), f"{chroot} is at rest")
        found[chroot] = comparable(brokers.zookeeper.acls(chroot))
    assert found["/ottla"] == found["/kafka"]
    ours = found["/ottla"]
    table = {
        "/": OPEN,
        "/brokers/ids/1": OPEN,
        "/brokers/topics/orders/partitions/0/state": OPEN,
        "/controller": OPEN,
        "/config/changes/config_change_N": OPEN,
        "/config/topics/orders": OPEN,
        "/config/brokers/1": SECRET,
        "/config/brokers/<default>": SECRET,
        "/config/users/anna/clients/one": SECRET,
        "/config/clients/one": OPEN,
        "/config/ips/10.0.0.1": OPEN,
        "/consumers": EVERYBODY,
        "/consumers/group/offsets/orders/0": OPEN,
        "/delegation_token/tokens/ID": SECRET,
        "/delegation_token/token_changes/token_change_N": OPEN,
        "/kafka-acl/Topic/orders": OPEN,
        "/kafka-acl-extended/prefixed/Topic/orders": OPEN,
        "/kafka-acl-extended-changes/acl_changes_N": OPEN,
        "/latest_producer_id_block": OPEN,
    }
    assert {path: ours[path] for path in table} == table


def test_kafka_and_ottla_share_a_secured_ensemble(brokers: Brokers) -> None:
    brokers.joining.start_and_wait()
    bootstrap = brokers.java.bootstrap

    async def members(client: AdminClient) -> set[int]:
        return {node.id for node in (await client.describe_cluster()).brokers}

    ports = [("127.0.0.1", brokers.java.port)]
    until(lambda: run_admin(ports, members) == {JAVA, OURS}, "both are in the metadata")
    run_admin(ports, lambda a: a.create_topic("shared", assignment={0: [JAVA, OURS], 1: [OURS, JAVA]}))

    async def in_sync(client: AdminClient) -> bool:
        found = (await client.describe_topics(["shared"])).get("shared")
        return found is not None and [sorted(p.isr) for p in found.partitions] == [[JAVA, OURS]] * 2

    until(lambda: run_admin(ports, in_sync), "both replicas are in sync")
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "delivery.timeout.ms": 90_000})
    failures: list[object] = []
    for n in range(200):
        producer.produce(
            "shared",
            str(n).encode(),
            partition=n % 2,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(100) == 0
    assert failures == []
    assert consumed(bootstrap, "shared") == [str(n) for n in sorted(range(200), key=lambda n: (n % 2, n))]
    acls = brokers.zookeeper.acls("/kafka")
    assert acls["/brokers/ids/2"] == acls["/brokers/topics/shared/partitions/1/state"] == OPEN


def consumed(bootstrap: str, topic: str) -> list[str]:
    """All 100 records of partition 0, then those of partition 1."""
    values = []
    for partition in (0, 1):
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic, partition, 0)])
        try:
            values += [
                str((message.value() or b"").decode()) for message in consumer.consume(100, timeout=WAIT_S)
            ]
        finally:
            consumer.close()
    return values


def test_kafkas_migration_tool_changes_the_acls_of_our_nodes(brokers: Brokers) -> None:
    zookeeper = brokers.zookeeper
    before = zookeeper.acls("/ottla")

    def migrate(how: str) -> dict[str, frozenset[Acl]]:
        command = java_command(
            "kafka.admin.ZkSecurityMigrator",
            f"--zookeeper.acl={how}",
            f"--zookeeper.connect={zookeeper.plain}/ottla",
            jvm=[*LEAN_JVM, zookeeper.java_options()],
        )
        tool = ChildProcess("zookeeper-security-migration", command, log=zookeeper.directory / f"{how}.log")
        tool.start()
        until(lambda: not tool.running, f"{how} is done")
        assert tool.exit_code == 0, tool.log_tail()
        return zookeeper.acls("/ottla")

    opened = migrate("unsecure")
    consumers = {path for path in before if path.startswith("/consumers/")}
    assert {path: opened[path] for path in before if path not in consumers} == dict.fromkeys(
        before.keys() - consumers, EVERYBODY
    )
    ports, made = [("127.0.0.1", brokers.ours.port)], "while-open"
    run_admin(ports, lambda a: a.create_topic(made, partitions=1, replication_factor=1))
    assert zookeeper.acls("/ottla")[f"/brokers/topics/{made}"] == OPEN
    closed = migrate("secure")
    by_sasl = {path: frozenset(acl for acl in acls if acl[0] != "x509") for path, acls in before.items()}
    assert {path: closed[path] for path in before if path not in consumers} == {
        path: acls for path, acls in by_sasl.items() if path not in consumers
    }
    run_admin(ports, lambda a: a.delete_topic(made))
    until(lambda: not zookeeper.tree.exists(f"/ottla/brokers/topics/{made}"), "ours still works on it")
