"""The network of the simulation: connections behave as TCP, also when a link, process or machine is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from random import Random

import pytest

from ottla.simulation.loop import Process, SimulatedLoop
from ottla.simulation.network import CONNECT_TIMEOUT_S, WINDOW_BYTES, SimulatedNetwork, SimulatedSocket

PORT = 9092
Scenario = Callable[["World"], Awaitable[None]]


class Client(asyncio.Protocol):
    """Keeps what it receives."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.ended = False
        self.lost: list[Exception | None] = []

    def data_received(self, data: bytes) -> None:
        self.received += data

    def eof_received(self) -> bool:
        self.ended = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class World:
    """A server, which is a process that listens, and clients of it."""

    def __init__(self) -> None:
        self.loop = SimulatedLoop()
        self.network = SimulatedNetwork(self.loop, Random(1))
        self.server = Process(self.loop, "server")
        self.client = Process(self.loop, "client")
        self.listener: SimulatedSocket

    async def listen(self) -> None:
        async def bind() -> None:
            sock = self.network.for_host("server").bind(None, PORT)
            assert isinstance(sock, SimulatedSocket)
            sock.listen()
            self.listener = sock

        await self.server.create_task(bind())

    async def connect(self) -> tuple[asyncio.Transport, Client]:
        transport, protocol = await self.client.create_task(
            self.loop.create_connection(Client, "server", PORT)
        )
        assert isinstance(protocol, Client)
        return transport, protocol

    async def accept(self) -> SimulatedSocket:
        async def accept() -> SimulatedSocket:
            return self.listener.accept()[0]

        return await self.server.create_task(accept())


def run(scenario: Scenario) -> None:
    world = World()

    async def main() -> None:
        await world.listen()
        await scenario(world)

    with closing(world.loop):
        world.loop.run(main())


def read(sock: SimulatedSocket) -> bytes:
    """What has arrived."""
    space = bytearray(2 * WINDOW_BYTES)
    return bytes(space[: sock.recv_into(memoryview(space))])


def test_bytes_arrive_in_order_after_a_delay() -> None:
    async def scenario(world: World) -> None:
        transport, client = await world.connect()
        server = await world.accept()
        for number in range(100):
            transport.write(b"%d " % number)
            server.send(b"%d " % -number)
        with pytest.raises(BlockingIOError):
            read(server)
        await asyncio.sleep(0.01)
        assert read(server) == b"".join(b"%d " % number for number in range(100))
        assert client.received == b"".join(b"%d " % -number for number in range(100))

    run(scenario)


def test_a_reader_is_called_while_there_is_something_to_read() -> None:
    async def scenario(world: World) -> None:
        transport, _ = await world.connect()
        server = await world.accept()
        seen: list[bytes] = []

        def on_readable() -> None:
            seen.append(read(server))
            if not seen[-1]:
                world.loop.remove_reader(server.fileno())

        world.loop.add_reader(server.fileno(), on_readable)
        for _ in range(2):
            transport.write(b"x")
            await asyncio.sleep(0.01)
        transport.close()
        await asyncio.sleep(0.01)
        assert seen == [b"x", b"x", b""]

    run(scenario)


def test_a_sender_waits_when_the_window_is_full() -> None:
    async def scenario(world: World) -> None:
        transport, _ = await world.connect()
        server = await world.accept()
        data = bytes(range(256)) * (3 * WINDOW_BYTES // 256)
        transport.write(data)
        await asyncio.sleep(1)
        assert transport.get_write_buffer_size() == 2 * WINDOW_BYTES
        received = bytearray()
        while len(received) < len(data):
            received += read(server)
            await asyncio.sleep(0.01)
        assert received == data
        assert transport.get_write_buffer_size() == 0
        assert server.send(data) == WINDOW_BYTES
        with pytest.raises(BlockingIOError):
            server.send(data)

    run(scenario)


def test_a_closed_connection_ends_after_its_bytes_and_answers_with_a_reset() -> None:
    async def scenario(world: World) -> None:
        _, client = await world.connect()
        server = await world.accept()
        server.send(b"last")
        server.close()
        await asyncio.sleep(0.01)
        assert client.received == b"last"
        assert client.ended
        transport, client = await world.connect()
        server = await world.accept()
        transport.close()
        await asyncio.sleep(0.01)
        server.send(b"too late")
        await asyncio.sleep(0.01)
        with pytest.raises(ConnectionResetError):
            server.send(b"more")

    run(scenario)


def test_nobody_listens() -> None:
    async def scenario(world: World) -> None:
        world.listener.close()
        with pytest.raises(ConnectionRefusedError):
            await world.connect()

    run(scenario)


def test_a_cut_link_holds_bytes_back_until_it_is_restored() -> None:
    async def scenario(world: World) -> None:
        transport, client = await world.connect()
        server = await world.accept()
        world.network.block("client", "server")
        transport.write(b"one")
        transport.write(b"two")
        server.send(b"the other way")
        await asyncio.sleep(60)
        assert client.received == b"the other way"
        with pytest.raises(BlockingIOError):
            read(server)
        world.network.heal()
        await asyncio.sleep(0.01)
        assert read(server) == b"onetwo"

    run(scenario)


def test_connecting_over_a_cut_link_times_out() -> None:
    async def scenario(world: World) -> None:
        world.network.block("server", "client")
        with pytest.raises(TimeoutError):
            await world.connect()
        assert world.loop.time() == pytest.approx(CONNECT_TIMEOUT_S)

    run(scenario)


def test_connections_of_a_killed_process_are_reset() -> None:
    async def scenario(world: World) -> None:
        _, client = await world.connect()
        server = await world.accept()
        world.server.kill()
        world.network.process_died(world.server)
        await asyncio.sleep(0.01)
        (problem,) = client.lost
        assert isinstance(problem, ConnectionResetError)
        with pytest.raises(BrokenPipeError):
            server.send(b"x")
        with pytest.raises(ConnectionRefusedError):
            await world.connect()

    run(scenario)


def test_a_machine_without_power_is_silent_until_it_is_back() -> None:
    async def scenario(world: World) -> None:
        transport, client = await world.connect()
        await world.accept()
        world.server.kill()
        world.network.power_off("server")
        transport.write(b"hello?")
        await asyncio.sleep(600)
        assert client.lost == []
        with pytest.raises(TimeoutError):
            await world.connect()
        world.network.power_on("server")
        await asyncio.sleep(0.01)
        (problem,) = client.lost
        assert isinstance(problem, ConnectionResetError)
        with pytest.raises(ConnectionRefusedError):
            await world.connect()

    run(scenario)


def test_reset_connections_lose_what_was_not_read() -> None:
    async def scenario(world: World) -> None:
        transport, client = await world.connect()
        server = await world.accept()
        transport.write(b"unread")
        await asyncio.sleep(0.01)
        world.network.reset_connections(lambda one, other: {one, other} == {"client", "server"})
        with pytest.raises(ConnectionResetError):
            read(server)
        await asyncio.sleep(0.01)
        assert isinstance(client.lost[0], ConnectionResetError)

    run(scenario)
