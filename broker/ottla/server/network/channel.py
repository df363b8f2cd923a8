"""A client's connection as a state machine: frames in, responses out, in order, with back-pressure; no I/O.

A `KafkaChannel` is driven by its transport (ottla.server.network.plaintext_transport or tls_transport), which
owns the socket: it puts received bytes into `space`, calls `received`, and sends what is at the head of the
queue when the channel calls it. The dispatcher and the handlers see a `Connection`, which is one request at a
time and its response.

Rules:
- One request at a time, as Kafka's muted channels: the next frame is handed out only after the response to
  the current request (`respond`, or `skip_response` for acks=0) was given to the kernel. So responses keep
  the order of requests, and a client that does not read its responses is not read.
- Exception: while a Produce waits for its replicas (`defer_response`), the Produce requests behind it are
  handed out, up to `PENDING_RESPONSES_MAX`, so that followers fetch their records together. Responses keep
  the order of requests.
- Small responses that are given at once to requests that came together are sent together (`_serve`): sending
  is a quarter of the cost of a small request.
- A muted channel (`mute`, KIP-219) sends its responses, but is not read, and hands out no request.
- `on_frame` is called with a view of the receive buffer that is valid until the response.
- Ranges of files are sent from the page cache only: where one is not there, the channel waits until a thread
  has read it (`PageCacheReader`).
- A channel is closed once; responses to a closed channel are dropped.

Time is the event loop's, of which only `time`, `call_soon` and `call_at` are used. Called by
ottla.server.network.listener (creation, idle time), the transports, and ottla.server.dispatch.dispatcher
(responses).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from ottla.protocol.api import ApiKey
from ottla.security.principals import ANONYMOUS, Principal
from ottla.server.logs.page_cache_reader import PageCacheReader
from ottla.server.network.buffers import BufferPool, RequestMemory
from ottla.server.network.framing import AHEAD, FrameBuffer, InvalidFrameSize
from ottla.storage.segment_files import FileSlice

log = logging.getLogger(__name__)

GATHERED_RESPONSES_MAX: Final = 16
GATHERED_BYTES_MAX: Final = 4096
"""A larger response is sent at once."""
SENDFILE_TURN_BYTES: Final = 1 << 20
"""The bytes of files that a connection sends before other connections are served: to a client that reads as
fast as the broker sends it would send for ever. Also the range that is looked up in the page cache at a
time."""
RESIDENT_S: Final = 0.1
"""How long a range that was found in the page cache is taken to be there."""
PENDING_RESPONSES_MAX: Final = 32
_PRODUCE: Final = int(ApiKey.PRODUCE)

Part = bytes | bytearray | memoryview | FileSlice


class PendingResponse:
    """A response that is not ready, in its place in the order of its connection's responses."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Part] | None = None) -> None:
        self.parts = parts


class Connection(Protocol):
    """A client's connection as the dispatcher and the handlers see it."""

    listener: str
    peer_host: str
    principal: Principal
    """The authenticated client; ANONYMOUS without authentication. Only authentication changes it."""
    by_token: bool
    """Whether the client authenticated with a delegation token (KIP-48)."""
    closed: bool
    active_s: float
    """When bytes were last received or sent, by the loop's clock."""

    @property
    def muted_until_s(self) -> float:
        """Until when no request is handed out because of a quota; 0 if there is no such time."""

    def when_sent(self, callback: Callable[[], None], response: PendingResponse | None = None) -> None:
        """Call back once the response that was given last, or completed, is in the kernel. Of several calls
        that wait, the first counts: it is for samples."""

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


FrameHandler = Callable[[Connection, memoryview], None]


