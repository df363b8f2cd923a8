"""Clients of others over TLS and SASL, against one broker of ours."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jwt
import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.asymmetric import ec
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaTopicPartition

from bench.apache_kafka import run_tool
from ottla.local.processes import free_port, wait_until
from ottla.protocol.messages import MetadataRequest
from ottla_operator.platform.kafka import KafkaAdmin
from tests.judges.one_broker import one_broker
from tests.judges.secured import OAUTH_MODULE, Place, RawSaslConnection, write_properties
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(420)
LISTENERS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL", "TOKENS")
USER, PASSWORD = "dora", "geheim"
HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
KEY = ec.generate_private_key(ec.SECP256R1())
"""Signs tokens."""


def write_key_set(path: Path, key: ec.EllipticCurvePrivateKey) -> Path:
    public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key()))
    path.write_text(json.dumps({"keys": [{**public, "kid": "one", "alg": "ES256", "use": "sig"}]}))
    return path


class Served(NamedTuple):
    place: Place
    ports: dict[str, int]
    log: Path

    def librdkafka(
        self, *, mechanism: str | None = None, user: str = USER, password: str = PASSWORD
    ) -> dict[str, str]:
        common = {"ssl.ca.location": str(self.place.authority_pem), "log_level": "2"}
        if mechanism is None:
            own = {
                "security.protocol": "SSL",
                "bootstrap.servers": f"127.0.0.1:{self.ports['SSL']}",
                "ssl.certificate.location": str(self.place.client_pem),
                "ssl.key.location": str(self.place.client_pem),
            }
        else:
            own = {
                "security.protocol": "SASL_SSL",
                "bootstrap.servers": f"127.0.0.1:{self.ports['SASL_SSL']}",
                "sasl.mechanism": mechanism,
                "sasl.username": user,
                "sasl.password": password,
            }
        return common | own


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory: Path = tmp_path_factory.mktemp("secure-clients")
    place = Place(directory / "keys")
    ports = {listener: free_port() for listener in LISTENERS}
    key_set = write_key_set(directory / "keys.json", KEY)
    settings = place.settings(ports) | {
        "num.partitions": "1",
        "message.max.bytes": "4000000",
        "listener.security.protocol.map": ",".join(f"{p}:{p}" for p in LISTENERS[:4]) + ",TOKENS:SASL_SSL",
        "listener.name.tokens.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.tokens.oauthbearer.sasl.jaas.config": f"{OAUTH_MODULE} required;",
        "listener.name.tokens.oauthbearer.sasl.server.callback.handler.class": HANDLER,
        "listener.name.tokens.sasl.oauthbearer.jwks.endpoint.url": key_set.as_uri(),
        "listener.name.tokens.sasl.oauthbearer.expected.audience": "kafka,other",
        "listener.name.tokens.sasl.oauthbearer.expected.issuer": "the test",
    }
    with one_broker(directory, settings) as broker:
        yield Served(place, ports, broker.log)


@pytest.fixture(scope="module")
def scram(served: Served) -> Served:
    """With dora's credentials, made by a client that its certificate has let in."""
    admin = AdminClient(served.librdkafka())
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        change = UserScramCredentialUpsertion(USER, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
        for future in admin.alter_user_scram_credentials([change]).values():
            future.result(timeout=120)
    return served


def test_librdkafka_sends_much_over_tls_and_reads_slowly(served: Served) -> None:
    """Files leave in pieces, through a socket that is full most of the time."""
    admin = AdminClient(served.librdkafka())
    admin.create_topics([NewTopic("much", 1, 1)])["much"].result(timeout=120)
    chance = random.Random(7)
    records = [chance.randbytes(chance.choice((10, 1000, 100_000, 1_500_000))) for _ in range(60)]
    producer = Producer(
        {**served.librdkafka(), "message.max.bytes": 3_000_000, "linger.ms": 0, "message.timeout.ms": 240_000}
    )
    for record in records:
        producer.produce("much", record, partition=0)
    assert producer.flush(240) == 0
    consumer = Consumer(
        {
            **served.librdkafka(),
            "group.id": "none",
            "enable.auto.commit": False,
            "receive.message.max.bytes": 200_000_000,
            "fetch.max.bytes": 100_000_000,
            "max.partition.fetch.bytes": 100_000_000,
            "socket.receive.buffer.bytes": 8192,
        }
    )
    consumer.assign([TopicPartition("much", 0, 0)])
    found: list[bytes | None] = []

    def all_found() -> bool:
        message = consumer.poll(1)
        if message is not None:
            assert message.error() is None
            found.append(message.value())
        return len(found) == len(records)

    try:
        assert wait_until(all_found, timeout_s=240), len(found)
    finally:
        consumer.close()
    assert found == records


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_librdkafka_logs_in(scram: Served, mechanism: str) -> None:
    user, password = ("bert", "bert") if mechanism == "PLAIN" else (USER, PASSWORD)
    good = AdminClient(scram.librdkafka(mechanism=mechanism, user=user, password=password))
    assert wait_until(lambda: good.list_topics(timeout=60).brokers, timeout_s=60)
    problems: list[str] = []
    bad = AdminClient(
        {
            **scram.librdkafka(mechanism=mechanism, user=user, password="falsch"),
            "error_cb": lambda error: problems.append(error.name()),
        }
    )
    with pytest.raises(KafkaException):
        bad.list_topics(timeout=5)
    assert wait_until(lambda: (bad.poll(0.1), "_AUTHENTICATION" in problems)[1], timeout_s=60), problems


def test_aiokafka_produces_by_scram_and_kafka_python_consumes_by_plain(scram: Served) -> None:
    address = f"127.0.0.1:{scram.ports['SASL_SSL']}"

    async def produce() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=address,
            security_protocol="SASL_SSL",
            ssl_context=scram.place.trusting(),
            sasl_mechanism="SCRAM-SHA-512",
            sasl_plain_username=USER,
            sasl_plain_password=PASSWORD,
            request_timeout_ms=120_000,
        )
        await producer.start()
        try:
            for number in range(10):
                await producer.send_and_wait("by-python", str(number).encode())
        finally:
            await producer.stop()

    asyncio.run(produce())
    consumer = KafkaConsumer(
        bootstrap_servers=address,
        security_protocol="SASL_SSL",
        ssl_context=scram.place.trusting(),
        sasl_mechanism="PLAIN",
        sasl_plain_username="bert",
        sasl_plain_password="bert",
        auto_offset_reset="earliest",
    )
    try:
        consumer.assign([KafkaTopicPartition("by-python", 0)])
        consumer.seek_to_beginning()
        found: list[bytes] = []

        def all_found() -> bool:
            for records in consumer.poll(timeout_ms=1000).values():
                found.extend(record.value for record in records)
            return len(found) == 10

        assert wait_until(all_found, timeout_s=120), found
    finally:
        consumer.close()
    assert found == [str(number).encode() for number in range(10)]


