"""JSON Schemas: parsing, and whether one schema accepts every document that another one accepts.

Called by `registry.checks`. `jsonschema` validates a schema against its draft's meta-schema (draft 7 unless
`$schema` names another).

Compatibility is a question of sets: is every document that the writer's schema accepts valid for the
reader's? It is answered keyword by keyword, with "no" in undecidable cases. Two rules are those of
Confluent's registry, not of sets: a new required property is compatible if it has a default; and one
matching branch of `oneOf` is enough. The kinds are Confluent's: a content model is what
`additionalProperties` and `items` leave open, closed, or partially open.

A schema is split into parts that must all hold (its own keywords, each branch of `allOf`, a choice, a
`not`); each part of the reader needs a part of the writer that is at least as narrow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from jsonschema import Draft7Validator
from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for

from ottla_pipeline.registry.formats import Incompatibility, InvalidSchema, ParsedSchema, load_json
from ottla_pipeline.registry.formats import json_keywords as keywords
from ottla_pipeline.registry.formats.json_document import (
    Document,
    Node,
    UnresolvedReference,
    UnusablePattern,
    matches,
)

TYPE: Final = "JSON"
_LENIENT: Final = frozenset(
    (
        "ADDITIONAL_PROPERTIES_NARROWED",
        "ADDITIONAL_PROPERTIES_REMOVED",
        "OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL",
        "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
        "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL",
        "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
    )
)
"""What compatibilityPolicy=LENIENT permits, as in Confluent's."""


def parse(text: str, references: Mapping[str, str], *, normalize: bool = False) -> ParsedSchema:
    """`normalize` sorts the members of objects."""
    loaded = load_json(text)
    if not isinstance(loaded, dict | bool):
        raise InvalidSchema("not a JSON Schema: must be an object, true or false")
    if isinstance(loaded, dict):
        try:
            validator_for(loaded, default=Draft7Validator).check_schema(loaded)
        except SchemaError as error:
            where = "/".join(str(part) for part in error.absolute_path)
            raise InvalidSchema(f"not a JSON Schema: /{where}: {error.message}") from None
    canonical = json.dumps(loaded, separators=(",", ":"), ensure_ascii=False, sort_keys=normalize)
    return ParsedSchema(
        TYPE, canonical, Document(loaded, {name: load_json(each) for name, each in references.items()})
    )


def unreadable(reader: ParsedSchema, writer: ParsedSchema, *, lenient: bool = False) -> list[Incompatibility]:
    """What `writer` accepts and `reader` rejects. `lenient` considers only listed properties and ignores
    additional ones."""
    found = differences(reader.model, writer.model)
    return [each for each in found if not (lenient and each.kind in _LENIENT)]


_CHOICES: Final = ("anyOf", "oneOf")


def differences(reader: Document, writer: Document) -> list[Incompatibility]:
    """What prevents the reader's schema from accepting what the writer's accepts; paths are into the
    reader's schema."""
    try:
        found = _Comparison().fits(Node(reader.schema, reader), Node(writer.schema, writer))
    except UnresolvedReference as error:
        return [Incompatibility("REFERENCE_UNRESOLVED", "/", str(error))]
    except UnusablePattern as error:
        return [Incompatibility("PATTERN_UNUSABLE", "/", str(error))]
    return [each._replace(path=each.path or "/") for each in dict.fromkeys(found)]


