"""Values to bytes and back, as Kafka 0.8 has it; and how a setting names a class.

Called by the producer, which is told encoders in serializer.class, and by the connector's streams, which are
given decoders. An encoder is any object with `to_bytes`, a decoder any with `from_bytes`.
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
    """A class that serializer.class names is called with the producer's settings, a mapping, if it takes
    them. Kafka 0.7's encoders have `to_message(value)` instead, which gives a Message."""

    def to_bytes(self, value: T_in) -> bytes | None:
        """None makes a tombstone of a value."""
        ...


class Decoder(Protocol[T_out]):
    """Given to `create_message_streams`, for keys or for values."""

    def from_bytes(self, data: bytes | None) -> T_out:
        """None is a message without a key, or a tombstone."""
        ...


class DefaultEncoder:
    """Bytes as they are."""

    def __init__(self, settings: Mapping[str, object] | None = None) -> None: ...

    def to_bytes(self, value: Any) -> bytes | None:
        """Raises SerializationError for what is not bytes."""
        if value is None or isinstance(value, bytes | bytearray | memoryview):
            return None if value is None else bytes(value)
        raise SerializationError(f"{type(value).__name__} is not bytes: set serializer.class")


class NullEncoder:
    """No bytes, whatever it is."""

    def __init__(self, settings: Mapping[str, object] | None = None) -> None: ...

    def to_bytes(self, value: Any) -> None:
        """None."""


class StringEncoder:
    """Text, in UTF-8 unless told otherwise."""

    def __init__(self, settings: Mapping[str, object] | None = None, encoding: str = "utf-8") -> None:
        self._encoding = encoding

    def to_bytes(self, value: str | None) -> bytes | None:
        """None stays None."""
        return None if value is None else value.encode(self._encoding)


class DefaultDecoder:
    """Bytes as they are."""

    def from_bytes(self, data: bytes | None) -> bytes | None:
        """What it is given."""
        return data


class StringDecoder:
    """Text, in UTF-8 unless told otherwise."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self._encoding = encoding

    def from_bytes(self, data: bytes | None) -> str | None:
        """None stays None."""
        return None if data is None else data.decode(self._encoding)


_OF_KAFKA: Final = {
    "kafka.serializer.DefaultEncoder": f"{__name__}.DefaultEncoder",
    "kafka.serializer.NullEncoder": f"{__name__}.NullEncoder",
    "kafka.serializer.StringEncoder": f"{__name__}.StringEncoder",
    "kafka.producer.DefaultPartitioner": "ottla.client.legacy.partitioners.DefaultPartitioner",
    "kafka.producer.ByteArrayPartitioner": "ottla.client.legacy.partitioners.ByteArrayPartitioner",
}


def encoder(key: str, given: object, settings: Mapping[str, object]) -> Callable[[Any], Message]:
    """Of a setting: an object, a class, the name of one, or a function of the value. Kafka 0.7's encoders
    have `to_message`, 0.8's `to_bytes`. Raises ConfigError."""
    found = made(key, given, "to_bytes", settings, also="to_message")
    if hasattr(found, "to_message"):
        return partial(_checked, found.to_message)
    to_bytes = getattr(found, "to_bytes", found)
    return lambda value: Message(to_bytes(value))


def _checked(to_message: Callable[[Any], Message], value: Any) -> Message:
    message = to_message(value)
    if not isinstance(message, Message):
        raise SerializationError(f"to_message gave {type(message).__name__}, not a Message")
    return message


def made(
    key: str, given: object, method: str, *arguments: object, functions: bool = True, also: str = ""
) -> Any:
    """The object that a setting asks for; a class is called with the arguments, or without where it takes
    none. `functions`: whether one may stand in the place of an object; `also`: another method that will do.
    Raises ConfigError."""
    found: Any = _imported(key, given) if isinstance(given, str) else given
    if isinstance(found, type):
        found = found(*arguments) if _takes(found, arguments) else found()
    if (
        not hasattr(found, method)
        and not (also and hasattr(found, also))
        and not (functions and callable(found))
    ):
        allowed = f"must be an object with {method}(), its class, or the class's name with its module"
        raise ConfigError(key, given, allowed)
    return found


def _takes(kind: type, arguments: Sequence[object]) -> bool:
    try:
        inspect.signature(kind).bind(*arguments)
    except (TypeError, ValueError):
        return False
    return True


def _imported(key: str, name: str) -> Any:
    module, _, attribute = _OF_KAFKA.get(name, name).rpartition(".")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as problem:
        raise ConfigError(key, name, f"cannot be loaded as module.Class: {problem}") from problem
