"""max.connections and its kin over real sockets; who is idle for too long, among many."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Self

import pytest

from ottla.metadata.config import BrokerConfig, ConfigError
from ottla.ports.network import OsNetwork
from ottla.ports.workers import OsWorkers
from ottla.quotas.broker import ConnectionQuotas
from ottla.quotas.rates import Windows
from ottla.server.logs.page_cache_reader import PageCacheReader
from ottla.server.network.channel import Connection
from ottla.server.network.connection_limits import ConnectionLimits, IdleWatch
from ottla.server.network.listener import Endpoint, SocketServer
from tests.worlds.clocks import StoppedClock

BOTH = {
    "listeners": "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0",
    "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
    "inter.broker.listener.name": "BROKERS",
}


@pytest.fixture
def run() -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=StoppedClock) as runner:
        yield runner


def config(**settings: str) -> BrokerConfig:
    given = {"broker.id": "0", **{name.replace("_", "."): text for name, text in settings.items()}}
    return BrokerConfig.from_properties(given)


class Served:
    """A server that echoes, with these settings; the port of its first listener, or of a named one."""

    def __init__(self, settings: BrokerConfig, rates: ConnectionQuotas | None = None) -> None:
        def echo(connection: Connection, frame: memoryview) -> None:
            body = bytes(frame)
            connection.respond((len(body).to_bytes(4, "big") + body,))

        network = OsNetwork()
        self.config = settings
        self.server = SocketServer(
            loop=asyncio.get_running_loop(),
            network=network,
            on_frame=echo,
            max_request_bytes=1000,
            idle_max_ms=60_000,
            page_cache_reader=PageCacheReader(asyncio.get_running_loop(), OsWorkers()),
            limits=ConnectionLimits(
                settings,
                rates or ConnectionQuotas(Windows()),
                lambda: int(asyncio.get_running_loop().time() * 1000),
                network.resolve,
            ),
        )
        self.ports = {
            x.name: self.server.bind(Endpoint(x.name, "127.0.0.1", 0)).port for x in settings.listeners
        }
        self.server.listen()
        self.server.serve()

        self._clients: list[Client] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close_all()
        self.server.stop_accepting()
        for client in self._clients:
            client.writer.close()

    async def connect(self, listener: str = "PLAINTEXT", source: str = "127.0.0.1") -> Client:
        port = self.ports[listener]
        client = Client(*await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0)))
        self._clients.append(client)
        return client


async def advance(seconds: float) -> None:
    """Let time pass, in steps of 100 ms."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, StoppedClock)
    for _ in range(round(seconds * 10)):
        loop.now += 0.1
        for _ in range(5):
            await asyncio.sleep(0)


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def ask(self) -> None:
        self.writer.write(b"\0\0\0\2hi")

    async def answered(self) -> None:
        assert await asyncio.wait_for(self.reader.readexactly(6), 60) == b"\0\0\0\2hi"

    async def is_served(self) -> None:
        self.ask()
        await self.answered()

    async def was_closed(self) -> None:
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(self.reader.read(1), 60) == b""


