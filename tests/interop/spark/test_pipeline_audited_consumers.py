"""Audited consumers on a real broker: what their audit events say, against what they processed.

The oracle reads topics with confluent-kafka and parses the events by the documented format. Java clients,
whose interceptors follow the same documentation, count beside ours; the audit job on Spark compares them all.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from base64 import b64decode
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from pyspark.sql import SparkSession

from ottla.client.core.types import ConsumerRecord, TopicPartition
from ottla.local.processes import wait_until
from ottla_pipeline.auditing.confluent import AuditedProducer
from ottla_pipeline.auditing.ottla_consumer import AuditedConsumer, BlockingAuditedConsumer
from ottla_pipeline.completeness.config import AuditConfig
from ottla_pipeline.config.common import validate
from ottla_pipeline.jobs import audit, audit_report
from ottla_pipeline.running import JobContext
from tests.interop.clients.test_pipeline_audited_clients import Line, Name, name_of, read_all
from tests.judges.kafka_tools import run_program
from tests.judges.lake_line import SMALL
from tests.judges.one_broker import OneBroker
from tests.oracles import needs_kafka_jars

SPARK = (audit.SESSION, SMALL)
WINDOW_MS = 1000
pytestmark = pytest.mark.timeout(600)


def send(line: Line, records: int, beside: str | None = None) -> None:
    """`beside`: a topic that gets a record from the same producer."""
    config = {"bootstrap.servers": line.bootstrap, "linger.ms": 5}
    with AuditedProducer(config, audit=line.options(server="web-17")) as producer:
        for number in range(records):
            producer.produce(line.topic, b"v%d" % number, b"k%d" % number)
            producer.poll(0)
        if beside is not None:
            producer.produce(beside, b"v")


def name(record: ConsumerRecord) -> Name:
    headers = dict(record.headers)
    at, number = (headers["ottla-produced"] or b"").decode().split("/")
    return (headers["ottla-producer"] or b"").decode(), str(int(at) // WINDOW_MS * WINDOW_MS), int(number)


class ConsumerEvents:
    """What the audit events of consumers say: each name as often as events list it, and all records."""

    def __init__(self, line: Line) -> None:
        self.events = [event for event in line.events() if "consumer" in event]
        unique = {(event["consumer"], event["report"]): event for event in self.events}
        self.names: Counter[Name] = Counter()
        self.received = self.rejected = 0
        for event in unique.values():
            for window in event["windows"]:
                assert window["topic"] == line.topic
                self.received += window["received"]
                self.rejected += window["rejected"]
                for j, byte in enumerate(b64decode(window["numbers"])):
                    for i in range(8):
                        if byte >> i & 1:
                            number = window["first"] + 8 * j + i
                            self.names[window["producer"], str(window["start"]), number] += 1

    def assert_whole(self, held: list[Name], *, consumers: int = 1) -> None:
        """Each record once, and a last report of each consumer after all others."""
        assert self.names == Counter(held)
        assert self.received == len(held)
        last = {event["consumer"]: event for event in sorted(self.events, key=lambda event: event["report"])}
        assert len(last) == consumers
        assert all(event["final"] for event in last.values())
        for consumer, event in last.items():
            reports = [each["report"] for each in self.events if each["consumer"] == consumer]
            assert set(reports) == set(range(event["report"] + 1))


def settings(line: Line, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": line.bootstrap,
        "group.id": line.topic,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        **more,
    }


@pytest.mark.parametrize("commits", ["commit", "commit_nowait"])
def test_a_commit_follows_the_acknowledgement_of_its_counts(broker: OneBroker, commits: str) -> None:
    line = Line(broker.bootstrap)
    send(line, 100)
    partitions = [TopicPartition(line.topic, 0), TopicPartition(line.topic, 1)]
    seen: list[tuple[int, int]] = []

    class OnCommit:
        """Told of commits that are done; looks at how many records the audit topic tells of then."""

        def on_consume(self, records: Any) -> Any:
            return records

        def on_commit(self, offsets: Any) -> None:
            seen.append((sum(entry.offset for entry in offsets.values()), ConsumerEvents(line).received))

        def close(self) -> None: ...

    async def read() -> None:
        more = {"enable.auto.commit": False, "interceptors": [OnCommit()]}
        async with AuditedConsumer(settings(line, **more), audit=line.options(interval_s=600)) as consumer:
            consumer.assign(partitions)
            left = 100
            while left:
                left -= sum(map(len, (await consumer.poll(5)).values()))
            async with consumer._audit_lock:  # no report is made meanwhile
                done = asyncio.Event()
                if commits == "commit":
                    work = asyncio.create_task(consumer.commit())
                    work.add_done_callback(lambda _: done.set())
                else:
                    consumer.commit_nowait(on_done=lambda *_: done.set())
                # On the connection of the commits, and after them.
                assert set((await consumer.committed(partitions)).values()) == {None}
            await done.wait()

    asyncio.run(read())
    assert seen == [(100, 100)]


@pytest.mark.parametrize("commits", ["commit", "commit_nowait", "auto", "at the end"])
def test_members_of_a_group_count_what_they_commit(broker: OneBroker, commits: str) -> None:
    line = Line(broker.bootstrap)
    send(line, 3_000)
    held = line.names()
    got: list[Name] = []
    options = line.options(server="app-3")
    more: dict[str, Any] = {"enable.auto.commit": commits in ("auto", "at the end")}
    if commits == "auto":
        more["auto.commit.interval.ms"] = 50

    async def member() -> None:
        async with AuditedConsumer(settings(line, **more), audit=options) as consumer:
            consumer.subscribe([line.topic])
            while len(got) < len(held):
                for records in (await consumer.poll(0.05, max_records=100)).values():
                    got.extend(map(name, records))
                if commits == "commit":
                    await consumer.commit()
                elif commits == "commit_nowait":
                    consumer.commit_nowait()

    async def both() -> None:
        await asyncio.gather(member(), member())

    asyncio.run(both())
    reported = ConsumerEvents(line)
    assert Counter(got) == reported.names, "what was processed, as often as it was"
    assert set(got) == set(held)
    assert {event["application"] for event in reported.events} == {line.topic}
    if len(got) == len(held):
        reported.assert_whole(held, consumers=2)


def test_the_blocking_consumer_counts_processed_and_rejected_records(broker: OneBroker) -> None:
    line = Line(broker.bootstrap)
    send(line, 200)
    held = line.names()
    got: list[Name] = []

    def fail_at(number: int) -> None:
        with BlockingAuditedConsumer(settings(line), audit=line.options()) as consumer:
            consumer.subscribe([line.topic])
            for record in consumer:
                if len(got) == number:
                    raise ZeroDivisionError  # of this record the application is not done
                if len(got) % 7 == 0:
                    consumer.reject(record)
                got.append(name(record))

    with pytest.raises(ZeroDivisionError):
        fail_at(77)
    reported = ConsumerEvents(line)
    assert reported.names == Counter(got)
    assert (reported.received, reported.rejected) == (77, 11)
    with BlockingAuditedConsumer(settings(line), audit=line.options()) as consumer:
        consumer.subscribe([line.topic])
        for record in consumer:
            got.append(name(record))
            if len(got) == 200:
                break
    ConsumerEvents(line).assert_whole(held, consumers=2)


def test_without_a_group_a_record_counts_at_the_next_poll(broker: OneBroker) -> None:
    line = Line(broker.bootstrap)
    send(line, 50)
    given = {key: value for key, value in settings(line).items() if key != "group.id"}

    async def read() -> None:
        options = line.options(application="reports")
        async with AuditedConsumer(given, audit=options) as consumer:
            consumer.assign([(line.topic, 0), (line.topic, 1)])
            for again in range(2):
                left = 50
                while left:
                    left -= sum(map(len, (await consumer.poll(5, max_records=7)).values()))
                    await consumer.report()
                    assert ConsumerEvents(line).received < 50 * (again + 1)
                if not again:
                    consumer.seek_to_beginning()

    asyncio.run(read())
    reported = ConsumerEvents(line)
    assert reported.received == 100, "a rewind is read, and counts, again"
    assert reported.names.keys() == set(line.names())
    assert {event["application"] for event in reported.events} == {"reports"}


def test_offsets_that_are_stored_elsewhere_are_reported_by_processed(broker: OneBroker) -> None:
    line = Line(broker.bootstrap)
    send(line, 40)
    held = {
        (message.partition(), message.offset()): name_of(message, WINDOW_MS)
        for message in read_all(line.bootstrap, line.topic)
    }

    async def read() -> None:
        given = settings(line, **{"enable.auto.commit": False})
        async with AuditedConsumer(given, audit=line.options()) as consumer:
            consumer.assign([(line.topic, 0), (line.topic, 1)])
            left = 40
            while left:
                left -= sum(map(len, (await consumer.poll(5)).values()))
            await consumer.processed({(line.topic, 0): 3})
            assert ConsumerEvents(line).names.keys() == {held[0, offset] for offset in range(3)}
            await consumer.processed()
            assert await consumer.committed([(line.topic, 0)]) == {TopicPartition(line.topic, 0): None}

    asyncio.run(read())
    ConsumerEvents(line).assert_whole(list(held.values()))


def limit(line: Line, records_bytes: str | None) -> None:
    """What the audit topic takes."""
    operation = AlterConfigOpType.DELETE if records_bytes is None else AlterConfigOpType.SET
    entry = ConfigEntry("max.message.bytes", records_bytes or "", incremental_operation=operation)
    resource = ConfigResource(ResourceType.TOPIC, line.audit_topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": line.bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(60)


def test_an_audit_topic_that_cannot_be_written_blocks_no_commit_and_loses_no_count(
    broker: OneBroker,
) -> None:
    line = Line(broker.bootstrap)
    send(line, 300)
    held = line.names()
    limit(line, "10")

    async def read() -> None:
        given = settings(line, **{"enable.auto.commit": False})
        async with AuditedConsumer(given, audit=line.options()) as consumer:
            consumer.subscribe([line.topic])
            left = 300
            while left:
                left -= sum(map(len, (await consumer.poll(5, max_records=50)).values()))
                await consumer.commit()
            partitions = [(line.topic, 0), (line.topic, 1)]
            committed = await consumer.committed(partitions)
            assert sum(entry.offset for entry in committed.values() if entry is not None) == 300
            assert ConsumerEvents(line).events == []
            limit(line, None)
            # The broker has the new limit some time after its answer.
            assert await asyncio.to_thread(wait_until, lambda: bool(line.events()), timeout_s=60)

    asyncio.run(read())
    ConsumerEvents(line).assert_whole(held)


MEMBER = """
import asyncio, sys
from ottla_pipeline.auditing.ottla_consumer import AuditedConsumer
from ottla_pipeline.auditing.reporting import AuditOptions
bootstrap, topic, audit_topic = sys.argv[1:]
options = AuditOptions(topic=audit_topic, window_s=1.0, interval_s=0.2)
async def main():
    consumer = AuditedConsumer(
        bootstrap_servers=bootstrap, group_id=topic, auto_offset_reset="earliest", enable_auto_commit=False,
        session_timeout_ms=6000, max_poll_records=20, audit=options)
    await consumer.start()
    consumer.subscribe([topic])
    while True:
        for records in (await consumer.poll(1)).values():
            for record in records:
                print(record.partition, record.offset, flush=True)
        await consumer.commit()
