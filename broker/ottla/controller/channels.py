"""The controller's channels to the brokers (ControllerChannelManager): for each broker a queue of requests.

Called by `ActiveController`. One request per broker is in flight. It is repeated until the broker responds or
is no longer registered; the epochs in a request make repetition harmless, unless its topic is deleted
meanwhile. To limit late duplicates, the connection is reset when a request fails, which drops the bytes that
the broker has not received; the broker verifies the others (`server.handlers.cluster`).

Invariant: a broker gets this controller's requests in the order of the calls of `send`.
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
    """The requests to a broker, from one registration of it to the next."""

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
        response: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._queue.append((message, response))
        self._filled.set()
        return response

    def close(self) -> None:
        self._task.cancel()
        for _, response in self._queue:
            response.cancel()
        self._queue.clear()
        self._connection.abort()

    async def _run(self) -> None:
        while True:
            await self._filled.wait()
            self._filled.clear()
            while self._queue:
                await self._send_first()

    async def _send_first(self) -> None:
        # Not part of `_run`, whose locals would keep a message with thousands of partitions in memory.
        message, waiter = self._queue[0]
        response = await self._send_until_response(message)
        self._queue.popleft()
        try:
            self._on_response(self.broker, message, response)
        except Exception:
            log.exception("Error handling a response of broker %d", self.broker.id)
        if not waiter.done():
            waiter.set_result(response)

    async def _send_until_response(self, message: Message) -> Any:
        delay_s = RETRY_DELAY_S_MIN
        while True:
            try:
                connection = await self._connection.open()
                return await connection.request(message, timeout_s=self._request_timeout_s)
            except Exception as error:
                # Any error, also of decoding: the broker is still registered.
                log.warning(
                    "Controller fails to send %s to broker %d at %s:%d. Reconnecting to broker: %r",
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

    def update_brokers(self, brokers: Mapping[int, BrokerInfo]) -> None:
        """Open channels to new live brokers, and close those to others."""
        for broker_id, channel in list(self._channels.items()):
            info = brokers.get(broker_id)
            moved = info is not None and info.endpoint(self._listener) != channel.endpoint
            if info is None or info.epoch != channel.broker.epoch or moved:
                channel.close()
                del self._channels[broker_id]
        for broker_id, info in brokers.items():
            endpoint = info.endpoint(self._listener)
            if endpoint is None:
                log.error("Broker %d has no inter-broker listener %s", broker_id, self._listener)
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
