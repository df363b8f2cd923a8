"""Audited producers of three libraries on real brokers: what their audit events say, against what is there.

The oracle reads topics with confluent-kafka and knows nothing of the hooks but the two headers' text.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from itertools import count
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from ottla.client.errors import MessageTooLargeError, SerializationError
from ottla.local.cluster import LocalCluster
from ottla_pipeline.auditing.confluent import AuditedProducer
from ottla_pipeline.auditing.kafka_python import AuditedProducer as AuditedKafkaPython
from ottla_pipeline.auditing.ottla_client import AuditedProducer as AuditedOttla
from ottla_pipeline.auditing.reporting import AuditOptions
from tests.judges.one_broker import OneBroker

NUMBERS = count()
CLUSTER = {
    "zookeeper.session.timeout.ms": "6000",  # so long does a killed broker lead
    "zookeeper.connection.timeout.ms": "60000",
}
Name = tuple[str, str, int]


def read_all(bootstrap: str, topic: str) -> list[Any]:
    """Every record that a consumer of committed records gets."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "oracle",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    try:
        partitions = sorted(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        # A partition that is written to all the time has no end that it would be told of.
        ends = {
            p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=30)[1] for p in partitions
        }
        left = {partition for partition, end in ends.items() if end}
        found, until = [], time.monotonic() + 60
        while left:
            assert time.monotonic() < until, "all partitions are read to their ends"
            for message in consumer.consume(10_000, timeout=0.3):
                if message.error() is None:
                    found.append(message)
                else:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                if message.offset() >= ends[message.partition()] - (message.error() is None):
                    left.discard(message.partition())
        return found
    finally:
        consumer.close()


def name_of(message: Any, window_ms: int) -> Name:
    """Producer, window and number, by the documented text of the headers."""
    headers = dict(message.headers())
    at, number = headers["ottla-produced"].decode().split("/")
    window = int(at) // window_ms * window_ms
    return headers["ottla-producer"].decode(), str(window), int(number)


def told_by(events: list[dict[str, Any]], topic: str) -> set[Name]:
    """The names that the last event of each window lists."""
    last: dict[tuple[str, int], dict[str, Any]] = {}
    for event in sorted(events, key=lambda event: event["report"]):
        for window in event["windows"]:
            if window["topic"] == topic:
                last[event["producer"], window["start"]] = window
    return {
        (producer, str(start), number)
        for (producer, start), window in last.items()
        for first, final in window["numbers"]
        for number in range(first, final + 1)
    }


class Line:
    """A topic, and an audit topic of its own."""

    def __init__(self, bootstrap: str, replicas: int = 1) -> None:
        number = next(NUMBERS)
        self.bootstrap, self.topic, self.audit_topic = bootstrap, f"t{number}", f"audit{number}"
        admin = AdminClient({"bootstrap.servers": bootstrap})
        names = (self.topic, self.audit_topic)
        for future in admin.create_topics([NewTopic(name, 2, replicas) for name in names]).values():
            future.result(90)

    def options(self, **given: Any) -> AuditOptions:
        return AuditOptions(**{"topic": self.audit_topic, "window_s": 1.0, "interval_s": 0.5, **given})

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(message.value()) for message in read_all(self.bootstrap, self.audit_topic)]

    def names(self) -> list[Name]:
        return [name_of(message, 1000) for message in read_all(self.bootstrap, self.topic)]

    def assert_told_is_held(self, records: int) -> None:
        """The audit events name just what a consumer finds, each once, and end with a last report."""
        events, held = self.events(), self.names()
        assert len(held) == len(set(held)) == records
        assert told_by(events, self.topic) == set(held)
        last = max(events, key=lambda event: event["report"])
        assert last["final"]
        assert sorted(event["report"] for event in events) == list(range(last["report"] + 1))


