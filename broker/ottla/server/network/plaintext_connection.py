"""One client's connection: frames in, responses out, in order, with back-pressure.

It owns a non-blocking socket and works it through the loop's readers and writers (design, decision 4); the
rest of the server knows it as a `ottla.server.network.connection.Connection`. One over TLS differs in how
bytes come and go (ottla.server.network.tls_connection).

Rules:
- One request at a time, as Kafka's muted channels: the next frame is handed out only when the current
  request was answered (`respond`, or `skip_response` for acks=0) and the answer left for the kernel. So
  responses keep the order of requests, and a client that does not read its answers stops being read.
- Except that behind a Produce which waits for its replicas (`park`) those that follow are handed out, up to
  `PARKED_MAX`: their records go to the followers together. Answers still leave in the order of requests.
- Small answers given on the spot to requests that came together leave together (`_serve`): sending is the
  dearest system call of a small request, a quarter of its whole cost.
- A muted connection (`mute`, KIP-219) sends what it has to send, but is not read, and no request is handed
  out, until its time is over.
- `on_frame` is called with a view into the receive buffer that is valid until the request is answered.
- Ranges of files are sent from memory only: where one is not there, the connection waits as for a client that
  does not read, until a thread has read it (`PageCacheReader`).
- A connection is closed once; answers to a closed connection are dropped.

Called by ottla.server.network.listener (making), ottla.server.dispatch.dispatcher (answering).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence

from ottla.protocol.api import ApiKey
from ottla.security.principals import ANONYMOUS
from ottla.server.logs.page_cache_reader import PageCacheReader
from ottla.server.network.buffers import BufferPool, RequestMemory
from ottla.server.network.connection import FrameHandler, Part, Slot
from ottla.server.network.framing import AHEAD, FrameBuffer, InvalidFrameSize
from ottla.storage.segment import FileSlice

log = logging.getLogger(__name__)

IOV_MAX = 64
GATHERED_ANSWERS_MAX = 16
GATHERED_BYTES_MAX = 4096
"""A larger answer is sent at once."""
SENDFILE_TURN_BYTES = 1 << 20
"""What one connection sends of files before the others have their turn: a client that reads as fast as we
send would never end it. Also what is looked for in memory at a time."""
WARM_S = 0.1
"""How long what was found in memory is taken to be there."""
PARKED_MAX = 32
_PRODUCE = int(ApiKey.PRODUCE)


class PlaintextConnection:
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
        "_parked",
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
        on_closed: Callable[[PlaintextConnection], None],
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
        self._warm = 0  # bytes of the file range at the head of the queue that are in memory
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._out: deque[Part] = deque()
        self._parked: deque[Slot] = deque()
        self._last_active = loop.time()
        self._gathering = False  # _send_gathered is about to be called
        self._in_loop = False  # _serve is on the stack: answers given now are picked up by it
        self._writing = False
        self._reading = True
        self._ended = False  # nothing more will come
        self._waits_for_memory = False
        self._muted: asyncio.TimerHandle | None = None
        loop.add_reader(self._fd, self._readable)

    def __repr__(self) -> str:
        return f"<connection of {self.peer_host}:{self.peer_port} on {self.listener}>"

    # --- in -----------------------------------------------------------------------------------------

    def _readable(self) -> None:
        # While a request is out, what comes may gather behind it; once that room is full, or while answers
        # wait for the client to read them, or while muted, reading stops until `_serve` gets on.
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
        """Hand out frames for as long as each is answered on the spot."""
        if self._in_loop:
            return
        self._in_loop = True
        out, parked = self._out, self._parked
        on_frame, next_frame = self._on_frame, self._buffer.next_frame
        try:
            while not self.closed and not self._writing:
                if self._muted is not None or len(parked) >= PARKED_MAX:
                    frame = None
                else:
                    frame = next_frame(_PRODUCE) if parked else next_frame()
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
            if not self._parked:
                self.close()
            return
        self._reading = True
        self._loop.add_reader(self._fd, self._readable)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)

    def _client_sends_no_more(self) -> None:
        """It may have closed its half only, and wait for answers, which it gets, as from Kafka: whether it
        is there to read them only sending will tell."""
        self._ended = True
        self._stop_reading()
        self._resume_reading()

    def _await_memory(self) -> None:
        """queued.max.request.bytes is used up: no more of this client until others were answered."""
        self._stop_reading()
        if not self._waits_for_memory and not self.closed:
            assert self._memory is not None
            self._waits_for_memory = True
            self._memory.wait(self._memory_is_back)

    def _memory_is_back(self) -> None:
        self._waits_for_memory = self._buffer.starved = False
        if not self.closed and not self._out:
            self._serve()

    def take_frames_up_to(self, max_request_bytes: int) -> None:
        """The client has authenticated: its requests may be larger than before."""
        self._buffer.take_up_to(max_request_bytes)

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
        if self._parked:
            self._parked.append(Slot(parts))
            if not self._in_loop:
                self._serve()
            return
        self._out.extend(parts)
        if not self._in_loop:
            self._last_active = self._loop.time()  # a member may have waited long for its group
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

    def park(self) -> Slot:
        slot = Slot()
        if not self.closed:
            self._parked.append(slot)
            self._buffer.ahead = AHEAD
            self._buffer.release()
            if not self._in_loop:
                self._loop.call_soon(self._serve)
        return slot

    def respond_parked(self, slot: Slot, parts: Sequence[Part]) -> None:
        if self.closed:
            return
        slot.parts = parts
        parked = self._parked
        if parked[0] is not slot:
            return
        while parked and (ready := parked[0].parts) is not None:
            self._out.extend(ready)
            parked.popleft()
        if parked:
            # The answers behind it are often due in the same turn: replicas fetch in batches.
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
                    if not self._warm and not self._find(head):
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

    def _send_bytes(self) -> bool:
        """Send the bytes at the head of the queue; False when the kernel took less than that."""
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

    def _find(self, part: FileSlice) -> bool:
        """Make sure that the next bytes of the file range at the head of the queue are in memory; False if
        that takes a thread."""
        length = min(part.length, SENDFILE_TURN_BYTES)
        if self._page_cache_reader.ensure_resident(part, length, self._found):
            self._warm = length
            return True
        if self._writing:
            self._loop.remove_writer(self._fd)
        self._writing = True
        return False

    def _found(self, problem: OSError | None) -> None:
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

    def _send_file(self, part: FileSlice, most: int) -> int:
        """Send at most that many bytes of the file range at the head of the queue; how many went."""
        length = part.length
        sent = os.sendfile(self._fd, part.file.fd, part.position, min(length, most))
        self._warm -= sent
        if sent == 0:
            # The size is promised already; there is nothing right left to send.
            self.close(f"a segment ended {length} bytes before its slice", level=logging.ERROR)
        elif sent < length:
            self._out[0] = FileSlice(part.file, part.position + sent, length - sent)
        else:
            self._out.popleft()
        return sent

    # --- life ---------------------------------------------------------------------------------------

    def idle_for(self, now: float) -> float:
        """Seconds since the last byte came or went, by the loop's clock; 0 while a request is worked on, and
        while muted."""
        if self._buffer.busy or self._parked or self._muted is not None:
            return 0.0
        return now - self._last_active

    def compact(self) -> None:
        """Keep no more memory than what was received (for when many buffers are in use)."""
        self._buffer.compact()

    def close(self, reason: str = "", level: int = logging.DEBUG) -> None:
        if self.closed:
            return
        self.closed = True
        if reason:
            log.log(level, "closing %r: %s", self, reason)
        if self._in_loop and self._out and not isinstance(self._out[0], FileSlice):
            # The answers gathered so far are true, whatever came behind their requests.
            with contextlib.suppress(OSError):
                self._send_bytes()
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._reading = self._writing = False
        if self._muted is not None:
            self._muted.cancel()
            self._muted = None
        self._out.clear()
        self._parked.clear()
        self._buffer.close()
        self._sock.close()
        self._on_closed(self)