class Transport(Protocol):
    """A nonblocking stream of bytes to a client. It calls the channel's `space` and then `received`, `ended`
    or `nothing_received`, when it has a reader; `writable`, when it has a writer; and `close` after an
    error."""

    @property
    def certificate(self) -> bytes | None:
        """The client's certificate in DER, verified; None if it sent none."""

    def send(self, out: deque[Part]) -> bool:
        """Send bytes at the head of the queue, up to the next range of a file, and remove them. False: the
        rest has to wait for `writable`."""

    def send_file(self, out: deque[Part], count_max: int) -> int:
        """Send at most that many bytes of the range of a file at the head of the queue, and remove them;
        returns how many were taken, 0 if the rest has to wait for `writable`."""

    def add_reader(self) -> None: ...

    def remove_reader(self) -> None: ...

    def add_writer(self) -> None: ...

    def remove_writer(self) -> None: ...

    def close(self) -> None: ...


class Authentication(Protocol):
    """What handles the channel's frames before the dispatcher does."""

    def close(self) -> None:
        """The channel is closed."""


class KafkaChannel:
    """See the module."""

    __slots__ = (
        "_buffer",
        "_ended",
        "_gathering",
        "_in_loop",
        "_loop",
        "_memory",
        "_muted",
        "_on_closed",
        "_on_sent",
        "_out",
        "_page_cache_reader",
        "_pending",
        "_reading",
        "_resident",
        "_waits_for_memory",
        "_writing",
        "active_s",
        "authentication",
        "by_token",
        "closed",
        "idle_bucket",
        "listener",
        "on_frame",
        "peer_host",
        "peer_port",
        "principal",
        "transport",
    )

    transport: Transport
    """Sets itself, and has a reader at first."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        listener: str,
        peer: tuple[str, int],
        max_request_bytes: int,
        buffers: BufferPool,
        memory: RequestMemory | None,
        page_cache_reader: PageCacheReader,
        on_frame: FrameHandler,
        on_closed: Callable[[KafkaChannel], None],
    ) -> None:
        self.listener = listener
        self.peer_host, self.peer_port = peer
        self.principal = ANONYMOUS
        self.by_token = False
        self.closed = False
        self.idle_bucket = 0  # the IdleWatch's
        self.on_frame = on_frame
        self.authentication: Authentication | None = None
        self._loop = loop
        self._buffer = FrameBuffer(max_request_bytes, buffers, memory)
        self._memory = memory
        self._page_cache_reader = page_cache_reader
        self._resident = 0  # bytes of the file range at the head of _out that are in the page cache
        self._on_closed = on_closed
        self._out: deque[Part] = deque()
        self._pending: deque[PendingResponse] = deque()
        self.active_s = loop.time()
        self._on_sent: Callable[[], None] | None = None
        self._gathering = False  # _send_gathered is scheduled
        self._in_loop = False  # _serve is on the stack, and sends the responses given now
        self._writing = False  # the kernel or the page cache is waited for
        self._reading = True
        self._ended = False  # the client has closed its side
        self._waits_for_memory = False
        self._muted: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<connection of {self.peer_host}:{self.peer_port} on {self.listener}>"

    # --- in -----------------------------------------------------------------------------------------

    def space(self) -> memoryview | None:
        """The memory for bytes that the transport can receive; None or empty if none may be received now."""
        # While a request is served, bytes gather behind it in the buffer. Reading stops while the buffer is
        # full, responses wait for the client to read them, or the channel is muted; `_serve` resumes it.
        if self._out or self._muted is not None:
            self._stop_reading()
            return None
        buffer = self._buffer
        if self._memory is not None and self._memory.available <= 0 and not buffer.reserved:
            self._await_memory()
            return None
        try:
            space = buffer.space()
        except (OSError, MemoryError) as e:
            self.close(str(e) or "no memory")
            return None
        if not space:
            self._stop_reading()
        return space

    def received(self, count: int) -> None:
        """So many bytes, at least one, were put into `space`."""
        self._buffer.received(count)
        self.active_s = self._loop.time()
        self._serve()

    def nothing_received(self) -> None:
        """The transport has no bytes for `space`."""
        self._buffer.received(0)

    def ended(self) -> None:
        """The client has closed its side of the connection. It may still read, and gets its responses, as
        from Kafka."""
        self._buffer.received(0)
        self._ended = True
        self._stop_reading()
        self._resume_reading()

    def _serve(self) -> None:
        """Hand out frames as long as each gets its response at once."""
        if self._in_loop:
            return
        self._in_loop = True
        out, pending = self._out, self._pending
        on_frame, next_frame = self.on_frame, self._buffer.next_frame
        try:
            while not self.closed and not self._writing:
                if self._muted is not None or len(pending) >= PENDING_RESPONSES_MAX:
                    frame = None
                else:
                    frame = next_frame(_PRODUCE) if pending else next_frame()
                if frame is not None:
                    on_frame(self, frame)
                    if len(out) < GATHERED_RESPONSES_MAX:
                        continue
                if out and not self._writing:
                    self._flush()
                if frame is None:
                    break
        except InvalidFrameSize as e:
            self.close(str(e), level=logging.WARNING)
        finally:
            self._in_loop = False
        if self._buffer.starved:
            self._await_memory()
        if not self._reading:
            self._resume_reading()

    def _resume_reading(self) -> None:
        if self.closed or self._buffer.busy or self._out or self._muted is not None or self._waits_for_memory:
            return
        if self._ended:
            if not self._pending:
                self.close()
            return
        self._reading = True
        self.transport.add_reader()

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self.transport.remove_reader()

    def _await_memory(self) -> None:
        """queued.max.request.bytes is used up: stop reading until other requests have their responses."""
        self._stop_reading()
        if not self._waits_for_memory and not self.closed:
            assert self._memory is not None
            self._waits_for_memory = True
            self._memory.wait(self._on_memory_available)

    def _on_memory_available(self) -> None:
        self._waits_for_memory = self._buffer.starved = False
        if not self.closed and not self._out:
            self._serve()

    def set_max_request_bytes(self, max_request_bytes: int) -> None:
        """Allow requests of another size: larger ones, once the client has authenticated."""
        self._buffer.set_max_frame_bytes(max_request_bytes)

    def detach(self) -> None:
        if not self.closed:
            self._buffer.detach()

    def mute(self, duration_ms: int) -> None:
        if self.closed or duration_ms <= 0:
            return
        until = self._loop.time() + duration_ms / 1000
        if self._muted is not None:
            if self._muted.when() >= until:
                return
            self._muted.cancel()
        self._muted = self._loop.call_at(until, self._unmute)

    def _unmute(self) -> None:
        self._muted = None
        self.active_s = self._loop.time()
        if not self._out:
            self._serve()

    # --- out ----------------------------------------------------------------------------------------

    def respond(self, parts: Sequence[Part]) -> None:
        if self.closed:
            return
        self._buffer.release()
        if self._pending:
            self._pending.append(PendingResponse(parts))
            if not self._in_loop:
                self._serve()
            return
        self._out.extend(parts)
        if not self._in_loop:
            self.active_s = self._loop.time()  # a JoinGroup may have waited long
            if not self._writing:
                self._flush()
            if not self._out:
                self._serve()
        elif not self._writing and (len(parts) > 1 or len(parts[0]) > GATHERED_BYTES_MAX):
            self._flush()

    def skip_response(self) -> None:
        if self.closed:
            return
        self._buffer.release()
        if not self._in_loop:
            self._serve()

    def defer_response(self) -> PendingResponse:
        response = PendingResponse()
        if not self.closed:
            self._pending.append(response)
            self._buffer.ahead = AHEAD
            self._buffer.release()
            if not self._in_loop:
                self._loop.call_soon(self._serve)
        return response

    def complete(self, response: PendingResponse, parts: Sequence[Part]) -> None:
        if self.closed:
            return
        response.parts = parts
        pending = self._pending
        if pending[0] is not response:
            return
        while pending and (ready := pending[0].parts) is not None:
            self._out.extend(ready)
            pending.popleft()
        if pending:
            # The responses behind it are often complete in the same turn: replicas fetch in batches.
            if not self._gathering:
                self._gathering = True
                self._loop.call_soon(self._send_gathered)
        elif not self._in_loop:
            self._send_gathered()

    def _send_gathered(self) -> None:
        self._gathering = False
        if self.closed:
            return
        self.active_s = self._loop.time()
        if not self._writing:
            self._flush()
        if not self._out:
            self._serve()

    def writable(self) -> None:
        """The transport, which has a writer, can send again."""
        now = self._loop.time()
        if now - self.active_s > RESIDENT_S:
            self._resident = 0
        self.active_s = now
        self._flush()
        if not self._out:
            self._serve()

    def _flush(self) -> None:
        """Send the queue, as far as the transport takes it."""
        out, transport = self._out, self.transport
        turn_left = SENDFILE_TURN_BYTES
        while out:
            head = out[0]
            if isinstance(head, FileSlice):
                if turn_left <= 0:
                    break
                if not self._resident and not self._is_in_page_cache(head):
                    return
                sent = transport.send_file(out, min(turn_left, self._resident))
                if not sent:
                    break
                self._resident -= sent
                turn_left -= sent
            elif not transport.send(out):
                break
        if self.closed:
            return
        if not out and self._on_sent is not None:
            on_sent, self._on_sent = self._on_sent, None
            on_sent()
        if out:
            if not self._writing:
                self._writing = True
                transport.add_writer()
        elif self._writing:
            self._writing = False
            transport.remove_writer()

    def _is_in_page_cache(self, part: FileSlice) -> bool:
        """Return whether the next bytes of the file range at the head of the queue are in the page cache. If
        not, a thread reads them and `_page_cache_filled` is called."""
        length = min(part.length, SENDFILE_TURN_BYTES)
        try:
            resident = self._page_cache_reader.ensure_resident(part, length, self._page_cache_filled)
        except OSError as e:
            self.close(str(e))
            return False
        if resident:
            self._resident = length
            return True
        if self._writing:
            self.transport.remove_writer()
        self._writing = True
        return False

    def _page_cache_filled(self, problem: OSError | None) -> None:
        if self.closed:
            return
        if problem is not None:
            self.close(f"reading a segment failed: {problem}", level=logging.ERROR)
            return
        self._writing = False
        head = self._out[0]
        assert isinstance(head, FileSlice)
        self._resident = min(head.length, SENDFILE_TURN_BYTES)
        self.active_s = self._loop.time()
        self._flush()
        if not self._out:
            self._serve()

    # --- life ---------------------------------------------------------------------------------------

    def idle_for(self, now: float) -> float:
        """Seconds since the last byte was received or sent, by the loop's clock; 0 while a request is served,
        and while muted."""
        if self._buffer.busy or self._pending or self._muted is not None:
            return 0.0
        return now - self.active_s

    def compact(self) -> None:
        """Return buffer memory that holds no received bytes (called while many buffers are in use)."""
        self._buffer.compact()

    @property
    def muted_until_s(self) -> float:
        return 0.0 if self._muted is None else self._muted.when()

    def when_sent(self, callback: Callable[[], None], response: PendingResponse | None = None) -> None:
        pending = self._pending
        if not self._out and not (pending if response is None else response in pending):
            callback()
        elif self._on_sent is None:
            self._on_sent = callback

    def close(self, reason: str = "", level: int = logging.DEBUG) -> None:
        if self.closed:
            return
        self.closed = True
        if reason:
            log.log(level, "closing %r: %s", self, reason)
        if self._in_loop and self._out and not isinstance(self._out[0], FileSlice):
            # The responses gathered so far are valid, whatever the reason.
            self.transport.send(self._out)
        self.transport.close()
        self._reading = self._writing = False
        if self._muted is not None:
            self._muted.cancel()
            self._muted = None
        if self.authentication is not None:
            self.authentication.close()
        self._out.clear()
        self._pending.clear()
        self._buffer.close()
        self._on_closed(self)


def drop_from_file(out: deque[Part], count: int) -> None:
    """Remove the first `count` bytes of the range of a file at the head of a queue."""
    part = out[0]
    assert isinstance(part, FileSlice)
    if count < part.length:
        out[0] = FileSlice(part.file, part.position + count, part.length - count)
    else:
        out.popleft()
