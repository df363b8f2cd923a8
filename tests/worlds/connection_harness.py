"""A server side over a socket pair, for tests of connections."""

from __future__ import annotations

import asyncio
import socket
from typing import Self

from ottla.ports.network import OsNetwork
from ottla.ports.workers import OsWorkers
from ottla.server.logs.page_cache_reader import PageCacheReader
from ottla.server.network.channel import Connection
from ottla.server.network.listener import SocketServer
from tests.worlds.clocks import StoppedClock


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


class Harness:
    """A server side whose requests the test answers, and the client's end of the pair."""

    def __init__(self, kind: int = socket.SOCK_STREAM, queued_max_bytes: int = -1) -> None:
        self.loop = asyncio.get_running_loop()
        self.requests: list[bytes] = []
        self.arrived = asyncio.Event()
        self.echo = False
        self.page_cache_reader = PageCacheReader(self.loop, OsWorkers())
        self.server = SocketServer(
            loop=self.loop,
            network=OsNetwork(),
            on_frame=self.on_frame,
            max_request_bytes=1_000_000,
            idle_max_ms=60_000,
            queued_max_bytes=queued_max_bytes,
            page_cache_reader=self.page_cache_reader,
        )
        ours, self.client = socket.socketpair(type=kind)
        ours.setblocking(False)
        self.client.setblocking(False)
        self.connection = self.server.adopt(ours, "PLAINTEXT", ("10.0.0.7", 1234))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop_accepting()
        self.server.close_all()
        self.client.close()

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        self.requests.append(bytes(frame))
        self.arrived.set()
        if self.echo:
            connection.respond((framed(bytes(frame)),))

    async def request(self, count: int) -> None:
        """Wait until `count` requests have come in all."""
        while len(self.requests) < count:
            self.arrived.clear()
            await asyncio.wait_for(self.arrived.wait(), 60)

    async def send(self, data: bytes) -> None:
        await self.loop.sock_sendall(self.client, data)

    async def receive(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            chunk = await asyncio.wait_for(self.loop.sock_recv(self.client, 1 << 20), 60)
            assert chunk, f"closed after {len(data)} of {count} bytes"
            data += chunk
        return data

    async def closed_by_server(self) -> bool:
        return await asyncio.wait_for(self.loop.sock_recv(self.client, 1), 60) == b""

    async def advance(self, seconds: float) -> None:
        """Let time pass, on a loop whose clock stands still."""
        assert isinstance(self.loop, StoppedClock)
        self.loop.now += seconds
        await self.turns()

    async def turns(self, count: int = 5) -> None:
        for _ in range(count):
            await asyncio.sleep(0)
