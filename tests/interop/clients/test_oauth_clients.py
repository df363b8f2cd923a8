"""Clients of others and ours with tokens of an OAuth server, on a cluster of Apache Kafka and Ottla.

Its brokers log in with such tokens, too. Tokens live for seconds, so that all of them re-authenticate.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import KafkaException
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka.admin import AdminClient as ConfluentAdmin
from cryptography.hazmat.primitives.asymmetric import ec

from bench.apache_kafka import run_tool
from ottla.client import AdminClient, Consumer, Producer, errors
from ottla.client.admin_types import NewTopic
from ottla.local.processes import free_port, wait_until
from tests.certificates import Authority
from tests.judges.mixed_pair import JAVA, OURS, Pair
from tests.judges.oidc import AUDIENCE, CLIENT, ISSUER, SECRET, OAuthServer
from tests.judges.secured import OAUTH_MODULE, write_properties
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(420)
_CLASSES = "org.apache.kafka.common.security.oauthbearer."
VALIDATOR, LOGIN = (f"{_CLASSES}OAuthBearer{name}CallbackHandler" for name in ("Validator", "Login"))
LIFETIME_S = 8.0
LIBRDKAFKA_LIFETIME_S = 13.0
"""It renews a session of a few seconds before the token, and then twice in a second, which Kafka refuses."""
BROKERS = pytest.mark.parametrize("broker", [OURS, JAVA], ids=["Ottla", "Apache Kafka"])


class Cluster(NamedTuple):
    pair: Pair
    server: OAuthServer
    ports: dict[int, int]
    trusted: Path

    def address(self, broker: int) -> str:
        return f"127.0.0.1:{self.ports[broker]}"

    def jaas(self, secret: str = SECRET) -> str:
        return (
            f'{OAUTH_MODULE} required clientId="{CLIENT}" clientSecret="{secret}" scope="read write" '
            f'ssl.truststore.type="PEM" ssl.truststore.location="{self.trusted}";'
        )

    def properties(self, broker: int, secret: str = SECRET) -> dict[str, str]:
        """Of a Java client, or of ours."""
        return {
            "bootstrap.servers": self.address(broker),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.login.callback.handler.class": LOGIN,
            "sasl.oauthbearer.token.endpoint.url": self.server.token_url,
            "sasl.jaas.config": self.jaas(secret),
        }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    needs_kafka_jars()
    directory: Path = tmp_path_factory.mktemp("oauth-clients")
    authority = Authority()
    trusted = authority.write(directory / "authority.pem")
    with OAuthServer(authority.sign("localhost").write_pem(directory / "server.pem")) as server:
        server.lifetime_s = LIFETIME_S
        ports = {name: {"PLAINTEXT": free_port(), "TOKENS": free_port()} for name in (OURS, JAVA)}
        cluster = Cluster(
            Pair.__new__(Pair), server, {name: of["TOKENS"] for name, of in ports.items()}, trusted
        )
        prefix = "listener.name.tokens."
        settings = {
            name: {
                "listeners": ",".join(f"{listener}://127.0.0.1:{port}" for listener, port in own.items()),
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,TOKENS:SASL_PLAINTEXT",
                "inter.broker.listener.name": "TOKENS",
                "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                f"{prefix}oauthbearer.sasl.jaas.config": cluster.jaas(),
                f"{prefix}oauthbearer.sasl.server.callback.handler.class": VALIDATOR,
                f"{prefix}oauthbearer.sasl.login.callback.handler.class": LOGIN,
                f"{prefix}sasl.oauthbearer.token.endpoint.url": server.token_url,
                f"{prefix}sasl.oauthbearer.jwks.endpoint.url": server.jwks_url,
                f"{prefix}sasl.oauthbearer.expected.audience": AUDIENCE,
                f"{prefix}sasl.oauthbearer.expected.issuer": ISSUER,
                "offsets.topic.replication.factor": "2",
                "default.replication.factor": "2",
                "min.insync.replicas": "2",
                "group.initial.rebalance.delay.ms": "0",
            }
            for name, own in ports.items()
        }
        pair = Pair(directory, our_settings=settings[OURS], java_settings=settings[JAVA])
        pair.ours.port, pair.java.port = (ports[name]["PLAINTEXT"] for name in (OURS, JAVA))
        try:
            pair.ours.start_and_wait()
            pair.java.start()
            pair.tree.start()
            yield cluster._replace(pair=pair)
        finally:
            pair.stop()


async def write_and_read(
    topic: str, broker: int, settings: dict[str, object], *, for_s: float = 0.0
) -> dict[str, float]:
    """Writes to a partition of this broker for a time with acks=all, and reads all back; returns the
    producer's metrics."""
    until, written = time.monotonic() + for_s, 0
    async with AdminClient(settings) as admin:
        other = OURS + JAVA - broker
        (await admin.create_topics([NewTopic(topic, assignment={0: [broker, other]})])).raise_first()
    async with Producer({**settings, "acks": "all"}) as producer:
        while not written or time.monotonic() < until:
            await (await producer.send(topic, str(written).encode()))
            written += 1
            await asyncio.sleep(0.1 if for_s else 0)
        metrics = producer.metrics()
    async with Consumer({**settings, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([(topic, 0)])
        found = [(await consumer.getone()).value for _ in range(written)]
    assert found == [str(number).encode() for number in range(written)]
    return metrics


def asked_for_tokens(cluster: Cluster) -> int:
    return sum(asked.path == "/token" for asked in cluster.server.requests)


@BROKERS
def test_our_client_reauthenticates_with_new_tokens_of_the_server(cluster: Cluster, broker: int) -> None:
    before = asked_for_tokens(cluster)
    settings: dict[str, object] = dict(cluster.properties(broker))
    metrics = asyncio.run(write_and_read(f"by-ours-{broker}", broker, settings, for_s=2.2 * LIFETIME_S))
    assert metrics["connection-creation-total"] <= 3, "each broker, and the first address"
    assert metrics["connection-close-total"] == 0
    assert asked_for_tokens(cluster) >= before + 3
    assert all(
        asked.form == {"grant_type": "client_credentials", "scope": "read write"}
        for asked in cluster.server.requests
        if asked.path == "/token" and asked.form.get("scope")
    )


@BROKERS
def test_our_client_takes_tokens_of_a_file_and_of_a_function(
    cluster: Cluster, broker: int, tmp_path: Path
) -> None:
    settings: dict[str, object] = dict(cluster.properties(broker))
    del settings["sasl.login.callback.handler.class"], settings["sasl.jaas.config"]
    file = tmp_path / "token"
    file.write_text(cluster.server.issue("ec-1", exp=int(time.time()) + 300))
    of_file = {**settings, "sasl.oauthbearer.token.endpoint.url": file.as_uri()}
    asyncio.run(write_and_read(f"by-a-file-{broker}", broker, of_file))

    given: list[str] = []

    async def provide() -> str:
        await asyncio.sleep(0)
        given.append(cluster.server.issue(sub="dora", exp=int(time.time()) + 4))
        return given[-1]

    of_function = {**settings, "sasl.oauth.token.provider": provide}
    metrics = asyncio.run(write_and_read(f"by-a-function-{broker}", broker, of_function, for_s=9))
    assert metrics["connection-close-total"] == 0
    assert len(given) >= 3


@BROKERS
def test_our_client_tells_why_it_is_not_let_in(cluster: Cluster, broker: int) -> None:
    async def attempt(settings: dict[str, object]) -> None:
        async with AdminClient(settings, request_timeout_ms=5000, default_api_timeout_ms=10_000) as admin:
            await admin.describe_cluster()

    wrong = {**cluster.properties(broker), "sasl.jaas.config": cluster.jaas("falsch")}
    with pytest.raises(errors.SaslAuthenticationFailedError, match="HTTP 401") as problem:
        asyncio.run(attempt(dict(wrong)))
    assert "falsch" not in str(problem.value)
    untrusted = cluster.properties(broker)
    untrusted["sasl.jaas.config"] = f'{OAUTH_MODULE} required clientId="{CLIENT}" clientSecret="{SECRET}";'
    with pytest.raises(errors.ClientError, match="CERTIFICATE_VERIFY_FAILED"):
        asyncio.run(attempt(dict(untrusted)))
    refused = {
        **cluster.properties(broker),
        "sasl.oauth.token.provider": lambda: cluster.server.issue(aud="x"),
    }
    with pytest.raises(errors.SaslAuthenticationFailedError, match="invalid_token"):
        asyncio.run(attempt(refused))


def write_by_librdkafka(cluster: Cluster, broker: int, topic: str, own: dict[str, object]) -> None:
    problems: list[str] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            problems.append(str(error))

    common = librdkafka(cluster, broker) | {
        "acks": "all",
        "error_cb": lambda error: problems.append(str(error)),
    }
    producer = ConfluentProducer({**common, **own})
    until = time.monotonic() + 1.1 * LIBRDKAFKA_LIFETIME_S
    while time.monotonic() < until:
        producer.produce(topic, b"x", on_delivery=delivered)
        producer.poll(0.3)
    assert producer.flush(60) == 0
    assert problems == []


def librdkafka(cluster: Cluster, broker: int) -> dict[str, object]:
    return {
        "bootstrap.servers": cluster.address(broker),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "log_level": 2,
    }


@BROKERS
def test_librdkafka_gets_tokens_of_the_server(cluster: Cluster, broker: int) -> None:
    oidc: dict[str, object] = {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": CLIENT,
        "sasl.oauthbearer.client.secret": SECRET,
        "sasl.oauthbearer.token.endpoint.url": cluster.server.token_url,
        "https.ca.location": str(cluster.trusted),
    }
    before = asked_for_tokens(cluster)
    cluster.server.lifetime_s = LIBRDKAFKA_LIFETIME_S
    try:
        write_by_librdkafka(cluster, broker, f"by-oidc-{broker}", oidc)
    finally:
        cluster.server.lifetime_s = LIFETIME_S
    assert asked_for_tokens(cluster) >= before + 2


@BROKERS
def test_librdkafka_gets_tokens_of_a_function(cluster: Cluster, broker: int) -> None:
    given: list[str] = []

    def provide(_: str) -> tuple[str, float]:
        expires_s = int(time.time() + LIBRDKAFKA_LIFETIME_S)
        given.append(cluster.server.issue("ec-1", exp=expires_s))
        return given[-1], expires_s

    write_by_librdkafka(cluster, broker, f"by-function-{broker}", {"oauth_cb": provide})
    assert len(given) >= 2

    def wrong(_: str) -> tuple[str, float]:
        return cluster.server.issue(iss="x"), time.time() + 60

    with pytest.raises(KafkaException):
        ConfluentAdmin({**librdkafka(cluster, broker), "oauth_cb": wrong}).list_topics(timeout=3)


@BROKERS
def test_javas_tools_get_tokens_of_the_server(cluster: Cluster, broker: int, tmp_path: Path) -> None:
    config = write_properties(tmp_path / "java.properties", cluster.properties(broker))
    words = "".join(f"{number}\n" for number in range(20))
    topic = f"by-java-{broker}"
    done = run_tool(
        "kafka.tools.ConsoleProducer",
        [
            *("--bootstrap-server", cluster.address(broker), "--producer.config", config),
            *("--topic", topic, "--request-timeout-ms", "60000"),
        ],
        stdin=words,
    )
    assert done.returncode == 0, done.stderr
    done = run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        [
            *("--bootstrap-server", cluster.address(broker), "--consumer.config", config, "--topic", topic),
            *("--from-beginning", "--max-messages", "20", "--timeout-ms", "120000"),
        ],
    )
    assert sorted(done.stdout.split(), key=int) == words.split(), done.stderr


def test_our_command_line_takes_the_settings_of_javas_tools_and_of_a_broker(
    cluster: Cluster, tmp_path: Path
) -> None:
    def properties(secret: str) -> str:
        return write_properties(tmp_path / f"{secret[:3]}.properties", cluster.properties(OURS, secret))

    def run(config: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "ottla.cli.main", "cluster", "describe", "--command-config", config],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    for config in (properties(SECRET), str(cluster.pair.ours.properties_file)):
        done = run(config)
        assert done.returncode == 0, done.stderr
        assert str(cluster.ports[JAVA]) in done.stdout
    refused = run(properties("falsch"))
    assert refused.returncode != 0
    assert "HTTP 401" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.budget(30)  # three lifetimes of a token
def test_a_rotated_key_disturbs_no_client(cluster: Cluster) -> None:
    """The last test: brokers and clients have tokens of the new key afterwards."""

    async def scenario(settings: dict[str, object]) -> float:
        async with Producer({**settings, "acks": "all"}) as producer:
            until, rotated = time.monotonic() + 3 * LIFETIME_S, False
            while time.monotonic() < until:
                await (await producer.send("rotated", b"x"))
                await asyncio.sleep(0.2)
                if not rotated and time.monotonic() > until - 2.5 * LIFETIME_S:
                    cluster.server.keys["ec-9"] = ec.generate_private_key(ec.SECP256R1())
                    cluster.server.signs_with, rotated = "ec-9", True
            return producer.metrics()["record-error-total"]

    assert asyncio.run(scenario(dict(cluster.properties(OURS)))) == 0
    log = (cluster.pair.ours.directory / "broker.log").read_text()
    assert "Traceback" not in log
    assert "expired without re-authentication" not in log, "of clients, and of the other broker"
    assert wait_until(lambda: in_sync(cluster, "rotated"), timeout_s=60), "brokers log in with the new key"


def in_sync(cluster: Cluster, topic: str) -> bool:
    states = [cluster.pair.state(topic, partition) for partition in range(1)]
    return all(state is not None and len(state.isr) == 2 for state in states)
