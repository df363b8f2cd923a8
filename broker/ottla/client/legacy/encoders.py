"""Values to bytes and back, as Kafka 0.8 has it; and how a setting names a class.

Called by the producer, which is told encoders in serializer.class, and by the connector's streams, which are
given decoders. An encoder is any object with `to_bytes`, a decoder any with `from_bytes`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final, Protocol, TypeVar

from ottla.client.core.settings import ConfigError
from ottla.client.errors import SerializationError

T_in = TypeVar("T_in", contravariant=True)
T_out = TypeVar("T_out", covariant=True)


class Encoder(Protocol[T_in]):
    """A class that serializer.class names is called with the producer's settings, a mapping."""

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


class _Function:
    """A function in the place of an encoder."""

    def __init__(self, call: Callable[[Any], bytes | None]) -> None:
        self.to_bytes = call


_OF_KAFKA: Final = {
    "kafka.serializer.DefaultEncoder": f"{__name__}.DefaultEncoder",
    "kafka.serializer.NullEncoder": f"{__name__}.NullEncoder",
    "kafka.serializer.StringEncoder": f"{__name__}.StringEncoder",
    "kafka.producer.DefaultPartitioner": "ottla.client.legacy.partitioners.DefaultPartitioner",
    "kafka.producer.ByteArrayPartitioner": "ottla.client.legacy.partitioners.ByteArrayPartitioner",
}


def encoder(key: str, given: object, settings: Mapping[str, object]) -> Encoder[Any]:
    """Of a setting: an object, a class, the name of one, or a function of the value. Raises ConfigError."""
    found = made(key, given, "to_bytes", settings)
    return found if hasattr(found, "to_bytes") else _Function(found)


def made(key: str, given: object, method: str, *arguments: object, functions: bool = True) -> Any:
    """The object that a setting asks for; a class is called with the arguments. `functions`: whether one may
    stand in the place of an object. Raises ConfigError."""
    found: Any = _imported(key, given) if isinstance(given, str) else given
    if isinstance(found, type):
        found = found(*arguments)
    if not hasattr(found, method) and not (functions and callable(found)):
        allowed = f"must be an object with {method}(), its class, or the class's name with its module"
        raise ConfigError(key, given, allowed)
    return found


def _imported(key: str, name: str) -> Any:
    module, _, attribute = _OF_KAFKA.get(name, name).rpartition(".")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as problem:
        raise ConfigError(key, name, f"cannot be loaded as module.Class: {problem}") from problem
