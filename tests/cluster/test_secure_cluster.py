"""Apache Kafka and Ottla in one cluster whose brokers authenticate with each other by SCRAM over TLS."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from bench.apache_kafka import run_tool
from ottla.local.processes import free_port, wait_until
from ottla.protocol.messages import CreateDelegationTokenRequest, CreateDelegationTokenResponse
from tests.judges.mixed_pair import JAVA, OURS, Pair
from tests.judges.secured import PLAIN_MODULE, SCRAM_MODULE, Place, RawSaslConnection
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(420)
USER, PASSWORD = "broker", "among-brokers"
RECORDS = 200


class Secured:
    """The pair, and how a client reaches it."""

    def __init__(self, directory: Path) -> None:
        self.place = place = Place(directory / "keys")
        self.ports = {name: {"PLAINTEXT": free_port(), "SASL_SSL": free_port()} for name in (OURS, JAVA)}
        jaas = f'{SCRAM_MODULE} required username="{USER}" password="{PASSWORD}";'
        settings = {
            name: place.settings(ports)
            | {
                "inter.broker.listener.name": "SASL_SSL",
                "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
                "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": jaas,
                "listener.name.sasl_ssl.scram-sha-512.connections.max.reauth.ms": "5000",
                "delegation.token.secret.key": "the same for all brokers",
                "offsets.topic.replication.factor": "2",
                "min.insync.replicas": "2",
                "group.initial.rebalance.delay.ms": "0",
            }
            for name, ports in self.ports.items()
        }
        self.pair = Pair(directory, our_settings=settings[OURS], java_settings=settings[JAVA])
        self.pair.ours.port = self.ports[OURS]["PLAINTEXT"]
        self.pair.java.port = self.ports[JAVA]["PLAINTEXT"]

    def client(self, broker: int, mechanism: str, user: str, password: str) -> dict[str, str]:
        """librdkafka's settings."""
        return {
            "bootstrap.servers": f"127.0.0.1:{self.ports[broker]['SASL_SSL']}",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
            "ssl.ca.location": str(self.place.authority_pem),
        }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    needs_kafka_jars()
    secured = Secured(tmp_path_factory.mktemp("secure"))
    pair = secured.pair
    try:
        made = run_tool(
            "kafka.admin.ConfigCommand",
            [
                *("--zookeeper", pair.zookeeper.connect, "--alter"),
                *("--entity-type", "users", "--entity-name", USER),
                *("--add-config", f"SCRAM-SHA-512=[iterations=4096,password={PASSWORD}]"),
            ],
        )
        assert made.returncode == 0, made.stdout + made.stderr
        pair.ours.start_and_wait()
        pair.java.start()
        pair.tree.start()
        yield secured
    finally:
        pair.stop()


