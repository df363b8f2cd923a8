"""confluent-kafka, kafka-python and aiokafka against one broker over the in-memory store."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from typing import Any

import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from ottla.local.processes import wait_until
from tests.judges.one_broker import one_broker

COUNT = 300
pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with one_broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    create(bootstrap, NewTopic(name, num_partitions=1, replication_factor=1))
    return name


def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def create(bootstrap: str, *topics: NewTopic) -> None:
    client = admin(bootstrap)  # it has to outlive its futures
    for future in client.create_topics(list(topics)).values():
        future.result(90)


def values(count: int = COUNT) -> list[bytes]:
    return [b"value %d " % i + b"x" * 100 for i in range(count)]


def produce(bootstrap: str, topic: str, payloads: list[bytes], **settings: Any) -> None:
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            errors.append(error)

    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    for payload in payloads:
        producer.produce(topic, payload, on_delivery=delivered)
    assert producer.flush(90) == 0
    assert errors == []


def consume(bootstrap: str, topic: str, count: int, partition: int = 0, **settings: Any) -> list[bytes]:
    """From the beginning of a partition, without a group."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", **settings})
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    try:
        return [m.value() for m in take(consumer, count)]
    finally:
        consumer.close()


def take(consumer: Consumer, count: int, timeout_s: float = 90) -> list[Message]:
    messages: list[Message] = []
    deadline = time.monotonic() + timeout_s
    while len(messages) < count and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None:
            assert message.error() is None, message.error()
            messages.append(message)
    assert len(messages) == count, f"{len(messages)} of {count} came"
    return messages


# --- librdkafka --------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_confluent_kafka_round_trips(bootstrap: str, topic: str, codec: str, acks: str) -> None:
    produce(bootstrap, topic, values(), **{"compression.type": codec, "acks": acks, "linger.ms": 20})
    assert consume(bootstrap, topic, COUNT) == values()


def test_an_idempotent_producer_keeps_the_order(bootstrap: str, topic: str) -> None:
    settings = {"enable.idempotence": True, "batch.num.messages": 7, "linger.ms": 1}
    produce(bootstrap, topic, values(2000), **settings)
    assert consume(bootstrap, topic, 2000) == values(2000)


def test_headers_keys_and_timestamps_make_a_round_trip(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(
        topic, b"v", b"k", timestamp=1_700_000_000_123, headers=[("a", b"1"), ("a", b"2"), ("empty", None)]
    )
    producer.produce(topic, None, b"tombstone")
    assert producer.flush(90) == 0
    with Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"}) as consumer:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        first, second = take(consumer, 2)
    assert (first.key(), first.value(), first.timestamp()[1]) == (b"k", b"v", 1_700_000_000_123)
    assert first.headers() == [("a", b"1"), ("a", b"2"), ("empty", None)]
    assert (second.key(), second.value()) == (b"tombstone", None)


def test_a_batch_larger_than_the_fetch_limits_is_returned(bootstrap: str, topic: str) -> None:
    payloads = [bytes([65 + i]) * 300_000 for i in range(5)]
    produce(bootstrap, topic, payloads, **{"linger.ms": 0})
    limits = {"fetch.message.max.bytes": 1000, "fetch.max.bytes": 1000, "message.max.bytes": 1000}
    assert consume(bootstrap, topic, 5, **limits) == payloads


def test_a_too_large_record_is_rejected_and_the_connection_stays_open(bootstrap: str, topic: str) -> None:
    errors: list[int] = []
    producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 5_000_000})
    producer.produce(
        topic, b"x" * 2_000_000, on_delivery=lambda e, _: errors.append(0 if e is None else e.code())
    )
    assert producer.flush(90) == 0
    assert errors == [KafkaError.MSG_SIZE_TOO_LARGE]
    producer.produce(topic, b"small")
    assert producer.flush(90) == 0
    assert consume(bootstrap, topic, 1) == [b"small"]


def test_a_waiting_consumer_gets_a_record_long_before_its_poll_ends(bootstrap: str, topic: str) -> None:
    patient = {"fetch.wait.max.ms": 290_000, "socket.timeout.ms": 300_000}  # longer than `take` waits
    with Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", **patient}) as consumer:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        assert consumer.poll(0.5) is None
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        producer.produce(topic, b"now")
        producer.flush(90)
        assert [m.value() for m in take(consumer, 1)] == [b"now"]


