"""Keys and values to bytes and back: bytes, text and JSON; `ottla.client.avro` has Avro.

Made by users and given to producers and consumers, which call what `serializing` and `deserializing` make of
it: a serializer, or any function of the value alone. None stands for no key and for a tombstone; those here
pass it on.

A schema that is not known yet has to be asked for, and no serializer does so by itself, since it may be
called in an event loop: it raises `SchemaNeeded`, whose `look_up` blocks. The asynchronous client has that
done in a thread, the blocking one does it on the spot, and both call again. It happens once a schema.
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
    def serialize(self, topic: str, value: T_in) -> bytes | None:
        """Raises SerializationError, SchemaNeeded."""
        ...


class Deserializer(Protocol[T_out]):
    def deserialize(self, topic: str, data: bytes | None) -> T_out:
        """Raises SerializationError, SchemaNeeded."""
        ...


class SchemaNeeded(ClientError):
    """Not an error for users: call `look_up`, which blocks, where that harms nobody, and then try again."""

    def __init__(self, what: str, look_up: Callable[[], None]) -> None:
        super().__init__(what)
        self.look_up = look_up
        """Raises RegistryError, SerializationError."""


Call: TypeAlias = Callable[[str, T], Any]


def serializing(given: Serializer[Any] | Callable[[Any], bytes | None] | None) -> Call[Any] | None:
    """What to call with topic and value; None where values are bytes as they are. Raises ConfigError."""
    return _calling(given, "serialize")


def deserializing(
    given: Deserializer[Any] | Callable[[bytes | None], Any] | None,
) -> Call[bytes | None] | None:
    """What to call with topic and bytes; None where they are given out as they are. Raises ConfigError."""
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
    """After `call` raised `needed`: what it returns once the schema is there; looked up in a thread."""
    for _ in range(_SCHEMAS_TRIED_MAX):
        await asyncio.to_thread(needed.look_up)
        try:
            return call(topic, value)
        except SchemaNeeded as again:
            needed = again
    raise SerializationError(f"{topic}: {needed}, again and again")


def call_blocking(call: Call[T], topic: str, value: T) -> Any:
    """What `call` returns, with whatever it needs looked up on the spot."""
    for _ in range(_SCHEMAS_TRIED_MAX):
        try:
            return call(topic, value)
        except SchemaNeeded as needed:
            needed.look_up()
    return call(topic, value)


class BytesSerializer:
    """Bytes as they are; anything else is refused."""

    def serialize(self, topic: str, value: bytes | bytearray | memoryview | None) -> bytes | None:
        if value is None or isinstance(value, bytes):
            return value
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        raise SerializationError(f"{topic}: {type(value).__name__} where bytes should be: {value!r:.100}")


class BytesDeserializer:
    def deserialize(self, topic: str, data: bytes | None) -> bytes | None:
        return data


class TextSerializer:
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
    """Compact, in UTF-8; `default` makes JSON of what json does not know, as in json.dumps."""

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
            raise SerializationError(f"{topic}: no JSON of {value!r:.100}: {e}") from e


class JsonDeserializer:
    def deserialize(self, topic: str, data: bytes | None) -> Any:
        if data is None:
            return None
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as e:
            raise SerializationError(f"{topic}: not JSON: {e}") from e
