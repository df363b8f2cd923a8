"""Formats of keys and values for `ottla consume` and `ottla produce`.

Numbers are those of Kafka's Java serializers (big-endian). `auto` decodes with the schema registry if one is
given and the bytes have its framing; otherwise it is text.
"""

from __future__ import annotations

import base64
import json
import struct
import uuid
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import click

from ottla.client.registry import RegistryClient, Schema
from ottla.client.schemas import RegistryDeserializer, RegistrySerializer, framed
from ottla.client.serialization import call_blocking

_NUMBERS: Final = {"short": ">h", "int": ">i", "long": ">q", "float": ">f", "double": ">d"}
READ_FORMATS: Final = ("auto", "text", "json", "hex", "base64", "uuid", *_NUMBERS, "registry")
WRITE_FORMATS: Final = ("text", "hex", "base64", "uuid", *_NUMBERS)
_TYPES: Final = {".avsc": "AVRO", ".proto": "PROTOBUF", ".json": "JSON"}
"""Schema types by the file's suffix."""

Read = Callable[[str, bytes | None], Any]
"""(topic, bytes) -> the bytes unchanged, or a Python value. Raises ClientError, ValueError."""


def registry_options(command: Callable[..., None]) -> Callable[..., None]:
    command = click.option(
        "--registry-option",
        "registry_options",
        multiple=True,
        metavar="NAME=VALUE",
        help="A setting of the registry's client, as basic.auth.user.info=USER:PASSWORD.",
    )(command)
    return click.option(
        "--registry",
        metavar="URL[,URL…]",
        envvar="OTTLA_REGISTRY",
        show_envvar=True,
        help="A schema registry, to decode values in its framing: Avro, JSON Schema or Protobuf.",
    )(command)


def registry_client(urls: str | None, options: dict[str, str]) -> RegistryClient | None:
    """Raises click.UsageError."""
    if urls is None:
        return None
    try:
        return RegistryClient(urls, options)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


# --- reading ---


def reader(form: str, registry: RegistryClient | None) -> Read:
    """The decoder of a format. Raises click.UsageError."""
    if form == "registry" and registry is None:
        raise click.UsageError("format registry: needs --registry")
    if registry is not None and form in ("auto", "registry"):
        deserialize = RegistryDeserializer(registry).deserialize
        strict = form == "registry"
        return lambda topic, data: call_blocking(deserialize, topic, data) if strict or framed(data) else data
    read = _readers().get(form)
    if read is None:
        return lambda _, data: data
    return lambda _, data: None if data is None else read(bytes(data))


def _readers() -> dict[str, Callable[[bytes], Any]]:
    return {
        "json": json.loads,
        "hex": bytes.hex,
        "base64": lambda data: base64.b64encode(data).decode(),
        "uuid": lambda data: str(uuid.UUID(data.decode())),
        **{name: _number_reader(layout) for name, layout in _NUMBERS.items()},
    }


def _number_reader(layout: str) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        try:
            return struct.unpack(layout, data)[0]
        except struct.error:
            raise ValueError(f"{len(data)} bytes, not {struct.calcsize(layout)}") from None

    return read


def plain(value: Any) -> Any:
    """The value with types of JSON only: bytes as text, times as ISO 8601, decimals as text."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode(errors="backslashreplace")
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal | uuid.UUID):
        return str(value)
    return value


def as_bytes(value: Any) -> bytes:
    """The printed form: bytes and text unchanged, other values as JSON, None as empty."""
    if value is None:
        return b""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    return json.dumps(plain(value), ensure_ascii=False).encode()


# --- writing ---


def writer(form: str) -> Callable[[str], bytes]:
    """The encoder of a format; it raises ValueError."""
    if form == "hex":
        return bytes.fromhex
    if form == "base64":
        return lambda text: base64.b64decode(text, validate=True)
    if form == "uuid":
        return lambda text: str(uuid.UUID(text)).encode()
    if form not in _NUMBERS:
        return str.encode
    layout, parse = _NUMBERS[form], float if form in ("float", "double") else int

    def write(text: str) -> bytes:
        try:
            return struct.pack(layout, parse(text))
        except (struct.error, OverflowError) as error:
            raise ValueError(f"{text}: {error}") from None

    return write


def schema_writer(
    given: str, topic: str, registry: RegistryClient | None, *, is_key: bool, message: str | None = None
) -> Callable[[Any], bytes | None]:
    """The encoder of JSON values with a schema. `given`: a file, `latest`, or `id:N`. Raises
    click.UsageError."""
    option = "--key-schema" if is_key else "--value-schema"
    if registry is None:
        raise click.UsageError(f"{option} needs --registry")
    schema: Schema | int | None = None
    if given.startswith("id:"):
        if not given[3:].isdigit():
            raise click.UsageError(f"{option} {given}: must be a file, latest or id:N")
        schema = int(given[3:])
    elif given != "latest":
        schema = _schema_of(option, Path(given))
    subject = f"{topic}-{'key' if is_key else 'value'}"
    serialize = RegistrySerializer(registry, subject, schema, message=message).serialize
    return lambda value: call_blocking(serialize, topic, value)


def _schema_of(option: str, path: Path) -> Schema:
    kind = _TYPES.get(path.suffix)
    if kind is None:
        allowed = ", ".join(_TYPES)
        raise click.UsageError(f"{option} {path}: must be latest, id:N, or a file that ends with {allowed}")
    try:
        return Schema(path.read_text(), kind)
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{option} {path}: {error}") from None
