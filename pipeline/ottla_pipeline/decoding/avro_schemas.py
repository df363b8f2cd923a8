"""Avro schemas as text: what has to be done to them before Spark's `from_avro` gets them. Pure.

Called by `plans`.

- A schema that refers to others in the registry is made whole: each named type is written out where it is
  first used (`whole`).
- Under PERMISSIVE, `from_avro` makes of broken bytes a struct of nulls, which a good record of nulls looks
  like too. So the reader schema gets one field more, whose default is true (`marked`): a record that was
  decoded has it, and broken bytes do not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MARKER = "__ottla_decoded"
_NAMED = ("record", "error", "enum", "fixed")


class SchemaUnusable(Exception):
    """A schema that records cannot be read with; the message says which and why."""


def parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise SchemaUnusable(f"not an Avro schema: {error}") from error


def inline_references(text: str, references: Mapping[str, str]) -> str:
    """The schema with the named types of `references` (texts by name) written out at their first use."""
    if not references:
        return text
    return json.dumps(_Inliner(references).visit(parsed(text), ""))


class _Inliner:
    """Walks a schema in the order in which Avro's parsers do, since a name is defined at its first use."""

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
    """The reader schema with the mark of a decoded record. SchemaUnusable if it is not a record."""
    schema = parsed(reader)
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise SchemaUnusable("the reader schema must be a record: its fields become columns")
    if not schema.get("fields"):
        raise SchemaUnusable("the reader schema has no fields")
    mark = {"name": MARKER, "type": "boolean", "default": True}
    return json.dumps(schema | {"fields": [*schema["fields"], mark]})
