"""Avro schemas: parsing, and whether one schema can read data of another.

Called by `registry.checks`. The `avro` library parses. Its compatibility check is not used: it loses the path
of differences in a union, and matches aliases of records by their full names only. The rules here are those
of Java's `SchemaCompatibility`, which Confluent's registry uses, with the same kinds and paths.

The canonical text is the output of Java's Avro, so that equal schemas have equal texts. Confluent's registry
stores schemas in this form and compares them by it: attributes in a fixed order, names relative to the
enclosing namespace, `{"type": "string"}` as `"string"`, no white space. Attributes that Avro does not define
stay, in their original order.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Final

from avro import schema as avro
from avro.errors import AvroException, IgnoredLogicalType
from avro.name import Names

from ottla_pipeline.registry.formats import Incompatibility, InvalidSchema, ParsedSchema, load_json

TYPE: Final = "AVRO"
_READS: Final = {
    "long": {"int"},
    "float": {"int", "long"},
    "double": {"int", "long", "float"},
    "bytes": {"string"},
    "string": {"bytes"},
}
"""Which other primitive types a type can be read from."""
PRIMITIVES: Final = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
NAMED: Final = frozenset(("record", "error", "enum", "fixed"))
_OF_SCHEMA: Final = frozenset(
    ("aliases", "doc", "fields", "items", "name", "namespace", "size", "symbols", "type", "values")
)
_OF_FIELD: Final = frozenset(("aliases", "default", "doc", "name", "order", "type"))


def parse(text: str, references: Mapping[str, str], *, normalize: bool = False) -> ParsedSchema:
    """`references`: the texts that define the named types of this schema, dependencies first."""
    names = Names()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IgnoredLogicalType)  # such a type is read as its underlying type
            for reference in references.values():
                avro.make_avsc_object(load_json(reference), names)
            loaded = load_json(text)
            model = avro.make_avsc_object(loaded, names)
    except (AvroException, AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise InvalidSchema(f"not an Avro schema: {error}") from None
    return ParsedSchema(TYPE, canonical_text(loaded, normalize=normalize), model)


def unreadable(reader: ParsedSchema, writer: ParsedSchema) -> list[Incompatibility]:
    """Everything that prevents `reader` from reading data of `writer`."""
    return list(dict.fromkeys(_Check().differences(reader.model, writer.model, "")))


class _Check:
    """One comparison. Pairs in progress count as compatible, so that recursive schemas terminate."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], list[Incompatibility]] = {}

    def differences(self, reader: Any, writer: Any, path: str) -> list[Incompatibility]:
        pair = (id(reader), id(writer))
        if pair not in self._known:
            self._known[pair] = []
            self._known[pair] = list(self._compare(reader, writer, path))
        return self._known[pair]

    def _compare(self, reader: Any, writer: Any, path: str) -> Iterator[Incompatibility]:
        kind, written = reader.type, writer.type
        if kind in ("union", "error_union") or written in ("union", "error_union"):
            yield from self._unions(reader, writer, path)
        elif kind != written:
            if written not in _READS.get(kind, ()):
                detail = f"a reader of type {kind} cannot read {written}"
                yield Incompatibility("TYPE_MISMATCH", path or "/", detail)
        elif kind == "array":
            yield from self.differences(reader.items, writer.items, f"{path}/items")
        elif kind == "map":
            yield from self.differences(reader.values, writer.values, f"{path}/values")
        elif kind in NAMED:
            yield from self._named(reader, writer, path)

    def _unions(self, reader: Any, writer: Any, path: str) -> Iterator[Incompatibility]:
        if reader.type not in ("union", "error_union"):
            for number, branch in enumerate(writer.schemas):
                yield from self.differences(reader, branch, f"{path}/{number}")
        elif writer.type in ("union", "error_union"):
            for number, branch in enumerate(writer.schemas):
                if not self._any_reads(reader, branch):
                    yield _lacking(branch, f"{path}/{number}")
        elif not self._any_reads(reader, writer):
            yield _lacking(writer, path or "/")

    def _any_reads(self, reader: Any, writer: Any) -> bool:
        return any(not self.differences(branch, writer, "") for branch in reader.schemas)

    def _named(self, reader: Any, writer: Any, path: str) -> Iterator[Incompatibility]:
        if reader.name != writer.name and writer.fullname not in _aliases(reader):
            detail = f"the reader is named {reader.fullname}, the writer {writer.fullname}"
            yield Incompatibility("NAME_MISMATCH", f"{path}/name", detail)
        if reader.type == "fixed":
            if reader.size != writer.size:
                detail = f"the reader has {reader.size} bytes, the writer {writer.size}"
                yield Incompatibility("FIXED_SIZE_MISMATCH", f"{path}/size", detail)
        elif reader.type == "enum":
            missing = [symbol for symbol in writer.symbols if symbol not in reader.symbols]
            if missing and reader.props.get("default") not in reader.symbols:
                detail = f"the reader lacks {', '.join(missing)} and has no default"
                yield Incompatibility("MISSING_ENUM_SYMBOLS", f"{path}/symbols", detail)
        else:
            for number, field in enumerate(reader.fields):
                yield from self._field(field, writer, f"{path}/fields/{number}")

    def _field(self, field: Any, writer: Any, path: str) -> Iterator[Incompatibility]:
        found = writer.fields_dict.get(field.name)
        for alias in field.props.get("aliases") or () if found is None else ():
            found = found or writer.fields_dict.get(alias)
        if found is not None:
            yield from self.differences(field.type, found.type, f"{path}/type")
        elif not field.has_default and field.type.type == "enum" and field.type.props.get("default"):
            detail = f"the field {field.name} is not written; only its enum has a default"
            yield Incompatibility("TYPE_MISMATCH", f"{path}/type", detail)  # Java's kind for it
        elif not field.has_default:
            detail = f"the field {field.name} is not written and has no default"
            yield Incompatibility("READER_FIELD_MISSING_DEFAULT_VALUE", path, detail)


def _lacking(branch: Any, path: str) -> Incompatibility:
    name = branch.fullname if branch.type in NAMED else branch.type
    return Incompatibility("MISSING_UNION_BRANCH", path, f"no branch of the reader's union reads {name}")


def _aliases(schema: Any) -> set[str]:
    return {full_name(alias, schema.namespace) for alias in schema.props.get("aliases") or ()}


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
