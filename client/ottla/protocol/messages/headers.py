"""The headers of requests and responses. `frames` encodes them without the table; tests compare both."""

from __future__ import annotations

from ottla.protocol.types import Int16, Int32, Message, String, field


class RequestHeader(Message, versions="0-2", flexible="2+"):
    """API key and version of a request, its correlation id and the client id."""

    request_api_key: Int16 = field("0+")
    request_api_version: Int16 = field("0+")
    correlation_id: Int32 = field("0+")
    client_id: String | None = field("1+", nullable="1+", ignorable=True, flexible=False)


class ResponseHeader(Message, versions="0-1", flexible="1+"):
    """The correlation id of the request."""

    correlation_id: Int32 = field("0+")
