"""The transport of a connection that is not encrypted: the kernel sends ranges of files itself (sendfile).

Made by ottla.server.network.listener for each socket of a PLAINTEXT or SASL_PLAINTEXT listener.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from typing import Final

from ottla.server.network.channel import KafkaChannel, Part, drop_from_file
from ottla.storage.segment_files import FileSlice

IOV_MAX: Final = 64
"""The parts of one sendmsg."""


class PlaintextTransport:
    """See ottla.server.network.channel.Transport."""

    __slots__ = ("_channel", "_fd", "_loop", "_sock")

    certificate: Final = None

    def __init__(self, sock: socket.socket, channel: KafkaChannel, loop: asyncio.AbstractEventLoop) -> None:
        """`sock` does not block."""
        self._sock = sock
        self._fd = sock.fileno()
        self._channel = channel
        self._loop = loop
        channel.transport = self
        self.add_reader()

    def _readable(self) -> None:
        channel = self._channel
        space = channel.space()
        if not space:
            return
        try:
            count = self._sock.recv_into(space)
        except (BlockingIOError, InterruptedError):
            channel.nothing_received()
            return
        except OSError as e:
            channel.close(str(e))
            return
        if count:
            channel.received(count)
        else:
            channel.ended()

    def send(self, out: deque[Part]) -> bool:
        try:
            if len(out) == 1:
                head = out[0]
                assert not isinstance(head, FileSlice)
                sent = self._sock.send(head)
                if sent == len(head):
                    out.popleft()
                    return True
                out[0] = memoryview(head)[sent:]
                return False
            flags = 0
            chunks: list[bytes | bytearray | memoryview] = []
            for part in out:
                if isinstance(part, FileSlice):
                    flags = socket.MSG_MORE  # the file's bytes follow: no packet of its own for a header
                    break
                chunks.append(part)
                if len(chunks) == IOV_MAX:
                    break
            sent = self._sock.sendmsg(chunks, (), flags)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as e:
            self._channel.close(str(e))
            return False
        for chunk in chunks:
            size = len(chunk)
            if sent < size:
                out[0] = memoryview(chunk)[sent:]
                return False
            sent -= size
            out.popleft()
        return True

    def send_file(self, out: deque[Part], count_max: int) -> int:
        part = out[0]
        assert isinstance(part, FileSlice)
        file, position, length = part
        try:
            sent = file.files.sendfile(self._fd, file.fd, position, min(length, count_max))
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as e:
            self._channel.close(str(e))
            return 0
        if sent:
            drop_from_file(out, sent)
        else:
            # The response's size was sent already: no valid continuation exists.
            self._channel.close(f"a segment ended {length} bytes before its slice", level=logging.ERROR)
        return sent

    def add_reader(self) -> None:
        self._loop.add_reader(self._fd, self._readable)

    def remove_reader(self) -> None:
        self._loop.remove_reader(self._fd)

    def add_writer(self) -> None:
        self._loop.add_writer(self._fd, self._channel.writable)

    def remove_writer(self) -> None:
        self._loop.remove_writer(self._fd)

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._sock.close()
