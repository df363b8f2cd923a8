"""The admin client with brokers of Kafka 2.1: requests about many items, in versions that carry one."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from ottla.client import errors
from ottla.client.admin.committed_offsets import list_group_offsets
from ottla.client.admin.fan_out import RetryPolicy
from ottla.client.admin.network import AdminNetwork
from ottla.client.admin_types import Node, OffsetToCommit, TopicPartition
from ottla.client.routing import Brokers
from ottla.protocol import codec
from ottla.protocol import messages as m
from ottla.protocol.errors import UnencodableMessage
from ottla.protocol.types import Message

NODE = Node(3, "h", 9092)
VERSIONS = {m.FindCoordinatorRequest: 2, m.OffsetFetchRequest: 5}
"""The newest versions of Kafka 2.1."""


class OldBrokers:
    """One broker that coordinates all groups; every message passes through its bytes in the old version."""

    timeout_ms = 1000

    def __init__(self) -> None:
        self.asked: list[Message] = []

    async def version_of(self, node: Node, api_key: int) -> int:
        return 0

    async def any(self, request: Message, version: int | None = None) -> Any:
        return await self.to(NODE, request)

    async def to(self, node: Node, request: Message) -> Any:
        version = VERSIONS[type(request)]  # type: ignore[index]
        heard = codec.decode(type(request), version, codec.encode(request, version))
        self.asked.append(heard)
        answer = self._answer(heard)
        return codec.decode(type(answer), version, codec.encode(answer, version))

    def _answer(self, request: Any) -> Message:
        if isinstance(request, m.FindCoordinatorRequest):
            code = 30 if request.key == "secret" else 0
            return m.FindCoordinatorResponse(
                error_code=code, error_message=None, node_id=3, host="h", port=9092
            )
        response = m.OffsetFetchResponse
        if request.group_id == "broken":
            return response(error_code=16)
        partition = response.OffsetFetchResponsePartition(
            partition_index=1, committed_offset=7, committed_leader_epoch=2, metadata="m", error_code=0
        )
        return response(topics=[response.OffsetFetchResponseTopic(name="t", partitions=[partition])])


def offsets(brokers: OldBrokers, groups: dict[str, Any], **options: Any) -> Any:
    policy = RetryPolicy(
        timeout_s=5, retries=0, backoff_ms=1, backoff_max_ms=1, uniform=lambda least, most: least
    )
    network = AdminNetwork(cast(Brokers, brokers), policy)
    return asyncio.run(list_group_offsets(network, groups, **options))


def test_groups_are_looked_up_and_asked_for_one_by_one() -> None:
    brokers = OldBrokers()
    found = offsets(brokers, {"a": None, "b": [("t", 1)], "secret": None, "broken": None})
    committed = {TopicPartition("t", 1): OffsetToCommit(7, "m", 2)}
    assert dict(found) == {"a": committed, "b": committed}
    assert isinstance(found.errors["secret"], errors.GroupAuthorizationFailedError)
    assert isinstance(found.errors["broken"], errors.NotCoordinatorError)
    fetches = [each for each in brokers.asked if isinstance(each, m.OffsetFetchRequest)]
    assert [(each.group_id, each.topics is None) for each in fetches] == [
        ("a", True),
        ("b", False),
        ("broken", True),
    ]


def test_what_the_version_cannot_say_is_not_left_out() -> None:
    with pytest.raises(UnencodableMessage, match="require_stable"):
        offsets(OldBrokers(), {"a": None}, require_stable=True)
