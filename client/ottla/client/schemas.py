"""Serializers and deserializers for any schema of a registry: Avro, JSON Schema and Protobuf.

Used as any serializer (`ottla.client.serialization`), and by `ottla consume` and `ottla produce`.
`ottla.client.avro` has more options for Avro. Needs the extra `schemas`; the package of each format is
imported with its first schema. The registry returns compiled Protobuf descriptors (`?format=serialized`), so
that protoc is not needed.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any, Final

from ottla.client.avro import parsed_schema
from ottla.client.errors import ConfigError, SerializationError
from ottla.client.registry import RegistryClient, Schema
from ottla.client.serialization import SchemaNeeded

_MAGIC: Final = 0
_FRAME: Final = struct.Struct(">bI")
"""A zero byte and the schema id."""
_IMPORTABLE: Final = ("google/protobuf/", "google/type/")
"""Files that Protobuf schemas may import without a reference; Python has modules for them."""

Decode = Callable[[bytes], Any]
Encode = Callable[[Any], bytes]


def framed(data: bytes | None) -> bool:
    """Whether bytes may be in the wire format of a registry."""
    return data is not None and len(data) >= _FRAME.size and data[0] == _MAGIC


class RegistryDeserializer:
    """Deserializes values by the schema they were written with: Avro as fastavro returns it, JSON as `json`
    returns it, Protobuf messages as dictionaries by field name."""

    def __init__(self, registry: RegistryClient) -> None:
        self._registry = registry
        self._decoders: dict[int, Decode] = {}

    def deserialize(self, topic: str, data: bytes | None) -> Any:
        if data is None:
            return None
        if not framed(data):
            raise SerializationError(f"{topic}: not in a registry's framing: {bytes(data[:8])!r}…")
        (_, schema_id) = _FRAME.unpack_from(data)
        decode = self._decoders.get(schema_id)
        if decode is None:
            raise SchemaNeeded(f"schema {schema_id} of {topic}", lambda: self._look_up(schema_id))
        try:
            return decode(bytes(data[_FRAME.size :]))
        except Exception as e:  # any exception of three libraries, for invalid bytes
            raise SerializationError(f"{topic}: not of schema {schema_id}: {e!r}") from e

    def _look_up(self, schema_id: int) -> None:
        decode, _ = _codec(self._registry, schema_id, None)
        self._decoders[schema_id] = decode


class RegistrySerializer:
    """Serializes values of one schema: the latest of `subject`, one by id, or `schema`, which is
    registered."""

    def __init__(
        self,
        registry: RegistryClient,
        subject: str,
        schema: Schema | int | None = None,
        *,
        message: str | None = None,
    ) -> None:
        """`message`: the full name of a Protobuf message; by default the first one of the file."""
        self._registry = registry
        self._subject = subject
        self._schema = schema
        self._message = message
        self._encode: Encode | None = None
        self._head = b""

    def serialize(self, topic: str, value: Any) -> bytes | None:
        if value is None:
            return None
        if self._encode is None:
            raise SchemaNeeded(f"the schema of {self._subject}", self._look_up)
        try:
            return self._head + self._encode(value)
        except Exception as e:  # any exception of three libraries, for an invalid value
            what = f"{self._subject}: {value!r:.100} does not fit the schema"
            raise SerializationError(f"{what}: {type(e).__name__}: {e}") from e

    def _look_up(self) -> None:
        if isinstance(self._schema, int):
            schema_id = self._schema
        elif self._schema is not None:
            schema_id = self._registry.register(self._subject, self._schema)
        else:
            schema_id = self._registry.latest(self._subject).id
        _, self._encode = _codec(self._registry, schema_id, self._message)
        self._head = _FRAME.pack(_MAGIC, schema_id)


def _codec(registry: RegistryClient, schema_id: int, message: str | None) -> tuple[Decode, Encode]:
    """The decoder and the encoder of a schema. Raises RegistryError, ConfigError."""
    found = registry.schema(schema_id)
    if message is not None and found.type != "PROTOBUF":
        raise ConfigError(f"message {message}: schema {schema_id} is of type {found.type}, not PROTOBUF")
    if found.type == "AVRO":
        return _avro(registry, found)
    if found.type == "JSON":
        return _json(registry, found)
    if found.type == "PROTOBUF":
        return _protobuf(registry, schema_id, found, message)
    raise SerializationError(f"schema {schema_id} is of type {found.type}; allowed: AVRO, JSON, PROTOBUF")


def _avro(registry: RegistryClient, found: Schema) -> tuple[Decode, Encode]:
    fastavro = _library("fastavro", "Avro")
    schema = parsed_schema(found, registry.referenced(found))

    def encode(value: Any) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, value, strict_allow_default=True)
        return out.getvalue()

    return lambda data: fastavro.schemaless_reader(io.BytesIO(data), schema, None), encode


def _json(registry: RegistryClient, found: Schema) -> tuple[Decode, Encode]:
    def encode(value: Any) -> bytes:
        validator.validate(value)
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

    validation = _library("jsonschema_rs", "JSON Schema")
    others = [(name, json.loads(each.text)) for name, each in registry.referenced(found).items()]
    known = validation.Registry(others) if others else None
    validator = validation.validator_for(json.loads(found.text), registry=known)
    return json.loads, encode


# --- Protobuf ---


def _protobuf(
    registry: RegistryClient, schema_id: int, found: Schema, message: str | None
) -> tuple[Decode, Encode]:
    pools = _library("google.protobuf.descriptor_pool", "Protobuf")
    protos = _library("google.protobuf.descriptor_pb2", "Protobuf")
    classes = _library("google.protobuf.message_factory", "Protobuf")
    texts = _library("google.protobuf.json_format", "Protobuf")
    pool = pools.DescriptorPool()
    files = [
        (name, registry.descriptor(version.id))
        for name, version in registry.references_of(found).items()
        if not name.startswith(_IMPORTABLE)
    ]
    own = protos.FileDescriptorProto.FromString(registry.descriptor(schema_id))
    own.name = f"schema-{schema_id}.proto"
    for name, data in files:
        file = protos.FileDescriptorProto.FromString(data)
        file.name = name
        _add(pool, file)
    _add(pool, own)
    names = list(_message_names(own.message_type, own.package))
    by_path = dict(names)
    paths = {name: path for path, name in names}
    if message is not None and message not in paths:
        raise ConfigError(f"message {message}: not in schema {schema_id}; allowed: {', '.join(paths)}")
    chosen = names[0][1] if message is None else message

    def class_of(name: str) -> Any:
        return classes.GetMessageClass(pool.FindMessageTypeByName(name))

    def decode(data: bytes) -> Any:
        path, rest = _read_path(data)
        parsed = class_of(by_path[path]).FromString(data[rest:])
        return texts.MessageToDict(
            parsed,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
            descriptor_pool=pool,
        )

    def encode(value: Any) -> bytes:
        made = texts.ParseDict(value, class_of(chosen)(), descriptor_pool=pool)
        return _write_path(paths[chosen]) + bytes(made.SerializeToString())

    return decode, encode


def _add(pool: Any, file: Any) -> None:
    """Add a file, after Google's files that it imports."""
    for name in file.dependency:
        if name.startswith(_IMPORTABLE):
            module = import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
            _add_known(pool, module.DESCRIPTOR)
    pool.AddSerializedFile(file.SerializeToString())


