"""Clients that speak as they did to brokers of 0.8.2 to 0.10.1: kafka-python and librdkafka, pinned.

They fetch with versions 0 to 3 and produce with 0 to 2, so that every record is converted on its way in and,
whoever wrote it, on its way out.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import kafka
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.local.processes import wait_until
from tests.judges.one_broker import one_broker

COUNT = 300
CODECS = [None, "gzip", "snappy", "lz4"]
OF_KAFKA_PYTHON = [None, "gzip"]
"""The codecs that need no further packages."""
VERSIONS = [(0, 8, 2), (0, 9), (0, 10, 0), (0, 10, 1)]
FALLBACKS = ["0.8.2", "0.9.0", "0.10.0"]
VALUES = [b"value %d " % n + b"x" * 100 for n in range(COUNT)]
pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with one_broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap


@pytest.fixture(scope="module")
def written_today(bootstrap: str) -> dict[str | None, str]:
    """A topic a codec, written by a client of today, with keys and headers."""
    topics = {codec: make_topic(bootstrap) for codec in CODECS}
    for codec, topic in topics.items():
        write(bootstrap, topic, **{"compression.type": codec or "none", "batch.num.messages": 40})
    return topics


def make_topic(bootstrap: str, **configs: str) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    client = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(name, num_partitions=1, replication_factor=1, config=configs)
    client.create_topics([topic])[name].result(90)
    return name


def write(bootstrap: str, topic: str, headers: bool = True, **settings: Any) -> None:
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **settings})
    for at, value in enumerate(VALUES):
        more = {"headers": [("h", b"x")]} if headers else {}
        producer.produce(topic, value, b"k%d" % at, on_delivery=delivered, **more)
    assert producer.flush(90) == 0
    assert failures == []


def read_today(bootstrap: str, topic: str, **settings: Any) -> list[tuple[int, bytes, bytes]]:
    """(offset, key, value) of all records, by librdkafka, from a position of its own."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", **settings})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[tuple[int, bytes, bytes]] = []
    deadline = time.monotonic() + 90
    try:
        while len(found) < COUNT:
            assert time.monotonic() < deadline, f"{len(found)} of {COUNT} came"
            for message in consumer.consume(COUNT, 0.2):
                assert message.error() is None, message.error()
                found.append((message.offset(), message.key(), message.value()))
        return found
    finally:
        consumer.close()


EXPECTED = [(at, b"k%d" % at, value) for at, value in enumerate(VALUES)]


# --- kafka-python ------------------------------------------------------------------------------------


def read_with_kafka_python(
    bootstrap: str, topic: str, version: tuple[int, ...], start: int = 0, **more: Any
) -> Any:
    partition = kafka.TopicPartition(topic, 0)
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, api_version=version, group_id=None, **more)
    with closing(consumer):
        consumer.assign([partition])
        consumer.seek(partition, start)
        found: list[Any] = []

        def got_all() -> bool:
            for messages in consumer.poll(timeout_ms=200).values():
                found.extend(messages)
            return len(found) >= COUNT - start

        assert wait_until(got_all, timeout_s=90), f"{len(found)} of {COUNT - start} came"
        return found


@pytest.mark.parametrize("version", VERSIONS, ids=str)
@pytest.mark.parametrize("codec", OF_KAFKA_PYTHON, ids=str)
def test_old_kafka_python_reads_records_of_current_clients(
    bootstrap: str, written_today: dict[str | None, str], version: tuple[int, ...], codec: str | None
) -> None:
    found = read_with_kafka_python(bootstrap, written_today[codec], version)
    assert [(m.offset, m.key, m.value) for m in found] == EXPECTED
    has_timestamps = version >= (0, 10)
    assert all((m.timestamp not in (None, -1)) is has_timestamps for m in found)


@pytest.mark.parametrize("version", [(0, 8, 2), (0, 10, 0)], ids=str)
@pytest.mark.parametrize("codec", [None, "gzip"], ids=str)
def test_kafka_python_continues_in_the_middle_of_a_batch(
    bootstrap: str, written_today: dict[str | None, str], version: tuple[int, ...], codec: str | None
) -> None:
    found = read_with_kafka_python(bootstrap, written_today[codec], version, start=17)
    assert [m.offset for m in found] == list(range(17, COUNT))


