"""The brokers as the network sees them: one connection each, or the way there; the bootstrap servers.

Kept by `network`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from ottla.client.core.types import Node, Outgoing
from ottla.client.dialing import canonical_names
from ottla.protocol.errors import KafkaError
from ottla.wire.connection import BrokerConnection

Answered: TypeAlias = Callable[[Any], None]

BOOTSTRAP_ID: Final = -2
"""Of the first bootstrap server; further ones count down."""


class Peer:
    """One broker on one channel: its connection, or the way there."""

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
        self.waiting: list[tuple[Outgoing, Answered, float]] = []
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
