"""resources/: a page for each kind of custom resource, from the CustomResourceDefinitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from ottla_operator.resources import KINDS
from ottla_operator.resources.common import GROUP, VERSION
from ottla_operator.resources.crds import build_crd
from references.markdown import code, plain, table

_CONDITION_FIELDS: Final = frozenset(
    ("type", "status", "observedGeneration", "lastTransitionTime", "reason", "message")
)

_INDEX: Final = f"""\
# Resources

The kinds of `{GROUP}/{VERSION}`: every field with its type, default, allowed values and meaning. The operator validates them on
Kubernetes, and `ottla up` validates the same YAML. `kubectl explain KIND.spec` prints the same texts. What the operator does with
them: [operations](../../operations/README.md).

Paths: `[]` is each item of a list, `KEY` each key of a map. A field marked *required* is required where the field around it is
given. *Rules* are those that the API server checks (CEL); the operator checks more, and reports it in the condition `Ready` with
the reason `InvalidSpec`.
"""


def pages() -> dict[str, str]:
    found = {"resources/README.md": _index()}
    for kind in KINDS:
        found[f"resources/{kind.lower()}.md"] = _page(kind)
    return found


@cache
def _crd(kind: str) -> dict[str, Any]:
    return build_crd(kind)


def _index() -> str:
    rows = [
        (
            f"[{kind}]({kind.lower()}.md)",
            ", ".join(code(name) for name in model.definition.short_names),
            plain(_purpose(kind)),
        )
        for kind, model in KINDS.items()
    ]
    return f"{_INDEX}\n{table(('kind', 'short names', 'what it is'), rows)}"


def _schema(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = _crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def _purpose(kind: str) -> str:
    text = str(_schema(kind)["description"])
    return text.split(": ", 1)[1] if text.startswith(f"{kind}: ") else text


def _page(kind: str) -> str:
    crd = _crd(kind)["spec"]
    schema = _schema(kind)
    names = crd["names"]
    parts = [
        f"# {kind}\n",
        f"{plain(_first_upper(_purpose(kind)))}\n",
        f"`kubectl get {names['plural']}`; short: {', '.join(code(each) for each in names['shortNames'])}.\n",
    ]
    rules = [*schema.get("x-kubernetes-validations", []), *_rules(schema["properties"]["spec"])]
    parts += ["## spec\n", *_section(schema["properties"]["spec"], "spec")]
    if rules:
        parts += ["### Rules\n", *dict.fromkeys(f"- {plain(rule['message'])}" for rule in rules), ""]
    parts += ["## status\n", *_section(schema["properties"]["status"], "status")]
    columns = crd["versions"][0]["additionalPrinterColumns"]
    parts += [
        "## Columns\n",
        "Of `kubectl get`; those with *wide* need `-o wide`.\n",
        table(
            ("column", "path", ""),
            (
                (each["name"], code(each["jsonPath"]), "wide" if each.get("priority") else "")
                for each in columns
            ),
        ),
    ]
    return "\n".join(parts)


def _first_upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _section(schema: Mapping[str, Any], root: str) -> Iterator[str]:
    """The small fields in one table, and each large one in its own."""
    small: list[tuple[str, ...]] = []
    large: list[str] = []
    for name, field in schema["properties"].items():
        rows = list(_rows(f"{root}.{name}", field, name in schema.get("required", ())))
        if len(rows) > 12:
            large += [f"### {root}.{name}\n", _table(rows)]
        else:
            small += rows
    if small:
        yield _table(small)
    yield from large


def _table(rows: list[tuple[str, ...]]) -> str:
    return table(("field", "type", "default", "allowed", "meaning"), rows)


def _rows(path: str, field: Mapping[str, Any], required: bool) -> Iterator[tuple[str, ...]]:
    kind = _kind(field)
    text = str(field.get("description", ""))
    text, default = _default(text, field)
    yield (
        code(path),
        f"{kind}, *required*" if required else kind,
        default,
        _allowed(field),
        plain(text),
    )
    if path.endswith(".conditions") and set(field["items"]["properties"]) == _CONDITION_FIELDS:
        return
    yield from _children(path, field)


def _children(path: str, field: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, child in field.get("properties", {}).items():
        yield from _rows(f"{path}.{name}", child, name in field.get("required", ()))
    if "items" in field:
        yield from _children(f"{path}[]", field["items"])
    values = field.get("additionalProperties")
    if isinstance(values, dict):
        yield from _children(f"{path}.KEY", values)


def _kind(field: Mapping[str, Any]) -> str:
    if field.get("x-kubernetes-int-or-string"):
        return "integer or string"
    kind = str(field.get("type", "any"))
    if kind == "array":
        return f"list of {_kind(field['items'])}"
    if kind == "object":
        values = field.get("additionalProperties")
        if isinstance(values, dict):
            return f"map of {_kind(values)}"
        return "map" if field.get("x-kubernetes-preserve-unknown-fields") else "object"
    return f"{kind} ({field['format']})" if "format" in field else kind


def _default(text: str, field: Mapping[str, Any]) -> tuple[str, str]:
    """The description without its default, and the default."""
    if "default" in field:
        value = field["default"]
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        return text.removesuffix(f" Default: {shown}."), code(shown) if shown not in (
            "",
            "[]",
            "{}",
        ) else "empty"
    return text, ""


def _allowed(field: Mapping[str, Any]) -> str:
    of = field.get("items", {}) if field.get("type") == "array" else field
    found = []
    if "enum" in of:
        found.append(", ".join(code(each) for each in of["enum"]))
    if "minimum" in of:
        found.append(f"{'>' if of.get('exclusiveMinimum') else '≥'} {of['minimum']}")
    if "maximum" in of:
        found.append(f"≤ {of['maximum']}")
    if "pattern" in of:
        found.append(f"matches {code(of['pattern'])}")
    if of.get("minLength"):
        found.append(f"length ≥ {of['minLength']}")
    if "maxLength" in of:
        found.append(f"length ≤ {of['maxLength']}")
    if field.get("minItems"):
        found.append(f"items ≥ {field['minItems']}")
    if "maxItems" in field:
        found.append(f"items ≤ {field['maxItems']}")
    return ", ".join(found)


def _rules(schema: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    yield from schema.get("x-kubernetes-validations", [])
    for child in schema.get("properties", {}).values():
        yield from _rules(child)
    for nested in ("items", "additionalProperties"):
        if isinstance(schema.get(nested), dict):
            yield from _rules(schema[nested])
