"""The canonical text of Avro schemas: the output of Java's Avro, so that equal schemas have equal texts.

Called by `avro_schema`. Confluent's registry stores schemas in this form and compares them by it: attributes
in a fixed order, names relative to the enclosing namespace, `{"type": "string"}` as `"string"`, no white
space. Attributes that Avro does not define stay, in their original order.

The schema has been parsed before, so it is valid.
"""

from __future__ import annotations

import json
from typing import Any, Final

PRIMITIVES: Final = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
NAMED: Final = frozenset(("record", "error", "enum", "fixed"))
_OF_SCHEMA: Final = frozenset(
    ("aliases", "doc", "fields", "items", "name", "namespace", "size", "symbols", "type", "values")
)
_OF_FIELD: Final = frozenset(("aliases", "default", "doc", "name", "order", "type"))


def canonical_text(schema: Any, *, normalize: bool = False) -> str:
    """`normalize` also sorts the attributes that Avro does not define."""
    return json.dumps(_schema(schema, None, normalize), separators=(",", ":"), ensure_ascii=False)


def full_name(name: str, namespace: str | None) -> str:
    """The full name of a name in a namespace."""
    if name in PRIMITIVES or "." in name or not namespace:
        return name.removeprefix(".")
    return f"{namespace}.{name}"


def declared_name(schema: dict[str, Any], enclosing: str | None) -> tuple[str, str | None]:
    """Name and namespace of a record, enum or fixed."""
    name = str(schema["name"])
    if "." in name:
        space, _, name = name.rpartition(".")
    else:
        space = schema.get("namespace", enclosing) or ""
    return name, space or None


def _schema(schema: Any, space: str | None, normalize: bool) -> Any:
    if isinstance(schema, str):
        return _reference(schema, space)
    if isinstance(schema, list):
        return [_schema(branch, space, normalize) for branch in schema]
    kind = schema["type"]
    if not isinstance(kind, str):
        return _schema(kind, space, normalize)  # {"type": {…}}: the outer object is redundant
    if kind not in NAMED and kind not in ("array", "map"):
        extra = _extra(schema, _OF_SCHEMA, normalize)
        return {"type": kind, **extra} if extra and kind in PRIMITIVES else _reference(kind, space)
    written: dict[str, Any] = {"type": kind}
    if kind == "array":
        written["items"] = _schema(schema["items"], space, normalize)
    elif kind == "map":
        written["values"] = _schema(schema["values"], space, normalize)
    else:
        return _named(written, schema, space, normalize)
    return written | _extra(schema, _OF_SCHEMA, normalize)


def _named(written: dict[str, Any], schema: dict[str, Any], space: str | None, normalize: bool) -> Any:
    kind = schema["type"]
    written["name"], inner = declared_name(schema, space)
    if inner != space:
        written["namespace"] = inner or ""
    if schema.get("doc") is not None:
        written["doc"] = schema["doc"]
    known = _OF_SCHEMA
    if kind == "enum":
        known = known | {"default"}
        written["symbols"] = schema["symbols"]
        if schema.get("default") is not None:
            written["default"] = schema["default"]
    elif kind == "fixed":
        written["size"] = schema["size"]
    else:
        written["fields"] = [_field(field, inner, normalize) for field in schema["fields"]]
    written |= _extra(schema, known, normalize)
    if schema.get("aliases"):
        written["aliases"] = [_relative(full_name(alias, inner), inner) for alias in schema["aliases"]]
    return written


def _field(field: dict[str, Any], space: str | None, normalize: bool) -> dict[str, Any]:
    written = {"name": field["name"], "type": _schema(field["type"], space, normalize)}
    if field.get("doc") is not None:
        written["doc"] = field["doc"]
    if "default" in field:
        written["default"] = field["default"]
    order = str(field.get("order", "ascending")).lower()
    if order != "ascending":
        written["order"] = order
    if field.get("aliases"):
        written["aliases"] = field["aliases"]
    return written | _extra(field, _OF_FIELD, normalize)


def _reference(name: str, space: str | None) -> str:
    return name if name in PRIMITIVES else _relative(full_name(name, space), space)


def _relative(full: str, space: str | None) -> str:
    inner, _, name = full.rpartition(".")
    return name if inner == (space or "") else full


def _extra(node: dict[str, Any], known: frozenset[str], normalize: bool) -> dict[str, Any]:
    names = [name for name in node if name not in known]
    return {name: node[name] for name in (sorted(names) if normalize else names)}
