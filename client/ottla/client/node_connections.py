"""Connections to nodes: sockets, the state of one node's connection, the bootstrap servers.

`network` keeps a `NodeConnection` for each broker and channel. `connect_socket` implements client.dns.lookup,
send.buffer.bytes and receive.buffer.bytes (KIP-235, KIP-302); `routing` uses it, too.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from ottla.client.core.types import Node, UnsentRequest
from ottla.environment import environment
from ottla.protocol.errors import KafkaError
from ottla.wire.connection import BrokerConnection


class Buffers(NamedTuple):
    """Bytes; -1 leaves them to the operating system."""

    send_bytes: int = -1
    receive_bytes: int = -1


async def connect_socket(host: str, port: int, buffers: Buffers, *, first: int = 0) -> socket.socket:
    """Connect to one of the host's addresses: all are tried, beginning with number `first`, so that one which
    does not answer in time is not the first again. As in Kafka, of the two kinds of addresses only that which
    is named first counts. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    if not found:
        raise OSError(f"no address of {host}")
    rows = [row for row in found if row[0] == found[0][0]]
    start = first % len(rows)
    problem: OSError | None = None
    for family, kind, protocol, _, address in rows[start:] + rows[:start]:
        sock = environment.get().new_socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            # Before it is connected: the window is agreed upon with the connection.
            if buffers.send_bytes >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffers.send_bytes)
            if buffers.receive_bytes >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffers.receive_bytes)
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            problem = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    assert problem is not None
    raise problem


async def canonical_names(host: str, port: int) -> list[str]:
    """The full names that the host's addresses have, for bootstrap servers behind one alias; what has no name
    stays an address. Raises OSError."""
    loop = asyncio.get_running_loop()
    names: dict[str, None] = {}
    for row in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        name, _ = await loop.getnameinfo(row[4][:2])  # type: ignore[arg-type]
        names[name] = None
    return list(names)


OnResponse: TypeAlias = Callable[[Any], None]

BOOTSTRAP_ID: Final = -2
"""Of the first bootstrap server; further ones count down."""


class NodeConnection:
    """The connection to one broker on one channel, or the state of the attempts to open it."""

    __slots__ = (
        "connection",
        "failures",
        "in_flight",
        "node",
        "not_before",
        "opening",
        "refused",
        "setup_failures",
        "throttled_until",
        "used_at",
        "waiting",
    )

    def __init__(self, node: Node) -> None:
        self.node = node
        self.connection: BrokerConnection | None = None
        self.opening: asyncio.Task[None] | None = None
        self.waiting: list[tuple[UnsentRequest, OnResponse, float]] = []
        """Requests that came while the connection is made, with their deadlines."""
        self.in_flight = 0
        self.failures = 0
        self.setup_failures = 0
        self.not_before = -math.inf
        self.throttled_until = -math.inf
        self.used_at = -math.inf
        self.refused: KafkaError | None = None
        """Why the broker did not let us in, the last time."""

    @property
    def open(self) -> bool:
        return self.connection is not None and not self.connection.closed

    def may_be_asked(self, now: float) -> bool:
        return self.open or self.opening is not None or now >= self.not_before


class Bootstrap:
    """The servers that a client begins with. `canonical`: they stand for all the hosts behind their names."""

    def __init__(self, servers: Sequence[tuple[str, int]], *, canonical: bool) -> None:
        self._canonical = canonical
        self._named: set[int] = set()
        self.nodes = [Node(BOOTSTRAP_ID - number, host, port) for number, (host, port) in enumerate(servers)]

    async def named(self, node: Node) -> Node:
        """The server by its own name, the first of those behind the one that was given; the others become
        bootstrap servers, too (KIP-235). Raises OSError."""
        if not self._canonical:
            return node
        if node.id not in self._named:
            name, *others = await canonical_names(node.host, node.port)
            self._named.add(node.id)
            self.nodes[self.nodes.index(node)] = Node(node.id, name, node.port)
            for other in others:
                number = BOOTSTRAP_ID - len(self.nodes)
                self._named.add(number)
                self.nodes.append(Node(number, other, node.port))
        return next(each for each in self.nodes if each.id == node.id)


def name_of(node: Node) -> str:
    where = f"{node.host}:{node.port}"
    return f"bootstrap server {where}" if node.id <= BOOTSTRAP_ID else f"broker {node.id} at {where}"
