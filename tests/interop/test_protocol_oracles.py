"""Our bytes are what independent implementations write: Apache Kafka's classes, kio, kafka-python.

Each of them decodes what we encoded and encodes it again; every byte must be the same. That the fields
mean the same is compared by name with kafka-python, and by the table's own test.
"""

from __future__ import annotations

import importlib
import subprocess
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import UUID

import kafka.protocol.admin
import kafka.protocol.consumer
import kafka.protocol.metadata
import kafka.protocol.producer
import pytest
from judges import java, kafka_clients_jar, maven_jar
from kafka.protocol.api_message import ApiMessage
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from protocol_samples import CASES, MESSAGES, RandomChoices, build, case_id

from ottla.protocol import codec
from ottla.protocol.messages import ApiVersionsResponse
from ottla.protocol.types import Message, Struct, fields_of

SAMPLES_PER_CASE = 12


def test_apache_kafka_reads_and_writes_the_same_bytes() -> None:
    classpath = f"{kafka_clients_jar()}:{maven_jar('org.slf4j:slf4j-api:1.7.36')}"
    lines = []
    for cls, version in CASES:
        for seed in range(SAMPLES_PER_CASE):
            sample = build(cls, version, RandomChoices(seed))
            lines.append(f"{cls.__name__} {version} {codec.encode(sample, version).hex()}")
    source = Path(__file__).with_name("java") / "RoundTrip.java"
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


def kio_schema(cls: type[Message], version: int) -> Any:
    """kio's class for ours, or None: it has 4.x's versions, without the ZooKeeper-only APIs."""
    name, module = cls.__name__, "request"
    kind: Any = EntityType.request
    if name in ("RequestHeader", "ResponseHeader"):
        module = "header"
    elif name.endswith("Response"):
        kind, module = EntityType.response, "response"
    folder = snake(name if module == "header" else name.removesuffix("Request").removesuffix("Response"))
    if module != "header" and kind not in schema_name_map.get(folder, {}).get(version, {}):
        return None
    try:
        return getattr(importlib.import_module(f"kio.schema.{folder}.v{version}.{module}"), name)
    except ModuleNotFoundError:
        return None


def snake(name: str) -> str:
    return "".join("_" + char.lower() if char.isupper() else char for char in name).lstrip("_")


KIO_CASES = [case for case in CASES if kio_schema(*case) is not None]


def test_kio_covers_most_of_the_table() -> None:
    assert len(KIO_CASES) > 250
    assert len({cls for cls, _ in KIO_CASES}) >= len(MESSAGES) - 8


@pytest.mark.parametrize(("cls", "version"), KIO_CASES, ids=case_id)
def test_kio_reads_and_writes_the_same_bytes(cls: type[Message], version: int) -> None:
    schema = kio_schema(cls, version)
    read, write = entity_reader(schema), entity_writer(schema)

    for seed in range(SAMPLES_PER_CASE):
        sent = codec.encode(build(cls, version, RandomChoices(seed), for_kio=True), version)
        entity, size = read(sent, 0)
        assert size == len(sent)
        sink = BytesIO()
        write(sink, entity)
        assert sink.getvalue() == sent


def kafka_python_schema(cls: type[Message]) -> type[ApiMessage] | None:
    for package in (
        kafka.protocol.admin,
        kafka.protocol.consumer,
        kafka.protocol.metadata,
        kafka.protocol.producer,
    ):
        found = getattr(package, cls.__name__, None)
        if found is not None:
            return found  # type: ignore[no-any-return]
    return None


def kafka_python_cases() -> list[tuple[type[Message], int]]:
    cases = []
    for cls, version in CASES:
        theirs = kafka_python_schema(cls)
        if theirs is not None and version <= theirs.max_version:
            cases.append((cls, version))
    return cases


@pytest.mark.parametrize(("cls", "version"), kafka_python_cases(), ids=case_id)
def test_kafka_python_reads_and_writes_the_same(cls: type[Message], version: int) -> None:
    theirs: Any = kafka_python_schema(cls)

    for seed in range(SAMPLES_PER_CASE):
        sample = build(cls, version, RandomChoices(seed))
        if isinstance(sample, ApiVersionsResponse):
            sample.error_code = 0  # or it is read as version 0
        sent = codec.encode(sample, version)
        decoded = theirs.decode(sent, version=version)
        assert_same_by_name(sample, decoded, version)
        decoded._header = None  # which its encoder looks for, and its decoder does not set
        assert bytes(decoded.encode(version=version)) == sent


def assert_same_by_name(ours: Struct, theirs: Any, version: int) -> None:
    for item in fields_of(type(ours)):
        if version not in item.versions or item.name.endswith("authorized_operations"):
            continue  # those are sets of names, over there
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
