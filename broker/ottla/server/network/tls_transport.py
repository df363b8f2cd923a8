"""The transport of a TLS connection.

Made by ottla.server.network.secure_listeners. OpenSSL works on the nonblocking socket itself, so there are no
buffers of ours between: bytes are decrypted into the frame buffer, and encrypted from where they are; ranges
of files are read and encrypted in pieces.

Invariants: the channel receives nothing before the handshake is done and the principal is set; a handshake
that is not done within `SETUP_S` closes the connection; its arithmetic (a millisecond with an RSA key) is
done in a thread, so that many new clients do not delay the others. While that thread uses the socket, it is
not closed: closing waits for the step to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections import deque
from collections.abc import Callable
from typing import Final

from ottla.ports.workers import Threads
from ottla.server.network.channel import KafkaChannel, Part, drop_from_file
from ottla.storage.segment_files import FileSlice

SETUP_S: Final = 30.0
"""The limit for TLS handshake and for authentication. Kafka's clients give up after the same time
(socket.connection.setup.timeout.max.ms); Kafka's broker has connections.max.idle.ms only."""
PIECE_BYTES: Final = 64 * 1024
"""Encrypted at once: four records of TLS."""
RECORD_BYTES: Final = 16 * 1024
READ_TURN_BYTES: Final = 256 * 1024
"""Decrypted of one connection before other connections are served."""


class TlsTransport:
    """See ottla.server.network.channel.Transport."""

    __slots__ = (
        "_channel",
        "_closed",
        "_deadline",
        "_fd",
        "_handshaking",
        "_has_reader",
        "_loop",
        "_on_secured",
        "_read_scheduled",
        "_secured",
        "_sock",
        "_threads",
    )

    def __init__(
        self,
        sock: ssl.SSLSocket,
        channel: KafkaChannel,
        loop: asyncio.AbstractEventLoop,
        threads: Threads,
        on_secured: Callable[[KafkaChannel], None],
    ) -> None:
        """`sock` is wrapped, without its handshake, which is done in `threads`; `on_secured` is called after
        it, and raises ValueError to refuse the client."""
        self._sock = sock
        self._fd = sock.fileno()
        self._channel = channel
        self._loop = loop
        self._threads = threads
        self._on_secured = on_secured
        self._secured = False
        self._handshaking = False  # a thread uses the socket
        self._closed = False
        self._has_reader = False
        self._read_scheduled = False
        channel.transport = self
        loop.add_reader(self._fd, self._continue_handshake)
        self._deadline = loop.call_later(SETUP_S, self._handshake_timed_out)

    # --- the handshake ------------------------------------------------------------------------------

    def _handshake_timed_out(self) -> None:
        self._channel.close(f"no TLS handshake within {SETUP_S:.0f} s", level=logging.INFO)

    def _continue_handshake(self) -> None:
        """Take one step, in a thread; the socket is not watched meanwhile."""
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._handshaking = True
        self._threads.submit(self._handshake_step)

    def _handshake_step(self) -> None:
        """In a thread."""
        problem: Exception | None = None
        try:
            self._sock.do_handshake()
        except Exception as e:
            problem = e
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._handshake_step_done, problem)

    def _handshake_step_done(self, problem: Exception | None) -> None:
        self._handshaking = False
        if self._closed:
            self._sock.close()
        elif isinstance(problem, ssl.SSLWantReadError):
            self._loop.add_reader(self._fd, self._continue_handshake)
        elif isinstance(problem, ssl.SSLWantWriteError):
            self._loop.add_writer(self._fd, self._continue_handshake)
        elif problem is not None:
            # The client has received TLS' alert.
            self._channel.close(f"TLS handshake failed: {problem}", level=logging.INFO)
        else:
            self._secure()

    def _secure(self) -> None:
        self._secured = True
        self._deadline.cancel()
        try:
            self._on_secured(self._channel)
        except ValueError as problem:
            self._channel.close(f"client refused: {problem}", level=logging.WARNING)
            return
        self.add_reader()
        self._readable()

    @property
    def certificate(self) -> bytes | None:
        return self._sock.getpeercert(binary_form=True)

    # --- in -----------------------------------------------------------------------------------------

    def _readable(self) -> None:
        channel = self._channel
        space = channel.space()
        if not space:
            return
        try:
            count = receive(self._sock, space)
        except BlockingIOError:
            channel.nothing_received()
            return
        except OSError as e:
            channel.close(str(e))
            return
        if count:
            channel.received(count)
            self._schedule_read()
        else:
            channel.ended()

    def _schedule_read(self) -> None:
        """Schedule a read of what OpenSSL has decrypted already: the socket has no event for it."""
        if self._has_reader and not self._read_scheduled and self._sock.pending():
            self._read_scheduled = True
            self._loop.call_soon(self._read_decrypted)

    def _read_decrypted(self) -> None:
        self._read_scheduled = False
        if self._has_reader:
            self._readable()

    def add_reader(self) -> None:
        self._has_reader = True
        self._loop.add_reader(self._fd, self._readable)
        self._schedule_read()

    def remove_reader(self) -> None:
        self._has_reader = False
        self._loop.remove_reader(self._fd)

    # --- out ----------------------------------------------------------------------------------------

    def send(self, out: deque[Part]) -> bool:
        head = out[0]
        assert not isinstance(head, FileSlice)
        if len(head) < RECORD_BYTES and len(out) > 1:
            head = _join(out, RECORD_BYTES)
        try:
            # OpenSSL has to be given what it could not send again, from the same start: it stays the head.
            sent = self._sock.send(memoryview(head)[:PIECE_BYTES])
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except OSError as e:
            self._channel.close(str(e))
            return False
        if sent == len(head):
            out.popleft()
        else:
            out[0] = memoryview(head)[sent:]
        return True

    def send_file(self, out: deque[Part], count_max: int) -> int:
        """Reads the bytes and puts them into the queue: `send` encrypts them."""
        part = out[0]
        assert isinstance(part, FileSlice)
        file, position, length = part
        try:
            data = file.files.pread(file.fd, min(length, count_max, PIECE_BYTES), position)
        except OSError as e:
            self._channel.close(str(e))
            return 0
        if data:
            drop_from_file(out, len(data))
            out.appendleft(data)
        else:
            self._channel.close(f"a segment ended {length} bytes before its slice", level=logging.ERROR)
        return len(data)

    def add_writer(self) -> None:
        self._loop.add_writer(self._fd, self._channel.writable)

    def remove_writer(self) -> None:
        self._loop.remove_writer(self._fd)

    # --- life ---------------------------------------------------------------------------------------

    def close(self) -> None:
        self._closed = True
        self._has_reader = False
        self._deadline.cancel()
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        if self._handshaking:
            return
        if self._secured:
            # Send the client the end of the TLS session, if that is possible without waiting.
            with contextlib.suppress(OSError, ValueError):
                self._sock.unwrap()
        self._sock.close()


def receive(sock: ssl.SSLSocket, space: memoryview) -> int:
    """Receive decrypted bytes; 0 at the end of the stream. Raises BlockingIOError where OpenSSL has to wait.
    OpenSSL returns one record at a time: behind a full one there is mostly another."""
    filled, most = 0, min(len(space), READ_TURN_BYTES)
    try:
        while filled < most:
            got = sock.recv_into(space[filled:most])
            filled += got
            if got < RECORD_BYTES:
                break
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
        if not filled:
            raise BlockingIOError from None
    return filled


def _join(out: deque[Part], enough: int) -> bytes:
    """Join the small parts at the head of the queue: each record costs some 30 bytes and a call."""
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
