"""A client's connection over TLS: the plaintext one's rules, with other ways in and out.

Made by ottla.server.network.secure_listeners. OpenSSL works on the non-blocking socket itself, so there are
no buffers of our own between: what is read is decrypted into the frame buffer, what is sent is encrypted from
where it lies; ranges of files are read and encrypted in pieces.

Invariants: nothing is read as a request before the handshake is done and the principal known; a handshake
ends within `SETUP_S`, or the connection does; its arithmetic (a millisecond with an RSA key) is done in a
thread, so that many clients who come at once do not hold up those that are there. While that thread has the
socket, it is not closed: closing waits for the step to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, cast

from ottla.server.network.plaintext_connection import PlaintextConnection
from ottla.storage.segment_files import FileSlice

log = logging.getLogger(__name__)

SETUP_S = 30.0
"""Between connecting and having authenticated. Kafka's clients give up after as much
(socket.connection.setup.timeout.max.ms); Kafka's broker leaves it to connections.max.idle.ms."""
PIECE_BYTES = 64 * 1024
"""What is encrypted at once: four records of TLS."""
RECORD_BYTES = 16 * 1024
READ_TURN_BYTES = 256 * 1024
"""What is decrypted of one connection before the others have their turn."""


class TlsStream:
    """A TLS socket with a plain one's manners: it raises BlockingIOError where OpenSSL wants to wait."""

    __slots__ = ("_sock", "close")

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self.close = sock.close

    def recv_into(self, space: memoryview) -> int:
        """OpenSSL gives one record at a time: behind a full one there is mostly another."""
        filled, most = 0, min(len(space), READ_TURN_BYTES)
        try:
            while filled < most:
                got = self._sock.recv_into(space[filled:most])
                filled += got
                if got < RECORD_BYTES:
                    break
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not filled:
                raise BlockingIOError from None
        return filled

    def send(self, data: bytes | memoryview) -> int:
        try:
            return self._sock.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None


class TlsConnection(PlaintextConnection):
    __slots__ = ("_deadline", "_on_secured", "_reads_on", "_secured", "_shaking", "_threads", "_tls", "_wish")

    def __init__(
        self,
        sock: ssl.SSLSocket,
        *,
        threads: Executor,
        on_secured: Callable[[TlsConnection, bytes | None], None],
        **settings: Any,
    ) -> None:
        """`sock` is wrapped already, its handshake yet to be done, in `threads`; `on_secured` is called with
        the client's certificate in DER, if it has shown one, and may raise ValueError to turn it away.
        `settings` are those of every connection."""
        self._tls = sock
        self._secured = False
        self._shaking = False
        self._reads_on = False
        self._wish: tuple[str, int] | None = None  # to be closed, when the thread is done
        self._threads = threads
        self._on_secured = on_secured
        super().__init__(sock, **settings)
        self._sock = cast(Any, TlsStream(sock))
        self._deadline: asyncio.TimerHandle | None = self._loop.call_later(SETUP_S, self._too_late)

    # --- the handshake ------------------------------------------------------------------------------

    def _too_late(self) -> None:
        self.close(f"no TLS handshake within {SETUP_S:.0f} s", level=logging.INFO)

    def _shake_hands(self) -> None:
        """Take one step, in a thread; there is no watching of the socket meanwhile."""
        self._stop_reading()
        self._shaking = True
        self._threads.submit(self._step)

    def _step(self) -> None:
        """In a thread."""
        problem: Exception | None = None
        try:
            self._tls.do_handshake()
        except Exception as e:
            problem = e
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._step_done, problem)

    def _step_done(self, problem: Exception | None) -> None:
        self._shaking = False
        if self._wish is not None:
            self.close(*self._wish)
        elif isinstance(problem, ssl.SSLWantReadError):
            self._reading = True
            self._loop.add_reader(self._fd, self._readable)
        elif isinstance(problem, ssl.SSLWantWriteError):
            self._loop.add_writer(self._fd, self._go_on)
        elif problem is not None:
            # What is wrong has been told to the client already, by TLS' alert.
            self.close(f"TLS handshake failed: {problem}", level=logging.INFO)
        else:
            self._secure()

    def _go_on(self) -> None:
        self._loop.remove_writer(self._fd)
        self._shake_hands()

    def _secure(self) -> None:
        self._secured = True
        self._cancel_deadline()
        try:
            self._on_secured(self, self._tls.getpeercert(binary_form=True))
        except ValueError as problem:
            self.close(f"not let in: {problem}", level=logging.WARNING)
            return
        self._reading = True
        self._loop.add_reader(self._fd, self._readable)
        self._readable()

    @property
    def certificate(self) -> bytes | None:
        """The client's, in DER, verified; None if it has not shown one."""
        return self._tls.getpeercert(binary_form=True)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # --- in -----------------------------------------------------------------------------------------

    def _readable(self) -> None:
        if not self._secured:
            self._shake_hands()
            return
        super()._readable()
        self._read_on()

    def _resume_reading(self) -> None:
        super()._resume_reading()
        self._read_on()

    def _read_on(self) -> None:
        """What OpenSSL has decrypted already, no event will tell of."""
        if self._reading and not self.closed and not self._reads_on and self._tls.pending():
            self._reads_on = True
            self._loop.call_soon(self._read_rest)

    def _read_rest(self) -> None:
        self._reads_on = False
        if self._reading and not self.closed:
            self._readable()

    # --- out ----------------------------------------------------------------------------------------

    def _send_bytes(self) -> bool:
        out = self._out
        head = out[0]
        assert not isinstance(head, FileSlice)
        if len(head) < RECORD_BYTES and len(out) > 1:
            head = self._join(RECORD_BYTES)
        # What OpenSSL could not send whole must be given to it again from its start: it stays the head.
        sent = self._sock.send(memoryview(head)[:PIECE_BYTES])
        if sent == len(head):
            out.popleft()
        else:
            out[0] = memoryview(head)[sent:]
        return True

    def _join(self, enough: int) -> bytes | bytearray | memoryview:
        """Make one of the small parts at the head of the queue: a record costs some 30 bytes and a call."""
        out = self._out
        chunks: list[bytes | bytearray | memoryview] = []
        size = 0
        while out and size < enough:
            head = out[0]
            if isinstance(head, FileSlice):
                break
            chunks.append(head)
            size += len(head)
            out.popleft()
        joined = b"".join(chunks)
        out.appendleft(joined)
        return joined

    def _send_file(self, part: FileSlice, most: int) -> int:
        length = min(part.length, most, PIECE_BYTES)
        data = os.pread(part.file.fd, length, part.position)
        self._warm -= len(data)
        if not data:
            self.close(f"a segment ended {part.length} bytes before its slice", level=logging.ERROR)
            return 0
        if len(data) < part.length:
            rest = part.length - len(data)
            self._out[0] = FileSlice(part.file, part.position + len(data), rest)
            self._out.appendleft(data)
        else:
            self._out[0] = data
        return len(data)

    # --- life ---------------------------------------------------------------------------------------

    def close(self, reason: str = "", level: int = logging.DEBUG) -> None:
        if self.closed:
            return
        if self._shaking:
            self._wish = (reason, level)
            return
        self._cancel_deadline()
        if self._secured:
            # Tell the client that this is the end of it, where that can be done without waiting.
            with contextlib.suppress(OSError, ValueError):
                if self._in_loop and self._out and not isinstance(self._out[0], FileSlice):
                    self._send_bytes()
                self._out.clear()
                self._tls.unwrap()
        super().close(reason, level)
