"""Client connections: frames in, responses out, in order, with back-pressure.

`SocketConnection` owns a non-blocking socket and serves it from the event loop's readers and writers. Its two
kinds differ in how bytes are sent: `PlaintextConnection` here and `TlsConnection` in
ottla.server.network.tls_connection. The dispatcher and the handlers see a
ottla.server.network.connection.Connection.

Rules:
- One request at a time, as Kafka's muted channels: the next frame is handed out only after the response to
  the current request (`respond`, or `skip_response` for acks=0) was given to the kernel. So responses keep
  the order of requests, and a client that does not read its responses is not read.
- Exception: while a Produce waits for its replicas (`defer_response`), the Produce requests behind it are
  handed out, up to `PENDING_RESPONSES_MAX`, so that followers fetch their records together. Responses keep
  the order of requests.
- Small responses that are given at once to requests that came together are sent together (`_serve`): sending
  is a quarter of the cost of a small request.
- A muted connection (`mute`, KIP-219) sends its responses, but is not read, and hands out no request.
- `on_frame` is called with a view of the receive buffer that is valid until the response.
- Ranges of files are sent from the page cache only: where one is not there, the connection waits until a
  thread has read it (`PageCacheReader`).
- A connection is closed once; responses to a closed connection are dropped.

Called by ottla.server.network.listener (creation) and ottla.server.dispatch.dispatcher (responses).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence

from ottla.protocol.api import ApiKey
from ottla.security.principals import ANONYMOUS
from ottla.server.logs.page_cache_reader import PageCacheReader
from ottla.server.network.buffers import BufferPool, RequestMemory
from ottla.server.network.connection import FrameHandler, Part, PendingResponse
from ottla.server.network.framing import AHEAD, FrameBuffer, InvalidFrameSize
from ottla.storage.segment_files import FileSlice

log = logging.getLogger(__name__)

IOV_MAX = 64
GATHERED_ANSWERS_MAX = 16
GATHERED_BYTES_MAX = 4096
"""A larger response is sent at once."""
SENDFILE_TURN_BYTES = 1 << 20
"""The bytes of files that a connection sends before other connections are served: to a client that reads as
fast as the broker sends it would send for ever. Also the range that is looked up in the page cache at a
time."""
WARM_S = 0.1
"""How long a range that was found in the page cache is taken to be there."""
PENDING_RESPONSES_MAX = 32
_PRODUCE = int(ApiKey.PRODUCE)


class SocketConnection(ABC):
    """See the module. Children send what is at the head of the queue `_out`."""

    __slots__ = (
        "_buffer",
        "_ended",
        "_fd",
        "_gathering",
        "_in_loop",
        "_last_active",
        "_loop",
        "_memory",
        "_muted",
        "_on_closed",
        "_on_frame",
        "_out",
        "_page_cache_reader",
        "_pending",
        "_reading",
        "_sock",
        "_waits_for_memory",
        "_warm",
        "_writing",
        "by_token",
        "closed",
        "idle_bucket",
        "listener",
        "peer_host",
        "peer_port",
        "principal",
    )

    def __init__(
        self,
        sock: socket.socket,
        *,
        loop: asyncio.AbstractEventLoop,
        listener: str,
        peer: tuple[str, int],
        max_request_bytes: int,
        buffers: BufferPool,
        memory: RequestMemory | None,
        page_cache_reader: PageCacheReader,
        on_frame: FrameHandler,
        on_closed: Callable[[SocketConnection], None],
    ) -> None:
        self.listener = listener
        self.peer_host, self.peer_port = peer
        self.principal = ANONYMOUS
        self.by_token = False
        self.closed = False
        self.idle_bucket = 0  # the IdleWatch's
        self._sock = sock
        self._fd = sock.fileno()
        self._loop = loop
        self._buffer = FrameBuffer(max_request_bytes, buffers, memory)
        self._memory = memory
        self._page_cache_reader = page_cache_reader
        self._warm = 0  # bytes of the file range at the head of _out that are in the page cache
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._out: deque[Part] = deque()
        self._pending: deque[PendingResponse] = deque()
        self._last_active = loop.time()
        self._gathering = False  # _send_gathered is scheduled
        self._in_loop = False  # _serve is on the stack, and sends the responses given now
        self._writing = False
        self._reading = True
        self._ended = False  # the client has closed its side
        self._waits_for_memory = False
        self._muted: asyncio.TimerHandle | None = None
        loop.add_reader(self._fd, self._readable)

    def __repr__(self) -> str:
        return f"<connection of {self.peer_host}:{self.peer_port} on {self.listener}>"

    # --- in -----------------------------------------------------------------------------------------

    def _readable(self) -> None:
        # While a request is served, bytes gather behind it in the buffer. Reading stops while the buffer is
        # full, responses wait for the client to read them, or the connection is muted; `_serve` resumes it.
        if self._out or self._muted is not None:
            self._stop_reading()
            return
        buffer = self._buffer
        if self._memory is not None and self._memory.available <= 0 and not buffer.reserved:
            self._await_memory()
            return
        try:
            space = buffer.space()
            if not space:
                self._stop_reading()
                return
            count = self._sock.recv_into(space)
        except (BlockingIOError, InterruptedError):
            buffer.received(0)
            return
        except (OSError, MemoryError) as e:
            self.close(str(e) or "no memory")
            return
        buffer.received(count)
        if count == 0:
            self._client_sends_no_more()
            return
        self._last_active = self._loop.time()
        self._serve()

    def _serve(self) -> None:
        """Hand out frames as long as each gets its response at once."""
        if self._in_loop:
            return
        self._in_loop = True
        out, pending = self._out, self._pending
        on_frame, next_frame = self._on_frame, self._buffer.next_frame
        try:
            while not self.closed and not self._writing:
                if self._muted is not None or len(pending) >= PENDING_RESPONSES_MAX:
                    frame = None
                else:
                    frame = next_frame(_PRODUCE) if pending else next_frame()
                if frame is not None:
                    on_frame(self, frame)
                    if len(out) < GATHERED_ANSWERS_MAX:
                        continue
                if out:
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
        self._loop.add_reader(self._fd, self._readable)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)

    def _client_sends_no_more(self) -> None:
        """The client has closed its side of the connection. It may still read, and gets its responses, as
        from Kafka."""
        self._ended = True
        self._stop_reading()
        self._resume_reading()

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
        """Allow larger requests, once the client has authenticated."""
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
        self._last_active = self._loop.time()
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
            self._last_active = self._loop.time()  # a JoinGroup may have waited long
            self._flush()
            if not self._out:
                self._serve()
        elif len(parts) > 1 or len(parts[0]) > GATHERED_BYTES_MAX:
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
        self._last_active = self._loop.time()
        if not self._writing:
            self._flush()
        if not self._out:
            self._serve()

    def _writable(self) -> None:
        now = self._loop.time()
        if now - self._last_active > WARM_S:
            self._warm = 0
        self._last_active = now
        self._flush()
        if not self._out:
            self._serve()

    def _flush(self) -> None:
        out = self._out
        turn_left = SENDFILE_TURN_BYTES
        try:
            while out:
                head = out[0]
                if isinstance(head, FileSlice):
                    if turn_left <= 0:
                        break
                    if not self._warm and not self._is_in_page_cache(head):
                        return
                    turn_left -= self._send_file(head, min(turn_left, self._warm))
                elif not self._send_bytes():
                    break
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as e:
            self.close(str(e))
            return
        if self.closed:
            return
        if out and not self._writing:
            self._writing = True
            self._loop.add_writer(self._fd, self._writable)
        elif not out and self._writing:
            self._writing = False
            self._loop.remove_writer(self._fd)

    @abstractmethod
    def _send_bytes(self) -> bool:
        """Send the bytes at the head of the queue; False when the kernel took fewer."""

    @abstractmethod
    def _send_file(self, part: FileSlice, most: int) -> int:
        """Send at most that many bytes of the file range at the head of the queue; returns how many."""

    def _is_in_page_cache(self, part: FileSlice) -> bool:
        """Return whether the next bytes of the file range at the head of the queue are in the page cache. If
        not, a thread reads them and `_page_cache_filled` is called."""
        length = min(part.length, SENDFILE_TURN_BYTES)
        if self._page_cache_reader.ensure_resident(part, length, self._page_cache_filled):
            self._warm = length
            return True
        if self._writing:
            self._loop.remove_writer(self._fd)
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
        self._warm = min(head.length, SENDFILE_TURN_BYTES)
        self._last_active = self._loop.time()
        self._flush()
        if not self._out:
            self._serve()

    # --- life ---------------------------------------------------------------------------------------

    def idle_for(self, now: float) -> float:
        """Seconds since the last byte was received or sent, by the loop's clock; 0 while a request is served,
        and while muted."""
        if self._buffer.busy or self._pending or self._muted is not None:
            return 0.0
        return now - self._last_active

    def compact(self) -> None:
        """Return buffer memory that holds no received bytes (called while many buffers are in use)."""
        self._buffer.compact()

    def close(self, reason: str = "", level: int = logging.DEBUG) -> None:
        if self.closed:
            return
        self.closed = True
        if reason:
            log.log(level, "closing %r: %s", self, reason)
        if self._in_loop and self._out and not isinstance(self._out[0], FileSlice):
            # The responses gathered so far are valid, whatever the reason.
            with contextlib.suppress(OSError):
                self._send_bytes()
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._reading = self._writing = False
        if self._muted is not None:
            self._muted.cancel()
            self._muted = None
        self._out.clear()
        self._pending.clear()
        self._buffer.close()
        self._sock.close()
        self._on_closed(self)


class PlaintextConnection(SocketConnection):
    """A connection that is not encrypted: the kernel sends ranges of files itself (sendfile)."""

    __slots__ = ()

    def _send_bytes(self) -> bool:
        out = self._out
        flags = 0
        if len(out) == 1:
            head = out[0]
            assert not isinstance(head, FileSlice)
            sent = self._sock.send(head)
            if sent == len(head):
                out.popleft()
                return True
            chunks: list[bytes | bytearray | memoryview] = [head]
        else:
            chunks = []
            for part in out:
                if isinstance(part, FileSlice):
                    flags = socket.MSG_MORE  # the file's bytes follow: no packet of its own for a header
                    break
                chunks.append(part)
                if len(chunks) == IOV_MAX:
                    break
            sent = self._sock.sendmsg(chunks, (), flags)
        for chunk in chunks:
            size = len(chunk)
            if sent < size:
                out[0] = memoryview(chunk)[sent:]
                return False
            sent -= size
            out.popleft()
        return True

    def _send_file(self, part: FileSlice, most: int) -> int:
        length = part.length
        sent = part.file.files.sendfile(self._fd, part.file.fd, part.position, min(length, most))
        self._warm -= sent
        if sent == 0:
            # The response's size was sent already: no valid continuation exists.
            self.close(f"a segment ended {length} bytes before its slice", level=logging.ERROR)
        elif sent < length:
            self._out[0] = FileSlice(part.file, part.position + sent, length - sent)
        else:
            self._out.popleft()
        return sent
