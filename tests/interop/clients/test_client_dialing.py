"""Which addresses of a broker are tried, how bootstrap servers are named, and which buffers sockets get."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.client import Producer, errors
from ottla.client.node_connections import Buffers, connect_socket
from ottla.testing import DevBroker

pytestmark = pytest.mark.timeout(180)

NAMES = {"gone.example": ["127.0.0.2"], "here.example": ["127.0.0.1"]}
NAMES["kafka"] = [*NAMES["gone.example"], *NAMES["here.example"], "::1"]


@pytest.fixture(scope="module")
def broker() -> Iterator[DevBroker]:
    with DevBroker() as running:
        running.create_topic("t", partitions=3)
        yield running


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A name service of our own; the names that it was asked for."""
    received: list[str] = []

    async def addresses(loop: object, host: str, port: int, **more: Any) -> list[tuple[Any, ...]]:
        received.append(host)
        rows: list[tuple[Any, ...]] = []
        for address in NAMES.get(host, [host]):
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            rows.append((family, socket.SOCK_STREAM, 6, "", (address, port)))
        return rows

    async def name(loop: object, address: tuple[str, int]) -> tuple[str, str]:
        known = (name for name, (first, *_) in NAMES.items() if first == address[0])
        return next(known, address[0]), str(address[1])

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", addresses)
    monkeypatch.setattr(asyncio.BaseEventLoop, "getnameinfo", name)
    return received


async def partitions(bootstrap: str, **settings: object) -> int:
    async with Producer({"bootstrap.servers": bootstrap, "max.block.ms": 60_000, **settings}) as producer:
        return await producer.partitions_for("t")


def test_all_addresses_of_a_broker_are_tried(broker: DevBroker, asked: list[str]) -> None:
    port = broker.bootstrap.rpartition(":")[2]
    assert asyncio.run(partitions(f"kafka:{port}")) == 3
    assert asked[0] == "kafka"
    with pytest.raises(errors.RequestTimedOutError):
        asyncio.run(partitions(f"gone.example:{port}", **{"max.block.ms": 300}))


def test_bootstrap_servers_behind_an_alias_are_resolved_to_their_own_names(
    broker: DevBroker, asked: list[str]
) -> None:
    port = broker.bootstrap.rpartition(":")[2]
    lookup = "resolve_canonical_bootstrap_servers_only"
    assert asyncio.run(partitions(f"kafka:{port}", **{"client.dns.lookup": lookup})) == 3
    assert asked.index("here.example") > asked.index("kafka")
    assert "gone.example" in asked


def test_an_address_without_a_response_is_not_tried_first_again(asked: list[str]) -> None:
    async def run() -> list[str]:
        server = await asyncio.start_server(lambda r, w: w.close(), "0.0.0.0", 0)
        port = server.sockets[0].getsockname()[1]
        reached = []
        async with server:
            for first in range(3):
                with await connect_socket("kafka", port, Buffers(), first=first) as sock:
                    reached.append(sock.getpeername()[0])
        return reached

    assert asyncio.run(run()) == ["127.0.0.2", "127.0.0.1", "127.0.0.2"], "and never the one of another kind"


def test_sockets_have_the_configured_buffer_sizes() -> None:
    async def run(buffers: Buffers) -> tuple[int, int]:
        server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
        async with server:
            with await connect_socket("127.0.0.1", server.sockets[0].getsockname()[1], buffers) as sock:
                option = sock.getsockopt
                return (
                    option(socket.SOL_SOCKET, socket.SO_SNDBUF),
                    option(socket.SOL_SOCKET, socket.SO_RCVBUF),
                )

    kernels = asyncio.run(run(Buffers()))
    asked_for = asyncio.run(run(Buffers(20_000, 30_000)))
    assert asked_for in ((20_000, 30_000), (40_000, 60_000)), "Linux doubles them, for its own records"
    assert kernels != asked_for
