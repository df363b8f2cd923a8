"""The controller's queue to a broker: a connection without a response is reset."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ottla.controller.channels import BrokerChannel
from ottla.protocol.messages import UpdateMetadataRequest, UpdateMetadataResponse
from ottla.protocol.types import Message
from ottla.wire.inter_broker import InterBrokerClient
from tests.worlds.simulated_controller import broker


class Client:
    """A connection that answers, or raises."""

    def __init__(self, problem: Exception | None) -> None:
        self._problem = problem
        self.received: list[Message] = []
        self.aborted = False
        self.closed = False

    async def request(self, message: Message, *, timeout_s: float = 30) -> Any:
        assert not self.aborted
        self.received.append(message)
        if self._problem is not None:
            raise self._problem
        return UpdateMetadataResponse()

    def abort(self) -> None:
        self.aborted = self.closed = True


@pytest.mark.parametrize("problem", [TimeoutError(), ConnectionError("lost")])
def test_a_request_without_a_response_resets_its_connection_and_is_sent_on_another(
    problem: Exception,
) -> None:
    async def run() -> None:
        clients = [Client(problem), Client(None)]
        unused = iter(clients)

        async def connect(host: str, port: int) -> Any:
            return next(unused)

        info = broker(1)
        client = InterBrokerClient(lambda _: None, connect, request_timeout_s=30)
        channel = BrokerChannel(info, info.endpoints[0], client, lambda *_: None, 1.0)
        request = UpdateMetadataRequest(controller_epoch=3)
        assert await asyncio.wait_for(channel.send(request), 60) == UpdateMetadataResponse()
        assert [client.received for client in clients] == [[request], [request]]
        assert [client.aborted for client in clients] == [True, False]
        channel.close()
        assert clients[1].aborted

    asyncio.run(run())
