"""Frames of requests and responses: size, header, body.

Called by the server's connections, the client, and the tests' raw clients. Headers are read and written
by hand, since every frame has one; `messages.headers` has them as a table, and the tests compare.

Header rules: a request's is version 2 in flexible versions, 0 for ControlledShutdown 0 (which has no client
id), 1 otherwise; a response's is version 1 in flexible versions, and always 0 for ApiVersions (KIP-511).
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from typing import NamedTuple

from ottla.protocol import messages
from ottla.protocol.api import API_TABLE, ApiKey
from ottla.protocol.codec import encode, encode_parts, encode_steps
from ottla.protocol.errors import MalformedMessage, UnencodableMessage
from ottla.protocol.types import NEVER, Message
from ottla.protocol.wire import ELEMENTS_MAX, Malformed, read_varint

_FIRST_FIELDS = struct.Struct(">hhi")
_WITH_CLIENT_ID = struct.Struct(">hhih")
_SIZE = struct.Struct(">i")
_SIZE_AND_ID = struct.Struct(">ii")
_SIZE_ID_NO_TAGS = struct.Struct(">iix")

_FLEXIBLE_FROM: dict[int, int] = {int(key): row.flexible_from for key, row in API_TABLE.items()}


def _classes(suffix: str) -> dict[int, type[Message]]:
    found: dict[int, type[Message]] = {}
    for cls in messages.ALL:
        if cls.__name__.endswith(suffix):
            found[cls.api_key] = cls
    return found


REQUESTS: dict[int, type[Message]] = _classes("Request")
"""Request classes by API key."""
RESPONSES: dict[int, type[Message]] = _classes("Response")
"""Response classes by API key."""


class RequestHeader(NamedTuple):
    """The header of a request, and where in the frame its body starts."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_offset: int


def request_header_version(api_key: int, version: int) -> int:
    """0, 1 or 2; 1 for an API that the table does not have."""
    if version >= _FLEXIBLE_FROM.get(api_key, NEVER):
        return 2
    return 0 if api_key == ApiKey.CONTROLLED_SHUTDOWN and version == 0 else 1


def response_header_version(api_key: int, version: int) -> int:
    """0 or 1."""
    return 1 if version >= _FLEXIBLE_FROM.get(api_key, NEVER) and api_key != ApiKey.API_VERSIONS else 0


def encode_request(message: Message, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """A whole frame, its 4-byte size included. Raises UnencodableMessage, UnknownVersion."""
    key = message.api_key
    header_version = request_header_version(key, version)
    if header_version == 0:
        header = _FIRST_FIELDS.pack(key, version, correlation_id)
    elif client_id is None:
        header = _WITH_CLIENT_ID.pack(key, version, correlation_id, -1)
    else:
        name = client_id.encode()
        if len(name) > 0x7FFF:
            raise UnencodableMessage(f"client id of {len(name)} bytes; at most 32767 can be sent")
        header = _WITH_CLIENT_ID.pack(key, version, correlation_id, len(name)) + name
    if header_version == 2:
        header += b"\0"
    body = encode(message, version)
    return b"".join((_SIZE.pack(len(header) + len(body)), header, body))


def encode_response(message: Message, version: int, correlation_id: int) -> bytes:
    """A whole frame, its 4-byte size included. Raises UnencodableMessage, UnknownVersion."""
    return b"".join(encode_response_parts(message, version, correlation_id))


def encode_response_parts(message: Message, version: int, correlation_id: int) -> list[bytes | memoryview]:
    """As `encode_response`, in pieces to be sent in turn; `records` are passed on (see `encode_parts`)."""
    return _with_header(encode_parts(message, version), message.api_key, version, correlation_id)


def encode_response_steps(
    message: Message, version: int, correlation_id: int
) -> Generator[None, None, list[bytes | memoryview]]:
    """As `encode_response_parts`, in steps (see `codec.encode_steps`)."""
    parts = yield from encode_steps(message, version)
    return _with_header(parts, message.api_key, version, correlation_id)


def _with_header(
    parts: list[bytes | memoryview], api_key: int, version: int, correlation_id: int
) -> list[bytes | memoryview]:
    size = sum(map(len, parts))
    if response_header_version(api_key, version):
        parts.insert(0, _SIZE_ID_NO_TAGS.pack(size + 5, correlation_id))
    else:
        parts.insert(0, _SIZE_AND_ID.pack(size + 4, correlation_id))
    return parts


def parse_request_header(frame: memoryview | bytes) -> RequestHeader:
    """Read the header of a frame without its size. Raises MalformedMessage.

    Any API key and version are returned as sent; the caller rejects those that it does not support.
    """
    try:
        key, version, correlation_id = _FIRST_FIELDS.unpack_from(frame)
        header_version = request_header_version(key, version)
        if header_version == 0:
            return RequestHeader(key, version, correlation_id, None, 8)
        length = _WITH_CLIENT_ID.unpack_from(frame)[3]
    except struct.error:
        raise MalformedMessage("request header", "the frame ends within it", len(frame)) from None
    position = 10
    client_id = None
    if length >= 0:
        position += length
        if position > len(frame):
            raise MalformedMessage("request header", f"client_id: length {length} runs past the end", 10)
        try:
            client_id = str(frame[10:position], "utf-8")
        except UnicodeDecodeError as problem:
            raise MalformedMessage("request header", f"client_id: {problem}", 10) from None
    if header_version == 2:
        position = _skip_tagged_fields("request header", frame, position)
    return RequestHeader(key, version, correlation_id, client_id, position)


def parse_correlation_id(frame: memoryview | bytes) -> int:
    """The correlation id a response (without its size) starts with. Raises MalformedMessage."""
    if len(frame) < 4:
        raise MalformedMessage("response header", "the frame ends within it", len(frame))
    correlation_id: int = _SIZE.unpack_from(frame)[0]
    return correlation_id


def response_body_offset(api_key: int, version: int, frame: memoryview | bytes) -> int:
    """Where the body starts in a response frame without its size. Raises MalformedMessage."""
    return (
        4
        if response_header_version(api_key, version) == 0
        else _skip_tagged_fields("response header", frame, 4)
    )


def _skip_tagged_fields(header: str, frame: memoryview | bytes, position: int) -> int:
    try:
        if frame[position] == 0:
            return position + 1
        count, position = read_varint(frame, position)
        if count > ELEMENTS_MAX:
            raise Malformed(f"{count} of them")
        for _ in range(count):
            _, position = read_varint(frame, position)
            length, position = read_varint(frame, position)
            if length > len(frame) - position:
                raise Malformed(f"length {length} runs past the end")
            position += length
    except IndexError:
        raise MalformedMessage(header, "the frame ends within it", len(frame)) from None
    except Malformed as problem:
        raise MalformedMessage(header, f"<tagged fields>: {problem}", position) from None
    return position