def test_offsets_are_found_by_time(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for i in range(10):
        producer.produce(topic, b"%d" % i, timestamp=1_700_000_000_000 + i * 1000)
        assert producer.flush(90) == 0
    with Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"}) as consumer:
        asked = [1_600_000_000_000, 1_700_000_003_500, 1_700_000_009_000, 1_800_000_000_000]
        found = [
            consumer.offsets_for_times([TopicPartition(topic, 0, at)], timeout=60)[0].offset for at in asked
        ]
        assert found[:3] == [0, 4, 9]
        assert found[3] < 0 or found[3] == 10, "beyond the end"
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=60) == (0, 10)


def test_an_unknown_topic_is_created_by_its_first_producer(bootstrap: str) -> None:
    name = f"auto-{uuid.uuid4().hex[:8]}"
    produce(bootstrap, name, [b"first"])
    assert len(admin(bootstrap).list_topics(name, timeout=60).topics[name].partitions) == 2


def test_an_illegal_topic_name_is_refused(bootstrap: str) -> None:
    metadata = admin(bootstrap).list_topics("no/slash", timeout=60)
    error = metadata.topics["no/slash"].error
    assert error is not None
    assert error.code() == KafkaError.TOPIC_EXCEPTION


# --- groups ------------------------------------------------------------------------------------------


def test_a_group_shares_partitions_commits_and_continues_there(bootstrap: str) -> None:
    topic, group = f"g-{uuid.uuid4().hex[:8]}", f"group-{uuid.uuid4().hex[:8]}"
    create(bootstrap, NewTopic(topic, num_partitions=4, replication_factor=1))
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    with Consumer(settings) as one:
        one.subscribe([topic])
        with Consumer(settings) as two:
            two.subscribe([topic])

            def shared() -> bool:
                one.poll(0.1)
                two.poll(0.1)
                return len(one.assignment()) == 2 and len(two.assignment()) == 2

            assert wait_until(shared, timeout_s=90)
            assert {p.partition for c in (one, two) for p in c.assignment()} == {0, 1, 2, 3}

            producer = Producer({"bootstrap.servers": bootstrap})
            for i in range(400):
                producer.produce(topic, b"%d" % i, partition=i % 4)
            assert producer.flush(90) == 0
            got = {m.value() for c in (one, two) for m in take(c, 200)}
            assert got == {b"%d" % i for i in range(400)}
            for consumer in (one, two):
                consumer.commit(asynchronous=False)
        assert wait_until(lambda: one.poll(0.1) is None and len(one.assignment()) == 4, timeout_s=90)

    client = admin(bootstrap)
    listed = {g.group_id for g in client.list_consumer_groups().result(60).valid}
    assert group in listed
    with Consumer(settings) as again:
        committed = again.committed([TopicPartition(topic, p) for p in range(4)], timeout=60)
        assert [p.offset for p in committed] == [100] * 4
        again.subscribe([topic])
        assert wait_until(lambda: again.poll(0.1) is None and len(again.assignment()) == 4, timeout_s=90)
        producer.produce(topic, b"new", partition=2)
        producer.flush(90)
        assert [m.value() for m in take(again, 1)] == [b"new"]


# --- administration ----------------------------------------------------------------------------------


def test_topics_and_their_settings_are_administered(bootstrap: str) -> None:
    client, name = admin(bootstrap), f"a-{uuid.uuid4().hex[:8]}"
    create(bootstrap, NewTopic(name, 1, 1, config={"retention.ms": "123456"}))
    with pytest.raises(Exception, match="TOPIC_ALREADY_EXISTS"):
        create(bootstrap, NewTopic(name, 1, 1))
    with pytest.raises(Exception, match="INVALID_REPLICATION_FACTOR"):
        create(bootstrap, NewTopic(name + "x", 1, 3))

    def settings() -> dict[str, ConfigEntry]:
        resource = ConfigResource(ResourceType.TOPIC, name)
        found: dict[str, ConfigEntry] = client.describe_configs([resource])[resource].result(60)
        return found

    assert (settings()["retention.ms"].value, settings()["retention.ms"].is_default) == ("123456", False)
    assert settings()["segment.bytes"].value == "1073741824"

    def alter(setting: str, value: str | None, operation: AlterConfigOpType) -> None:
        change = ConfigEntry(setting, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[change])
        for future in client.incremental_alter_configs([resource]).values():
            future.result(60)

    alter("max.message.bytes", "5000", AlterConfigOpType.SET)
    alter("cleanup.policy", "compact", AlterConfigOpType.APPEND)
    alter("retention.ms", None, AlterConfigOpType.DELETE)
    now = settings()
    assert now["max.message.bytes"].value == "5000"
    assert now["cleanup.policy"].value == "delete,compact"
    assert now["retention.ms"].value == "604800000"
    with pytest.raises(Exception, match="INVALID_CONFIG"):
        alter("cleanup.policy", "shred", AlterConfigOpType.SET)
    errors: list[int] = []

    def refused() -> bool:
        errors.clear()
        producer = Producer({"bootstrap.servers": bootstrap})
        producer.produce(
            name, b"x" * 6000, on_delivery=lambda e, _: errors.append(0 if e is None else e.code())
        )
        return producer.flush(90) == 0 and errors == [KafkaError.MSG_SIZE_TOO_LARGE]

    assert wait_until(refused, timeout_s=90), f"the new limit is in force: {errors}"

    for future in client.create_partitions([NewPartitions(name, 3)]).values():
        future.result(60)
    assert wait_until(
        lambda: len(client.list_topics(name, timeout=60).topics[name].partitions) == 3, timeout_s=90
    )
    for future in client.delete_topics([name]).values():
        future.result(60)
    assert wait_until(lambda: name not in client.list_topics(timeout=60).topics, timeout_s=90)


