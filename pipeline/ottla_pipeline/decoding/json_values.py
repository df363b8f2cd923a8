"""Decodes JSON values to a struct, as declared by DDL or derived from a JSON Schema. Column expressions only.

Two parsers process each value, because one alone accepts some invalid values. `from_json` knows the
schema, but converts numbers to strings and times where the field has such a type (a plain string field may
convert; the fields named in `strings` may not), and it ignores everything after the first object, so a
second event would be lost silently. `try_parse_json` has the second flaw too, so it parses the value as
the first of two items of an array, where trailing content is an error. A JSON value that begins with a
brace is an object: `schema_of_variant` gives the same answer, but it renders all fields, which costs more
than both parsers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType, StructField, StructType

from ottla_pipeline.decoding.formats import NO_VALUE

CORRUPT = "_corrupt_record"
NOT_JSON = "not JSON"
NOT_AN_OBJECT = "not a JSON object"
_OPTIONS = {"columnNameOfCorruptRecord": CORRUPT}
_BEGINS_AS_OBJECT = r"^[ \t\n\r]*\{"
_LAST = "ottla:f3c1c0ae7d5e4b1b9a52"
"""The array's second item; in a value by intent alone."""


def not_a(field: str, kind: str) -> str:
    """The reason for a field whose value has the wrong type."""
    return f"wrong type: {field} is not {kind}"


def type_at_path(variant: Column, path: str) -> Column:
    """The type of the value at a path of a variant (STRING, VOID for null); null if the path does not
    exist."""
    return sf.schema_of_variant(sf.try_variant_get(variant, path, "variant"))


def wrong_type(text: Column, fields: StructType) -> Column:
    """The first field whose type does not match, for a value that does not match as a whole."""
    reason = sf.lit("does not fit the schema")
    for field in reversed(fields.fields):
        alone = StructType([StructField(field.name, field.dataType), StructField(CORRUPT, StringType())])
        parsed = sf.from_json(text, alone, _OPTIONS)
        kind = field.dataType.simpleString()
        reason = sf.when(parsed[CORRUPT].isNotNull(), not_a(field.name, kind)).otherwise(reason)
    return reason


def decode_json(records: DataFrame, value: Column, fields: StructType, strings: Sequence[str]) -> DataFrame:
    """Adds `event` and `reason`. `strings` are (dotted) fields whose value must be a JSON string if
    present."""
    text = value.cast("string")
    with_corrupt = StructType([*fields.fields, StructField(CORRUPT, StringType())])
    parsed = records.withColumns(
        {
            "_event": sf.from_json(text, with_corrupt, _OPTIONS),
            "_texts": sf.try_parse_json(sf.concat(sf.lit("["), text, sf.lit(f',"{_LAST}"]'))),
        }
    )
    event, texts = sf.col("_event"), sf.col("_texts")
    reason = (
        sf.when(sf.col("value").isNull(), NO_VALUE)
        .when(~sf.try_variant_get(texts, "$[1]", "string").eqNullSafe(_LAST), NOT_JSON)
        .when(~text.rlike(_BEGINS_AS_OBJECT), NOT_AN_OBJECT)
        .when(event.isNull() | event[CORRUPT].isNotNull(), wrong_type(text, fields))
    )
    for name in strings:
        kind = type_at_path(texts, "$[0]" + "".join(f"['{part}']" for part in name.split(".")))
        wanted = _type_at(fields, name)
        reason = reason.when(~kind.isin("STRING", "VOID"), not_a(name, wanted))
    landed = sf.struct(*(event[name].alias(name) for name in fields.names))
    return parsed.withColumns({"reason": reason, "event": sf.when(reason.isNull(), landed)}).drop(
        "_event", "_texts"
    )


def _type_at(fields: StructType, name: str) -> str:
    found: Any = fields
    for part in name.split("."):
        found = found[part].dataType
    return str(found.simpleString())
