"""The schema formats: Avro, JSON Schema and Protobuf, with one interface.

Called by `checks`. Texts in, results out; subjects, ids and Kafka are not known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla_pipeline.registry.formats import avro_schema, json_schema, proto_schema
from ottla_pipeline.registry.formats.parsed import Incompatibility, InvalidSchema, Parsed

__all__ = ["FORMS", "TYPES", "Incompatibility", "InvalidSchema", "Parsed", "parse", "unreadable"]

TYPES: Final = (json_schema.TYPE, proto_schema.TYPE, avro_schema.TYPE)
FORMS: Final = {proto_schema.TYPE: (proto_schema.SERIALIZED,)}
"""The forms of a text beside the canonical one, by type."""
_PARSE: Final = {
    avro_schema.TYPE: avro_schema.parse,
    json_schema.TYPE: json_schema.parse,
    proto_schema.TYPE: proto_schema.parse,
}
_UNREADABLE: Final = {
    avro_schema.TYPE: avro_schema.unreadable,
    proto_schema.TYPE: proto_schema.unreadable,
}


def parse(kind: str, text: str, references: Mapping[str, str], *, normalize: bool = False) -> Parsed:
    """Parses a schema of a type; `references` are the texts of its references, by name, dependencies first.

    Raises InvalidSchema, also for an unsupported type.
    """
    if kind not in _PARSE:
        raise InvalidSchema(f"schema type {kind} is not served; served: {', '.join(TYPES)}")
    parsed = _PARSE[kind](text, references, normalize=normalize)
    try:
        parsed.text.encode()
    except UnicodeEncodeError as error:
        raise InvalidSchema(f"half of a surrogate pair in a string: {error.object[error.start]!a}") from None
    return parsed


def unreadable(reader: Parsed, writer: Parsed, *, lenient: bool = False) -> list[Incompatibility]:
    """Why data written with `writer` cannot be read with `reader`, a schema of the same type."""
    assert reader.type == writer.type, f"{reader.type} against {writer.type}"
    if reader.type == json_schema.TYPE:
        return json_schema.unreadable(reader, writer, lenient=lenient)
    return _UNREADABLE[reader.type](reader, writer)


def render(parsed: Parsed, form: str) -> str:
    """The text of a schema in another of its type's FORMS."""
    return proto_schema.render(parsed, form) if parsed.type == proto_schema.TYPE else parsed.text
