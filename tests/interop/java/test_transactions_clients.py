"""Transactions by four producers on one broker: Kafka's, librdkafka's, aiokafka's and kafka-python's.

librdkafka reads the committed records; Kafka's log dumper reads the state log.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AIOKafkaTopicPartition
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.apache_kafka import run_tool
from ottla.local.processes import wait_until
from tests.judges.confluent_reader import read_to_end
from tests.judges.kafka_tools import run_program
from tests.judges.one_broker import one_broker
from tests.oracles import needs_kafka_jars

WAIT_S = 150
pytestmark = pytest.mark.timeout(420)


class Broker:
    def __init__(self, bootstrap: str, data: Path) -> None:
        self.bootstrap = bootstrap
        self.data = data

    def topic(self, partitions: int = 1) -> str:
        name = f"t-{uuid.uuid4().hex[:8]}"
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for made in admin.create_topics([NewTopic(name, partitions, 1)]).values():
            made.result(WAIT_S)
        return name

    def producer(self, transactional_id: str) -> Producer:
        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": transactional_id})
        producer.init_transactions(WAIT_S)
        return producer

    def values(self, topic: str, isolation: str = "read_committed", partitions: int = 1) -> list[str]:
        """All that a consumer sees, by partition and offset."""
        messages = read_to_end(
            self.bootstrap,
            [TopicPartition(topic, each, 0) for each in range(partitions)],
            {"isolation.level": isolation},
        )
        found = [(each.partition(), each.offset(), each.value().decode()) for each in messages]
        return [value for _, _, value in sorted(found)]

    def shows(self, topic: str, expected: list[str], isolation: str = "read_committed", **more: int) -> bool:
        """Whether a consumer comes to see just that: who ends a transaction does not wait for its markers."""
        return wait_until(lambda: self.values(topic, isolation, **more) == expected, timeout_s=WAIT_S)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("broker")
    with one_broker(directory) as running:
        yield Broker(running.bootstrap, directory / "data")


def test_kafkas_producers_overlap_too(broker: Broker) -> None:
    topic = broker.topic()
    needs_kafka_jars()
    run_program("Transactions", broker.bootstrap, topic, "j", "6", "decided")
    written = [f"j {who} {number} {n}" for number in range(6) for who in range(2) for n in range(3)]
    committed = [f"j {number % 2} {number} {n}" for number in range(6) for n in range(3)]
    assert sorted(broker.values(topic, "read_uncommitted")) == sorted(written)
    assert wait_until(lambda: sorted(broker.values(topic)) == sorted(committed), timeout_s=WAIT_S)


def committed_offset(broker: Broker, group: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    try:
        found: int = consumer.committed([TopicPartition(topic, 0)], WAIT_S)[0].offset
    finally:
        consumer.close()
    return found


def test_offsets_are_committed_with_the_records(broker: Broker) -> None:
    topic, group = broker.topic(2), f"g-{uuid.uuid4().hex[:8]}"
    with Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group}) as member:
        producer = broker.producer(f"{topic}-offsets")
        for number, commit in enumerate((True, False, True, False)):
            producer.begin_transaction()
            for partition in range(2):
                producer.produce(topic, f"{number} {partition}", partition=partition)
            offsets = [TopicPartition(topic, 0, 10 * (number + 1))]
            producer.send_offsets_to_transaction(offsets, member.consumer_group_metadata(), WAIT_S)
            if commit:
                producer.commit_transaction(WAIT_S)
            else:
                producer.abort_transaction(WAIT_S)
            # What the marker brings is there once no offset is pending, which librdkafka waits for.
            assert committed_offset(broker, group, topic) == (10 * (number + 1) if commit else 10 * number)
    assert broker.shows(topic, ["0 0", "2 0", "0 1", "2 1"], partitions=2)


def test_a_second_producer_fences_the_first(broker: Broker) -> None:
    topic = broker.topic()
    first = broker.producer(f"{topic}-fenced")
    first.begin_transaction()
    first.produce(topic, "lost")
    assert first.flush(WAIT_S) == 0
    second = broker.producer(f"{topic}-fenced")
    with pytest.raises(KafkaException) as refused:
        first.commit_transaction(WAIT_S)
    assert refused.value.args[0].fatal(), "who is fenced cannot go on"
    second.begin_transaction()
    second.produce(topic, "kept")
    second.commit_transaction(WAIT_S)
    assert broker.shows(topic, ["kept"])
    assert broker.values(topic, "read_uncommitted") == ["lost", "kept"]


def test_a_reader_waits_for_the_open_transaction(broker: Broker) -> None:
    topic = broker.topic()
    producer = broker.producer(f"{topic}-open")
    producer.begin_transaction()
    producer.produce(topic, "in time")
    assert producer.flush(WAIT_S) == 0
    plain = Producer({"bootstrap.servers": broker.bootstrap})
    plain.produce(topic, "behind it")
    assert plain.flush(WAIT_S) == 0
    assert broker.values(topic, "read_uncommitted") == ["in time", "behind it"]
    assert broker.values(topic) == []
    producer.commit_transaction(WAIT_S)
    assert broker.shows(topic, ["in time", "behind it"])


def test_aiokafka(broker: Broker) -> None:
    topic, group = broker.topic(), f"g-{uuid.uuid4().hex[:8]}"
    partition = AIOKafkaTopicPartition(topic, 0)

    async def scenario() -> int:
        async with AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap, transactional_id=f"{topic}-aiokafka"
        ) as producer:
            async with producer.transaction():
                await producer.send_and_wait(topic, b"one")
                await producer.send_offsets_to_transaction({partition: 1}, group)
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"two")
            await producer.send_offsets_to_transaction({partition: 2}, group)
            await producer.abort_transaction()
            async with producer.transaction():
                await producer.send_and_wait(topic, b"three")
        async with AIOKafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            group_id=group,
        ) as consumer:
            seen = [await consumer.getone(partition)]
            assert [each.value for each in seen] == [b"three"], "the group stands where it committed last"
            committed: int = await consumer.committed(partition)
            return committed

    assert asyncio.run(asyncio.wait_for(scenario(), WAIT_S)) == 1
    assert broker.shows(topic, ["one", "three"])


def test_kafka_python(broker: Broker) -> None:
    topic = broker.topic()
    with kafka.KafkaProducer(
        bootstrap_servers=broker.bootstrap, transactional_id=f"{topic}-python", max_block_ms=WAIT_S * 1000
    ) as producer:
        producer.init_transactions()
        for number, end in enumerate((producer.commit_transaction, producer.abort_transaction) * 2):
            producer.begin_transaction()
            for n in range(3):
                producer.send(topic, f"{number} {n}".encode())
            end()
    assert broker.shows(topic, ["0 0", "0 1", "0 2", "2 0", "2 1", "2 2"])


def test_kafkas_dumper_reads_the_state_log(broker: Broker) -> None:
    needs_kafka_jars()
    topic = broker.topic()
    producer = broker.producer("dumped")
    producer.begin_transaction()
    producer.produce(topic, "x")
    producer.commit_transaction(WAIT_S)

    def dumped() -> str:
        logs = sorted(broker.data.glob("__transaction_state-*/*.log"))
        files = ",".join(str(log) for log in logs)
        dumper = ("kafka.tools.DumpLogSegments", "--transaction-log-decoder", "--files", files)
        return run_tool(dumper[0], dumper[1:]).stdout

    states = []

    def all_are_there() -> bool:
        lines = [line for line in dumped().splitlines() if "transactionalId=dumped" in line]
        states[:] = [line.split("state=")[1].split(",")[0] for line in lines]
        return "CompleteCommit" in states

    assert wait_until(all_are_there, timeout_s=WAIT_S)
    assert states == ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"]
