"""confluent-kafka, kafka-python and aiokafka on a replicated cluster: three brokers, every record on all of
them."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, closing
from typing import Any

import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewPartitions as AIOKafkaNewPartitions
from aiokafka.admin import NewTopic as AIOKafkaNewTopic
from aiokafka.admin.config_resource import ConfigResource as AIOKafkaConfigResource
from aiokafka.admin.config_resource import ConfigResourceType as AIOKafkaConfigResourceType
from aiokafka.structs import TopicPartition as AIOKafkaTopicPartition
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from ottla.local.cluster import LocalCluster
from ottla.local.processes import wait_until

PARTITIONS = 6
COUNT = 1200
VALUES = [b"%d " % n + b"x" * 100 for n in range(COUNT)]
pytestmark = pytest.mark.timeout(420)


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(name, partitions=PARTITIONS, replicas=3, min_insync_replicas="2")
    return name


def assert_each_once(values: list[bytes]) -> None:
    counts = Counter(values)
    assert sorted(counts) == sorted(VALUES)
    assert set(counts.values()) == {1}


def assert_on_all_leaders(cluster: LocalCluster, topic: str) -> None:
    """The topic has its leaders on every broker, and its records in every partition."""
    described = cluster.topic(topic)
    assert described is not None
    assert {p.leader for p in described.partitions} == set(cluster.brokers)


# --- librdkafka --------------------------------------------------------------------------------------


def produce(cluster: LocalCluster, topic: str, values: list[bytes]) -> None:
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            errors.append(error)

    settings = {"bootstrap.servers": cluster.bootstrap, "acks": "all", "enable.idempotence": True}
    producer = Producer(settings)
    for n, value in enumerate(values):
        producer.produce(topic, value, partition=n % PARTITIONS, on_delivery=delivered)
    assert producer.flush(90) == 0
    assert errors == []


def consumer_of(cluster: LocalCluster, topic: str, group: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 300,
            "session.timeout.ms": 120_000,
        }
    )
    consumer.subscribe([topic])
    return consumer


def take(consumers: list[Consumer], count: int, timeout_s: float = 120) -> list[bytes]:
    """So many values, polled from all consumers in turn."""
    got: list[bytes] = []

    def enough() -> bool:
        for consumer in consumers:
            message = consumer.poll(0.05)
            if message is not None:
                assert message.error() is None, message.error()
                value = message.value()
                assert value is not None
                got.append(value)
        return len(got) >= count

    assert wait_until(enough, timeout_s=timeout_s, poll_s=0), f"{len(got)} of {count}"
    return got


def test_a_group_of_two_of_confluent_kafka(cluster: LocalCluster, topic: str, group: str) -> None:
    assert_on_all_leaders(cluster, topic)
    with ExitStack() as closed:
        one, two = consumer_of(cluster, topic, group), consumer_of(cluster, topic, group)
        closed.callback(one.close)
        closed.callback(two.close)

        def shared() -> bool:
            assert one.poll(0.1) is None
            assert two.poll(0.1) is None
            return len(one.assignment()) == len(two.assignment()) == PARTITIONS // 2

        assert wait_until(shared, timeout_s=120)
        produce(cluster, topic, VALUES[:600])
        got = take([one, two], 600)
        one.commit(asynchronous=False)
        two.commit(asynchronous=False)
        two.close()
        assert wait_until(
            lambda: one.poll(0.1) is None and len(one.assignment()) == PARTITIONS, timeout_s=120
        )
        produce(cluster, topic, VALUES[600:])
        got += take([one], 300)
        one.commit(asynchronous=False)
        one.close()
        again = consumer_of(cluster, topic, group)
        closed.callback(again.close)
        got += take([again], COUNT - len(got))
        assert_each_once(got)


def test_confluent_kafkas_admin_client(cluster: LocalCluster) -> None:
    client, name = AdminClient({"bootstrap.servers": cluster.bootstrap}), f"a-{uuid.uuid4().hex[:8]}"

    def done(futures: dict[Any, Any]) -> None:
        for future in futures.values():
            future.result(90)

    done(client.create_topics([NewTopic(name, 3, 3, config={"retention.ms": "1234567"})]))
    done(client.create_partitions([NewPartitions(name, PARTITIONS)]))
    cluster.wait_until(lambda: cluster.fully_replicated(name, PARTITIONS), "the new partitions to be in sync")
    resource = ConfigResource(
        ResourceType.TOPIC,
        name,
        incremental_configs=[
            ConfigEntry("segment.bytes", "65536", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
        ],
    )
    done(client.incremental_alter_configs([resource]))
    for broker in cluster.brokers.values():  # each of them knows, not only the one that was asked

        def known(port: int = broker.port) -> bool:
            one = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
            described = one.describe_configs([resource])[resource].result(60)
            return (described["segment.bytes"].value, described["retention.ms"].value) == (
                "65536",
                "604800000",
            )

        assert wait_until(known, timeout_s=90)
    produce(cluster, name, VALUES[:60])
    done(client.delete_topics([name]))
    cluster.wait_until(lambda: cluster.gone(name), "the topic to be gone")


# --- kafka-python ------------------------------------------------------------------------------------


def produce_with_kafka_python(cluster: LocalCluster, topic: str, values: list[bytes]) -> None:
    with closing(
        kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all", enable_idempotence=True)
    ) as producer:
        sent = [producer.send(topic, value, partition=n % PARTITIONS) for n, value in enumerate(values)]
        for future in sent:
            future.get(90)


def kafka_python_consumer(cluster: LocalCluster, topic: str, group: str) -> kafka.KafkaConsumer:
    return kafka.KafkaConsumer(
        topic,
        bootstrap_servers=cluster.bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=300,
        session_timeout_ms=120_000,
    )


def poll_until(
    consumers: list[kafka.KafkaConsumer], done: Callable[[list[bytes]], bool], timeout_s: float = 120
) -> list[bytes]:
    """Poll each consumer in a thread of its own: a poll that ends while it waits to join joins anew."""
    got: list[bytes] = []
    enough = threading.Event()

    def keep_polling(consumer: kafka.KafkaConsumer) -> None:
        while not enough.is_set():
            for records in consumer.poll(timeout_ms=1000).values():
                got.extend(record.value for record in records)

    with ThreadPoolExecutor(len(consumers)) as threads:
        polling = [threads.submit(keep_polling, consumer) for consumer in consumers]
        reached = wait_until(
            lambda: done(got) or any(future.done() for future in polling), timeout_s=timeout_s
        )
        enough.set()
    for future in polling:
        future.result()
    assert reached, f"{len(got)} records came"
    return got


def test_a_group_of_two_of_kafka_python(cluster: LocalCluster, topic: str, group: str) -> None:
    def shared(consumers: list[kafka.KafkaConsumer]) -> bool:
        return all(len(c.assignment()) == PARTITIONS // len(consumers) for c in consumers)

    with ExitStack() as closed:
        one = closed.enter_context(closing(kafka_python_consumer(cluster, topic, group)))
        two = closed.enter_context(closing(kafka_python_consumer(cluster, topic, group)))
        assert poll_until([one, two], lambda _: shared([one, two])) == []
        produce_with_kafka_python(cluster, topic, VALUES[:600])
        got = poll_until([one, two], lambda values: len(values) >= 600)
        one.commit()
        two.commit()
        two.close()
        assert poll_until([one], lambda _: shared([one])) == []
        produce_with_kafka_python(cluster, topic, VALUES[600:])
        got += poll_until([one], lambda values: len(values) >= 300)
        one.commit()
        one.close()
        again = closed.enter_context(closing(kafka_python_consumer(cluster, topic, group)))
        if len(got) < COUNT:
            got += poll_until([again], lambda values: len(got) + len(values) >= COUNT)
        assert_each_once(got)


def test_kafka_pythons_admin_client(cluster: LocalCluster) -> None:
    name = f"a-{uuid.uuid4().hex[:8]}"
    with closing(kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap)) as client:
        client.create_topics([kafka.admin.NewTopic(name, 3, 3)])
        client.create_partitions({name: kafka.admin.NewPartitions(PARTITIONS)})
        cluster.wait_until(
            lambda: cluster.fully_replicated(name, PARTITIONS), "the new partitions to be in sync"
        )
        resource = kafka.admin.ConfigResource(
            kafka.admin.ConfigResourceType.TOPIC, name, configs={"max.message.bytes": "70000"}
        )
        client.alter_configs([resource])

        def limit() -> str | None:
            configs = cluster.admin(lambda admin: admin.describe_topic_configs([name]))
            return configs[name]["max.message.bytes"].value

        assert wait_until(lambda: limit() == "70000", timeout_s=90)
        client.delete_topics([name])
    cluster.wait_until(lambda: cluster.gone(name), "the topic to be gone")


# --- aiokafka ----------------------------------------------------------------------------------------


async def produce_with_aiokafka(cluster: LocalCluster, topic: str, values: list[bytes]) -> None:
    async with AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap, acks="all", enable_idempotence=True, linger_ms=5
    ) as producer:
        sent = [await producer.send(topic, value, partition=n % PARTITIONS) for n, value in enumerate(values)]
        await asyncio.gather(*sent)


def aiokafka_consumer(cluster: LocalCluster, topic: str, group: str) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        topic,
        bootstrap_servers=cluster.bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=300,
        session_timeout_ms=120_000,
    )


async def take_with_aiokafka(consumers: list[AIOKafkaConsumer], count: int) -> list[bytes]:
    got: list[bytes] = []
    async with asyncio.timeout(120):
        while len(got) < count:
            for consumer in consumers:
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    got.extend(record.value for record in records)
    return got


def test_a_group_of_two_of_aiokafka(cluster: LocalCluster, topic: str, group: str) -> None:
    async def until_shared(consumers: list[AIOKafkaConsumer]) -> None:
        async with asyncio.timeout(120):
            while any(len(c.assignment()) != PARTITIONS // len(consumers) for c in consumers):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def scenario() -> list[bytes]:
        async with AsyncExitStack() as stopped:
            one, two = aiokafka_consumer(cluster, topic, group), aiokafka_consumer(cluster, topic, group)
            await stopped.enter_async_context(one)
            await two.start()
            stopped.push_async_callback(two.stop)
            await until_shared([one, two])
            await produce_with_aiokafka(cluster, topic, VALUES[:600])
            got = await take_with_aiokafka([one, two], 600)
            await one.commit()
            await two.commit()
            await two.stop()
            await until_shared([one])
            await produce_with_aiokafka(cluster, topic, VALUES[600:])
            got += await take_with_aiokafka([one], 300)
            await one.commit()
            await one.stop()
            again = await stopped.enter_async_context(aiokafka_consumer(cluster, topic, group))
            got += await take_with_aiokafka([again], COUNT - len(got))
            positions = [await again.position(AIOKafkaTopicPartition(topic, p)) for p in range(PARTITIONS)]
            assert positions == [COUNT // PARTITIONS] * PARTITIONS
            return got

    assert_each_once(asyncio.run(scenario()))


def test_aiokafkas_admin_client(cluster: LocalCluster) -> None:
    name = f"a-{uuid.uuid4().hex[:8]}"

    config = {"max.message.bytes": "70000"}

    def until_replicated() -> None:
        cluster.wait_until(lambda: cluster.fully_replicated(name, PARTITIONS), "all brokers to know it")

    async def change() -> None:
        client = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        await client.start()
        try:
            await client.create_topics([AIOKafkaNewTopic(name, 3, 3, topic_configs=config)])
            await client.create_partitions({name: AIOKafkaNewPartitions(PARTITIONS)})
            await asyncio.to_thread(until_replicated)
            resource = AIOKafkaConfigResource(AIOKafkaConfigResourceType.TOPIC, name)
            (described,) = await client.describe_configs([resource])
            settings = {row[0]: row[1] for row in described.resources[0][4]}
            assert settings["max.message.bytes"] == "70000"
            # It knows AlterConfigs only, which replaces all that was set.
            resource.configs = {"retention.ms": "123456"}
            (altered,) = await client.alter_configs([resource])
            assert altered.resources[0][0] == 0
        finally:
            await client.close()

    async def delete() -> None:
        client = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        await client.start()
        try:
            await client.delete_topics([name])
        finally:
            await client.close()

    asyncio.run(change())

    def settings() -> tuple[str | None, str | None]:
        found = cluster.admin(lambda admin: admin.describe_topic_configs([name]))[name]
        return found["max.message.bytes"].value, found["retention.ms"].value

    assert wait_until(lambda: settings() == ("1048588", "123456"), timeout_s=90)
    asyncio.run(delete())
    cluster.wait_until(lambda: cluster.gone(name), "the topic to be gone")