def test_the_broker_describes_itself_and_the_cluster(bootstrap: str) -> None:
    client = admin(bootstrap)
    resource = ConfigResource(ResourceType.BROKER, "0")
    settings = client.describe_configs([resource])[resource].result(60)
    assert settings["num.partitions"].value == "2"
    assert settings["inter.broker.protocol.version"].value == "3.9-IV0"
    assert settings["delete.topic.enable"].value == "true"
    cluster = client.describe_cluster().result(60)
    assert len(cluster.cluster_id) == 22
    assert [node.id for node in cluster.nodes] == [0]
    assert cluster.controller.id == 0
    other = ConfigResource(ResourceType.BROKER, "7")
    future = client.describe_configs([other], broker=0)[other]
    with pytest.raises(Exception, match="Unexpected broker id"):
        future.result(60)


# --- kafka-python ------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [0, 1, "all"])
@pytest.mark.parametrize("codec", [None, "gzip"])
def test_kafka_python_round_trips(bootstrap: str, topic: str, codec: str | None, acks: int | str) -> None:
    with kafka.KafkaProducer(
        bootstrap_servers=bootstrap, acks=acks, compression_type=codec, enable_idempotence=acks == "all"
    ) as producer:
        for value in values():
            producer.send(topic, value)
        producer.flush(90)
    assert read_with_kafka_python(bootstrap, topic, COUNT) == values()


def read_with_kafka_python(bootstrap: str, topic: str, count: int, **settings: Any) -> list[bytes]:
    with kafka.KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        consumer_timeout_ms=90_000,
        **settings,
    ) as consumer:
        got: list[bytes] = []
        for record in consumer:
            got.append(record.value)
            if len(got) == count:
                break
    return got


def test_a_group_of_kafka_python(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, values())
    group = {"group_id": f"kp-{uuid.uuid4().hex[:8]}"}
    assert read_with_kafka_python(bootstrap, topic, COUNT, **group) == values()
    produce(bootstrap, topic, [b"later"])
    assert read_with_kafka_python(bootstrap, topic, 1, **group) == [b"later"]


@pytest.mark.parametrize("version", [(0, 9), (0, 10), (0, 11)])
def test_producers_of_the_old_message_formats_are_converted(
    bootstrap: str, topic: str, version: tuple[int, int]
) -> None:
    with kafka.KafkaProducer(
        bootstrap_servers=bootstrap, api_version=version, compression_type="gzip"
    ) as producer:
        for value in values():
            producer.send(topic, value)
        producer.flush(90)
    assert consume(bootstrap, topic, COUNT) == values()


# --- aiokafka ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [0, 1, "all"])
@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_aiokafka_round_trips(bootstrap: str, topic: str, codec: str | None, acks: int | str) -> None:
    async def scenario() -> list[bytes]:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            acks=acks,
            compression_type=codec,
            enable_idempotence=acks == "all",
            linger_ms=10,
        )
        async with producer:
            await asyncio.gather(*[await producer.send(topic, value) for value in values()])
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            auto_offset_reset="earliest",
            group_id=f"aio-{uuid.uuid4().hex[:8]}",
        )
        got: list[bytes] = []
        async with consumer, asyncio.timeout(90):
            async for record in consumer:
                got.append(record.value)
                if len(got) == COUNT:
                    break
        return got

    assert asyncio.run(scenario()) == values()