@pytest.mark.parametrize("version", [(0, 8, 2), (0, 10, 1)], ids=str)
def test_kafka_python_reads_with_small_fetches(
    bootstrap: str, written_today: dict[str | None, str], version: tuple[int, ...]
) -> None:
    """Batches of 40 records have 5 KiB; converted they grow beyond what is asked for."""
    found = read_with_kafka_python(bootstrap, written_today[None], version, max_partition_fetch_bytes=6000)
    assert [(m.offset, m.value) for m in found] == [(at, value) for at, value in enumerate(VALUES)]


@pytest.mark.parametrize("version", VERSIONS, ids=str)
@pytest.mark.parametrize("codec", OF_KAFKA_PYTHON, ids=str)
def test_old_kafka_python_writes_for_current_and_old_clients(
    bootstrap: str, version: tuple[int, ...], codec: str | None
) -> None:
    topic = make_topic(bootstrap)
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap, api_version=version, compression_type=codec, linger_ms=5
    )
    with closing(producer):
        pending = [producer.send(topic, value, b"k%d" % at) for at, value in enumerate(VALUES)]
        assert [future.get(90).offset for future in pending] == list(range(COUNT))
    assert read_today(bootstrap, topic) == EXPECTED
    found = read_with_kafka_python(bootstrap, topic, version)
    assert [(m.offset, m.key, m.value) for m in found] == EXPECTED


@pytest.mark.parametrize("version", [(0, 9), (0, 10, 0), (0, 10, 1)], ids=str)
def test_kafka_python_requests_offsets_with_the_old_api(
    bootstrap: str, written_today: dict[str | None, str], version: tuple[int, ...]
) -> None:
    topic = written_today["gzip"]
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, api_version=version, group_id=None)
    with closing(consumer):
        partition = kafka.TopicPartition(topic, 0)
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: COUNT}


@pytest.mark.parametrize("version", [(0, 9), (0, 10, 1)], ids=str)
def test_a_group_of_kafka_python_continues_at_its_committed_offsets(
    bootstrap: str, version: tuple[int, ...]
) -> None:
    topic = make_topic(bootstrap)
    write(bootstrap, topic)
    group = f"g-{uuid.uuid4().hex[:8]}"
    found: list[int] = []
    for _ in range(2):
        consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            api_version=version,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        with closing(consumer):
            found += [message.offset for message in itertools.islice(consumer, COUNT // 2)]
            partition = kafka.TopicPartition(topic, 0)
            consumer.commit({partition: kafka.OffsetAndMetadata(found[-1] + 1, "", -1)})
    assert found == list(range(COUNT))


# --- librdkafka --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", FALLBACKS)
@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_old_librdkafka_reads_records_of_current_clients(
    bootstrap: str, written_today: dict[str | None, str], version: str, codec: str | None
) -> None:
    pinned = {"api.version.request": False, "broker.version.fallback": version}
    assert read_today(bootstrap, written_today[codec], **pinned) == EXPECTED


@pytest.mark.parametrize(
    ("version", "codec"),
    [("0.8.2", None), ("0.8.2", "gzip"), ("0.9.0", "snappy"), ("0.10.0", "lz4"), ("0.10.0", None)],
)
def test_old_librdkafka_writes_for_current_and_old_clients(
    bootstrap: str, version: str, codec: str | None
) -> None:
    topic = make_topic(bootstrap)
    pinned = {"api.version.request": False, "broker.version.fallback": version}
    write(bootstrap, topic, headers=False, **pinned, **{"compression.type": codec or "none"})
    assert read_today(bootstrap, topic) == EXPECTED
    assert read_today(bootstrap, topic, **pinned) == EXPECTED


def test_an_old_client_gets_errors_for_zstd_and_for_topics_without_down_conversion(bootstrap: str) -> None:
    zstd = make_topic(bootstrap)
    write(bootstrap, zstd, **{"compression.type": "zstd"})
    refusing = make_topic(bootstrap, **{"message.downconversion.enable": "false"})
    write(bootstrap, refusing)
    for topic, reason in ((zstd, "UnsupportedCompressionType"), (refusing, "UnsupportedVersion")):
        consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, api_version=(0, 10, 1), group_id=None)
        with closing(consumer):
            partition = kafka.TopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, 0)
            reported: list[str] = []

            def is_told(consumer: Any = consumer, reported: list[str] = reported) -> bool:
                try:
                    assert not consumer.poll(timeout_ms=200)
                except kafka.errors.KafkaError as error:
                    reported.append(type(error).__name__)
                return bool(reported)

            assert wait_until(is_told, timeout_s=90)
            assert reason in reported[0]