def test_confluent_kafka_counts_acknowledged_records_and_keeps_their_content(broker: OneBroker) -> None:
    line = Line(broker.bootstrap)
    reported: list[Any] = []
    config = {"bootstrap.servers": line.bootstrap, "on_delivery": lambda error, _: reported.append(error)}
    with AuditedProducer(config, audit=line.options(server="web-17")) as producer:
        for number in range(500):
            producer.produce(
                line.topic, b"v%d" % number, b"k", headers={"own": b"1"}, timestamp=1_000 + number
            )
        assert producer.flush(30) == 0
        until = time.monotonic() + 60
        while not any(window["closed"] for event in line.events() for window in event["windows"]):
            assert time.monotonic() < until, "it reports a window that is over"
        for number in range(500):
            producer.produce(
                line.topic, b"w%d" % number, headers=[("own", b"1")], on_delivery=lambda *_: None
            )
    assert reported == [None] * 500
    line.assert_told_is_held(1_000)
    messages = read_all(line.bootstrap, line.topic)
    assert {dict(message.headers())["own"] for message in messages} == {b"1"}
    assert {message.timestamp()[1] for message in messages if message.key()} == set(range(1_000, 1_500))
    assert {event["server"] for event in line.events()} == {"web-17"}


def test_a_record_rejected_by_a_full_queue_gets_no_number(broker: OneBroker) -> None:
    line = Line(broker.bootstrap)
    config = {"bootstrap.servers": line.bootstrap, "queue.buffering.max.messages": 10, "linger.ms": 50}
    full, sent = 0, 0
    with AuditedProducer(config, audit=line.options()) as producer:
        while sent < 50:
            try:
                producer.produce(line.topic, b"v")
                sent += 1
            except BufferError:
                full += 1
                producer.poll(0.01)
    assert full > 0
    line.assert_told_is_held(50)
    assert (
        sum(len(w["numbers"]) > 1 for event in line.events() for w in event["windows"] if w["numbers"]) == 0
    )


@pytest.mark.parametrize("callback", [True, False])
def test_undelivered_records_are_not_counted(broker: OneBroker, callback: bool) -> None:
    line = Line(broker.bootstrap)
    config = {"bootstrap.servers": line.bootstrap, "message.max.bytes": 2_000_000}
    failed: list[Any] = []
    reported = {"on_delivery": lambda error, _: failed.append(error)} if callback else {}
    with AuditedProducer(config, audit=line.options()) as producer:
        for size in (10, 1_500_000, 20):  # the broker takes a megabyte at most
            producer.produce(line.topic, b"x" * size, **reported)
            producer.flush(30)
    assert [error is not None for error in failed] == ([False, True, False] if callback else [])
    line.assert_told_is_held(2)
    assert max(window["failed"] for event in line.events() for window in event["windows"]) == 1


def test_transactions_count_when_committed(broker: OneBroker) -> None:
    line = Line(broker.bootstrap)
    config = {"bootstrap.servers": line.bootstrap, "transactional.id": line.topic}
    with AuditedProducer(config, audit=line.options()) as producer:
        producer.init_transactions(60)
        for commit in (True, False, True):
            producer.begin_transaction()
            for number in range(10):
                producer.produce(line.topic, b"%d" % number)
            if commit:
                producer.commit_transaction(60)
            else:
                producer.flush(30)
                producer.abort_transaction(60)
    line.assert_told_is_held(20)


@pytest.mark.parametrize("transactional", [False, True])
def test_kafka_python_counts_acknowledged_records(broker: OneBroker, transactional: bool) -> None:
    line = Line(broker.bootstrap)
    more = {"transactional_id": line.topic} if transactional else {}
    with closing(
        AuditedKafkaPython(bootstrap_servers=line.bootstrap, audit=line.options(), **more)
    ) as producer:
        if transactional:
            producer.init_transactions()
            for commit in (False, True):
                producer.begin_transaction()
                for number in range(100):
                    producer.send(line.topic, b"v%d" % number, headers=[("own", b"1")])
                (producer.commit_transaction if commit else producer.abort_transaction)()
        else:
            for number in range(100):
                producer.send(line.topic, b"v%d" % number, headers=[("own", b"1")])
            producer.flush(30)
            with pytest.raises(TypeError):
                producer.send(line.topic, 17)
    line.assert_told_is_held(100)


