"""The registry by Confluent's client for Java, and by its serializer of Avro through a broker.

Both are in Snowflake's connector, which is on Maven Central. Confluent's serializers of JSON Schema and
Protobuf for Java are not: those formats are judged by the client's calls.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.certificates import Authority
from tests.judges.one_broker import OneBroker
from tests.judges.registries import Registry, rules_file
from tests.oracles import JAVA, REGISTRY_CLIENT, SLF4J, java, kafka_clients_jar, maven_jar

PROGRAM: Final = JAVA / "RegistryClients.java"

AVRO: Final = (
    '{"type":"record","name":"Flight","namespace":"air","fields":[{"name":"carrier","type":"string"}%s]}'
)
JSON: Final = '{"type":"object","properties":{"carrier":{"type":"%s"}%s}}'
PROTOBUF: Final = 'syntax = "proto3";\npackage air;\nmessage Flight {\n  %s carrier = 1;\n%s}\n'
FORMATS: Final = {
    # first, compatible, incompatible, another that refers to the first by this name
    "AVRO": (
        AVRO % "",
        AVRO % ',{"name":"number","type":"int","default":0}',
        AVRO % ',{"name":"number","type":"int"}',
        '{"type":"record","name":"Leg","fields":[{"name":"flight","type":"air.Flight"}]}',
        "air.Flight",
    ),
    "JSON": (
        JSON % ("string", ""),
        JSON % ("string", ',"number":true'),
        JSON % ("integer", ""),
        '{"type":"object","properties":{"flight":{"$ref":"flight.json"}}}',
        "flight.json",
    ),
    "PROTOBUF": (
        PROTOBUF % ("string", ""),
        PROTOBUF % ("string", "  int32 number = 2;\n"),
        PROTOBUF % ("int32", ""),
        'syntax = "proto3";\nimport "flight.proto";\nmessage Leg {\n  air.Flight flight = 1;\n}\n',
        "flight.proto",
    ),
}


def ran(*arguments: str) -> str:
    """The program's output."""
    jars = ":".join(map(str, (kafka_clients_jar(), maven_jar(SLF4J), maven_jar(REGISTRY_CLIENT))))
    command = [java(), "-XX:TieredStopAtLevel=1", "-cp", jars, str(PROGRAM), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("schema_type", FORMATS)
def test_confluents_client_for_java(registry: Registry, schema_type: str) -> None:
    subject = f"java-{schema_type}"
    number = ran("schemas", registry.url, schema_type, subject, *FORMATS[schema_type])
    schema = Schema(FORMATS[schema_type][0], schema_type)
    assert registry.client().lookup_schema(subject, schema).schema_id == int(number)


def exchange(broker: OneBroker, topic: str, python: SchemaRegistryClient, *java_settings: str) -> None:
    """One record from Java to Python, one from Python to Java."""
    schema, settings = AVRO % "", (f"bootstrap.servers={broker.bootstrap}", *java_settings)
    from_java, from_python = f"{topic}-java", f"{topic}-python"
    assert ran("produce", from_java, schema, "UA", *settings) == "produced"
    context = SerializationContext(from_java, MessageField.VALUE)
    assert AvroDeserializer(python)(first_value(broker, from_java), context) == {"carrier": "UA"}
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    context = SerializationContext(from_python, MessageField.VALUE)
    producer.produce(from_python, AvroSerializer(python, schema)({"carrier": "AA"}, context))
    assert producer.flush(60) == 0
    assert ran("consume", from_python, *settings) == "AA"


def first_value(broker: OneBroker, topic: str) -> bytes:
    settings: dict[str, Any] = {"bootstrap.servers": broker.bootstrap, "group.id": topic}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        record = consumer.poll(60)
        assert record is not None
        assert record.error() is None, record.error()
        value = record.value()
        assert isinstance(value, bytes)
        return value
    finally:
        consumer.close()


def test_avro_records_make_a_round_trip_through_a_broker(registry: Registry, broker: OneBroker) -> None:
    exchange(broker, "plain", registry.client(), f"schema.registry.url={registry.url}")


def test_java_logs_in_with_a_password(broker: OneBroker, tmp_path: Path) -> None:
    access = rules_file(tmp_path)
    with Registry(broker.bootstrap, tmp_path, "_schemas_java", "--access", str(access)) as registry:
        common = (f"schema.registry.url={registry.url}", "basic.auth.credentials.source=USER_INFO")

        def login(user: str, password: str) -> tuple[str, ...]:
            return *common, f"basic.auth.user.info={user}:{password}"

        python = registry.client(basic_auth_user_info="writer:writer-secret")
        exchange(broker, "flights", python, *login("writer", "writer-secret"))
        bootstrap, changed = f"bootstrap.servers={broker.bootstrap}", FORMATS["AVRO"][1]
        for user, password, topic, code in (
            ("reader", "reader-secret", "flights-java", "40301"),
            ("writer", "writer-secret", "secret", "40301"),
            ("writer", "wrong", "flights-java", "40101"),
        ):
            found = ran("produce", topic, changed, "UA", bootstrap, *login(user, password))
            assert found == f"refused {code}"
        assert ran("consume", "flights-java", bootstrap, *login("reader", "reader-secret")) == "UA"


def test_java_has_a_certificate(broker: OneBroker, tmp_path: Path) -> None:
    authority = Authority()
    trusted = authority.write(tmp_path / "ca.pem")
    server, writer = (
        authority.sign(name).write_pem(tmp_path / f"{name}.pem") for name in ("server", "writer")
    )
    options = ["--tls-certificate", str(server), "--tls-key", str(server), "--tls-client-ca", str(trusted)]
    options += ["--tls-principal-mapping", "RULE:^CN=([^,]*).*$/$1/", "--access", str(rules_file(tmp_path))]
    with Registry(
        broker.bootstrap, tmp_path, "_schemas_java_tls", *options, tls=(trusted, writer)
    ) as registry:
        own = str(writer)
        python = registry.client(
            ssl_ca_location=str(trusted), ssl_certificate_location=own, ssl_key_location=own
        )
        settings = [f"schema.registry.url={registry.url}"]
        for store, file in (("truststore", trusted), ("keystore", writer)):
            settings += [
                f"schema.registry.ssl.{store}.type=PEM",
                f"schema.registry.ssl.{store}.location={file}",
            ]
        exchange(broker, "flights-tls", python, *settings)
        bootstrap = f"bootstrap.servers={broker.bootstrap}"
        assert ran("produce", "secret-tls", AVRO % "", "UA", bootstrap, *settings) == "refused 40301"
