"""Records to events with real Spark: Avro written by fastavro, JSON, JSON Schema; and what cannot be read."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import DataFrame, SparkSession

from ottla.client.registry import NotRegistered, Schema, Version
from ottla_pipeline.decoding import AvroFormat, JsonFormat, JsonSchemaFormat, decode, plan, writer_ids
from ottla_pipeline.decoding.formats import SchemaUnusable

SPARK = ({"spark.sql.shuffle.partitions": "2"},)
AT = datetime(2024, 5, 1, 12, 30, 0, 123000, tzinfo=UTC)
V1 = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "amount", "type": "int"},
        {"name": "old", "type": ["null", "string"]},
        {
            "name": "who",
            "type": {"type": "record", "name": "Who", "fields": [{"name": "nm", "type": "string"}]},
        },
    ],
}
V2 = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "key", "aliases": ["id"], "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "amount", "type": "long"},
        {
            "name": "price",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Price",
                    "fields": [
                        {
                            "name": "sum",
                            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
                        },
                        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
                        {"name": "exact", "type": {"type": "long", "logicalType": "timestamp-micros"}},
                    ],
                },
            ],
            "default": None,
        },
        {"name": "kind", "type": "string", "default": "plain"},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
        {"name": "marks", "type": {"type": "map", "values": "int"}, "default": {}},
        {
            "name": "who",
            "type": {
                "type": "record",
                "name": "Customer",
                "aliases": ["Who"],
                "fields": [{"name": "name", "aliases": ["nm"], "type": "string"}],
            },
        },
    ],
}
JSON_SCHEMA = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "string"},
        "at": {"type": "string", "format": "date-time"},
        "n": {"type": "integer"},
        "deep": {"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}}}},
    },
}


class Shelf:
    """A registry's answers, held in memory."""

    def __init__(self, **subjects: Sequence[tuple[int, Schema]]) -> None:
        self.subjects = subjects

    def schema(self, schema_id: int) -> Schema:
        for versions in self.subjects.values():
            for number, schema in versions:
                if number == schema_id:
                    return schema
        raise NotRegistered("no such id", 404, 40403)

    def versions(self, subject: str) -> list[int]:
        return list(range(1, len(self.subjects[subject]) + 1))

    def version(self, subject: str, version: int) -> Version:
        number, schema = self.subjects[subject][version - 1]
        return Version(subject, version, number, schema)

    def latest(self, subject: str) -> Version:
        if subject not in self.subjects:
            raise NotRegistered("no such subject", 404, 40401)
        return self.version(subject, len(self.subjects[subject]))

    def referenced(self, schema: Schema) -> dict[str, Schema]:
        return {}


def encoded(schema: Any, value: Any, number: int | None = None) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return (b"" if number is None else b"\0" + number.to_bytes(4, "big")) + out.getvalue()


def records(spark: SparkSession, values: Sequence[bytes | None]) -> DataFrame:
    rows = [
        (number, "orders", None if value is None else bytearray(value)) for number, value in enumerate(values)
    ]
    return spark.createDataFrame(rows, "offset INT, topic STRING, value BINARY").repartition(2)


def reported(decoded: DataFrame) -> list[Any]:
    """By offset: the event as a dictionary, or the reason. Never both, never neither."""
    rows = decoded.orderBy("offset").collect()
    assert all((row["event"] is None) != (row["reason"] is None) for row in rows)
    return [row["reason"] or row["event"].asDict(recursive=True) for row in rows]


FIRST = {"id": "a", "at": AT, "amount": 3, "old": "x", "who": {"nm": "bob"}}
SECOND = {
    "key": "b",
    "at": AT,
    "amount": 4,
    "price": {"sum": Decimal("1.25"), "day": date(2024, 5, 2), "exact": AT},
    "kind": "fine",
    "tags": ["t"],
    "marks": {"m": 2},
    "who": {"name": "al"},
}


def test_avro_of_each_writer_is_converted_to_the_latest_schema(spark: SparkSession) -> None:
    registry = Shelf(**{"orders-value": [(11, Schema(json.dumps(V1))), (12, Schema(json.dumps(V2)))]})
    long_string = b"\0\0\0\0\x0b" + b"\x80\xde\xa0\xcb\x0b"  # claims 1.5 GB
    values = [
        encoded(V1, FIRST, 11),
        encoded(V2, SECOND, 12),
        encoded(V1, FIRST, 11)[:-2],
        long_string,
        encoded(V1, FIRST, 99),
        b"\x01" + encoded(V1, FIRST, 11)[1:],
        b"\0\0",
        b"",
        None,
        b"\0\0\0\0\x0b",
    ]
    batch = records(spark, values)
    ids = writer_ids(batch)
    assert ids == {"orders": {11, 12, 99}}
    how = plan(spark, AvroFormat(type="avro"), topic="orders", registry=registry, ids=ids["orders"])
    naive = AT.replace(tzinfo=None)
    broken = "schema id 11: broken Avro, or not readable with the schema in force"
    unframed = "no schema id: not in the registry's framing"
    assert reported(decode(batch, how)) == [
        {
            "key": "a", "at": naive, "amount": 3, "price": None, "kind": "plain", "tags": [], "marks": {},
            "who": {"name": "bob"},
        },
        SECOND | {"at": naive, "price": {"sum": Decimal("1.25"), "day": date(2024, 5, 2), "exact": naive}},
        broken,
        broken,
        "unknown schema id 99",
        unframed,
        unframed,
        unframed,
        "no value",
        broken,
    ]  # fmt: skip


