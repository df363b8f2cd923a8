"""Client connections over TLS.

Made by ottla.server.network.secure_listeners. OpenSSL works on the non-blocking socket itself, so there are
no buffers of ours between: bytes are decrypted into the frame buffer, and encrypted from where they are;
ranges of files are read and encrypted in pieces.

Invariants: no request is read before the handshake is done and the principal is set; a handshake that is not
done within `SETUP_S` closes the connection; its arithmetic (a millisecond with an RSA key) is done in a
thread, so that many new clients do not delay the others. While that thread uses the socket, it is not closed:
closing waits for the step to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, cast

from ottla.server.network.socket_connection import SocketConnection
from ottla.storage.segment_files import FileSlice

log = logging.getLogger(__name__)

SETUP_S = 30.0
"""The limit for TLS handshake and for authentication. Kafka's clients give up after the same time
(socket.connection.setup.timeout.max.ms); Kafka's broker has connections.max.idle.ms only."""
PIECE_BYTES = 64 * 1024
"""Encrypted at once: four records of TLS."""
RECORD_BYTES = 16 * 1024
READ_TURN_BYTES = 256 * 1024
"""Decrypted of one connection before other connections are served."""


class TlsStream:
    """A TLS socket with the interface of a plain one: it raises BlockingIOError where OpenSSL has to wait."""

    __slots__ = ("_sock", "close")

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self.close = sock.close

    def recv_into(self, space: memoryview) -> int:
        """OpenSSL returns one record at a time: behind a full one there is mostly another."""
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


class TlsConnection(SocketConnection):
    __slots__ = (
        "_close_requested",
        "_deadline",
        "_handshaking",
        "_on_secured",
        "_read_scheduled",
        "_secured",
        "_threads",
        "_tls",
    )

    def __init__(
        self,
        sock: ssl.SSLSocket,
        *,
        threads: Executor,
        on_secured: Callable[[TlsConnection, bytes | None], None],
        **settings: Any,
    ) -> None:
        """`sock` is wrapped, without its handshake, which is done in `threads`; `on_secured` is called with
        the client's certificate in DER, if it sent one, and raises ValueError to refuse the client.
        `settings` are those of every connection."""
        self._tls = sock
        self._secured = False
        self._handshaking = False
        self._read_scheduled = False
        self._close_requested: tuple[str, int] | None = (
            None  # reason and log level: to be closed when the thread is done
        )
        self._threads = threads
        self._on_secured = on_secured
        super().__init__(sock, **settings)
        self._sock = cast(Any, TlsStream(sock))
        self._deadline: asyncio.TimerHandle | None = self._loop.call_later(SETUP_S, self._handshake_timed_out)

    # --- the handshake ------------------------------------------------------------------------------

    def _handshake_timed_out(self) -> None:
        self.close(f"no TLS handshake within {SETUP_S:.0f} s", level=logging.INFO)

    def _handshake(self) -> None:
        """Take one step, in a thread; the socket is not watched meanwhile."""
        self._stop_reading()
        self._handshaking = True
        self._threads.submit(self._handshake_step)

    def _handshake_step(self) -> None:
        """In a thread."""
        problem: Exception | None = None
        try:
            self._tls.do_handshake()
        except Exception as e:
            problem = e
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._handshake_step_done, problem)

    def _handshake_step_done(self, problem: Exception | None) -> None:
        self._handshaking = False
        if self._close_requested is not None:
            self.close(*self._close_requested)
        elif isinstance(problem, ssl.SSLWantReadError):
            self._reading = True
            self._loop.add_reader(self._fd, self._readable)
        elif isinstance(problem, ssl.SSLWantWriteError):
            self._loop.add_writer(self._fd, self._continue_handshake)
        elif problem is not None:
            # The client has received TLS' alert.
            self.close(f"TLS handshake failed: {problem}", level=logging.INFO)
        else:
            self._secure()

    def _continue_handshake(self) -> None:
        self._loop.remove_writer(self._fd)
        self._handshake()

    def _secure(self) -> None:
        self._secured = True
        self._cancel_deadline()
        try:
            self._on_secured(self, self._tls.getpeercert(binary_form=True))
        except ValueError as problem:
            self.close(f"client refused: {problem}", level=logging.WARNING)
            return
        self._reading = True
        self._loop.add_reader(self._fd, self._readable)
        self._readable()

    @property
    def certificate(self) -> bytes | None:
        """The client's certificate in DER, verified; None if it sent none."""
        return self._tls.getpeercert(binary_form=True)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # --- in -----------------------------------------------------------------------------------------

    def _readable(self) -> None:
        if not self._secured:
            self._handshake()
            return
        super()._readable()
        self._schedule_read()

    def _resume_reading(self) -> None:
        super()._resume_reading()
        self._schedule_read()

    def _schedule_read(self) -> None:
        """Schedule a read of what OpenSSL has decrypted already: the socket has no event for it."""
        if self._reading and not self.closed and not self._read_scheduled and self._tls.pending():
            self._read_scheduled = True
            self._loop.call_soon(self._read_decrypted)

    def _read_decrypted(self) -> None:
        self._read_scheduled = False
        if self._reading and not self.closed:
            self._readable()

    # --- out ----------------------------------------------------------------------------------------

    def _send_bytes(self) -> bool:
        out = self._out
        head = out[0]
        assert not isinstance(head, FileSlice)
        if len(head) < RECORD_BYTES and len(out) > 1:
            head = self._join(RECORD_BYTES)
        # OpenSSL has to be given what it could not send again, from the same start: it stays the head.
        sent = self._sock.send(memoryview(head)[:PIECE_BYTES])
        if sent == len(head):
            out.popleft()
        else:
            out[0] = memoryview(head)[sent:]
        return True

    def _join(self, enough: int) -> bytes | bytearray | memoryview:
        """Join the small parts at the head of the queue: each record costs some 30 bytes and a call."""
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
        data = part.file.files.pread(part.file.fd, length, part.position)
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
        if self._handshaking:
            self._close_requested = (reason, level)
            return
        self._cancel_deadline()
        if self._secured:
            # Send the client the end of the TLS session, if that is possible without waiting.
            with contextlib.suppress(OSError, ValueError):
                if self._in_loop and self._out and not isinstance(self._out[0], FileSlice):
                    self._send_bytes()
                self._out.clear()
                self._tls.unwrap()
        super().close(reason, level)
