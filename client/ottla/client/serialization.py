"""Serializers and deserializers of keys and values: bytes, text and JSON; `ottla.client.avro` has Avro.

Created by users and given to producers and consumers, which call the result of `serializing` and
`deserializing`: a serializer, or a function of the value alone. None stands for no key and for a tombstone,
and is returned unchanged.

A serializer may be called in an event loop, and so does not look up a schema itself: it raises
`SchemaNeeded`, whose `look_up` blocks. The asynchronous client runs that in a thread, `call_blocking` in
place, and both call the serializer again. This happens once for each schema.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from ottla.client.errors import ClientError, ConfigError, SerializationError

T = TypeVar("T")
T_in = TypeVar("T_in", contravariant=True)
T_out = TypeVar("T_out", covariant=True)

_SCHEMAS_TRIED_MAX: Final = 3


class Serializer(Protocol[T_in]):
    """Converts values to bytes."""

    def serialize(self, topic: str, value: T_in) -> bytes | None:
        """Raises SerializationError, SchemaNeeded."""
        ...


class Deserializer(Protocol[T_out]):
    """Converts bytes to values."""

    def deserialize(self, topic: str, data: bytes | None) -> T_out:
        """Raises SerializationError, SchemaNeeded."""
        ...


class SchemaNeeded(ClientError):
    """Internal: call `look_up` where blocking is allowed, and then try again."""

    def __init__(self, what: str, look_up: Callable[[], None]) -> None:
        super().__init__(what)
        self.look_up = look_up
        """Raises RegistryError, SerializationError."""


Call: TypeAlias = Callable[[str, T], Any]


def serializing(given: Serializer[Any] | Callable[[Any], bytes | None] | None) -> Call[Any] | None:
    """The function of topic and value to call; None if values are bytes already. Raises ConfigError."""
    return _calling(given, "serialize")


def deserializing(
    given: Deserializer[Any] | Callable[[bytes | None], Any] | None,
) -> Call[bytes | None] | None:
    """The function of topic and bytes to call; None if bytes are returned unchanged. Raises ConfigError."""
    return _calling(given, "deserialize")


def _calling(given: Any, method: str) -> Call[Any] | None:
    if given is None:
        return None
    if callable(own := getattr(given, method, None)):
        return own  # type: ignore[no-any-return]
    if callable(given):
        return lambda topic, value: given(value)
    raise ConfigError(f"{method}r: {given!r}; allowed: a function, or an object with {method}(topic, value)")


async def call_later(call: Call[T], topic: str, value: T, needed: SchemaNeeded) -> Any:
    """The result of `call` after the schema of `needed`, which it raised, was looked up in a thread."""
    for _ in range(_SCHEMAS_TRIED_MAX):
        await asyncio.to_thread(needed.look_up)
        try:
            return call(topic, value)
        except SchemaNeeded as again:
            needed = again
    raise SerializationError(f"{topic}: {needed}, still missing after {_SCHEMAS_TRIED_MAX} look-ups")


def call_blocking(call: Call[T], topic: str, value: T) -> Any:
    """The result of `call`; missing schemas are looked up in place."""
    for _ in range(_SCHEMAS_TRIED_MAX):
        try:
            return call(topic, value)
        except SchemaNeeded as needed:
            needed.look_up()
    return call(topic, value)


class BytesSerializer:
    """Returns bytes unchanged and rejects other types."""

    def serialize(self, topic: str, value: bytes | bytearray | memoryview | None) -> bytes | None:
        if value is None or isinstance(value, bytes):
            return value
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        raise SerializationError(f"{topic}: bytes expected, not {type(value).__name__}: {value!r:.100}")


class BytesDeserializer:
    """Returns bytes unchanged."""

    def deserialize(self, topic: str, data: bytes | None) -> bytes | None:
        return data


class TextSerializer:
    """Text in an encoding."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self._encoding = _known(encoding)

    def serialize(self, topic: str, value: str | None) -> bytes | None:
        if value is None:
            return None
        try:
            return value.encode(self._encoding)
        except (AttributeError, UnicodeError) as e:
            raise SerializationError(f"{topic}: {value!r:.100} as {self._encoding}: {e}") from e


class TextDeserializer:
    """Text in an encoding."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self._encoding = _known(encoding)

    def deserialize(self, topic: str, data: bytes | None) -> str | None:
        if data is None:
            return None
        try:
            return str(data, self._encoding)
        except UnicodeError as e:
            raise SerializationError(f"{topic}: {e}") from e


def _known(encoding: str) -> str:
    try:
        "".encode(encoding)
    except LookupError:
        raise ConfigError(f"encoding: {encoding}; allowed: one that Python knows") from None
    return encoding


class JsonSerializer:
    """Compact JSON in UTF-8; `default` converts other types, as in json.dumps."""

    def __init__(self, default: Callable[[Any], Any] | None = None) -> None:
        self._encode = json.JSONEncoder(
            ensure_ascii=False, separators=(",", ":"), default=default, allow_nan=False
        ).encode

    def serialize(self, topic: str, value: Any) -> bytes | None:
        if value is None:
            return None
        try:
            return self._encode(value).encode()
        except (TypeError, ValueError, RecursionError) as e:
            raise SerializationError(f"{topic}: cannot be encoded as JSON: {value!r:.100}: {e}") from e


class JsonDeserializer:
    """JSON in UTF-8."""

    def deserialize(self, topic: str, data: bytes | None) -> Any:
        if data is None:
            return None
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as e:
            raise SerializationError(f"{topic}: not JSON: {e}") from e