def test_a_reader_version_also_applies_to_newer_writers(spark: SparkSession) -> None:
    v0 = {"type": "record", "name": "shop.Order", "fields": [{"name": "amount", "type": "long"}]}
    subjects = {"orders": [(1, Schema(json.dumps(v0))), (2, Schema(json.dumps(V1)))]}
    form = AvroFormat(type="avro", subject="orders", reader_version=1)
    how = plan(spark, form, topic="any", registry=Shelf(**subjects), ids=[2])
    assert reported(decode(records(spark, [encoded(V1, FIRST, 2)]), how)) == [{"amount": 3}]


def test_a_record_of_nulls_is_decoded(spark: SparkSession, tmp_path: Path) -> None:
    nulls = {
        "type": "record",
        "name": "A",
        "fields": [{"name": "a", "type": ["null", "int"], "default": None}],
    }
    path = tmp_path / "a.avsc"
    path.write_text(json.dumps(nulls))
    how = plan(spark, AvroFormat(type="avro", framing="none", schema_file=str(path)))
    found = reported(
        decode(records(spark, [encoded(nulls, {"a": None}), encoded(nulls, {"a": 5}), b"\x09"]), how)
    )
    assert found == [{"a": None}, {"a": 5}, "broken Avro, or not readable with the schema in force"]


def test_a_schema_of_another_type_is_the_reason_of_its_records(spark: SparkSession) -> None:
    subjects = {"orders-value": [(3, Schema("{}", "JSON")), (11, Schema(json.dumps(V1)))]}
    how = plan(spark, AvroFormat(type="avro"), topic="orders", registry=Shelf(**subjects), ids=[3])
    found = reported(decode(records(spark, [b"\0\0\0\0\x03{}"]), how))
    assert found == ["schema id 3: it is of type JSON, not AVRO"]


def test_a_subject_without_a_usable_schema_is_refused(spark: SparkSession) -> None:
    registry = Shelf(**{"text-value": [(1, Schema('"string"'))]})
    for topic, what in (("none", "subject none-value"), ("text", "must be a record")):
        with pytest.raises(SchemaUnusable, match=what):
            plan(spark, AvroFormat(type="avro"), topic=topic, registry=registry)


def test_json_schema_validates_with_the_writers_schema_and_converts_to_the_readers(
    spark: SparkSession,
) -> None:
    newer = JSON_SCHEMA | {"properties": {**JSON_SCHEMA["properties"], "more": {"type": "number"}}}  # type: ignore[dict-item]
    versions = [(5, Schema(json.dumps(JSON_SCHEMA), "JSON")), (6, Schema(json.dumps(newer), "JSON"))]
    good = b'{"id":"a","at":"2024-05-01T12:30:00.123Z","n":1,"deep":{"tags":["x"]},"unknown":1}'
    frame = (5).to_bytes(5, "big")
    values = [
        frame + good,
        (6).to_bytes(5, "big") + b'{"id":"b","more":1.5}',
        frame + b'{"n":1}',
        frame + b'{"id":"c","n":"1"}',
        frame + b'{"id":"d"}{"id":"e"}',
        frame + b"[]",
        (7).to_bytes(5, "big") + good,
        good,
        None,
        frame + b'{"id":"f","at":"yesterday"}',
    ]
    batch = records(spark, values)
    registry = Shelf(**{"orders-value": versions})
    form = JsonSchemaFormat(type="jsonSchema")
    how = plan(spark, form, topic="orders", registry=registry, ids=writer_ids(batch)["orders"])
    empty = {"id": None, "at": None, "n": None, "deep": None, "more": None}
    assert reported(decode(batch, how)) == [
        {"id": "a", "at": AT.replace(tzinfo=None), "n": 1, "deep": {"tags": ["x"]}, "more": None},
        empty | {"id": "b", "more": 1.5},
        'not valid: the object: "id" is a required property',
        'not valid: n: "1" is not of type "integer"',
        "not JSON",
        "not a JSON object",
        "unknown schema id 7",
        "no schema id: not in the registry's framing",
        "no value",
        "wrong type: at is not timestamp",
    ]


def test_json_keeps_nested_values_and_converts_named_fields_to_strings(spark: SparkSession) -> None:
    how = plan(spark, JsonFormat(type="json", fields="id STRING, who STRUCT<name: STRING>, n INT"))
    values = [
        b'{"id":"a","who":{"name":"x"},"n":null,"left":"out"}',
        b'{"id":7,"who":{"name":"x"}}',
        b'{"id":"b","who":{"name":7}}',
        b'{"id":"c","n":"7"}',
        b"{} {}",
    ]
    assert reported(decode(records(spark, values), how, strings=("id", "who.name"))) == [
        {"id": "a", "who": {"name": "x"}, "n": None},
        "wrong type: id is not string",
        "wrong type: who.name is not string",
        "wrong type: n is not int",
        "not JSON",
    ]
