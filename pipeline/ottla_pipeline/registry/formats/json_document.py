"""A JSON Schema with what it refers to: following `$ref`, and asking whether a value is accepted.

Called by `json_schema` and `json_compatibility`. A reference leads within its document (`#`, `#/a/b`) or to a
schema of another name (`name`, `name#/a/b`); nothing is fetched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from jsonschema import Draft7Validator
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT7

HOPS_MAX: Final = 50


class UnresolvedReference(Exception):
    """A `$ref` leads nowhere, or in a circle; the message says which."""


@dataclass(frozen=True, eq=False)
class Document:
    """`references`: the schemas that its `$ref`s name."""

    schema: Any
    references: dict[str, Any]

    def validator(self) -> Validator:
        resources = [
            (name, Resource.from_contents(each, default_specification=DRAFT7))
            for name, each in self.references.items()
        ]
        kind = validator_for(self.schema, default=Draft7Validator)
        return kind(self.schema, registry=Registry().with_resources(resources))


class Node(NamedTuple):
    """A schema within a document."""

    value: Any
    document: Document

    def at(self, value: Any) -> Node:
        return Node(value, self.document)

    def members(self) -> dict[str, Any]:
        return self.value if isinstance(self.value, dict) else {}

    def accepts(self, value: Any) -> bool:
        return bool(self.document.validator().evolve(schema=self.value).is_valid(value))

    def resolved(self) -> Node:
        """What a `$ref` leads to; what stands beside it counts no more, as in the drafts up to 7."""
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
