"""The client's writer against servers of a few lines, which speak just enough."""

from __future__ import annotations

import asyncio
import struct
from contextlib import AsyncExitStack

import pytest

from ottla.client.routing import Brokers
from ottla.client.writer import NewRecord, Writer
from ottla.protocol import frames
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages import (
    ApiVersionsResponse,
    InitProducerIdResponse,
    MetadataResponse,
    ProduceResponse,
)
from ottla.protocol.types import Message

_PRODUCE, _METADATA, _VERSIONS, _INIT_PRODUCER_ID = 0, 3, 18, 22


class Cluster:
    """Two brokers and a topic of one partition. Who leads it is told by both."""

    def __init__(self) -> None:
        self.ports: dict[int, int] = {}
        self.leader = 1
        self.produced_at: list[int] = []

    def answer(self, node: int, api_key: int) -> Message | None:
        """None: the broker dies, and the other one leads."""
        if api_key == _VERSIONS:
            key = ApiVersionsResponse.ApiVersion
            return ApiVersionsResponse(
                api_keys=[
                    key(api_key=_PRODUCE, min_version=9, max_version=9),
                    key(api_key=_METADATA, min_version=9, max_version=9),
                    key(api_key=_INIT_PRODUCER_ID, min_version=2, max_version=2),
                ]
            )
        if api_key == _METADATA:
            broker = MetadataResponse.MetadataResponseBroker
            partition = MetadataResponse.MetadataResponsePartition(leader_id=self.leader)
            return MetadataResponse(
                brokers=[broker(node_id=n, host="127.0.0.1", port=port) for n, port in self.ports.items()],
                topics=[MetadataResponse.MetadataResponseTopic(name="t", partitions=[partition])],
            )
        if api_key == _INIT_PRODUCER_ID:
            return InitProducerIdResponse(producer_id=7, producer_epoch=0)
        self.produced_at.append(node)
        if node == 1:
            self.leader = 2
            return None
        row = ProduceResponse.PartitionProduceResponse(base_offset=42)
        return ProduceResponse(
            responses=[ProduceResponse.TopicProduceResponse(name="t", partition_responses=[row])]
        )

    async def start(self, node: int, running: AsyncExitStack) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while True:
                    (size,) = struct.unpack(">i", await reader.readexactly(4))
                    header = frames.parse_request_header(await reader.readexactly(size))
                    message = self.answer(node, header.api_key)
                    if message is None:
                        server.close()
                        return
                    writer.write(frames.encode_response(message, header.api_version, header.correlation_id))
            except asyncio.IncompleteReadError:
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        running.callback(server.close)
        self.ports[node] = server.sockets[0].getsockname()[1]


def test_when_the_leader_dies_its_batch_goes_to_the_next() -> None:
    async def story() -> None:
        cluster = Cluster()
        async with AsyncExitStack() as running:
            for node in (2, 1):
                await cluster.start(node, running)
            bootstrap = [("127.0.0.1", cluster.ports[2])]
            brokers = Brokers(bootstrap, client_id="t", timeout_s=5, retry_pause_s=0.01)
            running.push_async_callback(brokers.close)
            writer = Writer(brokers, "t")
            await writer.open()
            assert await writer.write([NewRecord(b"v")]) == {0: 42}
        assert cluster.produced_at == [1, 2]

    asyncio.run(story())


def test_a_partition_that_is_not_there_is_refused_at_once() -> None:
    async def story() -> None:
        cluster = Cluster()
        async with AsyncExitStack() as running:
            await cluster.start(1, running)
            brokers = Brokers([("127.0.0.1", cluster.ports[1])], client_id="t", timeout_s=5)
            running.push_async_callback(brokers.close)
            writer = Writer(brokers, "t")
            await writer.open()
            with pytest.raises(KafkaError, match="partitions 0 to 0, not 1"):
                await writer.write([NewRecord(b"v", partition=1)])
        assert not cluster.produced_at

    asyncio.run(story())
