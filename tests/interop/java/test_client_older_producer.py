"""The 0.8 Producer without keys: a random partition, kept for topic.metadata.refresh.interval.ms."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from ottla.client.admin import NewTopic, OffsetSpec
from ottla.client.blocking import AdminClient
from ottla.client.legacy import KeyedMessage, Producer
from tests.judges.one_broker import OneBroker, one_broker

pytestmark = pytest.mark.timeout(300)
PARTITIONS = 6
REFRESH_MS = 50
DEADLINE_S = 30


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneBroker]:
    with one_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="module")
def admin(broker: OneBroker) -> Iterator[AdminClient]:
    with AdminClient(bootstrap_servers=broker.bootstrap) as client:
        yield client


def make_topic(admin: AdminClient, name: str) -> None:
    admin.create_topics([NewTopic(name, PARTITIONS, 1)]).raise_first()


def used(admin: AdminClient, topic: str) -> set[int]:
    """The partitions that have messages."""
    ends = admin.list_offsets({(topic, number): OffsetSpec.LATEST for number in range(PARTITIONS)})
    return {tp.partition for tp, end in ends.items() if end.offset > 0}


def producer(broker: OneBroker, **settings: object) -> Producer:
    return Producer(metadata_broker_list=broker.bootstrap, request_required_acks=-1, **settings)


def test_messages_without_a_key_go_to_another_partition_after_each_refresh(
    broker: OneBroker, admin: AdminClient
) -> None:
    make_topic(admin, "refreshed")
    until = time.monotonic() + DEADLINE_S
    with producer(broker, topic_metadata_refresh_interval_ms=REFRESH_MS) as sending:
        while len(used(admin, "refreshed")) < PARTITIONS:
            assert time.monotonic() < until, used(admin, "refreshed")
            sending.send(KeyedMessage("refreshed", b"one"))


@pytest.mark.parametrize("refresh_ms", [600_000, -1])
def test_messages_without_a_key_stay_in_one_partition_between_refreshes(
    broker: OneBroker, admin: AdminClient, refresh_ms: int
) -> None:
    topic = f"kept{refresh_ms}"
    make_topic(admin, topic)
    with producer(broker, topic_metadata_refresh_interval_ms=refresh_ms) as sending:
        for _ in range(30):
            sending.send(KeyedMessage(topic, b"one"))
    assert len(used(admin, topic)) == 1