def test_kafkas_console_tools_with_a_certificate(served: Served, tmp_path: Path) -> None:
    needs_kafka_jars()
    config = write_properties(
        tmp_path / "c.properties", served.place.client(mechanism=None, certificate=True)
    )
    address = f"127.0.0.1:{served.ports['SSL']}"
    words = "".join(f"{n}\n" for n in range(20))
    done = run_tool(
        "kafka.tools.ConsoleProducer",
        [
            *("--bootstrap-server", address, "--producer.config", config, "--topic", "console"),
            # It gives a broker a second and a half, and after three tries goes on without the record.
            *("--request-timeout-ms", "60000"),
        ],
        stdin=words,
    )
    assert done.returncode == 0, done.stderr
    done = run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        [
            *("--bootstrap-server", address, "--consumer.config", config, "--topic", "console"),
            *("--from-beginning", "--max-messages", "20", "--timeout-ms", "120000"),
        ],
    )
    assert done.stdout == words, done.stderr


def test_librdkafka_authenticates_with_signed_tokens(served: Served) -> None:
    def client(key: ec.EllipticCurvePrivateKey, **claims: object) -> AdminClient:
        now_s = time.time()
        usual = {"sub": "dora", "iss": "the test", "aud": "kafka", "iat": now_s, "exp": now_s + 600}
        token = jwt.encode({**usual, **claims}, key, algorithm="ES256", headers={"kid": "one"})
        return AdminClient(
            {
                "bootstrap.servers": f"127.0.0.1:{served.ports['TOKENS']}",
                "security.protocol": "SASL_SSL",
                "ssl.ca.location": str(served.place.authority_pem),
                "sasl.mechanism": "OAUTHBEARER",
                "oauth_cb": lambda _: (token, now_s + 600),
                "log_level": 2,
            }
        )

    assert client(KEY).list_topics(timeout=120).brokers
    other = ec.generate_private_key(ec.SECP256R1())
    for refused in (
        client(other),
        client(KEY, aud="somebody else"),
        client(KEY, iss="x"),
        client(KEY, exp=1),
    ):
        with pytest.raises(KafkaException):
            refused.list_topics(timeout=3)
    assert client(KEY, aud=["other"]).list_topics(timeout=120).brokers


