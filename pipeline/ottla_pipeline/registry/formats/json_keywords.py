"""The keywords of JSON Schema: their types, bounds, and the comparison of bounds.

Called by `json_schema`. Pure tables and arithmetic; subschemas are not considered.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any, Final

from ottla_pipeline.registry.formats import Incompatibility

ALL_TYPES: Final = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))
_ANNOTATIONS: Final = (
    "$anchor $comment $defs $id $schema contentEncoding contentMediaType default definitions deprecated "
    "description examples format id javaType readOnly title writeOnly"
)
_WITHOUT_EFFECT: Final = frozenset(_ANNOTATIONS.split())
_OBJECT: Final = (
    "additionalProperties dependencies maxProperties minProperties patternProperties properties "
    "propertyNames required unevaluatedProperties"
)
_ARRAY: Final = "additionalItems contains items maxItems minItems prefixItems unevaluatedItems uniqueItems"
_TYPE_OF: Final = {
    **dict.fromkeys(_OBJECT.split(), "object"),
    **dict.fromkeys(_ARRAY.split(), "array"),
    **dict.fromkeys(["exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"], "number"),
    **dict.fromkeys(["maxLength", "minLength", "pattern"], "string"),
}
_HIGHEST: Final = {
    "maxItems": "MAX_ITEMS",
    "maxLength": "MAX_LENGTH",
    "maxProperties": "MAX_PROPERTIES",
    "maximum": "MAXIMUM",
    "exclusiveMaximum": "EXCLUSIVE_MAXIMUM",
    "maxContains": "MAX_CONTAINS",
}
_LOWEST: Final = {
    "minItems": "MIN_ITEMS",
    "minLength": "MIN_LENGTH",
    "minProperties": "MIN_PROPERTIES",
    "minimum": "MINIMUM",
    "exclusiveMinimum": "EXCLUSIVE_MINIMUM",
    "minContains": "MIN_CONTAINS",
}
_UNCHANGED: Final = {
    "pattern": "PATTERN_CHANGED",
    "contains": "CONTAINS_CHANGED",
    "propertyNames": "PROPERTY_NAMES_CHANGED",
    "if": "CONDITION_CHANGED",
    "then": "CONDITION_CHANGED",
    "else": "CONDITION_CHANGED",
}
"""Keywords that may be removed, but neither added nor changed."""
_BY_PROPERTY: Final = ("dependencies", "dependentRequired", "dependentSchemas")


def accepts_all(schema: Any) -> bool:
    if isinstance(schema, dict):
        return all(name in _WITHOUT_EFFECT for name in schema)
    return schema is True


def types(schema: Any) -> frozenset[str]:
    """The accepted types. Without `type`, those that the keywords apply to; all if no keyword implies a
    type."""
    if not isinstance(schema, dict):
        return ALL_TYPES
    given = schema.get("type")
    if given is None:
        implied = {_TYPE_OF[name] for name in schema if name in _TYPE_OF}
        given = sorted(implied) or sorted(ALL_TYPES)
    found = {given} if isinstance(given, str) else set(given)
    return frozenset(found | ({"integer"} if "number" in found else set()))


def is_enumeration(schema: Any) -> bool:
    return isinstance(schema, dict) and ("enum" in schema or "const" in schema)


def values(schema: dict[str, Any]) -> list[Any]:
    if "const" in schema:
        return [schema["const"]]
    return list(schema["enum"])


def narrowed(
    new: dict[str, Any], old: dict[str, Any], old_types: frozenset[str]
) -> Iterator[Incompatibility]:
    """The keywords by which the new schema accepts less, among those that apply to the old schema's types."""
    for name in new:
        about = _TYPE_OF.get(name)
        if (
            about is not None
            and about not in old_types
            and not (about == "number" and "integer" in old_types)
        ):
            continue
        before = old.get(name)
        for table, sign, word in ((_HIGHEST, 1, "DECREASED"), (_LOWEST, -1, "INCREASED")):
            if name in table and not _holds(name, new, old, sign):
                kind = f"{table[name]}_{'ADDED' if before is None else word}"
                yield Incompatibility(kind, f"/{name}", f"{new[name]!r}, was {_shown(before)}")
        if name in _UNCHANGED and new[name] != before:
            kind = _UNCHANGED[name].replace("CHANGED", "ADDED") if before is None else _UNCHANGED[name]
            yield Incompatibility(kind, f"/{name}", "it was different, or not there")
        if name in _BY_PROPERTY:
            yield from _dependencies(name, new[name], before or {})
        if name == "uniqueItems" and new[name] and not before:
            yield Incompatibility("UNIQUE_ITEMS_ADDED", "/uniqueItems", "items did not have to be unique")
        if name == "multipleOf" and (before is None or _fraction(before) % _fraction(new[name])):
            kind = "MULTIPLE_OF_ADDED" if before is None else "MULTIPLE_OF_CHANGED"
            yield Incompatibility(kind, "/multipleOf", f"{new[name]!r}, was {_shown(before)}")


def _dependencies(name: str, new: dict[str, Any], old: dict[str, Any]) -> Iterator[Incompatibility]:
    for key, now in new.items():
        before = old.get(key)
        fewer = isinstance(now, list) and isinstance(before, list) and set(now) <= set(before)
        if now != before and not fewer:
            kind = "DEPENDENCY_ADDED" if before is None else "DEPENDENCY_CHANGED"
            yield Incompatibility(
                kind, f"/{name}/{key}", f"what {key} depends on was different, or not there"
            )


def _holds(name: str, new: dict[str, Any], old: dict[str, Any], sign: int) -> bool:
    """Whether a bound is at least as wide as before; draft 4's boolean `exclusive…` modifies `maximum`."""
    now, before = new[name], old.get(name)
    if isinstance(now, bool) or isinstance(before, bool):
        return not now or bool(before)
    return before is not None and sign * _fraction(now) >= sign * _fraction(before)


def _fraction(number: Any) -> Fraction:
    """The exact decimal value: 0.3 is a multiple of 0.1."""
    return Fraction(str(number))


def _shown(value: Any) -> str:
    return "not there" if value is None else repr(value)
