"""Auto-created topics: the controller mutation quota (KIP-599), and the limit of concurrent creations."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from ottla.metadata.config import BrokerConfig
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import CreateTopicsRequest, CreateTopicsResponse
from ottla.quotas.levels import DEFAULT, UNNAMED, QuotaEntity
from ottla.security.principals import ANONYMOUS
from ottla.server.dispatch.dispatcher import Request
from ottla.server.dispatch.throttling import ClientThrottle, broker_quotas
from ottla.server.handlers.cluster.auto_create import IN_FLIGHT_MAX, TopicCreator

NOW_MS = 1_000_000


class Peer:
    peer_host = "10.0.0.7"


class Asker:
    """The part of a request that the quota uses."""

    principal = ANONYMOUS
    client_id = "asker"
    version = 9

    def __init__(self, host: str = Peer.peer_host) -> None:
        self.connection = Peer()
        self.connection.peer_host = host


def test_auto_created_partitions_are_charged_once_and_created_over_quota_too() -> None:
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

    async def scenario() -> None:
        creator = TopicCreator(config, create, ClientThrottle(quotas, lambda: NOW_MS))
        asker = cast(Request, cast(Any, Asker()))
        for name in ("a", "a", "b"):
            assert creator.request(name, 1, asker) is ErrorCode.LEADER_NOT_AVAILABLE
        await asyncio.wait_for(both.wait(), 60)

    asyncio.run(scenario())
    assert created == ["a", "b"]
    bucket = quotas.mutations.sensor("ANONYMOUS", "asker", NOW_MS)
    assert bucket.tokens(NOW_MS) == 11 - 200


def test_the_number_of_concurrent_creations_of_a_client_is_limited() -> None:
    config = BrokerConfig.from_properties({"broker.id": "0"})
    created: list[str] = []
    release = asyncio.Event()

    async def create(request: CreateTopicsRequest) -> CreateTopicsResponse:
        created.append(request.topics[0].name)
        await release.wait()
        return CreateTopicsResponse()

    async def scenario() -> None:
        creator = TopicCreator(config, create)
        attacker = cast(Request, cast(Any, Asker()))
        for number in range(10_000):
            assert creator.request(f"t{number}", 1, attacker) is ErrorCode.LEADER_NOT_AVAILABLE
        await asyncio.sleep(0)
        assert len(created) == IN_FLIGHT_MAX
        # Another client has its own, and internal topics are made whoever names them.
        other = cast(Request, cast(Any, Asker("10.0.0.8")))
        creator.request("other", 1, other)
        creator.request("__consumer_offsets", 3, attacker)
        await asyncio.sleep(0)
        assert created[IN_FLIGHT_MAX:] == ["other", "__consumer_offsets"]
        release.set()
        for _ in range(3):
            await asyncio.sleep(0)
        creator.request("t5000", 1, attacker)
        await asyncio.sleep(0)
        assert created[-1] == "t5000"

    asyncio.run(scenario())
