"""JSON Schema as Spark types, and the validation of JSON values. Pure.

Called by `plans`. Schemas without a Spark equivalent (a value of several types, a recursive definition, an
object of unknown fields) become columns of JSON text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ottla_pipeline.decoding.formats import SchemaUnusable

_FORMATS: Mapping[str, DataType] = {"date-time": TimestampType(), "date": DateType()}
_SIMPLE: Mapping[str, DataType] = {
    "integer": LongType(),
    "number": DoubleType(),
    "boolean": BooleanType(),
    "null": StringType(),
}
_DEPTH_MAX = 32
_ERRORS_MAX = 100


def struct_of(text: str, references: Mapping[str, str] | None = None) -> StructType:
    """The columns of a JSON Schema for objects. Raises SchemaUnusable for any other schema."""
    try:
        root = json.loads(text)
    except ValueError as error:
        raise SchemaUnusable(f"not a JSON Schema: {error}") from error
    others = {name: json.loads(other) for name, other in (references or {}).items()}
    found = _Types(root, others).of(root, ())
    if not isinstance(found, StructType):
        raise SchemaUnusable("the reader schema must be of an object with properties: they become columns")
    return found


class _Types:
    def __init__(self, root: Any, others: Mapping[str, Any]) -> None:
        self._root = root
        self._others = others

    def of(self, schema: Any, above: tuple[str, ...]) -> DataType:
        if not isinstance(schema, dict) or len(above) > _DEPTH_MAX:
            return StringType()
        if "$ref" in schema:
            reference = str(schema["$ref"])
            target = None if reference in above else self._target(reference)
            return StringType() if target is None else self.of(target, (*above, reference))
        for word in ("oneOf", "anyOf"):
            if word in schema:
                kinds = [each for each in schema[word] if each != {"type": "null"}]
                return self.of(kinds[0], above) if len(kinds) == 1 else StringType()
        if "allOf" in schema:
            return self._merged(schema, above)
        kind = schema.get("type")
        if isinstance(kind, list):
            kinds = [each for each in kind if each != "null"]
            if sorted(kinds) == ["integer", "number"]:
                kinds = ["number"]
            kind = kinds[0] if len(kinds) == 1 else None
        if kind == "object" or (kind is None and "properties" in schema):
            return self._object(schema, above)
        if kind == "array":
            return ArrayType(self.of(schema.get("items"), above))
        if kind == "string":
            return _FORMATS.get(str(schema.get("format")), StringType())
        return _SIMPLE.get(str(kind), StringType())

    def _object(self, schema: Mapping[str, Any], above: tuple[str, ...]) -> DataType:
        properties = schema.get("properties")
        if properties:
            return StructType([StructField(name, self.of(each, above)) for name, each in properties.items()])
        values = schema.get("additionalProperties")
        return MapType(StringType(), self.of(values, above)) if isinstance(values, dict) else StringType()

    def _merged(self, schema: Mapping[str, Any], above: tuple[str, ...]) -> DataType:
        parts = [{name: value for name, value in schema.items() if name != "allOf"}, *schema["allOf"]]
        fields: dict[str, StructField] = {}
        for part in parts:
            found = self.of(part, above)
            if isinstance(found, StructType):
                fields |= {field.name: field for field in found.fields}
        return StructType(list(fields.values())) if fields else StringType()

    def _target(self, reference: str) -> Any:
        document, _, pointer = reference.partition("#")
        found: Any = self._others.get(document) if document else self._root
        for part in pointer.strip("/").split("/") if pointer.strip("/") else ():
            found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        return found


def reason_of(check: Any, value: bytes) -> str | None:
    """Why a value is invalid (`check` comes from `validator_of`); None if it is valid."""
    try:
        instance = json.loads(value, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return "not JSON"
    if not isinstance(instance, dict):
        return "not a JSON object"
    try:
        errors = islice(check.iter_errors(instance), _ERRORS_MAX)
        error = min(errors, key=lambda each: len(each.instance_path), default=None)
    except ValueError as failure:
        return f"not valid: {failure}"[:300]  # nested too deeply
    if error is None:
        return None
    where = ".".join(str(part) for part in error.instance_path) or "the object"
    return f"not valid: {where}: {error.message}"[:300]


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def validator_of(text: str, references: Mapping[str, str]) -> Any:
    """A validator of a schema, draft 7 unless the schema names another draft. Raises SchemaUnusable.

    It uses jsonschema-rs: regular expressions take linear time, and those with look-around or
    back-references a bounded number of steps. Schemas and values come from untrusted clients.
    """
    import jsonschema_rs

    def retrieve(uri: str) -> Any:
        return others[uri.removeprefix("json-schema:///")]

    try:
        schema = json.loads(text)
        others = {name: json.loads(other) for name, other in references.items()}
        kind: Any = jsonschema_rs.Draft7Validator
        if isinstance(schema, dict) and "$schema" in schema:
            kind = jsonschema_rs.validator_cls_for(schema)
        return kind(schema, retriever=retrieve, validate_formats=False)
    except (ValueError, RecursionError, jsonschema_rs.ReferencingError) as error:
        raise SchemaUnusable(f"not a JSON Schema: {str(error).splitlines()[0]}") from error


class Validation:
    """A Spark UDF: value and schema id to the reason, null for a valid value. Pickled with the schema texts
    only.

    It is a plain UDF, because an Arrow UDF needs pandas on every executor and saves little compared with
    the validation.
    """

    def __init__(self, schemas: Mapping[int, tuple[str, Mapping[str, str]]]) -> None:
        self._schemas = schemas
        self._checks: dict[int, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_schemas": self._schemas, "_checks": {}}

    def __call__(self, value: bytes | None, number: int | None) -> str | None:
        if value is None or number is None or number not in self._schemas:
            return None
        if number not in self._checks:
            self._checks[number] = validator_of(*self._schemas[number])
        return reason_of(self._checks[number], value)
