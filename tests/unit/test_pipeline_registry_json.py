"""Which JSON Schemas may follow which: Confluent's rules of content models, and jsonschema as the oracle."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from ottla_pipeline.registry.formats import InvalidSchema, json_schema

STRING, NUMBER, INTEGER = {"type": "string"}, {"type": "number"}, {"type": "integer"}


def kinds(reader: Any, writer: Any, references: dict[str, Any] | None = None) -> set[str]:
    texts = {name: json.dumps(each) for name, each in (references or {}).items()}
    new, old = (json_schema.parse(json.dumps(each), texts) for each in (reader, writer))
    return {each.kind for each in json_schema.unreadable(new, old)}


def thing(*, closed: Any = None, required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """An object; `closed`: what `additionalProperties` is."""
    found: dict[str, Any] = {"type": "object", "properties": properties}
    if closed is not None:
        found["additionalProperties"] = closed
    return found | ({"required": list(required)} if required else {})


FITTING = {
    "the same": (thing(a=STRING), thing(a=STRING)),
    "what says nothing": ({**thing(a=STRING), "title": "T", "description": "d"}, thing(a=STRING)),
    "anything": ({}, thing(a=STRING)),
    "after nothing": (STRING, False),
    "a number for an integer": (NUMBER, INTEGER),
    "one more type": ({"type": ["string", "null"]}, STRING),
    "one more value": ({"enum": ["a", "b"]}, {"enum": ["a"]}),
    "a type for values": (STRING, {"enum": ["a", "b"]}),
    "wider bounds": (
        {"type": "number", "minimum": 0, "maximum": 9},
        {"type": "number", "minimum": 1, "maximum": 8},
    ),
    "a divisor": ({"type": "number", "multipleOf": 0.1}, {"type": "number", "multipleOf": 0.3}),
    "no pattern any more": (STRING, {"type": "string", "pattern": "a", "maxLength": 3}),
    "a property more, closed before": (
        thing(closed=False, a=STRING, b=STRING),
        thing(closed=False, a=STRING),
    ),
    "a property less, open now": (thing(a=STRING), thing(a=STRING, b=STRING)),
    "a property less, covered": (thing(closed=STRING, a=STRING), thing(closed=STRING, a=STRING, b=STRING)),
    "a property more, covered": (thing(closed=STRING, b=STRING), thing(closed=STRING)),
    "opened": (thing(a=STRING), thing(closed=False, a=STRING)),
    "required no more": (thing(a=STRING), thing(required=("a",), a=STRING)),
    "required with a default": (
        thing(closed=False, required=("b",), a=STRING, b={"type": "string", "default": ""}),
        thing(closed=False, a=STRING),
    ),
    "an item more, closed before": (
        {"type": "array", "items": [STRING, NUMBER], "additionalItems": False},
        {"type": "array", "items": [STRING], "additionalItems": False},
    ),
    "items of more types": ({"type": "array", "items": NUMBER}, {"type": "array", "items": INTEGER}),
    "a branch more": ({"oneOf": [STRING, NUMBER]}, {"oneOf": [STRING]}),
    "one of the branches": ({"anyOf": [STRING, NUMBER]}, INTEGER),
    "a condition less": ({"allOf": [STRING]}, {"allOf": [STRING, {"maxLength": 3}]}),
    "less excluded": ({"not": INTEGER}, {"not": NUMBER}),
    "all branches covered": (thing(closed=False, a=NUMBER), {"anyOf": [thing(closed=False, a=INTEGER)]}),
    "the same in another place": ({"$ref": "#/definitions/s", "definitions": {"s": STRING}}, STRING),
}
UNFIT = {
    "another type": (NUMBER, STRING, "TYPE_CHANGED"),
    "a type less": (STRING, {"type": ["string", "null"]}, "TYPE_NARROWED"),
    "integers alone": (INTEGER, NUMBER, "TYPE_NARROWED"),
    "nothing any more": (False, STRING, "TYPE_CHANGED"),
    "a value less": ({"enum": ["a"]}, {"enum": ["a", "b"]}, "ENUM_ARRAY_NARROWED"),
    "values for a type": ({"type": "string", "enum": ["a"]}, STRING, "ENUM_ARRAY_NARROWED"),
    "a bound": ({"type": "number", "maximum": 3}, NUMBER, "MAXIMUM_ADDED"),
    "a narrower bound": (
        {"type": "string", "minLength": 2},
        {"type": "string", "minLength": 1},
        "MIN_LENGTH_INCREASED",
    ),
    "another pattern": (
        {"type": "string", "pattern": "b"},
        {"type": "string", "pattern": "a"},
        "PATTERN_CHANGED",
    ),
    "no divisor": (
        {"type": "number", "multipleOf": 0.2},
        {"type": "number", "multipleOf": 0.3},
        "MULTIPLE_OF_CHANGED",
    ),
    "a property more, open before": (
        thing(a=STRING, b=STRING),
        thing(a=STRING),
        "OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL",
    ),
    "a property less, closed now": (
        thing(closed=False),
        thing(closed=False, a=STRING),
        "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL",
    ),
    "a property less, not covered": (
        thing(closed=NUMBER),
        thing(closed=NUMBER, a=STRING),
        "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
    ),
    "closed": (thing(closed=False, a=STRING), thing(a=STRING), "ADDITIONAL_PROPERTIES_REMOVED"),
    "required now": (thing(required=("a",), a=STRING), thing(a=STRING), "REQUIRED_ATTRIBUTE_ADDED"),
    "new and required": (
        thing(closed=False, required=("a",), a=STRING),
        thing(closed=False),
        "REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL",
    ),
    "a property of another type": (thing(a=NUMBER), thing(a=STRING), "TYPE_CHANGED"),
    "unique items": ({"type": "array", "uniqueItems": True}, {"type": "array"}, "UNIQUE_ITEMS_ADDED"),
    "items of fewer types": ({"type": "array", "items": STRING}, {"type": "array"}, "TYPE_NARROWED"),
    "a branch less": ({"oneOf": [STRING]}, {"oneOf": [STRING, NUMBER]}, "COMBINED_TYPE_SUBSCHEMAS_CHANGED"),
    "a condition more": ({"allOf": [STRING, {"maxLength": 3}]}, {"allOf": [STRING]}, "MAX_LENGTH_ADDED"),
    "more excluded": ({"not": NUMBER}, {"not": INTEGER}, "NOT_TYPE_EXTENDED"),
    "a dependency": ({"dependencies": {"a": ["b"]}}, {"type": "object"}, "DEPENDENCY_ADDED"),
}


@pytest.mark.parametrize("name", FITTING)
def test_a_compatible_schema_may_follow(name: str) -> None:
    assert kinds(*FITTING[name]) == set()


@pytest.mark.parametrize("name", UNFIT)
def test_an_incompatible_schema_may_not_follow(name: str) -> None:
    reader, writer, kind = UNFIT[name]
    assert kind in kinds(reader, writer)


def test_the_place_of_a_difference_is_a_pointer_into_the_readers_schema() -> None:
    def nested(schema: Any) -> Any:
        return thing(**{"a/b": {"type": "array", "items": thing(c=schema)}})

    new, old = (json_schema.parse(json.dumps(nested(each)), {}) for each in (NUMBER, STRING))
    (found,) = json_schema.unreadable(new, old)
    assert (found.kind, found.path) == ("TYPE_CHANGED", "/properties/a~1b/items/properties/c")


def test_schemas_that_contain_themselves_are_compared() -> None:
    def tree(value: Any) -> Any:
        return thing(value=value, left={"$ref": "#"}, right={"$ref": "#"})

    assert kinds(tree(NUMBER), tree(INTEGER)) == set()
    assert kinds(tree(INTEGER), tree(NUMBER)) == {"TYPE_NARROWED"}


def test_schemas_of_other_names_are_followed() -> None:
    reader, writer = thing(a={"$ref": "money.json"}), thing(a={"$ref": "money.json#/definitions/small"})
    money = {**NUMBER, "definitions": {"small": INTEGER}}
    assert kinds(reader, writer, {"money.json": money}) == set()
    assert kinds(writer, reader, {"money.json": money}) == {"TYPE_NARROWED"}
    assert kinds(reader, writer) == {"REFERENCE_UNRESOLVED"}
    assert kinds({"$ref": "#"}, STRING) == {"REFERENCE_UNRESOLVED"}


@pytest.mark.parametrize("text", ["", "3", "[]", "{", '{"type":"x"}', '{"minimum":"1"}', '{"maximum":NaN}'])
def test_a_text_that_is_no_schema_is_told_from_one(text: str) -> None:
    with pytest.raises(InvalidSchema):
        json_schema.parse(text, {})


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([0.5, "", "a", "ab"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=5,
)


def with_some(draw: Any, schema: dict[str, Any], **keywords: st.SearchStrategy[Any]) -> dict[str, Any]:
    chosen = draw(st.sets(st.sampled_from(sorted(keywords))))
    return schema | {name: draw(keywords[name]) for name in sorted(chosen)}


KINDS = (
    "true",
    "false",
    "null",
    "string",
    "number",
    "integer",
    "enum",
    "array",
    "object",
    "anyOf",
    "allOf",
    "not",
)


@st.composite
def schemas(draw: Any, depth: int = 1) -> Any:
    inner = schemas(depth=depth - 1) if depth else st.sampled_from([True, False, STRING, INTEGER])
    kind = draw(st.sampled_from(KINDS))
    if kind in ("true", "false"):
        return kind == "true"
    if kind == "string":
        return with_some(draw, STRING, minLength=st.integers(0, 2), maxLength=st.integers(0, 2))
    if kind in ("number", "integer"):
        bounds = dict.fromkeys(("minimum", "maximum", "exclusiveMinimum"), st.integers(-2, 2))
        return with_some(draw, {"type": kind}, **bounds, multipleOf=st.sampled_from([1, 2, 0.5]))
    if kind == "enum":
        return {"enum": draw(st.lists(VALUES, min_size=1, max_size=3))}
    if kind == "array":
        found = with_some(draw, {"type": "array"}, maxItems=st.integers(0, 2), uniqueItems=st.booleans())
        if draw(st.booleans()):
            return {**found, "items": draw(inner)}
        first = st.lists(inner, min_size=1, max_size=2)
        return {**found, "items": draw(first), "additionalItems": draw(inner)}
    if kind == "object":
        names = st.sampled_from("abc")
        return with_some(
            draw, {"type": "object"}, properties=st.dictionaries(names, inner, max_size=2),
            required=st.lists(names, unique=True, max_size=2), additionalProperties=inner,
            patternProperties=st.dictionaries(st.sampled_from(["a", "[bc]"]), inner, max_size=1),
            minProperties=st.integers(0, 2),
        )  # fmt: skip
    if kind in ("anyOf", "allOf"):
        return {kind: draw(st.lists(inner, min_size=1, max_size=2))}
    return {"not": draw(inner)} if kind == "not" else {"type": "null"}


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(schemas(), schemas(), st.lists(VALUES, min_size=5, max_size=10))
def test_a_compatible_schema_accepts_all_that_the_former_accepted(
    one: Any, other: Any, values: list[Any]
) -> None:
    union, both = {"anyOf": [one, other]}, {"allOf": [one, other]}
    for reader, writer, wider in ((one, other, False), (union, one, True), (one, both, True)):
        if kinds(reader, writer):
            assert not wider, (reader, writer)
            continue
        for value in values:
            if Draft7Validator(writer).is_valid(value):
                assert Draft7Validator(reader).is_valid(value), (reader, writer, value)
