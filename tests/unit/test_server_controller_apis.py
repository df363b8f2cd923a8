"""Admin requests that the controller serves, in the versions that other brokers and old clients send."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from ottla.protocol import codec
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode
from ottla.server.handlers.admin.controller_apis import ControllerApisHandler


class NoController:
    async def elect_leaders(self, message: m.ElectLeadersRequest) -> m.ElectLeadersResponse:
        return m.ElectLeadersResponse(error_code=ErrorCode.NOT_CONTROLLER)


def test_an_error_of_the_controller_is_that_of_each_partition_in_version_0_of_elect_leaders() -> None:
    handler = ControllerApisHandler(cast(Any, NoController()), cast(Any, None))
    topic = m.ElectLeadersRequest.TopicPartitions(topic="t", partitions=[0, 1])
    for topics, expected in ((None, []), ([topic], [ErrorCode.NOT_CONTROLLER] * 2)):
        message = m.ElectLeadersRequest(topic_partitions=topics)
        request = SimpleNamespace(version=0, decode=lambda cls, message=message: message)
        response = asyncio.run(handler.elect_leaders(cast(Any, request)))
        codec.encode(response, 0)
        found = [
            row.error_code for each in response.replica_election_results for row in each.partition_result
        ]
        assert found == expected
