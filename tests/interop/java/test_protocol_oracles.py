"""Our bytes are what independent implementations write: Apache Kafka's classes, kio, kafka-python.

Each of them decodes what we encoded and encodes it again; every byte must be the same. That the fields
mean the same is compared by name with kafka-python, and by the table's own test.
"""

from __future__ import annotations

import importlib
import subprocess
from functools import cache
from io import BytesIO
from typing import Any
from uuid import UUID

import kafka.protocol.admin
import kafka.protocol.consumer
import kafka.protocol.metadata
import kafka.protocol.producer
import kafka.protocol.sasl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from ottla.protocol import codec
from ottla.protocol.api import ApiKey
from ottla.protocol.messages import ApiVersionsResponse
from ottla.protocol.types import Message, Struct, fields_of
from tests.oracles import JAVA, SLF4J, java, kafka_clients_jar, maven_jar
from tests.protocol_samples import CASES, MESSAGES, OWN_FIELDS, RandomChoices, build, case_id, strategy

SAMPLES_PER_CASE = 6
EXAMPLES = 200


def test_apache_kafka_reads_and_writes_the_same_bytes() -> None:
    classpath = f"{kafka_clients_jar()}:{maven_jar(SLF4J)}"
    lines = []
    for cls, version in CASES:
        for seed in range(SAMPLES_PER_CASE):
            sample = build(cls, version, RandomChoices(seed))
            lines.append(f"{java_class(cls)} {version} {codec.encode(sample, version).hex()}")
    source = JAVA / "RoundTrip.java"
    command = [java(), "-cp", classpath, str(source)]
    done = subprocess.run(
        command, input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    answers = done.stdout.splitlines()
    assert len(answers) == len(lines)
    for line, answer in zip(lines, answers, strict=True):
        name, version, sent = line.split(" ")
        assert answer == sent, f"{name} v{version}"


def java_class(cls: type[Message]) -> str:
    """What Kafka calls its class for ours."""
    return f"{cls.__name__}Data" if kind_of(cls) is not EntityType.data else cls.__name__


def kind_of(cls: type[Message]) -> EntityType:
    kinds = {
        "Request": EntityType.request,
        "Response": EntityType.response,
        "Header": EntityType.header,
    }
    return next((kind for suffix, kind in kinds.items() if cls.__name__.endswith(suffix)), EntityType.data)


@cache
def kio_schema(cls: type[Message], version: int) -> Any:
    """kio's class for ours, or None: it has 4.x's versions, without the ZooKeeper-only APIs."""
    name, kind = cls.__name__, kind_of(cls)
    folder, module = snake(name), kind.name
    if kind in (EntityType.request, EntityType.response):
        folder = folder.removesuffix(f"_{module}")
        if kind not in schema_name_map.get(folder, {}).get(version, {}):
            return None
    try:
        return getattr(importlib.import_module(f"kio.schema.{folder}.v{version}.{module}"), name)
    except ModuleNotFoundError:
        return None


def snake(name: str) -> str:
    return "".join("_" + char.lower() if char.isupper() else char for char in name).lstrip("_")


KIO_CASES = [case for case in CASES if kio_schema(*case) is not None]


def test_kio_covers_most_of_the_table() -> None:
    missing = {cls.__name__ for cls in MESSAGES} - {cls.__name__ for cls, _ in KIO_CASES}
    zookeeper_only = {"LeaderAndIsr", "StopReplica", "UpdateMetadata", "ControlledShutdown"}
    assert missing == {f"{name}{kind}" for name in zookeeper_only for kind in ("Request", "Response")}


@pytest.mark.parametrize(("cls", "version"), KIO_CASES, ids=case_id)
def test_kio_reads_and_writes_the_same_bytes(cls: type[Message], version: int) -> None:
    for seed in range(SAMPLES_PER_CASE):
        ask_kio(build(cls, version, RandomChoices(seed), for_kio=True), version)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_kio_agrees_on_generated_values(data: st.DataObject) -> None:
    cls, version = data.draw(st.sampled_from(KIO_CASES))
    ask_kio(data.draw(strategy(cls, version, for_kio=True)), version)


def ask_kio(sample: Message, version: int) -> None:
    schema = kio_schema(type(sample), version)
    sent = codec.encode(sample, version)
    entity, size = entity_reader(schema)(sent, 0)
    assert size == len(sent)
    sink = BytesIO()
    entity_writer(schema)(sink, entity)
    assert sink.getvalue() == sent


def kafka_python_schema(cls: type[Message]) -> Any:
    for package in (
        kafka.protocol.admin,
        kafka.protocol.consumer,
        kafka.protocol.metadata,
        kafka.protocol.producer,
        kafka.protocol.sasl,
    ):
        found = getattr(package, cls.__name__, None)
        if found is not None:
            return found
    return None


def kafka_python_cases() -> list[tuple[type[Message], int]]:
    cases = []
    for cls, version in CASES:
        theirs = kafka_python_schema(cls)
        if theirs is not None and version <= theirs.max_version:
            cases.append((cls, version))
    return cases


KAFKA_PYTHON_CASES = kafka_python_cases()


def test_kafka_python_covers_the_requests_of_clients() -> None:
    covered = {cls.api_key for cls, _ in KAFKA_PYTHON_CASES} - {-1}
    missing = {key.name for key in ApiKey if key not in covered}
    assert missing == {
        # Between brokers.
        "LEADER_AND_ISR",
        "STOP_REPLICA",
        "UPDATE_METADATA",
        "CONTROLLED_SHUTDOWN",
        "ALTER_PARTITION",
        "ENVELOPE",
        "ALLOCATE_PRODUCER_IDS",
        # What it does not implement.
        "CREATE_DELEGATION_TOKEN",
        "RENEW_DELEGATION_TOKEN",
        "EXPIRE_DELEGATION_TOKEN",
        "DESCRIBE_DELEGATION_TOKEN",
        "CONSUMER_GROUP_HEARTBEAT",
        "CONSUMER_GROUP_DESCRIBE",
    }


@pytest.mark.parametrize(("cls", "version"), KAFKA_PYTHON_CASES, ids=case_id)
def test_kafka_python_reads_and_writes_the_same(cls: type[Message], version: int) -> None:
    for seed in range(SAMPLES_PER_CASE):
        ask_kafka_python(build(cls, version, RandomChoices(seed), own_fields=False), version)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_kafka_python_agrees_on_generated_values(data: st.DataObject) -> None:
    cls, version = data.draw(st.sampled_from(KAFKA_PYTHON_CASES))
    ask_kafka_python(data.draw(strategy(cls, version, own_fields=False)), version)


def ask_kafka_python(sample: Message, version: int) -> None:
    if isinstance(sample, ApiVersionsResponse):
        sample.error_code = 0  # or it is read as version 0
    sent = codec.encode(sample, version)
    # The version in front of a consumer's protocol counts as its header there.
    options = {"header": False} if kind_of(type(sample)) is EntityType.data else {}
    decoded = kafka_python_schema(type(sample)).decode(sent, version=version, **options)
    assert_same_by_name(sample, decoded, version)
    decoded._header = None  # which its encoder looks for, and its decoder does not set
    assert bytes(decoded.encode(version=version, **options)) == sent


def assert_same_by_name(ours: Struct, theirs: Any, version: int) -> None:
    for item in fields_of(type(ours)):
        if version not in item.versions or item.name.endswith("authorized_operations"):
            continue  # those are sets of names, over there
        if (type(ours).__name__, item.name) in OWN_FIELDS:
            continue
        mine, other = getattr(ours, item.name), getattr(theirs, item.name)
        if other is None and mine == item.default:
            continue  # None stands for a zero id, and for a tagged struct that was not sent
        if isinstance(mine, Struct):
            assert_same_by_name(mine, other, version)
        elif isinstance(mine, list) and mine and isinstance(mine[0], Struct):
            for mine_each, other_each in zip(mine, other, strict=True):
                assert_same_by_name(mine_each, other_each, version)
        elif isinstance(mine, UUID):
            assert str(mine) == str(other), item.name
        else:
            assert mine == other, item.name
