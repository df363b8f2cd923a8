"""`ottla dev` and ottla.testing: three client libraries on a broker with injected faults."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import kafka
import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from kafka.errors import NotLeaderForPartitionError, TopicAuthorizationFailedError

from ottla.client import errors
from ottla.client.blocking import AdminClient
from ottla.client.core.types import TopicPartition
from ottla.testing import DevBroker, RecordsMissing

WAIT_S = 60
START_CPU_S_MAX = 5.0
"""CPU time, so that other work on the machine does not count; far more than a start takes (docs/adr/0061)."""


@pytest.fixture(scope="module")
def shared() -> Iterator[DevBroker]:
    with DevBroker() as broker:
        yield broker
        assert "Traceback" not in broker.log_tail(1000), broker.log_tail(1000)


@pytest.fixture
def broker(shared: DevBroker) -> Iterator[DevBroker]:
    yield shared
    shared.heal()


@pytest.fixture
def topic(broker: DevBroker, request: pytest.FixtureRequest) -> str:
    broker.create_topic(request.node.name, partitions=1)
    return str(request.node.name)


def confluent(broker: DevBroker, **settings: Any) -> Producer:
    return Producer(
        {"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "retry.backoff.ms": 20, **settings}
    )


def test_the_command_serves_until_sigterm_and_keeps_its_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ottla.cli.main", "dev", "--port", "0", "--data", str(tmp_path / "data")]
    for expected in ([], [b"kept"]):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline().strip()
            cpu = psutil.Process(process.pid).cpu_times()
            assert cpu.user + cpu.system < START_CPU_S_MAX
            bootstrap = line.removeprefix("ready bootstrap=")
            with kafka.KafkaConsumer(
                "orders",
                bootstrap_servers=bootstrap,
                auto_offset_reset="earliest",
                consumer_timeout_ms=WAIT_S * 1000 if expected else 50,
            ) as consumer:
                assert [record.value for record in islice(consumer, 1)] == expected
                if expected:
                    assert sum(consumer.end_offsets(consumer.assignment()).values()) == 1
            with kafka.KafkaProducer(bootstrap_servers=bootstrap) as producer:
                producer.send("orders", b"kept").get(WAIT_S)
        finally:
            process.terminate()
            process.communicate(timeout=WAIT_S)
        assert process.returncode == 0


def test_all_three_clients_write_what_the_others_read_in_groups_and_transactions(
    broker: DevBroker, topic: str
) -> None:
    with kafka.KafkaProducer(bootstrap_servers=broker.bootstrap, acks="all") as kafka_python:
        assert kafka_python.send(topic, b"1").get(WAIT_S).offset == 0

    async def by_aiokafka() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap, transactional_id=f"{topic}-1"
        ) as producer:
            async with producer.transaction():
                await producer.send_and_wait(topic, b"2", key=b"k", headers=[("h", b"v")])
            with suppress(RuntimeError):
                async with producer.transaction():
                    await producer.send_and_wait(topic, b"aborted")
                    raise RuntimeError

    asyncio.run(by_aiokafka())
    third = confluent(broker, **{"enable.idempotence": True})
    third.produce(topic, b"3")
    assert third.flush(WAIT_S) == 0

    records = broker.wait_for_records(topic, 3)
    assert [record.value for record in records] == [b"1", b"2", b"3"]
    assert (records[1].key, tuple(records[1].headers)) == (b"k", (("h", b"v"),))
    uncommitted = broker.records(topic, committed=False)
    assert [record.value for record in uncommitted] == [b"1", b"2", b"aborted", b"3"]
    with Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    ) as consumer:
        consumer.subscribe([topic])
        read: list[bytes | None] = []
        deadline = time.monotonic() + WAIT_S
        while len(read) < 3 and time.monotonic() < deadline:
            if (message := consumer.poll(0.1)) is not None:
                read.append(message.value())
    assert read == [b"1", b"2", b"3"]


def test_records_of_a_log_whose_first_are_deleted(broker: DevBroker, topic: str) -> None:
    producer = confluent(broker)
    for value in (b"one", b"two", b"three"):
        producer.produce(topic, value)
    assert producer.flush(WAIT_S) == 0
    with AdminClient(bootstrap_servers=broker.bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 2})
        assert [(record.offset, record.value) for record in broker.records(topic)] == [(2, b"three")]
        admin.delete_records({TopicPartition(topic, 0): 3})
        assert broker.records(topic) == []


def test_an_injected_error_applies_to_the_given_number_of_requests_and_a_client_retries(
    broker: DevBroker, topic: str
) -> None:
    fault = broker.fail("PRODUCE", "NOT_LEADER_OR_FOLLOWER", times=3, topic=topic)
    producer = confluent(broker)
    reports: list[Any] = []
    producer.produce(topic, b"at last", on_delivery=lambda error, _: reports.append(error))
    assert producer.flush(WAIT_S) == 0
    assert reports == [None]
    assert fault.hits == 3
    assert len(broker.wait_for_records(topic, 1)) == 1


def test_an_injected_error_is_kafkas_error_for_a_client_that_does_not_retry(
    broker: DevBroker, topic: str
) -> None:
    with kafka.KafkaProducer(
        bootstrap_servers=broker.bootstrap, retries=0, enable_idempotence=False
    ) as producer:
        with broker.fail("PRODUCE", "NOT_LEADER_OR_FOLLOWER"), pytest.raises(NotLeaderForPartitionError):
            producer.send(topic, b"refused").get(WAIT_S)
        with (
            broker.fail("PRODUCE", "TOPIC_AUTHORIZATION_FAILED"),
            pytest.raises(TopicAuthorizationFailedError),
        ):
            producer.send(topic, b"refused too").get(WAIT_S)
        assert producer.send(topic, b"taken").get(WAIT_S).offset == 0


def test_after_a_lost_response_only_an_idempotent_producer_writes_once(broker: DevBroker, topic: str) -> None:
    for idempotent in (False, True):
        fault = broker.drop("PRODUCE", after=True, topic=topic)
        producer = confluent(broker, **{"enable.idempotence": idempotent})
        producer.produce(topic, f"idempotent {idempotent}".encode())
        assert producer.flush(WAIT_S) == 0
        assert fault.hits == 1
    values = [record.value for record in broker.records(topic)]
    assert values == [b"idempotent False"] * 2 + [b"idempotent True"]


def test_a_dropped_request_was_not_done(broker: DevBroker, topic: str) -> None:
    fault = broker.drop("PRODUCE", times=2, topic=topic)
    producer = confluent(broker)
    producer.produce(topic, b"third try")
    assert producer.flush(WAIT_S) == 0
    assert fault.hits == 2
    assert [record.value for record in broker.records(topic)] == [b"third try"]


def test_injected_latency_applies_until_it_is_removed(broker: DevBroker, topic: str) -> None:
    with kafka.KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send(topic, b"0").get(WAIT_S)

        def took_s() -> float:
            began = time.monotonic()
            producer.send(topic, b"1").get(WAIT_S)
            return time.monotonic() - began

        with broker.delay("PRODUCE", 0.4, topic=topic) as fault:
            assert took_s() >= 0.4
            assert fault.hits >= 1
        with broker.delay("PRODUCE", 3600, topic=topic):
            pass
        assert took_s() < WAIT_S, "it is removed"
        with (
            broker.delay("FIND_COORDINATOR", 0.3) as fault,  # handled in a task, unlike Produce
            kafka.KafkaConsumer(topic, bootstrap_servers=broker.bootstrap, group_id=topic) as consumer,
        ):
            began = time.monotonic()
            while not consumer.assignment() and time.monotonic() - began < WAIT_S:
                consumer.poll(100)
            assert fault.hits >= 1
            assert time.monotonic() - began >= 0.3


def test_errors_of_a_coordinator_are_its_apis_own(broker: DevBroker, topic: str) -> None:
    """Of a group's JoinGroup and a producer's InitProducerId, which other handlers answer."""
    join = broker.fail("JOIN_GROUP", "COORDINATOR_LOAD_IN_PROGRESS", times=2)
    begin = broker.fail("INIT_PRODUCER_ID", "COORDINATOR_NOT_AVAILABLE", times=2)

    async def write_and_read() -> Any:
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=True) as producer:
            await producer.send_and_wait(topic, b"written")
        async with AIOKafkaConsumer(
            topic, bootstrap_servers=broker.bootstrap, group_id=topic, auto_offset_reset="earliest"
        ) as consumer:
            return await asyncio.wait_for(consumer.getone(), WAIT_S)

    assert asyncio.run(write_and_read()).value == b"written"
    assert (join.hits, begin.hits) == (2, 2)


def test_a_killed_broker_has_all_its_records_after_its_restart(broker: DevBroker, topic: str) -> None:
    producer = confluent(broker, **{"enable.idempotence": True})
    producer.produce(topic, b"before")
    assert producer.flush(WAIT_S) == 0
    broker.kill()
    producer.produce(topic, b"while it is down")
    assert producer.flush(0.3) == 1
    broker.start()
    producer.produce(topic, b"after")
    assert producer.flush(WAIT_S) == 0
    values = [record.value for record in broker.wait_for_records(topic, 3)]
    assert values == [b"before", b"while it is down", b"after"]
    broker.create_topic(f"{topic}-later")
    broker.restart()
    assert broker.records(f"{topic}-later") == []
    broker.delete_topic(f"{topic}-later")


def test_a_broker_continues_after_the_end_of_the_thread_that_started_it(
    broker: DevBroker, topic: str
) -> None:
    """As those of asyncio.to_thread, which end with the loop."""
    thread = threading.Thread(target=broker.restart)
    thread.start()
    thread.join()
    pid = broker.pid
    assert broker.records(topic) == []
    assert broker.pid == pid


def test_a_paused_broker_responds_when_it_is_resumed(broker: DevBroker, topic: str) -> None:
    with kafka.KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send(topic, b"0").get(WAIT_S)
        broker.pause()
        held = producer.send(topic, b"1")
        timer = threading.Timer(0.5, broker.resume)
        began = time.monotonic()
        timer.start()
        assert held.get(WAIT_S).offset == 1
        assert time.monotonic() - began >= 0.4
        timer.join()


def test_errors_name_the_cause(broker: DevBroker, topic: str) -> None:
    with pytest.raises(ValueError, match="api: PUT does not exist"):
        broker.fail("PUT", "NOT_LEADER_OR_FOLLOWER")
    with pytest.raises(errors.TopicAlreadyExistsError):
        broker.create_topic(topic)
    with pytest.raises(errors.UnknownTopicOrPartitionError):
        broker.records("no-such-topic")
    with pytest.raises(RecordsMissing, match=r"no-such-topic holds 0 of 1 after 0.1 s"):
        broker.wait_for_records("no-such-topic", 1, timeout_s=0.1)
