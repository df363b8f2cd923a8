"""Decoders for `ottla log dump`: keys and values of records, as in kafka-dump-log.

A decoder converts a key or value to text, a number, or a structure for JSON. The decoders of the offsets and
transactions topics return the fields of Kafka's message definitions, by Kafka's names.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple

from ottla.coordinators import records as group_records
from ottla.coordinators.transactions import records as transaction_records
from ottla.coordinators.transactions.transaction import State
from ottla.protocol.codec import decode
from ottla.protocol.errors import MalformedMessage
from ottla.protocol.messages.groups import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from ottla.protocol.records import Record
from ottla.protocol.types import Message, Struct, fields_of

DELETED = "<DELETE>"
"""The value of a tombstone."""
_VERSION = struct.Struct(">h")

Decode = Callable[[bytes], Any]


class Content(NamedTuple):
    key: Any
    value: Any


def text(data: bytes | None) -> str | None:
    return None if data is None else bytes(data).decode(errors="backslashreplace")


def _number(form: str) -> Decode:
    layout = struct.Struct(form)

    def number(data: bytes) -> int:
        if len(data) != layout.size:
            raise ValueError(f"{len(data)} bytes, and not {layout.size}")
        found: int = layout.unpack(data)[0]
        return found

    return number


_DECODERS: dict[str, Decode] = {
    "string": lambda data: text(data),
    "integer": _number(">i"),
    "long": _number(">q"),
    "default": lambda data: base64.b64encode(data).decode(),
}


def find_decoder(name: str) -> Decode:
    """The decoder of a name: one of Kafka's (`org.apache.kafka.tools.api.LongDecoder`, `LongDecoder`,
    `long`), or a Python function of bytes, `module:function`. Raises ValueError."""
    module, separator, attribute = name.partition(":")
    if separator:
        try:
            found = getattr(import_module(module), attribute)
        except (ImportError, AttributeError) as problem:
            raise ValueError(f"{name}: {problem}") from problem
        if not callable(found):
            raise ValueError(f"{name} cannot be called")
        return found  # type: ignore[no-any-return]
    known = _DECODERS.get(name.rpartition(".")[2].lower().removesuffix("decoder"))
    if known is None:
        raise ValueError(
            f"{name} is not a decoder: must be one of {', '.join(_DECODERS)}, or module:function"
        )
    return known


def by_classes(key: Decode, value: Decode) -> Callable[[Record], Content]:
    """A decoder of records from decoders of keys and values; an error of a decoder becomes the content."""

    def content(record: Record) -> Content:
        return Content(_attempt(key, record.key), _attempt(value, record.value))

    return content


def _attempt(decoder: Decode, data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return decoder(data)
    except Exception as problem:  # a user's decoder may raise anything
        return f"<cannot be decoded: {problem}>"


# --- the topics of coordinators ------------------------------------------------------------------


def offsets_content(record: Record) -> Content:
    """A record of `__consumer_offsets`."""
    return _coordinator_content(record, group_records.key_schema, _group_value)


def _group_value(key: Message, value: bytes) -> dict[str, Any]:
    schema = group_records.value_schema(key)
    version, message = _read(schema, value)
    data = as_json(message, version)
    if isinstance(message, group_records.GroupMetadataValue) and message.protocol_type == "consumer":
        for member in data["members"]:
            for name, inner in (
                ("subscription", ConsumerProtocolSubscription),
                ("assignment", ConsumerProtocolAssignment),
            ):
                member[name] = _consumer_protocol(inner, member[name])
    return {"version": str(version), "data": data}


def _consumer_protocol(schema: type[Message], encoded: str) -> Any:
    """The decoded consumer protocol; other content unchanged."""
    try:
        version, message = _read(schema, base64.b64decode(encoded))
    except MalformedMessage:
        return encoded
    return as_json(message, version)


def transactions_content(record: Record) -> Content:
    """A record of `__transaction_state`."""
    return _coordinator_content(record, transaction_records.key_schema, _transaction_value)


def _transaction_value(key: Message, value: bytes) -> dict[str, Any]:
    version, message = _read(transaction_records.TransactionLogValue, value)
    data = as_json(message, version)
    with suppress(ValueError):  # an unknown number is shown unchanged
        name = State(data["transactionStatus"]).name
        data["transactionStatus"] = name.title().replace("_", "")  # as Kafka writes it: PrepareCommit
    return {"version": str(version), "data": data}


def _coordinator_content(
    record: Record,
    key_schema: Callable[[int], type[Message] | None],
    value_content: Callable[[Message, bytes], dict[str, Any]],
) -> Content:
    if record.key is None:
        return Content("<no key>", text(record.value))
    try:
        kind = _version_of(record.key)
        schema = key_schema(kind)
        if schema is None:
            return Content(f"unknown record type {kind}", None)
        key = decode(schema, kind, record.key, _VERSION.size)
        shown = {"type": str(kind), "data": as_json(key, kind)}
        return Content(shown, DELETED if record.value is None else value_content(key, record.value))
    except MalformedMessage as problem:
        return Content(f"<cannot be decoded: {problem}>", None)


def _version_of(data: bytes) -> int:
    if len(data) < _VERSION.size:
        raise MalformedMessage("record", "it is shorter than its version")
    version: int = _VERSION.unpack_from(data)[0]
    return version


def _read(schema: type[Message], data: bytes) -> tuple[int, Message]:
    version = _version_of(data)
    # As in Kafka, later versions of the consumer protocol are read as the latest known version.
    if schema in (ConsumerProtocolSubscription, ConsumerProtocolAssignment):
        return min(version, schema.max_version), decode(
            schema, min(version, schema.max_version), data, _VERSION.size
        )
    if not schema.min_version <= version <= schema.max_version:
        raise MalformedMessage(schema.__name__, f"version {version} is not known")
    return version, decode(schema, version, data, _VERSION.size)


def as_json(value: Any, version: int) -> Any:
    """A message's fields of this version, by Kafka's names; bytes are base64."""
    if isinstance(value, Struct):
        return {
            _camel_case(each.name): as_json(getattr(value, each.name), version)
            for each in fields_of(type(value))
            if version in each.versions
        }
    if isinstance(value, list | tuple):
        return [as_json(item, version) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    return value


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
