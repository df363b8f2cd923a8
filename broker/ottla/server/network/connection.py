"""The interface of a client's connection, for the dispatcher and the handlers.

Implemented by ottla.server.network.socket_connection and ottla.server.network.tls_connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ottla.security.principals import Principal
from ottla.storage.segment_files import FileSlice

Part = bytes | bytearray | memoryview | FileSlice


class PendingResponse:
    """A response that is not ready, in its place in the order of its connection's responses."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Part] | None = None) -> None:
        self.parts = parts


class Connection(Protocol):
    """See the module."""

    listener: str
    peer_host: str
    principal: Principal
    """The authenticated client; ANONYMOUS without authentication. Only authentication changes it."""
    by_token: bool
    """Whether the client authenticated with a delegation token (KIP-48)."""
    closed: bool

    def respond(self, parts: Sequence[Part]) -> None:
        """Send the response to the current request: its size, header and body, in `parts`."""

    def skip_response(self) -> None:
        """End the current request without a response (Produce with acks=0)."""

    def detach(self) -> None:
        """Release the frame of the current request before its response: the request may wait long, and its
        bytes are not needed meanwhile."""

    def defer_response(self) -> PendingResponse:
        """Release the current request and its frame: it waits for replication. The Produce requests behind it
        are handed out meanwhile."""

    def complete(self, response: PendingResponse, parts: Sequence[Part]) -> None:
        """Respond to a deferred request. The response is sent after those to the requests before it."""

    def mute(self, duration_ms: int) -> None:
        """Throttle the client (KIP-219): hand out no further request for that long. Responses are sent
        nevertheless. Call it before the response to the current request, which lets the next one in. A second
        call can only lengthen the time; 0 or less does nothing."""

    def close(self, reason: str = "") -> None: ...


FrameHandler = Callable[["Connection", memoryview], None]
