"""What the API server's validation of a CustomResourceDefinition says of a resource, without an API server.

Defaults, the structural schema's keywords, and the rules in CEL (without transition rules), evaluated by
another implementation of CEL. As on the API server, a rule sees the object with its defaults, and a rule that
cannot be evaluated refuses it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import celpy

from ottla_operator.resources.crds import build_crd

_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "array": (list,),
    "object": (dict,),
}  # fmt: skip
_SPECIAL: Final = re.compile(r"\boldSelf\b")


@functools.cache
def schema_of(kind: str) -> dict[str, Any]:
    """The schema of a kind's only version."""
    schema = build_crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return {**schema, "properties": {n: s for n, s in schema["properties"].items() if n != "status"}}


def refusals(kind: str, name: str, spec: object) -> list[str]:
    """Why the API server refuses the creation of the resource; empty when it does not."""
    schema = schema_of(kind)
    content = {"apiVersion": "", "kind": kind, "metadata": {"name": name}, "spec": spec}
    return list(_validated(_with_defaults(content, schema), schema, ""))


def _with_defaults(value: Any, schema: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        defaults = {n: s["default"] for n, s in properties.items() if "default" in s and n not in value}
        more = schema.get("additionalProperties", {})
        return {n: _with_defaults(v, properties.get(n, more)) for n, v in {**value, **defaults}.items()}
    if isinstance(value, list):
        return [_with_defaults(item, schema.get("items", {})) for item in value]
    return value


def _validated(value: Any, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    wanted = _TYPES.get(schema.get("type", ""))
    if schema.get("x-kubernetes-int-or-string"):
        wanted = (int, str)
    if wanted and (not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted)):
        yield f"{path}: must be of type {schema.get('type')}"
        return
    yield from (f"{path}: {problem}" for problem in _keywords(value, schema))
    if isinstance(value, dict):
        properties, more = schema.get("properties", {}), schema.get("additionalProperties", {})
        for field in schema.get("required", ()):
            if field not in value:
                yield f"{path}.{field}: required"
        for field, each in value.items():
            yield from _validated(each, properties.get(field, more), f"{path}.{field}")
    if isinstance(value, list):
        keys = schema.get("x-kubernetes-list-map-keys")
        ids = [tuple(item.get(key) for key in keys) for item in value] if keys else []
        yield from (f"{path}[{n}]: duplicate {key}" for n, key in enumerate(ids) if key in ids[:n])
        for number, item in enumerate(value):
            yield from _validated(item, schema.get("items", {}), f"{path}[{number}]")
    for rule in schema.get("x-kubernetes-validations", ()):
        if not _SPECIAL.search(rule["rule"]) and not _holds(rule["rule"], value, schema):
            yield f"{path}: {rule['message']}"


def _keywords(value: Any, schema: Mapping[str, Any]) -> Iterator[str]:
    if "enum" in schema and value not in schema["enum"]:
        yield f"must be one of {schema['enum']}"
    if isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"must match {schema['pattern']}"
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    size = len(value) if isinstance(value, str | list) else None
    for keyword, of in (("minimum", number), ("minLength", size), ("minItems", size)):
        if of is not None and keyword in schema and of < schema[keyword]:
            yield f"{keyword} is {schema[keyword]}"
    if number is not None and schema.get("exclusiveMinimum") and number <= schema["minimum"]:
        yield f"must be above {schema['minimum']}"
    for keyword, of in (("maximum", number), ("maxLength", size), ("maxItems", size)):
        if of is not None and keyword in schema and of > schema[keyword]:
            yield f"{keyword} is {schema[keyword]}"


@functools.cache
def _program(rule: str) -> Any:
    environment = celpy.Environment()
    return environment.program(environment.compile(rule))


def _holds(rule: str, value: Any, schema: Mapping[str, Any]) -> bool:
    try:
        return bool(_program(rule).evaluate({"self": celpy.json_to_cel(_seen(value, schema))}))
    except celpy.CELEvalError:
        return False


def _seen(value: Any, schema: Mapping[str, Any]) -> Any:
    """The part of a value that a rule sees: fields that the schema names."""
    if isinstance(value, dict):
        properties, more = schema.get("properties", {}), schema.get("additionalProperties")
        if "metadata" in properties and not properties["metadata"].get("properties"):
            properties = {
                **properties,
                "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
            }
        return {
            n: _seen(v, properties.get(n) or more or {}) for n, v in value.items() if n in properties or more
        }
    return [_seen(item, schema.get("items", {})) for item in value] if isinstance(value, list) else value