def _add_known(pool: Any, descriptor: Any) -> None:
    for each in descriptor.dependencies:
        _add_known(pool, each)
    pool.AddSerializedFile(descriptor.serialized_pb)


def _message_names(messages: Iterable[Any], scope: str, above: tuple[int, ...] = ()) -> Iterator[Any]:
    """(path of indexes, full name) of each message of a file, including nested ones."""
    for index, each in enumerate(messages):
        name = f"{scope}.{each.name}" if scope else each.name
        yield (*above, index), name
        yield from _message_names(each.nested_type, name, (*above, index))


def _read_path(data: bytes) -> tuple[tuple[int, ...], int]:
    """The message indexes of Confluent's format (a count and the indexes as zigzag varints; 0 stands for the
    first message), and where they end."""
    count, at = _read_varint(data, 0)
    path = []
    for _ in range(count):
        index, at = _read_varint(data, at)
        path.append(index)
    return tuple(path) or (0,), at


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value >> 1 ^ -(value & 1), at


def _write_path(path: tuple[int, ...]) -> bytes:
    if path == (0,):
        return b"\0"
    return b"".join(map(_varint, (len(path), *path)))


def _varint(value: int) -> bytes:
    value <<= 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def _library(name: str, what: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as e:
        raise ConfigError(f"{what} needs the package {e.name}: pip install 'ottla[schemas]'") from None