asyncio.run(main())
"""


def committed_of(line: Line) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": line.bootstrap})
    asked = [ConsumerGroupTopicPartitions(line.topic, [Place(line.topic, 0), Place(line.topic, 1)])]
    (future,) = admin.list_consumer_group_offsets(asked).values()
    return {place.partition: max(place.offset, 0) for place in future.result(30).topic_partitions}


def test_records_committed_by_killed_consumers_are_reported_and_others_processed_again(
    broker: OneBroker,
) -> None:
    line = Line(broker.bootstrap)
    send(line, 4_000)
    held = {
        (message.partition(), message.offset()): name_of(message, WINDOW_MS)
        for message in read_all(line.bootstrap, line.topic)
    }
    processed: Counter[Name] = Counter()
    command = [sys.executable, "-c", MEMBER, line.bootstrap, line.topic, line.audit_topic]
    for most in (300, 611, 1_033):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                for _ in range(most):
                    partition, offset = process.stdout.readline().split()
                    processed[held[int(partition), int(offset)]] += 1
                process.send_signal(signal.SIGKILL)
                for rest in process.stdout:  # what it had printed before it was killed
                    words = rest.split()
                    if len(words) == 2 and rest.endswith("\n"):
                        processed[held[int(words[0]), int(words[1])]] += 1
            finally:
                process.kill()
        reported = ConsumerEvents(line).names
        committed = {held[p, offset] for p, end in committed_of(line).items() for offset in range(end)}
        assert committed
        assert committed <= reported.keys(), "what is committed has been reported"
        assert reported <= processed, "what was reported was processed, as often"
    assert not any(event["final"] for event in ConsumerEvents(line).events)

    async def finish() -> None:
        async with AuditedConsumer(settings(line), audit=line.options()) as consumer:
            consumer.subscribe([line.topic])
            at: dict[int, int] = committed_of(line)
            while sum(at.values()) < len(held):
                for tp, records in (await consumer.poll(5)).items():
                    processed.update(held[tp.partition, record.offset] for record in records)
                    at[tp.partition] = records[-1].offset + 1

    asyncio.run(finish())
    reported = ConsumerEvents(line).names
    assert reported.keys() == set(held.values())
    assert reported <= processed


def java(*arguments: object) -> list[str]:
    needs_kafka_jars()
    return run_program("AuditInterceptors", *map(str, arguments)).splitlines()


def test_a_java_consumer_and_ottlas_have_the_same_counts_for_all_producers(
    broker: OneBroker, spark: SparkSession, tmp_path: Path
) -> None:
    line = Line(broker.bootstrap)
    send(line, 1_500, beside=Line(broker.bootstrap).topic)
    java("produce", line.bootstrap, line.topic, line.audit_topic, WINDOW_MS, 2_500)
    messages = read_all(line.bootstrap, line.topic)
    held = [name_of(message, WINDOW_MS) for message in messages]
    assert len(set(held)) == 4_000
    printed = java("consume", line.bootstrap, line.topic, line.audit_topic, WINDOW_MS, "java", 4_000)
    assert sorted(printed) == sorted(f"{message.partition()} {message.offset()}" for message in messages)
    ConsumerEvents(line).assert_whole(held)

    async def read(count: int) -> None:
        given = settings(line, **{"group.id": "ours"})
        async with AuditedConsumer(given, audit=line.options()) as consumer:
            consumer.subscribe([line.topic])
            for _ in range(count):
                await consumer.getone()

    asyncio.run(read(3_990))
    by_group = Counter(event["application"] for event in ConsumerEvents(line).events)
    assert by_group.keys() == {"java", "ours"}
    raw = {
        "name": "test",
        "kafka": {"bootstrap": line.bootstrap},
        "checkpoint": str(tmp_path / "checkpoint"),
        "topics": {"topics": [line.topic]},
        "auditTopic": line.audit_topic,
        "window": "1 second",
        "tiers": [
            {"name": "brokers", "grace": "1 second"},
            {"name": "by-java", "application": "java", "grace": "1 second", "exactlyOnce": True},
            {"name": "by-us", "application": "ours", "grace": "1 second"},
        ],
        "report": str(tmp_path / "report"),
    }
    details: dict[str, Any] = {}

    def report() -> dict[str, Any]:
        details.clear()
        config = validate(raw, AuditConfig, "test")
        audit_report.run(JobContext(spark, lambda _: None, details=details), config)
        found: dict[str, Any] = json.loads((tmp_path / "report" / "report.json").read_text())
        return found

    assert wait_until(lambda: report()["verdict"] == "missing", timeout_s=60), report()
    found = report()
    counts = {
        tier: (one["acknowledged"], one["counted"], one["missing"], one["duplicated"], one["unreported"])
        for tier, one in found["tiers"].items()
    }
    assert counts == {
        "brokers": (4_000, 4_000, 0, 0, 0),
        "by-java": (4_000, 4_000, 0, 0, 0),
        "by-us": (4_000, 3_990, 10, 0, 0),
    }
    assert (found["problems"], found["producers"], found["consumers"]) == ([], 2, 2)
    assert {window["topic"] for window in found["windows"]} == {line.topic}
    reported = details["audit"]["topics"][line.topic]
    assert (reported["missing"], reported["duplicated"]) == (10, 0)
    assert {window["tier"] for window in reported["windows"]} == {"by-us"}
    assert reported["completeUntil"] == min(window["start"] for window in reported["windows"])

    # The application goes on, and rewinds: everything has reached it, some of it twice.
    asyncio.run(read(10))

    async def rewind() -> None:
        given = settings(line, **{"group.id": "ours"})
        async with AuditedConsumer(given, audit=line.options()) as consumer:
            consumer.assign([(line.topic, 0), (line.topic, 1)])
            consumer.seek_to_beginning()
            for _ in range(100):
                await consumer.getone()

    asyncio.run(rewind())
    found = report()
    ours = found["tiers"]["by-us"]
    assert (found["verdict"], ours["missing"], ours["duplicated"]) == ("complete", 0, 100)
    assert details["audit"]["topics"][line.topic]["completeUntil"] > reported["completeUntil"]
