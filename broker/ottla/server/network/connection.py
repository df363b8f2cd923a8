"""What the server knows of a client's connection, whichever kind it is: how to answer, and to hold it up.

`ottla.server.network.plaintext_connection` and `ottla.server.network.tls_connection` are the kinds there are.
Called by ottla.server.dispatch.dispatcher, and by handlers through it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ottla.security.principals import Principal
from ottla.storage.segment_files import FileSlice

Part = bytes | bytearray | memoryview | FileSlice


class Slot:
    """The place of an answer among those of its connection."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Part] | None = None) -> None:
        self.parts = parts


class Connection(Protocol):
    """What handlers and the dispatcher may do with a connection."""

    listener: str
    peer_host: str
    principal: Principal
    """Who is at the other end; ANONYMOUS where nobody has to say. It may change by authentication only."""
    by_token: bool
    """Whether a delegation token said so (KIP-48)."""
    closed: bool

    def respond(self, parts: Sequence[Part]) -> None:
        """Answer the current request; parts go out in order (a response with its size in front)."""

    def skip_response(self) -> None:
        """The current request gets no answer (Produce with acks=0)."""

    def detach(self) -> None:
        """Nobody needs the frame of the current request any more, which is yet to be answered: it may wait
        long, and need not keep a buffer for that."""

    def park(self) -> Slot:
        """The current request waits for others than this client, and needs its frame no more: the Produce
        requests behind it may go on."""

    def respond_parked(self, slot: Slot, parts: Sequence[Part]) -> None:
        """Answer the request that was parked there; it goes out behind the answers to those before it."""

    def mute(self, duration_ms: int) -> None:
        """Throttle (KIP-219): take no further request for that long from now. To be called before the current
        request is answered (the answer may bring on the next one); answers go out at once all the same. A
        second call can only lengthen it; 0 or less does nothing."""

    def close(self, reason: str = "") -> None: ...


FrameHandler = Callable[["Connection", memoryview], None]
