"""A group is rewound while Java's, librdkafka's and our consumers read in it, and a producer writes."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.client.admin import AdminClient
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode
from tests.judges.one_broker import OneBroker, one_broker
from tests.judges.rewound_groups import TO, RunningGroup, written_topic
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneBroker]:
    # As by default, a group without members waits for more of them before it shares its partitions.
    settings = {"group.initial.rebalance.delay.ms": "1000"}
    with one_broker(tmp_path_factory.mktemp("broker"), settings) as running:
        yield running


@pytest.fixture(scope="module")
def topic(broker: OneBroker) -> Iterator[str]:
    with written_topic(broker.bootstrap) as name:
        yield name


CASES = [
    ("java", "range", False),
    ("java", "cooperative-sticky", False),
    ("java", "cooperative-sticky", True),
    ("librdkafka", "range", True),
    ("librdkafka", "cooperative-sticky", False),
    ("ours", "range", False),
    ("ours", "cooperative-sticky", True),
]


@pytest.mark.parametrize(("kind", "assignor", "static"), CASES)
def test_members_continue_at_the_new_offsets(
    broker: OneBroker, topic: str, tmp_path: Path, kind: str, assignor: str, static: bool
) -> None:
    if kind == "java":
        needs_kafka_jars()
    with RunningGroup(broker.bootstrap, topic, tmp_path, kind, assignor, static=static) as group:
        group.wait_for_old()
        group.rewind()
        group.wait_for_new()
    group.check_nothing_old()
    if kind == "librdkafka":
        # They noticed by losing their partitions, not by giving them up in order.
        assert all(member.lost for member in group.members)


@pytest.mark.parametrize("kind", ["java", "librdkafka", "ours"])
def test_members_that_wait_for_a_rebalance_give_up_what_they_own(
    broker: OneBroker, topic: str, tmp_path: Path, kind: str
) -> None:
    """Cooperative members keep their partitions while they wait for JoinGroup's answer."""
    if kind == "java":
        needs_kafka_jars()
    with RunningGroup(broker.bootstrap, topic, tmp_path, kind, "cooperative-sticky", static=False) as group:
        group.wait_for_old()
        asyncio.run(rewind_in_a_rebalance(group, topic))
        group.wait_for_new()
    group.check_nothing_old()


async def rewind_in_a_rebalance(group: RunningGroup, topic: str) -> None:
    """A member that joins once and never again holds up the rebalance that another one begins."""
    name = topic.encode()
    subscription = struct.pack(f">hih{len(name)}sii", 1, 1, len(name), name, -1, 0)

    async with (
        AdminClient(bootstrap_servers=group.bootstrap) as admin,
        # A connection's requests are answered in order, and a JoinGroup is answered late.
        AdminClient(bootstrap_servers=group.bootstrap) as joining,
    ):
        node = (await admin.describe_group(group.name)).coordinator

        async def join(member_id: str = "") -> m.JoinGroupResponse:
            protocol = m.JoinGroupRequest.JoinGroupRequestProtocol
            request = m.JoinGroupRequest(
                group_id=group.name,
                session_timeout_ms=60_000,
                rebalance_timeout_ms=120_000,
                member_id=member_id,
                protocol_type="consumer",
                protocols=[protocol(name="cooperative-sticky", metadata=subscription)],
            )
            response: m.JoinGroupResponse = await joining._brokers.to(node, request)
            if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                return await join(response.member_id)
            return response

        assert not (await join()).error_code
        begins = asyncio.create_task(join())
        both = {"members": 4, "state": "PreparingRebalance"}
        async with asyncio.timeout(60):
            while True:
                found = await admin.describe_group(group.name)
                if {"members": len(found.members), "state": found.state} == both:
                    break
                await asyncio.sleep(0.05)
        # Their next heartbeats have them join; nothing shows from outside when they have.
        await asyncio.sleep(1.5)
        offsets = dict.fromkeys(group.partitions, TO)
        (await admin.alter_group_offsets(group.name, offsets, live=True)).raise_first()
        assert (await begins).error_code == ErrorCode.UNKNOWN_MEMBER_ID