class _Comparison:
    """Pairs in progress count as compatible, so that recursive schemas terminate."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], list[Incompatibility]] = {}

    def fits(self, reader: Node, writer: Node, path: str = "") -> list[Incompatibility]:
        reader, writer = reader.resolved(), writer.resolved()
        pair = (id(reader.value), id(writer.value))
        if pair not in self._known:
            self._known[pair] = []
            self._known[pair] = list(self._compare(reader, writer))
        return [each._replace(path=path + each.path) for each in self._known[pair]]

    def _compare(self, reader: Node, writer: Node) -> Iterator[Incompatibility]:
        if keywords.accepts_all(reader.value):
            return
        theirs = list(_parts(writer))
        for where, part in _parts(reader):
            attempts = [self._part_fits(part, other) for _, other in theirs] or [
                self._part_fits(part, Node(True, writer.document))
            ]
            if all(attempts) and not self._some_branch_fits(part, writer):
                # Report the differences from the part of the writer that is closest to this one.
                for each in min(attempts, key=len):
                    yield each._replace(path=where + each.path)

    def _enumerated(self, reader: Node, writer: Node) -> Iterator[Incompatibility]:
        lost = reader.rejected(keywords.values(writer.value))
        if lost:
            kind = "ENUM_ARRAY_NARROWED" if keywords.is_enumeration(reader.value) else "TYPE_CHANGED"
            detail = f"{', '.join(map(repr, lost[:5]))} {'is' if len(lost) == 1 else 'are'} not accepted"
            yield Incompatibility(kind, "/enum", detail)

    def _part_fits(self, reader: Node, writer: Node) -> list[Incompatibility]:
        if writer.value is False:
            return []
        if reader.value is False:
            return [Incompatibility("TYPE_CHANGED", "", "nothing is accepted any more")]
        for choice in _CHOICES:
            if _is_only(writer.value, choice):
                branches = [writer.at(branch) for branch in writer.value[choice]]
                return [each for branch in branches for each in self.fits(reader, branch)]
        if keywords.is_enumeration(writer.value):
            return list(self._enumerated(reader, writer))
        for choice in _CHOICES:
            if _is_only(reader.value, choice):
                if self._some_branch_fits(reader, writer):
                    return []
                detail = f"no branch of {choice} accepts all of it"
                return [Incompatibility("COMBINED_TYPE_SUBSCHEMAS_CHANGED", f"/{choice}", detail)]
        if _is_only(reader.value, "not"):
            return self._not_fits(reader, writer)
        if isinstance(writer.value, dict) and _is_only(writer.value, "not"):
            writer = Node(True, writer.document)
        return list(self._plain_fits(reader, writer))

    def _some_branch_fits(self, reader: Node, writer: Node) -> bool:
        branches = [
            each for choice in _CHOICES if _is_only(reader.value, choice) for each in reader.value[choice]
        ]
        return any(not self.fits(reader.at(branch), writer) for branch in branches)

    def _not_fits(self, reader: Node, writer: Node) -> list[Incompatibility]:
        before = writer.members().get("not")
        if before is not None and not self.fits(writer.at(before), reader.at(reader.value["not"])):
            return []
        return [Incompatibility("NOT_TYPE_EXTENDED", "/not", "more is excluded than before")]

    def _plain_fits(self, reader: Node, writer: Node) -> Iterator[Incompatibility]:
        """Compares two schemas without choices: their types, and the keywords of the common types."""
        mine, theirs = keywords.types(reader.value), keywords.types(writer.value)
        lost = sorted(theirs - mine - ({"integer"} if "number" in mine else set()))
        if lost:
            kind = "TYPE_NARROWED" if mine & theirs or lost == ["number"] else "TYPE_CHANGED"
            yield Incompatibility(
                kind, "", f"{', '.join(lost)} {'is' if len(lost) == 1 else 'are'} not accepted"
            )
        if keywords.is_enumeration(reader.value):
            yield Incompatibility("ENUM_ARRAY_NARROWED", "/enum", "only listed values are accepted")
        old = writer.value if isinstance(writer.value, dict) else {}
        yield from keywords.narrowed(reader.value, old, theirs)
        if "object" in mine & theirs:
            yield from self._objects(reader, Node(old, writer.document))
        if "array" in mine & theirs:
            yield from self._arrays(reader, Node(old, writer.document))

    # -- Objects --

    def _objects(self, reader: Node, writer: Node) -> Iterator[Incompatibility]:
        mine, theirs = reader.value.get("properties", {}), writer.value.get("properties", {})
        needed = set(reader.value.get("required", ())) - set(writer.value.get("required", ()))
        for name in dict.fromkeys((*theirs, *mine)):
            path = f"/properties/{_escaped(name)}"
            if name not in theirs:
                yield from self._added(reader, writer, name, path)
            elif name in mine:
                yield from self.fits(reader.at(mine[name]), writer.at(theirs[name]), path)
            else:
                yield from self._removed(reader, writer, name, path)
        for name in sorted(needed):
            own = mine.get(name)
            if not (isinstance(own, dict) and "default" in reader.at(own).resolved().members()):
                detail = f"{name} is required, was not, and has no default"
                model = "OPEN" if _is_open(writer) else "UNOPEN"
                kind = f"REQUIRED_PROPERTY_ADDED_TO_{model}_CONTENT_MODEL"
                yield Incompatibility(
                    "REQUIRED_ATTRIBUTE_ADDED" if name in theirs else kind,
                    f"/required/{_escaped(name)}",
                    detail,
                )
        for pattern, schema in reader.value.get("patternProperties", {}).items():
            path = f"/patternProperties/{_escaped(pattern)}"
            before = writer.value.get("patternProperties", {}).get(pattern, _rest(writer))
            yield from self.fits(reader.at(schema), writer.at(before), path)
            for name in theirs:
                if name not in mine and matches(pattern, name):
                    yield from self.fits(reader.at(schema), writer.at(theirs[name]), path)
        for pattern, schema in writer.value.get("patternProperties", {}).items():
            if pattern not in reader.value.get("patternProperties", {}):
                path = "/additionalProperties"
                yield from self.fits(reader.at(_rest(reader)), writer.at(schema), path)
        yield from _renamed(
            self.fits(reader.at(_rest(reader)), writer.at(_rest(writer))),
            "ADDITIONAL_PROPERTIES_REMOVED" if _rest(reader) is False else "ADDITIONAL_PROPERTIES_NARROWED",
            "/additionalProperties",
        )

    def _added(self, reader: Node, writer: Node, name: str, path: str) -> Iterator[Incompatibility]:
        before = _schema_of(writer, name)
        found = self.fits(reader.at(reader.value["properties"][name]), writer.at(before), path)
        if keywords.accepts_all(before):
            kind = "PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"
            found = _renamed(found, f"OPTIONAL_{kind}", path, f"{name} could be anything before")
        elif found:
            kind = "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"
            found = [*found, Incompatibility(kind, path, f"{name} could be what is not accepted now")]
        yield from found

    def _removed(self, reader: Node, writer: Node, name: str, path: str) -> Iterator[Incompatibility]:
        now = _schema_of(reader, name)
        found = self.fits(reader.at(now), writer.at(writer.value["properties"][name]), path)
        kind = "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"
        if now is False:
            kind = "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"
        yield from _renamed(found, kind, path, f"{name} is not accepted as it was")

    # -- Arrays --

    def _arrays(self, reader: Node, writer: Node) -> Iterator[Incompatibility]:
        (mine, rest), (theirs, old_rest) = _items(reader.value), _items(writer.value)
        for number in range(max(len(mine), len(theirs))):
            now = mine[number] if number < len(mine) else rest
            before = theirs[number] if number < len(theirs) else old_rest
            found = self.fits(reader.at(now), writer.at(before), f"/items/{number}")
            if number >= len(theirs):
                model = (
                    "ADDED_TO_OPEN" if keywords.accepts_all(before) else "ADDED_NOT_COVERED_BY_PARTIALLY_OPEN"
                )
                found = _renamed(found, f"ITEM_{model}_CONTENT_MODEL", f"/items/{number}")
            elif number >= len(mine):
                model = "REMOVED_FROM_CLOSED" if now is False else "REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN"
                found = _renamed(found, f"ITEM_{model}_CONTENT_MODEL", f"/items/{number}")
            yield from found
        found = self.fits(reader.at(rest), writer.at(old_rest), "/items")
        if mine or theirs:
            kind = "ADDITIONAL_ITEMS_REMOVED" if rest is False else "ADDITIONAL_ITEMS_NARROWED"
            found = _renamed(found, kind, "/additionalItems")
        yield from found


class _Items(NamedTuple):
    first: list[Any]
    rest: Any


def _items(schema: dict[str, Any]) -> _Items:
    """The schemas of the first items, one each, and of all further items; for all drafts."""
    items = schema.get("items", True)
    if "prefixItems" in schema:
        return _Items(schema["prefixItems"], schema.get("items", schema.get("unevaluatedItems", True)))
    if isinstance(items, list):
        return _Items(items, schema.get("additionalItems", schema.get("unevaluatedItems", True)))
    return _Items([], items)


def _rest(schema: Node) -> Any:
    """The schema of properties without a schema of their own."""
    members = schema.value
    return members.get("additionalProperties", members.get("unevaluatedProperties", True))


def _schema_of(schema: Node, name: str) -> Any:
    """The schema of a property that `properties` does not name."""
    for pattern, found in schema.value.get("patternProperties", {}).items():
        if matches(pattern, name):
            return found
    return _rest(schema)


def _is_open(schema: Node) -> bool:
    return keywords.accepts_all(_rest(schema)) and not schema.value.get("patternProperties")


def _parts(schema: Node) -> Iterator[tuple[str, Node]]:
    """The parts that must all hold, each with its path; none for a schema that accepts everything."""
    schema = schema.resolved()
    if not isinstance(schema.value, dict):
        if schema.value is False:
            yield "", schema
        return
    own = {name: value for name, value in schema.value.items() if name not in ("allOf", "not", *_CHOICES)}
    if not keywords.accepts_all(own):
        yield "", schema.at(own)
    for number, branch in enumerate(schema.value.get("allOf", ())):
        for where, part in _parts(schema.at(branch)):
            yield f"/allOf/{number}{where}", part
    for name in (*_CHOICES, "not"):
        if name in schema.value:
            yield "", schema.at({name: schema.value[name]})


def _is_only(schema: Any, name: str) -> bool:
    return isinstance(schema, dict) and len(schema) == 1 and name in schema


def _renamed(
    found: list[Incompatibility], kind: str, path: str, detail: str | None = None
) -> list[Incompatibility]:
    """One incompatibility of this kind in place of several."""
    return [Incompatibility(kind, path, detail or found[0].detail)] if found else []


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