def test_brokers_replicate_and_elect_over_tls_by_scram(cluster: Secured) -> None:
    pair = cluster.pair
    brokers = cluster.client(OURS, "SCRAM-SHA-512", USER, PASSWORD)
    admin = AdminClient(brokers)
    # Each leads one partition and follows in the other.
    assignment = [[OURS, JAVA], [JAVA, OURS]]
    for future in admin.create_topics([NewTopic("t", 2, replica_assignment=assignment)]).values():
        future.result(timeout=120)

    def in_sync() -> bool:
        states = [pair.state("t", partition) for partition in (0, 1)]
        return all(state is not None and sorted(state.isr) == [OURS, JAVA] for state in states)

    assert wait_until(in_sync, timeout_s=120)
    producer = Producer({**brokers, "acks": "all", "message.timeout.ms": 120_000})
    problems: list[object] = []
    for number in range(RECORDS):
        producer.produce(
            "t",
            str(number).encode(),
            partition=number % 2,
            on_delivery=lambda error, _: problems.append(error) if error else None,
        )
    assert producer.flush(120) == 0
    assert not problems
    found = set()
    # PLAIN is a matter of each broker's settings, and both have the same.
    consumer = Consumer(
        {
            **cluster.client(JAVA, "PLAIN", "bert", "bert"),
            "group.id": "g",
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.subscribe(["t"])

        def all_found() -> bool:
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                found.add(message.value())
            return len(found) == RECORDS

        assert wait_until(all_found, timeout_s=120), len(found)
    finally:
        consumer.close()
    assert wait_until(in_sync, timeout_s=120), "through several sessions: they end after five seconds"


def test_credentials_created_at_one_broker_are_valid_at_the_other(cluster: Secured, tmp_path: Path) -> None:
    own = cluster.place.client(
        mechanism="SCRAM-SHA-512",
        jaas=f'{SCRAM_MODULE} required username="{USER}" password="{PASSWORD}";',
    )
    command_config = tmp_path / "admin.properties"
    command_config.write_text("".join(f"{name}={text}\n" for name, text in own.items()))
    done = run_tool(
        "kafka.admin.ConfigCommand",
        [
            *("--bootstrap-server", f"127.0.0.1:{cluster.ports[OURS]['SASL_SSL']}"),
            *("--command-config", str(command_config), "--alter"),
            *("--entity-type", "users", "--entity-name", "dora"),
            *("--add-config", "SCRAM-SHA-256=[iterations=8192,password=geheim]"),
        ],
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Completed updating config for user" in done.stdout
    at_java = AdminClient(cluster.client(JAVA, "SCRAM-SHA-512", USER, PASSWORD))
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    change = UserScramCredentialUpsertion("emil", credential, b"geheim")
    for future in at_java.alter_user_scram_credentials([change]).values():
        future.result(timeout=120)
    for used_at, user in ((JAVA, "dora"), (OURS, "emil")):

        def let_in(used_at: int = used_at, user: str = user) -> bool:
            with RawSaslConnection(
                cluster.ports[used_at]["SASL_SSL"], cluster.place.trusting()
            ) as connection:
                return connection.log_in_by_scram("SCRAM-SHA-256", user, "geheim").error_code == 0

        assert wait_until(let_in, timeout_s=120), user


def test_a_token_created_at_one_broker_is_valid_at_the_other(cluster: Secured, tmp_path: Path) -> None:
    jaas = f'{PLAIN_MODULE} required username="bert" password="bert";'
    own = cluster.place.client(mechanism="PLAIN", jaas=jaas)
    config = tmp_path / "client.properties"
    config.write_text("".join(f"{name}={text}\n" for name, text in own.items()))
    done = run_tool(
        "org.apache.kafka.tools.DelegationTokenCommand",
        [
            *("--bootstrap-server", f"127.0.0.1:{cluster.ports[OURS]['SASL_SSL']}"),
            *("--command-config", str(config), "--create", "--max-life-time-period", "-1"),
        ],
    )
    assert done.returncode == 0, done.stdout + done.stderr
    token_id, hmac = done.stdout.splitlines()[-1].split()[:2]
    made = CreateDelegationTokenRequest(owner_principal_name="", owner_principal_type="")
    with RawSaslConnection(cluster.ports[JAVA]["SASL_SSL"], cluster.place.trusting()) as connection:
        connection.log_in("bert", "bert")
        answer = connection.ask(made, 3)
    assert isinstance(answer, CreateDelegationTokenResponse)
    of_java = answer.token_id, base64.b64encode(bytes(answer.hmac)).decode()
    for used_at, (name, password) in ((JAVA, (token_id, hmac)), (OURS, of_java)):

        def let_in(used_at: int = used_at, name: str = name, password: str = password) -> bool:
            with RawSaslConnection(
                cluster.ports[used_at]["SASL_SSL"], cluster.place.trusting()
            ) as connection:
                answer = connection.log_in_by_scram("SCRAM-SHA-512", name, password, by_token=True)
                return answer.error_code == 0

        assert wait_until(let_in, timeout_s=120), used_at


def test_ottlas_tools_authenticate(cluster: Secured, tmp_path: Path) -> None:
    from click.testing import CliRunner

    from ottla.cli.main import main

    for user, password, exit_code in (("bert", "bert", 0), ("bert", "falsch", 1)):
        config = tmp_path / "client.properties"
        jaas = f'{PLAIN_MODULE} required username="{user}" password="{password}";'
        own = cluster.place.client(mechanism="PLAIN", jaas=jaas)
        config.write_text("".join(f"{name}={text}\n" for name, text in own.items()))
        address = f"127.0.0.1:{cluster.ports[JAVA]['SASL_SSL']}"
        done = CliRunner().invoke(main, ["topics", "list", "-b", address, "--command-config", str(config)])
        assert done.exit_code == exit_code, done.output
    assert "Invalid username or password" in done.output
