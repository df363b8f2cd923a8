"""The controller's way to the brokers: one ordered queue, and one request under way, per broker.

Called by `ActiveController`. A request is repeated until it is answered or the broker is gone; that is safe
because every request carries epochs that make its repetition harmless, for as long as its topic is not
deleted. Against duplicates that arrive later than that, the connection is reset when a request on it fails,
which drops what the broker has not received; what it has received it verifies (`server.handlers.cluster`).

Invariant: a broker sees this controller's requests in the order in which they were sent to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from ottla.metadata.znodes import BrokerInfo, Endpoint
from ottla.protocol.types import Message
from ottla.wire.inter_broker import InterBrokerClient

log = logging.getLogger(__name__)

RETRY_DELAY_S_MIN = 0.05
RETRY_DELAY_S_MAX = 1.0


OnResponse = Callable[[BrokerInfo, Message, Any], None]


class BrokerChannel:
    """The queue to one incarnation of a broker."""

    def __init__(
        self,
        broker: BrokerInfo,
        endpoint: Endpoint,
        inter_broker: InterBrokerClient,
        on_response: OnResponse,
        request_timeout_s: float,
    ) -> None:
        self.broker = broker
        self.endpoint = endpoint
        self._on_response = on_response
        self._request_timeout_s = request_timeout_s
        self._connection = inter_broker.connection(lambda: endpoint)
        self._queue: deque[tuple[Message, asyncio.Future[Any]]] = deque()
        self._filled = asyncio.Event()
        self._task = asyncio.ensure_future(self._run())

    def send(self, message: Message) -> asyncio.Future[Any]:
        """Queue a request. The future gets the response, or is cancelled when the channel closes."""
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._queue.append((message, answered))
        self._filled.set()
        return answered

    def close(self) -> None:
        self._task.cancel()
        for _, answered in self._queue:
            answered.cancel()
        self._queue.clear()
        self._connection.abort()

    async def _run(self) -> None:
        while True:
            await self._filled.wait()
            self._filled.clear()
            while self._queue:
                await self._deliver_first()

    async def _deliver_first(self) -> None:
        # A method of its own, lest a frame that waits for more holds on to thousands of partitions.
        message, answered = self._queue[0]
        response = await self._deliver(message)
        self._queue.popleft()
        try:
            self._on_response(self.broker, message, response)
        except Exception:
            log.exception("cannot make sense of broker %d's answer", self.broker.id)
        if not answered.done():
            answered.set_result(response)

    async def _deliver(self, message: Message) -> Any:
        """Send until it is answered."""
        delay_s = RETRY_DELAY_S_MIN
        while True:
            try:
                connection = await self._connection.open()
                return await connection.request(message, timeout_s=self._request_timeout_s)
            except Exception as error:
                # Whatever it was (refused, lost, late, not understood): the broker is registered, so go on.
                log.warning(
                    "%s to broker %d at %s:%d failed, trying again: %r",
                    type(message).__name__,
                    self.broker.id,
                    self.endpoint.host,
                    self.endpoint.port,
                    error,
                )
                self._connection.abort()
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_DELAY_S_MAX)


class Channels:
    """A channel for each live broker."""

    def __init__(
        self,
        inter_broker: InterBrokerClient,
        listener: str,
        on_response: OnResponse,
        request_timeout_s: float = 30.0,
    ) -> None:
        self._inter_broker = inter_broker
        self._listener = listener
        self._on_response = on_response
        self._request_timeout_s = request_timeout_s
        self._channels: dict[int, BrokerChannel] = {}

    def follow(self, brokers: Mapping[int, BrokerInfo]) -> None:
        """Open and close channels so that they are those of the live brokers."""
        for broker_id, channel in list(self._channels.items()):
            info = brokers.get(broker_id)
            moved = info is not None and info.endpoint(self._listener) != channel.endpoint
            if info is None or info.epoch != channel.broker.epoch or moved:
                channel.close()
                del self._channels[broker_id]
        for broker_id, info in brokers.items():
            endpoint = info.endpoint(self._listener)
            if endpoint is None:
                log.error(
                    "broker %d has no listener %s: it cannot be told anything", broker_id, self._listener
                )
            elif broker_id not in self._channels:
                self._channels[broker_id] = BrokerChannel(
                    info, endpoint, self._inter_broker, self._on_response, self._request_timeout_s
                )

    def send(self, broker_id: int, message: Message) -> asyncio.Future[Any] | None:
        channel = self._channels.get(broker_id)
        return channel.send(message) if channel is not None else None

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
