"""Topics made because a client named them count against its quota of mutations (KIP-599)."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from ottla.metadata.config import BrokerConfig
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import CreateTopicsRequest, CreateTopicsResponse
from ottla.quotas.levels import DEFAULT, UNNAMED, QuotaEntity
from ottla.security.principals import ANONYMOUS
from ottla.server.dispatch import Request
from ottla.server.handlers.auto_create import TopicCreator
from ottla.server.throttling import ClientThrottle, broker_quotas

NOW_MS = 1_000_000


class Asker:
    """The part of a request that the quota looks at."""

    principal = ANONYMOUS
    client_id = "asker"
    version = 9


def test_partitions_that_come_of_a_name_are_paid_for_once_and_come_whatever_is_left() -> None:
    config = BrokerConfig.from_properties({"broker.id": "0", "num.partitions": "100"})
    quotas = broker_quotas(config)
    quotas.mutations.update(QuotaEntity(UNNAMED, DEFAULT), 1.0)
    created: list[str] = []
    both = asyncio.Event()

    async def create(request: CreateTopicsRequest) -> CreateTopicsResponse:
        created.append(request.topics[0].name)
        if len(created) == 2:
            both.set()
        return CreateTopicsResponse()

    async def story() -> None:
        creator = TopicCreator(config, create, ClientThrottle(quotas, lambda: NOW_MS))
        asker = cast(Request, cast(Any, Asker()))
        for name in ("a", "a", "b"):
            assert creator.request(name, 1, asker) is ErrorCode.LEADER_NOT_AVAILABLE
        await asyncio.wait_for(both.wait(), 60)

    asyncio.run(story())
    assert created == ["a", "b"]
    bucket = quotas.mutations.sensor("ANONYMOUS", "asker", NOW_MS)
    assert bucket.tokens(NOW_MS) == 11 - 200
