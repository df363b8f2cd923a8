"""Encoders and decoders of Kafka 0.8, and the creation of objects that settings name.

Used by the producer (serializer.class, partitioner.class, handlers) and by the connector's streams. An
encoder is an object with `to_bytes`, a decoder an object with `from_bytes`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final, Protocol, TypeVar

from ottla.client.core.settings import ConfigError
from ottla.client.errors import SerializationError
from ottla.client.legacy.message_sets import Message

T_in = TypeVar("T_in", contravariant=True)
T_out = TypeVar("T_out", covariant=True)


class Encoder(Protocol[T_in]):
    """Converts values to bytes. A class in serializer.class is created with the producer's settings, a
    mapping, if its constructor takes them. Encoders of Kafka 0.7 have `to_message(value) -> Message`
    instead."""

    def to_bytes(self, value: T_in) -> bytes | None:
        """The bytes of a value; None makes a tombstone."""
        ...


class Decoder(Protocol[T_out]):
    """Converts bytes of keys or values; an argument of `create_message_streams`."""

    def from_bytes(self, data: bytes | None) -> T_out:
        """The value of the bytes; `data` is None without a key, or for a tombstone."""
        ...


class DefaultEncoder:
    """Sends bytes unchanged."""

    def __init__(self, settings: Mapping[str, object] | None = None) -> None: ...

    def to_bytes(self, value: Any) -> bytes | None:
        """Raises SerializationError for what is not bytes."""
        if value is None or isinstance(value, bytes | bytearray | memoryview):
            return None if value is None else bytes(value)
        raise SerializationError(f"{type(value).__name__} is not bytes: set serializer.class")


class NullEncoder:
    """Encodes every value as null."""

    def __init__(self, settings: Mapping[str, object] | None = None) -> None: ...

    def to_bytes(self, value: Any) -> None:
        """Always None."""


class StringEncoder:
    """Encodes text, by default in UTF-8."""

    def __init__(self, settings: Mapping[str, object] | None = None, encoding: str = "utf-8") -> None:
        self._encoding = encoding

    def to_bytes(self, value: str | None) -> bytes | None:
        """None stays None."""
        return None if value is None else value.encode(self._encoding)


class DefaultDecoder:
    """Returns bytes unchanged."""

    def from_bytes(self, data: bytes | None) -> bytes | None:
        """The bytes unchanged."""
        return data


class StringDecoder:
    """Decodes text, by default in UTF-8."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self._encoding = encoding

    def from_bytes(self, data: bytes | None) -> str | None:
        """None stays None."""
        return None if data is None else data.decode(self._encoding)


_KAFKA_CLASSES: Final = {
    "kafka.serializer.DefaultEncoder": f"{__name__}.DefaultEncoder",
    "kafka.serializer.NullEncoder": f"{__name__}.NullEncoder",
    "kafka.serializer.StringEncoder": f"{__name__}.StringEncoder",
    "kafka.producer.DefaultPartitioner": "ottla.client.legacy.partitioners.DefaultPartitioner",
    "kafka.producer.ByteArrayPartitioner": "ottla.client.legacy.partitioners.ByteArrayPartitioner",
}


def create_encoder(key: str, given: object, settings: Mapping[str, object]) -> Callable[[Any], Message]:
    """The encoder of a setting: an object, a class, a class name, or a function of the value. Encoders of
    Kafka 0.7 have `to_message`, those of 0.8 `to_bytes`. Raises ConfigError."""
    found = create_object(key, given, "to_bytes", settings, also="to_message")
    if hasattr(found, "to_message"):
        return partial(_to_message, found.to_message)
    to_bytes = getattr(found, "to_bytes", found)
    return lambda value: Message(to_bytes(value))


def _to_message(to_message: Callable[[Any], Message], value: Any) -> Message:
    message = to_message(value)
    if not isinstance(message, Message):
        raise SerializationError(f"to_message returned {type(message).__name__}, not a Message")
    return message


def create_object(
    key: str, given: object, method: str, *arguments: object, functions: bool = True, also: str = ""
) -> Any:
    """Create the object that a setting names. A class is called with the arguments if it takes them,
    otherwise without. `functions`: whether a function is allowed; `also`: a method that is allowed instead of
    `method`. Raises ConfigError."""
    found: Any = _import_class(key, given) if isinstance(given, str) else given
    if isinstance(found, type):
        found = found(*arguments) if _accepts(found, arguments) else found()
    if (
        not hasattr(found, method)
        and not (also and hasattr(found, also))
        and not (functions and callable(found))
    ):
        allowed = f"must be an object with {method}(), its class, or the class's name with its module"
        raise ConfigError(key, given, allowed)
    return found


def _accepts(kind: type, arguments: Sequence[object]) -> bool:
    try:
        inspect.signature(kind).bind(*arguments)
    except (TypeError, ValueError):
        return False
    return True


def _import_class(key: str, name: str) -> Any:
    module, _, attribute = _KAFKA_CLASSES.get(name, name).rpartition(".")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as problem:
        raise ConfigError(key, name, f"cannot be loaded as module.Class: {problem}") from problem
