"""A connection to a running broker without a network: bytes in, and the bytes of its responses."""

from __future__ import annotations

import socket
from collections import deque

from ottla.server.network.channel import Part
from ottla.storage.segment_files import FileSlice
from tests.worlds.running_broker import RunningBroker


class Sent:
    """A transport that keeps what the channel sends, and is driven by `receive`."""

    certificate = None

    def __init__(self, running: RunningBroker) -> None:
        ours, self._theirs = socket.socketpair()
        ours.setblocking(False)
        self.channel = running.broker.requests.server.adopt(ours, "PLAINTEXT", ("127.0.0.1", 1))
        self._socket = self.channel.transport
        self._socket.remove_reader()
        self.channel.transport = self
        self.data = b""

    def receive(self, frame: bytes) -> None:
        at = 0
        while at < len(frame) and not self.channel.closed:
            space = self.channel.space()
            assert space
            count = min(len(space), len(frame) - at)
            space[:count] = frame[at : at + count]
            self.channel.received(count)
            at += count

    def send(self, out: deque[Part]) -> bool:
        for part in out:
            self.data += part.to_bytes() if isinstance(part, FileSlice) else bytes(part)
        out.clear()
        return True

    def send_file(self, out: deque[Part], count_max: int) -> int:
        part = out.popleft()
        assert isinstance(part, FileSlice)
        self.data += part.to_bytes()
        return part.length

    def close(self) -> None:
        self._socket.close()
        self._theirs.close()

    def add_reader(self) -> None: ...

    def remove_reader(self) -> None: ...

    def add_writer(self) -> None: ...

    def remove_writer(self) -> None: ...