def test_openssl_sees_the_certificate(served: Served) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl")
    done = subprocess.run(
        [
            *(openssl, "s_client", "-connect", f"127.0.0.1:{served.ports['SASL_SSL']}"),
            *("-CAfile", str(served.place.authority_pem), "-verify_return_error", "-brief"),
        ],
        input="",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Verification: OK" in done.stderr
    assert "CN = broker" in done.stderr or "CN=broker" in done.stderr


def shown(served: Served) -> bytes:
    """The certificate that a new connection sees."""
    context = served.place.trusting()
    with (
        socket.create_connection(("127.0.0.1", served.ports["SASL_SSL"]), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as sock,
    ):
        found = sock.getpeercert(binary_form=True)
        assert found is not None
        return found


def test_a_renewed_certificate_is_used_without_a_restart(served: Served) -> None:
    """Connections that there are stay; the file alone says that there is a new one."""
    before = shown(served)
    with RawSaslConnection(served.ports["SASL_SSL"], served.place.trusting()) as connection:
        connection.log_in("bert", "bert")
        renewed = served.place.authority.sign("broker")
        renewed.write_pem(served.place.broker_pem)
        new = ssl.PEM_cert_to_DER_cert(renewed.chain_pem)
        assert wait_until(lambda: shown(served) == new, timeout_s=60)
        assert before != new
        served.place.broker_pem.write_text("no certificate at all")
        assert wait_until(lambda: "keeps its certificates" in served.log.read_text(), timeout_s=60)
        assert shown(served) == new
        assert connection.ask(MetadataRequest(topics=[]), 5)
    renewed.write_pem(served.place.broker_pem)


def test_a_dynamic_setting_replaces_the_key_store(served: Served, tmp_path: Path) -> None:
    admin = AdminClient(served.librdkafka())

    def set_location(path: Path | None) -> None:
        operation = AlterConfigOpType.SET if path else AlterConfigOpType.DELETE
        name = "listener.name.sasl_ssl.ssl.keystore.location"
        entry = ConfigEntry(name, str(path or ""), incremental_operation=operation)
        resource = ConfigResource(ConfigResource.Type.BROKER, "0", incremental_configs=[entry])
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(timeout=120)

    before = shown(served)
    other = served.place.authority.sign("broker, too")
    with pytest.raises(KafkaException, match="Validation of dynamic config update of SSLFactory failed"):
        set_location(tmp_path / "nowhere.pem")
    set_location(other.write_pem(tmp_path / "other.pem"))
    assert wait_until(lambda: shown(served) == ssl.PEM_cert_to_DER_cert(other.chain_pem), timeout_s=60)
    set_location(None)
    assert wait_until(lambda: shown(served) == before, timeout_s=60)


def test_half_open_handshakes_delay_no_other_client(served: Served) -> None:
    waiting = [
        socket.create_connection(("127.0.0.1", served.ports[listener]), timeout=60)
        for listener in ("SSL", "SASL_SSL", "SASL_PLAINTEXT")
        for _ in range(50)
    ]
    try:
        for number, sock in enumerate(waiting):
            sock.sendall((b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01")[number % 3])
        with RawSaslConnection(served.ports["SASL_SSL"], served.place.trusting()) as connection:
            connection.log_in("bert", "bert")
            assert connection.ask(MetadataRequest(topics=[]), 5)
    finally:
        for sock in waiting:
            sock.close()


async def transports_closed() -> None:
    """Under TLS they are only once the broker has answered the end of the session."""
    loop: Any = asyncio.get_running_loop()
    async with asyncio.timeout(60):
        while len(loop._selector.get_map()) > 1:  # noqa: ASYNC110 - the loop's own is one
            await asyncio.sleep(0.01)


def test_the_operator_connects_with_its_current_certificate(served: Served) -> None:
    certified, nameless = (served.place.client(mechanism=None, certificate=own) for own in (True, False))
    missing = {**certified, "ssl.keystore.location": "/nowhere"}
    given = [certified]

    async def look() -> list[tuple[bool, str]]:
        admin, seen = KafkaAdmin(lambda: given[0]), []
        try:
            for given[0] in (certified, nameless, missing, certified):
                state = await admin.observe([("127.0.0.1", served.ports["SSL"])], {})
                seen.append((state.reachable, state.problem))
        finally:
            await admin.close()
            await transports_closed()
        return seen

    first, without, unreadable, last = asyncio.run(look())
    assert first[0]
    assert last == first
    assert not without[0]
    assert not unreadable[0]
    assert unreadable[1].startswith("the operator's own certificate: ssl.keystore.location=/nowhere")
