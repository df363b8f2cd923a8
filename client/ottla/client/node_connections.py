"""Connections to nodes: sockets, the state of the connection to one node, the bootstrap servers.

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
    """Sizes of socket buffers in bytes; -1 for the default of the operating system."""

    send_bytes: int = -1
    receive_bytes: int = -1


async def connect_socket(host: str, port: int, buffers: Buffers, *, first: int = 0) -> socket.socket:
    """Connect to one of the addresses of a host. All are tried, beginning with number `first`, so that an
    address that timed out is not tried first again. As in Kafka, only addresses of the family that is listed
    first are used. Raises OSError."""
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
            # Before connecting, because the TCP window scale is negotiated with the connection.
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
    """The canonical names of the addresses of a host, for bootstrap servers behind an alias; an address
    without a name stays an address. Raises OSError."""
    loop = asyncio.get_running_loop()
    names: dict[str, None] = {}
    for row in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        name, _ = await loop.getnameinfo(row[4][:2])  # type: ignore[arg-type]
        names[name] = None
    return list(names)


OnResponse: TypeAlias = Callable[[Any], None]

BOOTSTRAP_ID: Final = -2
"""The node id of the first bootstrap server; the others have lower ids."""


class NodeConnection:
    """The connection to one broker on one channel, or the state of the attempts to open it."""

    __slots__ = (
        "authentication_error",
        "connection",
        "failures",
        "in_flight",
        "node",
        "not_before",
        "opening",
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
        """Requests that wait until the connection is open, with their deadlines."""
        self.in_flight = 0
        self.failures = 0
        self.setup_failures = 0
        self.not_before = -math.inf
        self.throttled_until = -math.inf
        self.used_at = -math.inf
        self.authentication_error: KafkaError | None = None
        """The authentication error of the last attempt."""

    @property
    def open(self) -> bool:
        return self.connection is not None and not self.connection.closed

    def may_send(self, now: float) -> bool:
        return self.open or self.opening is not None or now >= self.not_before


class Bootstrap:
    """The bootstrap servers. With `canonical`, each is replaced by the canonical names of its addresses."""

    def __init__(self, servers: Sequence[tuple[str, int]], *, canonical: bool) -> None:
        self._canonical = canonical
        self._named: set[int] = set()
        self.nodes = [Node(BOOTSTRAP_ID - number, host, port) for number, (host, port) in enumerate(servers)]

    async def named(self, node: Node) -> Node:
        """The server under its canonical name, that of its first address; the names of other addresses are
        added as bootstrap servers (KIP-235). Raises OSError."""
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
    """A node as text for messages."""
    where = f"{node.host}:{node.port}"
    return f"bootstrap server {where}" if node.id <= BOOTSTRAP_ID else f"broker {node.id} at {where}"
