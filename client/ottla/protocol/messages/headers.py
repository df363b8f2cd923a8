"""What precedes every message on the wire. `frames` handles these by hand; the tests compare."""

from __future__ import annotations

from ottla.protocol.types import Int16, Int32, Message, String, field


class RequestHeader(Message, versions="0-2", flexible="2+"):
    """Names the API and its version, so that the receiver can tell how the rest is laid out."""

    request_api_key: Int16 = field("0+")
    request_api_version: Int16 = field("0+")
    correlation_id: Int32 = field("0+")
    client_id: String | None = field("1+", nullable="1+", ignorable=True, flexible=False)


class ResponseHeader(Message, versions="0-1", flexible="1+"):
    """Echoes the correlation id of the request that is being answered."""

    correlation_id: Int32 = field("0+")
