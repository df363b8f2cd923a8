"""Avro serializers and deserializers, in the wire format of Confluent's schema registry.

Used as any serializer (`ottla.client.serialization`); needs the extra `avro` (fastavro, imported on first
use). The schema of an id never changes, so that each is looked up once.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeAlias

from ottla.client.errors import ConfigError, SerializationError
from ottla.client.registry import RegistryClient, Schema
from ottla.client.serialization import SchemaNeeded

_MAGIC: Final = 0
_FRAME: Final = struct.Struct(">bI")
"""A zero byte and the schema id."""


class Registry(Protocol):
    """The methods of a schema registry client that are used, all blocking;
    `ottla.client.registry.RegistryClient` has them."""

    def schema(self, schema_id: int) -> Schema: ...
    def register(self, subject: str, schema: Schema, *, normalize: bool = False) -> int: ...
    def lookup(self, subject: str, schema: Schema) -> Any: ...
    def latest(self, subject: str) -> Any: ...
    def referenced(self, schema: Schema) -> dict[str, Schema]: ...


SubjectName: TypeAlias = Callable[[str, bool, str], str]
"""(topic, whether it is the key, full name of the record) -> the subject of the schema."""


def topic_name(topic: str, is_key: bool, record: str) -> str:
    return f"{topic}-{'key' if is_key else 'value'}"


def record_name(topic: str, is_key: bool, record: str) -> str:
    return record


def topic_record_name(topic: str, is_key: bool, record: str) -> str:
    return f"{topic}-{record}"


class AvroSerializer:
    """Serializes values as fastavro takes them."""

    def __init__(
        self,
        registry: Registry | str,
        schema: str | Mapping[str, Any],
        *,
        is_key: bool = False,
        auto_register: bool = True,
        use_latest: bool = False,
        subject_name: SubjectName = topic_name,
    ) -> None:
        """`registry`: a client, or URLs. The schema is registered, or without `auto_register` looked up; with
        `use_latest`, values are written with the latest schema of the subject instead. Raises ConfigError for
        an invalid schema."""
        self._registry = _client(registry)
        text = schema if isinstance(schema, str) else json.dumps(schema)
        self._schema = Schema(text)
        self._own = parsed_schema(self._schema, {})
        self._is_key = is_key
        self._auto_register = auto_register
        self._use_latest = use_latest
        self._subject_name = subject_name
        self._record = str(self._own.get("name", "")) if isinstance(self._own, dict) else ""
        self._write = _fastavro().schemaless_writer
        self._ready: dict[str, tuple[bytes, Any]] = {}
        """By subject: the header of the frame, and the schema to write with."""

    def serialize(self, topic: str, value: Any) -> bytes | None:
        if value is None:
            return None
        subject = self._subject_name(topic, self._is_key, self._record)
        ready = self._ready.get(subject)
        if ready is None:
            raise SchemaNeeded(f"the schema id of {subject}", lambda: self._look_up(subject))
        head, schema = ready
        out = io.BytesIO()
        out.write(head)
        try:
            self._write(out, schema, value)
        except Exception as e:  # fastavro raises any exception for an invalid value
            detail = f"{type(e).__name__}: {e}"
            raise SerializationError(f"{subject}: {value!r:.100} does not fit the schema: {detail}") from e
        return out.getvalue()

    def _look_up(self, subject: str) -> None:
        registry = self._registry
        schema = self._own
        if self._use_latest:
            version = registry.latest(subject)
            schema_id, schema = version.id, parsed_schema(version.schema, registry.referenced(version.schema))
        elif self._auto_register:
            schema_id = registry.register(subject, self._schema)
        else:
            schema_id = registry.lookup(subject, self._schema).id
        self._ready[subject] = (_FRAME.pack(_MAGIC, schema_id), schema)


class AvroDeserializer:
    """Deserializes values as fastavro returns them, by the schema they were written with, or resolved to
    `schema`."""

    def __init__(self, registry: Registry | str, schema: str | Mapping[str, Any] | None = None) -> None:
        """Raises ConfigError for an invalid schema."""
        self._registry = _client(registry)
        text = schema if schema is None or isinstance(schema, str) else json.dumps(schema)
        self._reader = None if text is None else parsed_schema(Schema(text), {})
        self._read = _fastavro().schemaless_reader
        self._writers: dict[int, Any] = {}

    def deserialize(self, topic: str, data: bytes | None) -> Any:
        if data is None:
            return None
        if len(data) < _FRAME.size or data[0] != _MAGIC:
            raise SerializationError(f"{topic}: not in a registry's framing: {bytes(data[:8])!r}…")
        (_, schema_id) = _FRAME.unpack_from(data)
        writer = self._writers.get(schema_id)
        if writer is None:
            raise SchemaNeeded(f"schema {schema_id} of {topic}", lambda: self._look_up(schema_id))
        body = io.BytesIO(data)
        body.seek(_FRAME.size)
        try:
            return self._read(body, writer, self._reader)
        except Exception as e:  # any exception, for invalid bytes or schemas that do not resolve
            raise SerializationError(f"{topic}: not Avro of schema {schema_id}: {e!r}") from e

    def _look_up(self, schema_id: int) -> None:
        found = self._registry.schema(schema_id)
        if found.type != "AVRO":
            raise SerializationError(f"schema {schema_id} is of type {found.type}, not AVRO")
        self._writers[schema_id] = parsed_schema(found, self._registry.referenced(found))


def _client(registry: Registry | str) -> Registry:
    if not isinstance(registry, str):
        return registry
    try:
        return RegistryClient(registry)
    except ValueError as e:
        raise ConfigError(str(e)) from e


def parsed_schema(schema: Schema, referenced: Mapping[str, Schema]) -> Any:
    """A schema parsed by fastavro, after its references. Raises ConfigError."""
    named: dict[str, Any] = {}
    try:
        for each in referenced.values():
            _fastavro().parse_schema(json.loads(each.text), named)
        return _fastavro().parse_schema(json.loads(schema.text), named)
    except Exception as e:  # its errors have no common class
        raise ConfigError(f"schema: {e!r}; allowed: Avro as JSON: {schema.text:.200}") from e


def _fastavro() -> Any:
    try:
        import fastavro
    except ModuleNotFoundError:
        raise ConfigError("Avro needs the package fastavro: pip install 'ottla[avro]'") from None
    return fastavro
