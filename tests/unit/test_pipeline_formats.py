"""Formats, schemas and reasons of the decoding: what can be tried without Spark's JVM."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pydantic import TypeAdapter, ValidationError

from ottla_pipeline.decoding import avro, json_schemas
from ottla_pipeline.decoding.avro import MARKER
from ottla_pipeline.decoding.formats import AvroFormat, Format, JsonFormat, SchemaUnusable

FORMATS: TypeAdapter[Any] = TypeAdapter(Format)


def test_a_format_is_told_by_its_type() -> None:
    assert isinstance(FORMATS.validate_python({"type": "json", "fields": "id STRING"}), JsonFormat)
    found = FORMATS.validate_python({"type": "avro", "readerVersion": 3})
    assert isinstance(found, AvroFormat)
    assert (found.framing, found.reader_version) == ("registry", 3)
    assert found.subject_of("orders") == "orders-value"


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        ({"type": "csv"}, "csv"),
        ({"type": "json"}, "fields"),
        ({"type": "avro", "framing": "none"}, "needs schemaFile"),
        ({"type": "avro", "schemaFile": "a", "readerVersion": 1}, "not both"),
        ({"type": "jsonSchema", "fields": "id STRING"}, "fields"),
    ],
)
def test_a_wrong_format_is_refused(raw: dict[str, Any], what: str) -> None:
    with pytest.raises(ValidationError, match=what):
        FORMATS.validate_python(raw)


def test_a_schema_file_that_holds_no_schema_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.avsc"
    form = AvroFormat(type="avro", framing="none", schema_file=str(path))
    with pytest.raises(ValueError, match=r"a\.avsc: No such file"):
        form.schema_text()
    path.write_text("{")
    with pytest.raises(ValueError, match=r"a\.avsc: not JSON"):
        form.schema_text()


def test_references_are_written_out_where_they_are_first_used() -> None:
    money = {"type": "record", "name": "shop.Money", "fields": [{"name": "cents", "type": "long"}]}
    line = {
        "type": "record",
        "name": "Line",
        "namespace": "shop",
        "fields": [{"name": "price", "type": "Money"}, {"name": "off", "type": ["null", "Money"]}],
    }
    order = {
        "type": "record",
        "name": "shop.Order",
        "fields": [
            {"name": "lines", "type": {"type": "array", "items": "shop.Line"}},
            {"name": "total", "type": {"type": "map", "values": "Money"}},
        ],
    }
    texts = {"shop.Money": json.dumps(money), "shop.Line": json.dumps(line)}
    whole = json.loads(avro.inline_references(json.dumps(order), texts))
    assert json.dumps(whole).count('"cents"') == 1
    assert json.dumps(whole).count('"price"') == 1
    parsed: Any = fastavro.parse_schema(whole)  # an independent parser resolves every name
    assert parsed["name"] == "shop.Order"


def test_the_reader_schema_is_marked_and_has_to_be_a_record() -> None:
    made = json.loads(avro.with_marker('{"type":"record","name":"A","fields":[{"name":"a","type":"int"}]}'))
    assert [field["name"] for field in made["fields"]] == ["a", MARKER]
    assert made["fields"][1]["default"] is True
    for wrong in ('"string"', '["null"]', '{"type":"record","name":"A","fields":[]}', "{"):
        with pytest.raises(SchemaUnusable):
            avro.with_marker(wrong)


def test_json_schema_becomes_columns() -> None:
    schema = {
        "type": "object",
        "definitions": {"who": {"type": "object", "properties": {"name": {"type": "string"}}}},
        "properties": {
            "id": {"type": "string"},
            "at": {"type": "string", "format": "date-time"},
            "day": {"type": "string", "format": "date"},
            "n": {"type": ["null", "integer"]},
            "x": {"type": ["integer", "number"]},
            "who": {"$ref": "#/definitions/who"},
            "maybe": {"oneOf": [{"type": "null"}, {"type": "boolean"}]},
            "either": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
            "any": {"type": "object"},
            "both": {"allOf": [{"properties": {"a": {"type": "integer"}}}, {"$ref": "#/definitions/who"}]},
            "other": {"$ref": "other.json"},
            "tree": {"$ref": "#"},
        },
    }
    other = {"type": "object", "properties": {"b": {"type": "boolean"}}}
    found = json_schemas.struct_of(json.dumps(schema), {"other.json": json.dumps(other)})
    told = {field.name: field.dataType.simpleString() for field in found.fields}
    tree = told.pop("tree")
    assert told == {
        "id": "string",
        "at": "timestamp",
        "day": "date",
        "n": "bigint",
        "x": "double",
        "who": "struct<name:string>",
        "maybe": "boolean",
        "either": "string",
        "tags": "array<string>",
        "counts": "map<string,bigint>",
        "any": "string",
        "both": "struct<a:bigint,name:string>",
        "other": "struct<b:boolean>",
    }
    assert tree.startswith("struct<id:string")
    assert tree.endswith("tree:string>")  # recursion ends as text


@pytest.mark.parametrize("text", ["{", '{"type": "string"}', "true", '{"type": "object"}'])
def test_a_json_schema_without_columns_is_refused(text: str) -> None:
    with pytest.raises(SchemaUnusable):
        json_schemas.struct_of(text)


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(?=a)(a|a)+(?!b)$"])
@pytest.mark.parametrize(
    "schema",
    [
        lambda pattern: {"properties": {"a": {"pattern": pattern}}},
        lambda pattern: {"properties": {"a": {}}, "propertyNames": {"pattern": pattern}},
        lambda pattern: {"patternProperties": {pattern: False}, "additionalProperties": False},
        lambda pattern: {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "patternProperties": {pattern: True},
            "unevaluatedProperties": False,
        },
    ],
)
def test_a_regular_expression_of_a_schema_does_not_hold_up_a_batch(
    pattern: str, schema: Callable[[str], Any]
) -> None:
    check = json_schemas.Validation({7: (json.dumps(schema(pattern)), {})})
    long = "a" * 60 + "!"  # a backtracking engine takes 2^60 steps for it
    began = time.process_time()
    assert str(check(json.dumps({"a": long, long: 1}).encode(), 7)).startswith("not valid: ")
    assert time.process_time() - began < 5


def test_values_are_validated_with_a_reason_that_names_the_place() -> None:
    schema = {"type": "object", "required": ["id"], "properties": {"who": {"$ref": "who.json"}}}
    who = {"type": "object", "properties": {"name": {"type": "string"}}}
    check = json_schemas.Validation({7: (json.dumps(schema), {"who.json": json.dumps(who)})})
    assert check(b'{"id": 1, "who": {"name": "x"}}', 7) is None
    assert check(b'{"id": 1, "who": {"name": 1}}', 7) == 'not valid: who.name: 1 is not of type "string"'
    assert check(b"{}", 7) == 'not valid: the object: "id" is a required property'
    assert [check(value, 7) for value in (b"{", b'{"id": NaN}', b"{}{}", b"\xff")] == ["not JSON"] * 4
    assert check(b"[" * 100_000, 7) == "not JSON"
    assert check(b"[]", 7) == "not a JSON object"
    assert check(b"{}", 8) is None  # not its schema: the plan says what of those
    with pytest.raises(SchemaUnusable, match="not a JSON Schema"):
        json_schemas.validator_of('{"type": 3}', {})
