"""Ottla's blocking consumer with many partitions on three brokers: every record comes, and soon, whatever the
other partitions have. What there is to read is what confluent-kafka reads. tests/unit has the same for the
asyncio consumer.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Mapping

import pytest
from confluent_kafka import OFFSET_BEGINNING, Producer
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import TopicPartition as ConfluentTopicPartition

from ottla.client import ConsumerRecord, TopicPartition, blocking
from ottla.local.cluster import LocalCluster
from ottla.testing import DevBroker

pytestmark = pytest.mark.timeout(300)

IDLE_PARTITIONS = 180
BACKLOG_PARTITIONS = 40
BACKLOG_RECORDS = 400
"""In each partition that has any, of a KiB."""
MiB = 1024 * 1024
WAIT_S = 60.0
FETCH_WAIT_S = 0.2
SOON_S = 10.0
"""A record is there in a fraction of a second; the machine may be busy."""
BACKLOGGED = [number for number in range(BACKLOG_PARTITIONS) if number % 3]
"""Not those of the first broker, which has nothing and waits."""


def create(cluster: LocalCluster, topic: str, partitions: int) -> None:
    """The first broker leads the first partition, and each third one."""
    brokers = sorted(cluster.brokers)
    cluster.create_topic(
        topic, partitions=partitions, assignment={n: [brokers[n % 3]] for n in range(partitions)}
    )


def places_of(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]


def read_with_librdkafka(bootstrap: str, places: list[TopicPartition], count: int) -> set[tuple[int, int]]:
    with ConfluentConsumer({"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex}) as consumer:
        consumer.assign([ConfluentTopicPartition(*place, OFFSET_BEGINNING) for place in places])
        found: set[tuple[int, int]] = set()
        until = time.monotonic() + WAIT_S
        while len(found) < count and time.monotonic() < until:
            for message in consumer.consume(500, 0.5):
                assert message.error() is None
                found.add((message.partition() or 0, message.offset() or 0))
    return found


def test_a_record_of_any_of_180_idle_partitions_is_returned_soon(cluster: LocalCluster) -> None:
    idle = f"idle-{uuid.uuid4().hex[:8]}"
    create(cluster, idle, IDLE_PARTITIONS)
    places = places_of(idle, IDLE_PARTITIONS)
    settings = {"bootstrap.servers": cluster.bootstrap, "auto.offset.reset": "earliest"}
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    chosen = random.Random(16).sample(places, 12)
    before = dict.fromkeys(places, 0)
    with blocking.Consumer(settings) as consumer:
        consumer.assign(places)
        for _ in range(8):  # positions are found, and all brokers are asked
            for place, records in consumer.poll(0.5).items():
                before[place] += len(records)
        for place in chosen:
            producer.produce(idle, b"x", partition=place.partition)
            assert producer.flush(30) == 0
            until = time.monotonic() + SOON_S
            found: Mapping[TopicPartition, list[ConsumerRecord]] = {}
            while not found and time.monotonic() < until:
                found = consumer.poll(0.5)
            assert [(each, len(records)) for each, records in found.items()] == [(place, 1)]
            before[place] += 1
    in_log = read_with_librdkafka(cluster.bootstrap, places, sum(before.values()))
    assert len(in_log) == sum(before.values())


def test_a_backlog_is_read_within_4_mib_while_another_broker_has_no_records(cluster: LocalCluster) -> None:
    topic = f"backlog-{uuid.uuid4().hex[:8]}"
    create(cluster, topic, BACKLOG_PARTITIONS)
    places = places_of(topic, BACKLOG_PARTITIONS)
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "auto.offset.reset": "earliest",
        "fetch.max.bytes": 4 * MiB,
    }
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 50})
    found: set[tuple[int, int]] = set()
    with blocking.Consumer(settings) as consumer:
        consumer.assign(places)
        for _ in range(8):  # positions are found, and all brokers are asked
            assert not consumer.poll(0.5)
        for number in BACKLOGGED:
            for _ in range(BACKLOG_RECORDS):
                producer.produce(topic, bytes(1000), partition=number)
                producer.poll(0)
        assert producer.flush(60) == 0
        in_log = read_with_librdkafka(cluster.bootstrap, places, len(BACKLOGGED) * BACKLOG_RECORDS)
        assert len(in_log) == len(BACKLOGGED) * BACKLOG_RECORDS
        last = time.monotonic()
        while len(found) < len(in_log) and time.monotonic() < last + SOON_S:
            for place, records in consumer.poll(0.5).items():
                found.update((place.partition, record.offset) for record in records)
                last = time.monotonic()
    assert found == in_log


def test_the_other_partitions_of_a_broker_are_fetched_while_one_is_paused() -> None:
    """While a partition with a backlog is full here, its broker is not asked for those that had no more."""
    with DevBroker() as broker:
        broker.create_topic("t", partitions=2)
        hot, other = places_of("t", 2)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.num.messages": 10})
        producer.produce("t", b"first", partition=other.partition)
        for _ in range(100):
            producer.produce("t", bytes(1000), partition=hot.partition)
        assert producer.flush(30) == 0
        settings = {
            "bootstrap.servers": broker.bootstrap,
            "auto.offset.reset": "earliest",
            "max.partition.fetch.bytes": 1000,
            "max.poll.records": 1,
            "fetch.max.wait.ms": round(FETCH_WAIT_S * 1000),
        }
        with blocking.Consumer(settings) as consumer:
            consumer.assign([hot, other])
            until = time.monotonic() + WAIT_S
            while not consumer.position(other) and time.monotonic() < until:
                consumer.poll(0.5)
            assert consumer.poll(WAIT_S).keys() == {hot}  # the first record of a batch
            fetches, before = consumer.metrics()["fetch-total"], -1.0
            while fetches > before:  # until none is on its way
                time.sleep(3 * FETCH_WAIT_S)  # that none is sent shows in nothing but time
                fetches, before = consumer.metrics()["fetch-total"], fetches
            consumer.pause(hot)
            producer.produce("t", b"second", partition=other.partition)
            assert producer.flush(30) == 0
            until = time.monotonic() + SOON_S
            found: list[bytes | None] = []
            while not found and time.monotonic() < until:
                found = [record.value for record in consumer.poll(0.5).get(other, ())]
            assert found == [b"second"]
