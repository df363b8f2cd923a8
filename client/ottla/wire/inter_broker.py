"""The connections of a broker to the other brokers, for every request that one broker sends to another.

Used by the replica fetchers, the controller's request queues, the channel to the controller, and for
single requests: transaction markers, verification of transactions, the search for lost logs.

Each purpose has a connection of its own to each broker, as in Kafka: brokers answer the requests of one
connection in order, so a request that waits (a fetch, a transaction marker) would delay those behind it.
Retries are the callers': each has its own rules for which request may be repeated, and when.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, Protocol, TypeAlias

from ottla.protocol.types import Message
from ottla.wire.connection import BrokerConnection, UnsupportedApi


class Node(Protocol):
    """The address of a broker. Nodes that are not equal have different connections."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


Connect: TypeAlias = Callable[[str, int], Awaitable[BrokerConnection]]
"""Opens a connection to (host, port). Raises what `BrokerConnection.open` raises."""
FindNode: TypeAlias = Callable[[], Node]
"""Returns the present address of a broker. Raises ConnectionError while none is known."""


class Purpose(Enum):
    """The connections that `InterBrokerClient.request` keeps to one broker."""

    TRANSACTION_MARKERS = 1
    TRANSACTION_VERIFICATION = 2
    DESCRIBE_LOG_DIRS = 3


class InterBrokerConnection:
    """The connection to one broker for one purpose. It is opened when it is needed."""

    def __init__(self, find_node: FindNode, connect: Connect) -> None:
        self._find_node = find_node
        self._connect = connect
        self._lock = asyncio.Lock()
        self._node: Node | None = None
        self._connection: BrokerConnection | None = None

    @property
    def current(self) -> BrokerConnection | None:
        """The open connection; None if there is none, or it was lost."""
        connection = self._connection
        return None if connection is None or connection.closed else connection

    async def open(self) -> BrokerConnection:
        """Return the open connection. Opens one if there is none, it was lost, or the node's address is
        another than that of the connection. Raises what `find_node` and `connect` raise."""
        node = self._find_node()
        async with self._lock:
            if self._connection is not None and (self._connection.closed or self._node != node):
                self.close()
            if self._connection is None:
                self._connection = await self._connect(node.host, node.port)
                self._node = node
            return self._connection

    async def request(
        self, message: Message, *, version: int | None = None, version_min: int = 0, timeout_s: float
    ) -> Any:
        """Send a request, in the highest version that both sides support without `version`, and return the
        response. After a time-out the connection is closed: its node may be gone, and the next request finds
        out with a new connection. Raises what `open` raises, ConnectionLost, TimeoutError, and UnsupportedApi
        where the node supports no version from `version_min` on."""
        connection = await self.open()
        if version is None:
            version = connection.version_of(message.api_key)
        if version < version_min:
            raise UnsupportedApi(
                f"{connection.host}:{connection.port} supports {type(message).__name__} only up to version "
                f"{version}, not {version_min}"
            )
        try:
            return await connection.request(message, version=version, timeout_s=timeout_s)
        except TimeoutError:
            connection.close()
            raise

    def close(self) -> None:
        """Close the connection; requests in flight end with ConnectionLost. The next request opens it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def abort(self) -> None:
        """As `close`, and reset the connection: the node does not receive what is still on its way."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()


class InterBrokerClient:
    """Sends requests to other brokers by their ids, and makes the connections that others keep."""

    def __init__(
        self, find_broker: Callable[[int], Node | None], connect: Connect, *, request_timeout_s: float
    ) -> None:
        """`find_broker` returns the address of a live broker, None if it is not alive."""
        self._find_broker = find_broker
        self._connect = connect
        self.request_timeout_s = request_timeout_s
        """For the response to a request (request.timeout.ms), where the caller sets no other."""
        self._connections: dict[tuple[int, Purpose], InterBrokerConnection] = {}

    def connection(self, find_node: FindNode) -> InterBrokerConnection:
        """A new connection, not opened yet; its user closes it."""
        return InterBrokerConnection(find_node, self._connect)

    async def request(
        self, broker_id: int, message: Message, purpose: Purpose, *, version_min: int = 0
    ) -> Any:
        """Send a request to a broker on its connection for this purpose, as `InterBrokerConnection.request`.
        Raises ConnectionError while the broker is not alive."""
        connection = self._connections.get((broker_id, purpose))
        if connection is None:
            connection = self.connection(lambda: self._live_broker(broker_id))
            self._connections[broker_id, purpose] = connection
        return await connection.request(message, version_min=version_min, timeout_s=self.request_timeout_s)

    def _live_broker(self, broker_id: int) -> Node:
        node = self._find_broker(broker_id)
        if node is None:
            raise ConnectionError(f"broker {broker_id} is not available")
        return node

    def close(self) -> None:
        """Close the connections of `request`."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