def test_a_full_broker_accepts_the_next_client_when_one_leaves(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        with Served(config(max_connections="2")) as served:
            first, second, third = [await served.connect() for _ in range(3)]
            await first.is_served()
            await second.is_served()
            third.ask()
            await first.is_served()
            assert len(served.server.connections) == 2
            first.writer.close()
            await third.answered()

    run.run(scenario())


def test_a_limit_that_is_raised_lets_those_in_who_wait(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        with Served(config(max_connections="1")) as served:
            first, second = await served.connect(), await served.connect()
            await first.is_served()
            second.ask()
            await first.is_served()
            served.config.apply_dynamic({}, {"max.connections": "2"})
            served.server.tick()
            await second.answered()

    run.run(scenario())


def test_the_client_that_was_idle_longest_is_closed_for_a_broker(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        with Served(config(**BOTH, max_connections="2")) as served:
            idle, busy = await served.connect("CLIENTS"), await served.connect("CLIENTS")
            await idle.is_served()
            await busy.is_served()
            broker = await served.connect("BROKERS")
            await broker.is_served()
            await idle.was_closed()
            await busy.is_served()

    run.run(scenario())


def test_an_address_that_has_its_share_is_refused_and_others_are_served(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        limits = {"max_connections_per_ip": "1", "max_connections_per_ip_overrides": "127.0.0.3:2"}
        with Served(config(**limits)) as served:
            first = await served.connect(source="127.0.0.2")
            await first.is_served()
            await (await served.connect(source="127.0.0.2")).was_closed()
            favoured = [await served.connect(source="127.0.0.3") for _ in range(2)]
            for client in favoured:
                await client.is_served()
            await (await served.connect(source="127.0.0.3")).was_closed()
            first.writer.write(b"\xff\xff\xff\xff")  # a size that closes the connection
            await first.was_closed()
            await (await served.connect(source="127.0.0.2")).is_served()

    run.run(scenario())


def test_a_listener_that_has_its_share_accepts_nobody_and_others_do(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        with Served(config(**BOTH, **{"listener.name.clients.max.connections": "1"})) as served:
            first, second = await served.connect("CLIENTS"), await served.connect("CLIENTS")
            await first.is_served()
            second.ask()
            brokers = [await served.connect("BROKERS") for _ in range(3)]
            for broker in brokers:
                await broker.is_served()
            assert len(served.server.connections) == 4
            served.config.apply_dynamic({"listener.name.clients.max.connections": "2"}, {})
            served.server.tick()
            await second.answered()

    run.run(scenario())


@pytest.mark.parametrize("prefix", ["", "listener.name.clients."])
def test_connections_that_come_too_fast_wait_and_are_served(run: asyncio.Runner, prefix: str) -> None:
    """One a second, counted over two: most of four have to wait; on the brokers' listener nobody has."""

    async def scenario() -> None:
        with Served(
            config(**BOTH, **{f"{prefix}max.connection.creation.rate": "1"}),
            ConnectionQuotas(Windows(2, 1000)),
        ) as served:
            clients = [await served.connect("CLIENTS") for _ in range(4)]
            for client in clients:
                client.ask()
            if prefix:
                await (await served.connect("BROKERS")).is_served()
            answered = asyncio.gather(*[client.answered() for client in clients])
            await advance(0.9)
            assert not answered.done(), "four connections in no time"
            while not answered.done():
                await advance(0.1)
            await answered

    run.run(scenario())


def test_an_address_that_comes_too_often_is_closed_after_a_while_and_others_are_served(
    run: asyncio.Runner,
) -> None:
    async def scenario() -> None:
        rates = ConnectionQuotas(Windows(11, 1000))
        rates.set_address_limit("127.0.0.2", 0)
        with Served(config(), rates) as served:
            refused = await served.connect(source="127.0.0.2")
            refused.ask()
            other = await served.connect(source="127.0.0.3")
            await other.is_served()
            closed = asyncio.ensure_future(refused.was_closed())
            await advance(0.9)
            assert not closed.done(), "it was closed at once"
            await advance(0.2)
            await closed
            assert len(served.server.connections) == 1
            rates.set_address_limit("127.0.0.2", None)
            forgiven = await served.connect(source="127.0.0.2")
            await forgiven.is_served()

    run.run(scenario())


def test_limits_that_make_no_sense_are_refused() -> None:
    for settings in (
        {"max_connections_per_ip_overrides": "127.0.0.1"},
        {"max_connections_per_ip_overrides": "127.0.0.1:many"},
        {"max_connections_per_ip": "0"},
        {"queued_max_request_bytes": "1000"},
        {"listener.name.plaintext.max.connections": "0"},
        {"listener.name.plaintext.max.connection.creation.rate": "many"},
    ):
        with pytest.raises(ConfigError):
            config(**settings)
    assert config(max_connections_per_ip="0", max_connections_per_ip_overrides="::1:5,host : 3")
    assert config(queued_max_request_bytes="104857600")


# --- idleness ----------------------------------------------------------------------------------------


class Quiet:
    """A connection as the watch sees it."""

    def __init__(self) -> None:
        self.idle_bucket = 0
        self.active_at = 0.0

    def idle_for(self, now: float) -> float:
        return now - self.active_at

    def close(self, reason: str, level: int) -> None: ...


def test_connections_that_are_idle_for_too_long_are_closed_within_a_second() -> None:
    watch = IdleWatch(600)
    connections = [Quiet() for _ in range(3)]
    for connection in connections:
        watch.watch(connection, 0.0)
    connections[1].active_at = 300.0
    watch.forget(connections[2])
    assert watch.idle(599.0) == []
    assert watch.idle(601.0) == [connections[0]]
    assert watch.idle(899.0) == []
    assert watch.idle(901.5) == [connections[1]]
    assert watch.idle(10_000.0) == []


def test_idle_connections_are_checked_once_in_the_limit_and_not_each_second() -> None:
    watch = IdleWatch(600)
    connections = [Quiet() for _ in range(10_000)]
    for number, connection in enumerate(connections):
        watch.watch(connection, number / 100)
    for second in range(1, 3601):
        for connection in connections[second % 600 :: 600]:
            connection.active_at = second
        assert watch.idle(second) == []
    assert watch.checks <= 7 * len(connections)


def test_without_a_limit_no_connection_is_idle() -> None:
    watch = IdleWatch(-0.001)
    watch.watch(Quiet(), 0.0)
    assert watch.idle(1e9) == []


def test_sockets_are_what_they_seem() -> None:
    """127.0.0.2 and its like can be bound: the tests above rely on it."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.2", 0))
