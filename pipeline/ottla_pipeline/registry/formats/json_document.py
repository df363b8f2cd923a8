"""A JSON Schema with its references: resolution of `$ref`, and validation of values.

Called by `json_schema`. A reference points into its document (`#`, `#/a/b`) or to
a schema of another name (`name`, `name#/a/b`); nothing is fetched.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import jsonschema_rs

HOPS_MAX: Final = 50
_BASE: Final = "json-schema:///"
_DOCUMENT: Final = f"{_BASE}__document"
_VALUES: Final = ("const", "default", "enum", "examples")


class UnresolvedReference(Exception):
    """A `$ref` has no target, or is circular; the message names it."""


class UnusablePattern(Exception):
    """A regular expression is invalid, or takes too many steps; the message has it."""


@lru_cache(1000)
def _pattern(pattern: str) -> jsonschema_rs.Draft7Validator:
    return jsonschema_rs.Draft7Validator({"pattern": pattern})


def matches(pattern: str, name: str) -> bool:
    """Whether a schema's regular expression matches anywhere in a name. Raises UnusablePattern.

    Takes linear time, or a bounded number of steps if the expression has look-around or back-references.
    """
    try:
        error = next(iter(_pattern(pattern).iter_errors(name)), None)
    except ValueError as refused:
        raise UnusablePattern(f"pattern {pattern}: {str(refused).splitlines()[0]}") from None
    if error is not None and isinstance(error.kind, jsonschema_rs.ValidationErrorKind.BacktrackLimitExceeded):
        raise UnusablePattern(f"pattern {pattern}: takes too many steps")
    return error is None


@dataclass(frozen=True, eq=False)
class Document:
    """A schema with `references`, the schemas that its `$ref`s name."""

    schema: Any
    references: dict[str, Any]

    def rejected(self, schema: Any, values: list[Any]) -> list[Any]:
        """The values that a schema within this document rejects. Raises UnresolvedReference."""

        def retrieve(uri: str) -> Any:
            return self.schema if uri == _DOCUMENT else self.references[uri.removeprefix(_BASE)]

        kind: Any = jsonschema_rs.Draft7Validator
        if isinstance(self.schema, dict) and "$schema" in self.schema:
            kind = jsonschema_rs.validator_cls_for(self.schema)
        try:
            found = kind(_with_whole_references(schema), retriever=retrieve, validate_formats=False)
            return [value for value in values if not found.is_valid(value)]
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            raise UnresolvedReference(str(error).splitlines()[0]) from None


def _with_whole_references(schema: Any) -> Any:
    """The schema with absolute `$ref`s in place of those within the document."""
    if isinstance(schema, list):
        return [_with_whole_references(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: f"{_DOCUMENT}{value}"
        if name == "$ref" and isinstance(value, str) and value.startswith("#")
        else value
        if name in _VALUES
        else _with_whole_references(value)
        for name, value in schema.items()
        if name != "$id"
    }


class Node(NamedTuple):
    """A schema within a document."""

    value: Any
    document: Document

    def at(self, value: Any) -> Node:
        return Node(value, self.document)

    def members(self) -> dict[str, Any]:
        return self.value if isinstance(self.value, dict) else {}

    def rejected(self, values: list[Any]) -> list[Any]:
        """The values that this schema rejects. Raises UnresolvedReference."""
        return self.document.rejected(self.value, values)

    def resolved(self) -> Node:
        """The target of a `$ref`; keywords beside it are ignored, as in the drafts up to 7."""
        node = self
        for _ in range(HOPS_MAX):
            if not isinstance(node.value, dict) or not isinstance(node.value.get("$ref"), str):
                return node
            node = node._target(node.value["$ref"])
        raise UnresolvedReference(f"$ref {self.value['$ref']} leads in a circle")

    def _target(self, reference: str) -> Node:
        name, _, pointer = reference.partition("#")
        document = self.document
        own = document.schema if isinstance(document.schema, dict) else {}
        if name and name != own.get("$id"):
            found = document.references.get(name)
            if found is None:
                raise UnresolvedReference(f"$ref {reference}: no schema is named {name}")
            document = Document(found, document.references)
        value = document.schema
        for part in filter(None, pointer.split("/")):
            part = unquote(part).replace("~1", "/").replace("~0", "~")
            try:
                value = value[int(part)] if isinstance(value, list) else value[part]
            except (LookupError, TypeError, ValueError):
                raise UnresolvedReference(f"$ref {reference} leads nowhere") from None
        return Node(value, document)
