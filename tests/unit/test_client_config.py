"""Client configuration: Kafka's keys, defaults and contradictions."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import ottla.client.core
from ottla.client.core.config import ClientConfig, ConfigError, ProducerConfig

AT = {"bootstrap.servers": "127.0.0.1:9092"}


def test_keywords_and_dotted_keys_are_equivalent() -> None:
    dotted = ProducerConfig.of({**AT, "linger.ms": "5", "acks": "1", "partitioner.ignore.keys": "true"})
    keywords = ProducerConfig.of(
        bootstrap_servers=[("127.0.0.1", 9092)], linger_ms=5, acks=1, partitioner_ignore_keys=True
    )
    assert dotted == keywords
    assert (dotted.linger_ms, dotted.acks, dotted.partitioner_ignore_keys) == (5, 1, True)


def test_defaults_are_those_of_kafkas_producer() -> None:
    config = ProducerConfig.of(AT)
    assert (config.acks, config.enable_idempotence, config.retries) == (-1, True, 2**31 - 1)
    assert (config.batch_size, config.linger_ms, config.buffer_memory) == (16384, 0, 33554432)
    assert (config.delivery_timeout_ms, config.request_timeout_ms, config.max_block_ms) == (
        120000,
        30000,
        60000,
    )
    assert (config.max_request_size, config.max_in_flight_requests_per_connection) == (1048576, 5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"linger.ms": "soon"}, r"linger.ms='soon': must be a whole number from 0"),
        ({"linger.ms": True}, r"linger.ms=True: must be a whole number"),
        ({"acks": "2"}, r"acks='2': must be one of all, -1, 0, 1"),
        ({"lingerms": 1}, r"lingerms=1: no such setting; did you mean linger.ms\?"),
        ({"compression.type": "rar"}, r"compression.type='rar': must be one of none, gzip"),
        ({"compression.gzip.level": 0}, r"compression.gzip.level=0: must be -1"),
        ({"bootstrap.servers": "localhost"}, r"'localhost' is not host:port"),
        ({"bootstrap.servers": "0:localhost:9092"}, r"'0:localhost:9092' is not host:port"),
        ({"transactional.id": ""}, r"transactional.id='': must be text that is not empty"),
        ({"enable.idempotence": True, "acks": 1}, r"acks=1: must be all with enable.idempotence=true"),
        (
            {"enable.idempotence": True, "max.in.flight.requests.per.connection": 6},
            r"max.in.flight.requests.per.connection=6: must be at most 5",
        ),
        ({"transactional.id": "t", "acks": 1}, r"transactional.id='t': needs enable.idempotence=true"),
        (
            {"delivery.timeout.ms": 1000},
            r"delivery.timeout.ms=1000: must be at least linger.ms \+ request.timeout.ms",
        ),
        ({"security.protocol": "TLS"}, r"security.protocol='TLS'"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}, r"sasl.jaas.config: not set"),
    ],
)
def test_an_error_names_key_value_and_allowed_values(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ProducerConfig.of({**AT, **settings})


def test_conflicting_settings_disable_idempotence_unless_it_is_set() -> None:
    assert not ProducerConfig.of(AT, acks=1).enable_idempotence
    assert not ProducerConfig.of(AT, retries=0).enable_idempotence
    assert not ProducerConfig.of(AT, max_in_flight_requests_per_connection=6).enable_idempotence


def test_the_delivery_timeout_makes_room_for_linger_and_request() -> None:
    assert ProducerConfig.of(AT, linger_ms=200_000).delivery_timeout_ms == 230_000


def test_a_java_clients_properties_file_is_accepted() -> None:
    config = ClientConfig.of({**AT, "client.dns.lookup": "use_all_dns_ips", "ssl.truststore.type": "PEM"})
    assert config.security_settings == {"ssl.truststore.type": "PEM"}
    assert config.security() is None


def test_the_core_does_no_io() -> None:
    for file in Path(ottla.client.core.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name.partition(".")[0] not in ("asyncio", "socket", "time", "threading"), file
