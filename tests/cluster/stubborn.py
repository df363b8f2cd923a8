"""A client that sends requests to one broker regardless of the metadata, as a zombie leader gets them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from typing import Any

from ottla.local.brokers import BrokerProcess
from ottla.protocol.messages import ProduceRequest
from ottla.protocol.records import Record, build_batch
from ottla.protocol.types import Message
from ottla.wire.connection import BrokerConnection, ConnectionLost


def batch_request(topic: str, value: str, *, acks: int, partition: int = 0) -> ProduceRequest:
    """One record for one partition."""
    batch = build_batch([Record(0, 1_700_000_000_000, None, value.encode(), [])])
    part = ProduceRequest.PartitionProduceData(index=partition, records=batch)
    row = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
    return ProduceRequest(acks=acks, timeout_ms=15_000, topic_data=[row])


def send_to(broker: BrokerProcess, request: Message) -> Any:
    """Sends requests to this broker only."""

    async def ask() -> Any:
        connection = await BrokerConnection.open(broker.host, broker.port, client_id="stubborn", timeout_s=60)
        try:
            return await connection.request(request)
        finally:
            connection.close()

    return asyncio.run(ask())


def send_to_zombie(
    broker: BrokerProcess, requests: Sequence[Message], *, meanwhile: Callable[[], None]
) -> list[Any]:
    """Stops the broker (SIGSTOP), writes the requests into its socket, and continues it after `meanwhile`.
    Returns the responses in order; None for a request on which the broker closed the connection."""

    async def ask(connection: BrokerConnection, request: Message) -> Any:
        try:
            return await connection.request(request, timeout_s=400)
        except (ConnectionLost, TimeoutError):
            return None

    async def scenario() -> list[Any]:
        connection = await BrokerConnection.open(broker.host, broker.port, client_id="stubborn", timeout_s=60)
        broker.signal(signal.SIGSTOP)
        try:
            asking = [asyncio.create_task(ask(connection, request)) for request in requests]
            await asyncio.to_thread(meanwhile)
        finally:
            broker.signal(signal.SIGCONT)
        try:
            return list(await asyncio.gather(*asking))
        finally:
            connection.close()

    return asyncio.run(scenario())
