"""Requests from broker to broker: which connection carries them, and what becomes of it after a failure."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import pytest

from ottla.protocol.messages import AddPartitionsToTxnRequest, WriteTxnMarkersRequest
from ottla.wire.connection import UnsupportedApi
from ottla.wire.inter_broker import InterBrokerClient, Purpose


class Address(NamedTuple):
    host: str
    port: int


class FakeConnection:
    def __init__(self, host: str, port: int, problem: Exception | None) -> None:
        self.host, self.port = host, port
        self.closed = False
        self.requests = 0
        self._problem = problem

    def version_of(self, api_key: int) -> int:
        return 3

    async def request(self, message: Any, *, version: int, timeout_s: float) -> int:
        self.requests += 1
        await asyncio.sleep(0)
        if self._problem is not None:
            raise self._problem
        return version

    def close(self) -> None:
        self.closed = True


class SimulatedCluster:
    def __init__(self) -> None:
        self.brokers: dict[int, Address] = {1: Address("one", 9092)}
        self.opened: list[FakeConnection] = []
        self.problem: Exception | None = None
        self.client = InterBrokerClient(self.brokers.get, self.connect, request_timeout_s=1)

    async def connect(self, host: str, port: int) -> Any:
        await asyncio.sleep(0)
        self.opened.append(FakeConnection(host, port, self.problem))
        return self.opened[-1]

    async def write_markers(self) -> Any:
        return await self.client.request(1, WriteTxnMarkersRequest(), Purpose.TRANSACTION_MARKERS)


def test_requests_of_one_purpose_share_a_connection_and_purposes_do_not() -> None:
    async def scenario() -> None:
        cluster = SimulatedCluster()
        assert await asyncio.gather(cluster.write_markers(), cluster.write_markers()) == [3, 3]
        assert [connection.requests for connection in cluster.opened] == [2]
        await cluster.client.request(1, AddPartitionsToTxnRequest(), Purpose.TRANSACTION_VERIFICATION)
        assert [connection.requests for connection in cluster.opened] == [2, 1]
        cluster.client.close()
        assert all(connection.closed for connection in cluster.opened)

    asyncio.run(scenario())


def test_a_connection_is_replaced_after_a_time_out_a_loss_and_a_new_address() -> None:
    async def scenario() -> None:
        cluster = SimulatedCluster()
        cluster.problem = TimeoutError()
        with pytest.raises(TimeoutError):
            await cluster.write_markers()
        assert cluster.opened[0].closed
        cluster.problem = None
        await cluster.write_markers()
        cluster.opened[1].closed = True
        await cluster.write_markers()
        cluster.brokers[1] = Address("elsewhere", 9092)
        await cluster.write_markers()
        assert cluster.opened[2].closed
        assert [connection.host for connection in cluster.opened] == ["one", "one", "one", "elsewhere"]

    asyncio.run(scenario())


def test_no_request_is_sent_to_a_broker_that_is_not_alive_or_too_old() -> None:
    async def scenario() -> None:
        cluster = SimulatedCluster()
        with pytest.raises(UnsupportedApi, match="one:9092 supports AddPartitionsToTxnRequest"):
            await cluster.client.request(
                1, AddPartitionsToTxnRequest(), Purpose.TRANSACTION_VERIFICATION, version_min=4
            )
        assert cluster.opened[0].requests == 0
        assert not cluster.opened[0].closed
        del cluster.brokers[1]
        with pytest.raises(ConnectionError, match="broker 1 is not available"):
            await cluster.write_markers()

    asyncio.run(scenario())
