"""Values by the schema registry of a cluster: Avro, Protobuf and JSON Schema.

Called by the pages of records. Schemas are looked up in threads, before records are decoded (`prepare`); the
decoding itself is synchronous. Invariants: a registry that fails is not asked for the same schema again for
FAILED_S; no more than LOOKUPS schemas are looked up for one page.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from ottla.client.errors import ClientError, ConfigError, SerializationError
from ottla.client.registry import RegistryClient, Transport
from ottla.client.schemas import RegistryDeserializer, RegistrySerializer, framed
from ottla.client.serialization import SchemaNeeded, call_later
from ottla_console.settings import Registry

FAILED_S: Final = 20.0
FAILED_MAX: Final = 1_000
LOOKUPS: Final = 20
LOOKUP_S: Final = 5.0
_ID: Final = struct.Struct(">I")
_NAMES: Final = {"AVRO": "Avro", "PROTOBUF": "Protobuf", "JSON": "JSON Schema"}


class SchemaDecoder:
    """See the module."""

    def __init__(
        self,
        registry: Registry,
        now_s: Callable[[], float] = time.monotonic,
        transport: Transport | None = None,
    ) -> None:
        """Raises ConfigError for an invalid URL or option."""
        try:
            self._client = RegistryClient(
                registry.url,
                {"timeout": "3", "max.retries": "0", **registry.properties},
                transport=transport,
            )
        except ValueError as error:
            raise ConfigError(str(error)) from None
        self._deserializer = RegistryDeserializer(self._client)
        self._now_s = now_s
        self._labels: dict[int, str] = {}
        self._failed: dict[int, tuple[float, str]] = {}

    async def prepare(self, values: Iterable[bytes | None]) -> None:
        """Look up the schemas of these values that are not known."""
        wanted = {schema_id(each) for each in values if each is not None and framed(each)}
        new = [each for each in wanted if each not in self._labels and not self._has_failed(each)]
        await asyncio.gather(*(self._look_up(each) for each in new[:LOOKUPS]))

    def _has_failed(self, schema: int) -> bool:
        return schema in self._failed and self._failed[schema][0] > self._now_s()

    async def _look_up(self, schema: int) -> None:
        try:
            async with asyncio.timeout(LOOKUP_S):
                label = await asyncio.to_thread(self._look_up_blocking, schema)
        except (ClientError, TimeoutError, ValueError, TypeError) as error:
            text = str(error) or "the schema registry did not respond in time"
            if len(self._failed) >= FAILED_MAX:
                self._failed.clear()
            self._failed[schema] = (self._now_s() + FAILED_S, text)
        else:
            self._labels[schema] = label

    def _look_up_blocking(self, schema: int) -> str:
        try:
            self._deserializer.deserialize("", b"\0" + _ID.pack(schema))
        except SchemaNeeded as needed:
            needed.look_up()
        except SerializationError:
            pass  # of the empty value: the schema is known
        kind = self._client.schema(schema).type
        return f"{_NAMES.get(kind, kind)}, schema {schema}"

    def decode(self, data: bytes) -> tuple[Any, str]:
        """The document and its description. Raises SerializationError."""
        schema = schema_id(data)
        if schema not in self._labels:
            reason = self._failed.get(schema, (0.0, "its schema has not been looked up"))[1]
            raise SerializationError(f"schema {schema}: {reason}")
        try:
            return self._deserializer.deserialize("", data), self._labels[schema]
        except SchemaNeeded as needed:
            raise SerializationError(str(needed)) from None

    async def encode(self, topic: str, subject: str, value: Any) -> bytes:
        """A value by the latest schema of a subject. Raises ClientError."""
        call = RegistrySerializer(self._client, subject).serialize
        try:
            async with asyncio.timeout(LOOKUP_S):
                try:
                    data = call(topic, value)
                except SchemaNeeded as needed:
                    data = await call_later(call, topic, value, needed)
        except TimeoutError:
            raise SerializationError("the schema registry did not respond in time") from None
        assert isinstance(data, bytes)
        return data


def schema_id(data: bytes) -> int:
    """The id in front of a value in a registry's framing."""
    (found,) = _ID.unpack_from(data, 1)
    return int(found)
