"""Changes to Avro schemas before Spark's `from_avro` uses them. Pure.

Called by `plans`.

- References to other schemas of the registry are resolved: each named type is inlined at its first use
  (`inline_references`).
- Under PERMISSIVE, `from_avro` returns a struct of nulls for corrupt bytes, which a valid record of nulls
  equals. So the reader schema gets an additional field with the default true (`with_marker`): decoded records
  have it, corrupt bytes do not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MARKER = "__ottla_decoded"
_NAMED = ("record", "error", "enum", "fixed")


class SchemaUnusable(Exception):
    """A schema cannot be used to read records; the message says which one and why."""


def parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise SchemaUnusable(f"not an Avro schema: {error}") from error


def inline_references(text: str, references: Mapping[str, str]) -> str:
    """The schema with the named types of `references` (texts by name) inlined at their first use."""
    if not references:
        return text
    return json.dumps(_Inliner(references).visit(parsed(text), ""))


class _Inliner:
    """Visits a schema in the order of Avro's parsers, because a name is defined at its first use."""

    def __init__(self, references: Mapping[str, str]) -> None:
        self._texts = references
        self._defined: set[str] = set()

    def visit(self, schema: Any, namespace: str) -> Any:
        if isinstance(schema, str):
            full = schema if "." in schema or not namespace else f"{namespace}.{schema}"
            name = full if full in self._texts else schema
            if name in self._defined or name not in self._texts:
                return schema
            self._defined.add(name)
            return self.visit(parsed(self._texts[name]), "")
        if isinstance(schema, list):
            return [self.visit(each, namespace) for each in schema]
        if not isinstance(schema, dict):
            return schema
        kind = schema.get("type")
        if kind in _NAMED:
            name = str(schema.get("name", ""))
            namespace = name.rpartition(".")[0] or str(schema.get("namespace", namespace))
            self._defined.add(name if "." in name or not namespace else f"{namespace}.{name}")
        made = dict(schema)
        if kind in ("record", "error"):
            made["fields"] = [f | {"type": self.visit(f["type"], namespace)} for f in schema["fields"]]
        elif kind == "array":
            made["items"] = self.visit(schema["items"], namespace)
        elif kind == "map":
            made["values"] = self.visit(schema["values"], namespace)
        elif not isinstance(kind, str):
            made["type"] = self.visit(kind, namespace)
        return made


def with_marker(reader: str) -> str:
    """The reader schema with the marker field. Raises SchemaUnusable if it is not a record."""
    schema = parsed(reader)
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise SchemaUnusable("the reader schema must be a record: its fields become columns")
    if not schema.get("fields"):
        raise SchemaUnusable("the reader schema has no fields")
    mark = {"name": MARKER, "type": "boolean", "default": True}
    return json.dumps(schema | {"fields": [*schema["fields"], mark]})