@pytest.mark.parametrize("transactional", [False, True])
def test_our_producer_counts_acknowledged_records(broker: OneBroker, transactional: bool) -> None:
    line = Line(broker.bootstrap)
    more = {"transactional_id": line.topic} if transactional else {"max_request_size": 2_000_000}

    async def plain(producer: AuditedOttla) -> None:
        failed: list[BaseException] = []
        for size in (1, 1_500_000, 2):  # the broker takes a megabyte at most
            sent = [await producer.send(line.topic, b"x" * size, headers=[("own", b"1")]) for _ in range(2)]
            outcomes = await asyncio.gather(*sent, return_exceptions=True)
            failed += [each for each in outcomes if isinstance(each, BaseException)]
        assert [type(each) for each in failed] == [MessageTooLargeError] * 2
        with pytest.raises(SerializationError):
            await producer.send(line.topic, 17)
        reported: list[object] = []
        producer.send_nowait(line.topic, b"v", on_delivery=lambda metadata, error: reported.append(metadata))
        producer.send_nowait(line.topic, b"v")
        await producer.flush()
        assert len(reported) == 1

    async def in_transactions(producer: AuditedOttla) -> None:
        for commit in (True, False, True):
            producer.begin_transaction()
            for _ in range(3):
                await producer.send(line.topic, b"v")
            with pytest.raises(SerializationError):
                await producer.send(line.topic, 17)
            await (producer.commit_transaction() if commit else producer.abort_transaction())

    async def write() -> None:
        given = {"bootstrap_servers": line.bootstrap, **more}
        async with AuditedOttla(audit=line.options(), **given) as producer:
            await (in_transactions(producer) if transactional else plain(producer))

    asyncio.run(write())
    line.assert_told_is_held(6)


SCRIPT = """
import sys, time
from ottla_pipeline.auditing.confluent import AuditedProducer
from ottla_pipeline.auditing.ottla_client import AuditedProducer as AuditedOttla
from ottla_pipeline.auditing.reporting import AuditOptions
bootstrap, topic, audit_topic, how = sys.argv[1:]
options = AuditOptions(topic=audit_topic, window_s=1.0, interval_s=0.2)
producer = AuditedProducer({"bootstrap.servers": bootstrap}, audit=options)
for number in range(100):
    producer.produce(topic, b"v")
producer.flush(30)
print("sent", flush=True)
if how == "let go":
    del producer
while how == "wait":
    producer.produce(topic, b"v")
    producer.poll(0.01)
"""


@pytest.mark.parametrize("how", ["end", "let go"])
def test_a_program_that_ends_without_closing_its_producer_has_reported_all(
    broker: OneBroker, how: str
) -> None:
    line = Line(broker.bootstrap)
    arguments = [line.bootstrap, line.topic, line.audit_topic, how]
    subprocess.run([sys.executable, "-c", SCRIPT, *arguments], check=True, timeout=60)
    line.assert_told_is_held(100)


def test_a_killed_producer_has_no_last_report_and_no_wrong_one(broker: OneBroker) -> None:
    line = Line(broker.bootstrap)
    arguments = [line.bootstrap, line.topic, line.audit_topic, "wait"]
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, *arguments], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"sent\n"
        until = time.monotonic() + 60
        while not any(window["closed"] for event in line.events() for window in event["windows"]):
            assert time.monotonic() < until, "it reports a window that is over"
    finally:
        process.kill()
        process.communicate()
    events, held = line.events(), line.names()
    assert not any(event["final"] for event in events)
    assert sorted(event["report"] for event in events) == list(range(len(events)))
    by_window = Counter((producer, window) for producer, window, _ in held)
    for event in events:
        for window in event["windows"]:
            assert window["acknowledged"] <= by_window[event["producer"], str(window["start"])]
    closed = [w for event in events for w in event["windows"] if w["closed"]]
    assert closed
    for window in closed:
        assert window["acknowledged"] == by_window[events[0]["producer"], str(window["start"])]


def test_a_record_sent_several_times_during_leader_failures_counts_once(cluster: LocalCluster) -> None:
    line = Line(cluster.bootstrap, replicas=3)
    config = {"bootstrap.servers": line.bootstrap, "enable.idempotence": True, "linger.ms": 1}
    delivered: list[Any] = []
    victim = cluster.brokers[0]
    with AuditedProducer(config, audit=line.options()) as producer:
        until = time.monotonic() + 90
        killed = False
        while time.monotonic() < until:
            producer.produce(line.topic, b"v", on_delivery=lambda error, _: delivered.append(error))
            producer.poll(0.001)
            if not killed and len(delivered) > 500:
                assert victim.pid is not None
                os.kill(victim.pid, signal.SIGKILL)
                killed, until = True, time.monotonic() + 5
        assert producer.flush(120) == 0
    assert killed
    assert delivered
    assert not any(delivered), "an idempotent producer has all delivered"
    line.assert_told_is_held(len(delivered))
