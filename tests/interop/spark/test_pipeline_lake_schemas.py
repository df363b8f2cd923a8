"""Orders with a growing schema, written by confluent-kafka's serializers with our registry, through the lake.

Read back by pyarrow and deltalake, and compared with what was produced, field by field.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import SparkSession

from ottla_pipeline.jobs import lake
from tests.judges import sample_orders
from tests.judges.lake_line import SMALL, Line, create_topics
from tests.judges.one_broker import OneBroker
from tests.judges.registries import Registry

pytestmark = pytest.mark.timeout(600)
SPARK = (lake.SESSION, SMALL)
COLUMNS = ("id", "at", "lines", "address", "marks")


@pytest.fixture(params=["delta", "parquet"])
def line(request: pytest.FixtureRequest, broker: OneBroker, registry: Registry, tmp_path: Path) -> Line:
    topics = (f"orders-{tmp_path.parent.name}-{tmp_path.name}",)
    create_topics(broker.bootstrap, topics)
    changes: dict[str, Any] = {
        "registry": {"urls": [registry.url]},
        "event": {"id": "id", "time": "at"},
        "format": {"type": "avro"},
    }
    return Line(broker.bootstrap, topics, tmp_path, request.param, changes)


def by_id(line: Line) -> dict[str, dict[str, Any]]:
    rows = line.rows()
    found = {row["id"]: row for row in rows}
    assert len(found) == len(rows)
    for row in rows:  # pyarrow gives maps as pairs
        row["marks"] = dict(row["marks"]) if row.get("marks") is not None else None
    return found


def test_avro_of_three_versions_is_converted_to_the_reader_schema(
    line: Line, registry: Registry, spark: SparkSession
) -> None:
    (topic,) = line.topics
    context = SerializationContext(topic, MessageField.VALUE)
    client = registry.client()

    def write(version: int, numbers: range) -> None:
        serialize = AvroSerializer(client, json.dumps(sample_orders.SCHEMAS[version - 1]))
        line.send(topic, [serialize(sample_orders.order(number, version), context) for number in numbers])

    write(1, range(10))
    line.land(spark)
    assert {row["customer"]["name"] for row in line.rows()} <= {"Ada", "Grace", "Edsger", "Barbara"}
    write(2, range(10, 20))
    write(3, range(20, 30))
    write(1, range(30, 40))  # a producer that was not upgraded
    framed = AvroSerializer(client, json.dumps(sample_orders.SCHEMAS[0]))(sample_orders.order(0, 1), context)
    assert framed is not None
    bad = [b"\0\0\0\x27\x0f" + framed[5:], framed[:-3], b"\x01" + framed[1:], b"{}", None]
    line.send(topic, bad)
    line.land(spark)

    found = by_id(line)
    versions = [1] * 10 + [2] * 10 + [3] * 10 + [1] * 10
    assert found.keys() == {f"o{number}" for number in range(40)}
    for number, version in enumerate(versions):
        made, row = sample_orders.order(number, version), found[f"o{number}"]
        if number < 10:  # landed before there was a second version
            assert (row["customer"], row["buyer"], row["address"]) == (made["customer"], None, None)
            assert [{"sku": each["sku"], "count": each["count"]} for each in row["lines"]] == made["lines"]
            continue
        wanted = sample_orders.as_third(made)
        assert {name: row[name] for name in COLUMNS} == {name: wanted[name] for name in COLUMNS}
        assert (row["buyer"], row["customer"]) == (wanted["buyer"], None)
        assert row["event_date"] == made["at"].date()
    number = str(int.from_bytes(framed[1:5], "big"))
    assert sorted(row["reason"].replace(f"id {number}:", "id N:") for row in line.dead()) == [
        "no schema id: not in the registry's framing",
        "no schema id: not in the registry's framing",
        "no value",
        "schema id N: broken Avro, or not readable with the schema in force",
        "unknown schema id 9999",
    ]


def test_json_schema_of_two_versions_is_written_and_invalid_records_are_dead_letters(
    line: Line, registry: Registry, spark: SparkSession
) -> None:
    (topic,) = line.topics
    context = SerializationContext(topic, MessageField.VALUE)
    client = registry.client()
    client.set_compatibility(subject_name=f"{topic}-value", level="NONE")
    writers = [
        JSONSerializer(Schema(json.dumps(schema), "JSON"), client) for schema in sample_orders.JSON_SCHEMAS
    ]
    for version, numbers in ((1, range(10)), (2, range(10, 20))):
        line.send(
            topic,
            [writers[version - 1](sample_orders.json_order(number, version), context) for number in numbers],
        )
    good = writers[0](sample_orders.json_order(0, 1), context)
    assert good is not None
    negative = sample_orders.json_order(0, 1)
    negative["lines"][0]["count"] = -1
    line.send(topic, [good[:5] + json.dumps(negative).encode(), good[:5] + b"{}"])
    line.land(spark, format={"type": "jsonSchema"})
    found = by_id(line)
    assert found.keys() == {f"o{number}" for number in range(20)}
    for number in range(20):
        made, row = sample_orders.json_order(number, 1 if number < 10 else 2), found[f"o{number}"]
        assert row["at"] == sample_orders.order(number, 1)["at"]
        assert row["customer"] == made["customer"]
        assert row["lines"] == made["lines"]
        assert row["address"] == made.get("address")
        assert row["marks"] == made.get("marks")
    reasons = sorted(row["reason"] for row in line.dead())
    assert reasons[0].startswith("not valid: lines.0.count: -1 ")
    assert reasons[1:] == ['not valid: the object: "id" is a required property']
