"""Records exchanged with Kafka's own client, both ways, in every codec and every message format.

Both clients write into the same topics, on Ottla and on Apache Kafka 3.9.1, and both read all of it: they
must find the same, which is what was sent, at the offsets that the writers were told. Apache Kafka stores
formats 0 and 1 (as its 2.8 did, with inter.broker.protocol.version=2.8) for topics with such a
message.format.version; neither client writes them any more, so that the broker converts what comes in, and
both have to read them.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from ottla.client import AdminClient as OurAdminClient
from ottla.client import Consumer, Producer
from ottla.client.core.types import Header
from tests.judges.kafka_tools import run_program
from tests.judges.request_recorder import kafka_and_ottla
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(300)

SETTINGS = {
    "offsets.topic.replication.factor": "1",
    "auto.create.topics.enable": "false",
    "inter.broker.protocol.version": "2.8-IV1",
}
PARTITIONS = 2
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
FORMATS = {0: "0.9.0", 1: "0.10.0", 2: "2.8"}
T0 = 1_700_000_000_000


class Row(NamedTuple):
    """A record with its place; base64 and "-" for null, as the Java program has them."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: str
    key: str
    value: str
    headers: str

    def __str__(self) -> str:
        return " ".join(map(str, self))


class Topic(NamedTuple):
    name: str
    codec: str
    magic: int
    stamped: bool = False
    """By the broker: LogAppendTime."""

    @property
    def idempotent(self) -> bool:
        """Formats 0 and 1 have no place for a producer's id."""
        return self.magic == 2


def topics_of(broker: str) -> list[Topic]:
    formats = FORMATS if broker == "Apache Kafka" else {2: FORMATS[2]}
    topics = [
        Topic(f"format-{magic}-{codec}", codec, magic)
        for magic in formats
        for codec in CODECS
        if codec != "zstd" or magic == 2  # which brokers refuse to write in the older ones
    ]
    return topics + [Topic(f"format-{magic}-stamped", "gzip", magic, stamped=True) for magic in formats]


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    needs_kafka_jars()
    directory: Path = tmp_path_factory.mktemp("exchange")
    with kafka_and_ottla(directory, SETTINGS) as by_name:
        for broker, port in by_name.items():
            new = [
                NewTopic(
                    topic.name,
                    num_partitions=PARTITIONS,
                    replication_factor=1,
                    config={
                        "message.format.version": FORMATS[topic.magic],
                        "message.timestamp.type": "LogAppendTime" if topic.stamped else "CreateTime",
                    },
                )
                for topic in topics_of(broker)
            ]
            admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
            for made in admin.create_topics(new).values():
                made.result(60)
            del admin  # it would outlive its broker
        yield by_name


def in_text(data: bytes | None) -> str:
    return "-" if data is None else base64.b64encode(data).decode() or "="


def headers_in_text(headers: Iterable[Header]) -> str:
    return ",".join(f"{name}={in_text(value)}" for name, value in headers)


def records(topic: Topic, writer: str) -> list[Row]:
    """What to write, without offsets: nulls, empty ones, large ones, times that go back, headers."""
    rows = []
    for n in range(60):
        key = [None, b"", b"key-%d" % n, b"k" * 300][n % 4]
        value = [b"%d of %s" % (n, writer.encode()), None, b"", b"v" * (n * 400), bytes(range(256))][n % 5]
        headers: list[Header] = []
        if topic.magic == 2 and n % 3 == 0:
            headers = [("h", b"%d" % n), ("h", None), ("ünicode", b"")]
        partition, timestamp = n % PARTITIONS, T0 + (n * 7919) % 100_000
        text = in_text(key), in_text(value), headers_in_text(headers)
        rows.append(Row(topic.name, partition, -1, timestamp, "CREATE_TIME", *text))
    return rows


def placed(rows: Sequence[Row], places: Iterable[tuple[str, int, int]]) -> list[Row]:
    return [row._replace(offset=offset) for row, (_, _, offset) in zip(rows, places, strict=True)]


def decoded(text: str) -> bytes | None:
    return None if text == "-" else base64.b64decode("" if text == "=" else text)


def decoded_headers(text: str) -> list[Header]:
    pairs = (pair.split("=", 1) for pair in text.split(",") if pair)
    return [(name, decoded(value)) for name, value in pairs]


async def write_with_ours(bootstrap: str, topic: Topic) -> list[Row]:
    rows = records(topic, "ours")
    async with Producer(
        bootstrap_servers=bootstrap,
        compression_type=topic.codec,
        enable_idempotence=topic.idempotent,
        linger_ms=20,
        batch_size=50_000,
    ) as producer:
        futures = [
            await producer.send(
                row.topic,
                decoded(row.value),
                decoded(row.key),
                partition=row.partition,
                timestamp_ms=row.timestamp,
                headers=decoded_headers(row.headers),
            )
            for row in rows
        ]
        found = [await future for future in futures]
    return placed(rows, [(each.topic, each.partition, each.offset) for each in found])


async def read_with_ours(bootstrap: str, topics: Sequence[Topic], count: int) -> list[Row]:
    types = {0: "CREATE_TIME", 1: "LOG_APPEND_TIME", -1: "NO_TIMESTAMP_TYPE"}
    found: list[Row] = []
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic.name, n) for topic in topics for n in range(PARTITIONS)])
        async with asyncio.timeout(60):
            while len(found) < count:
                for rows in (await consumer.poll(1)).values():
                    found += [
                        Row(
                            *row[:4],
                            types[row.timestamp_type],
                            in_text(row.key),
                            in_text(row.value),
                            headers_in_text(row.headers),
                        )
                        for row in rows
                    ]
        assert await consumer.poll(0.3) == {}, "there is more than was sent"
    return found


def java(command: str, bootstrap: str, file: Path, lines: Iterable[object]) -> list[list[str]]:
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return [line.split(" ") for line in run_program("Exchange", command, bootstrap, str(file)).splitlines()]


@pytest.mark.parametrize("broker", ["Apache Kafka", "Ottla"])
def test_both_read_what_both_wrote(ports: dict[str, int], tmp_path: Path, broker: str) -> None:
    bootstrap = f"127.0.0.1:{ports[broker]}"
    topics = topics_of(broker)

    async def ours() -> list[Row]:
        return [row for topic in topics for row in await write_with_ours(bootstrap, topic)]

    sent = asyncio.run(ours())
    theirs = [(topic, row) for topic in topics for row in records(topic, "java")]
    asked = [
        f"{row.topic} {topic.codec} {str(topic.idempotent).lower()} {row.partition} {row.timestamp} "
        f"{row.key} {row.value} {row.headers}"
        for topic, row in theirs
    ]
    reported = java("write", bootstrap, tmp_path / "written", asked)
    sent += placed([row for _, row in theirs], [(t, int(p), int(o)) for t, p, o in reported])

    read_by_us = asyncio.run(read_with_ours(bootstrap, topics, len(sent)))
    asked = [f"{topic.name} {PARTITIONS} {2 * 60}" for topic in topics]
    printed = java("read", bootstrap, tmp_path / "read", asked)
    read_by_java = [
        Row(topic, int(partition), int(offset), int(timestamp), *rest)
        for topic, partition, offset, timestamp, *rest in printed
    ]

    for found in (read_by_us, read_by_java):
        for topic in topics:
            for partition in range(PARTITIONS):
                offsets = [row.offset for row in found if row[:2] == (topic.name, partition)]
                assert offsets == list(range(len(offsets))), f"{topic} in order"
    assert sorted(read_by_us) == sorted(read_by_java)
    for row, wanted in zip(sorted(read_by_us), sorted(sent), strict=True):
        topic = next(topic for topic in topics if topic.name == row.topic)
        if topic.magic == 0:
            wanted = wanted._replace(timestamp=-1, timestamp_type="NO_TIMESTAMP_TYPE")
        elif topic.stamped:
            wanted = wanted._replace(timestamp=row.timestamp, timestamp_type="LOG_APPEND_TIME")
            assert row.timestamp > T0 + 100_000
        assert row == wanted


def test_a_topic_whose_format_was_raised_is_read_from_any_offset(ports: dict[str, int]) -> None:
    bootstrap = f"127.0.0.1:{ports['Apache Kafka']}"
    name = "raised"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(name, num_partitions=1, replication_factor=1, config={"message.format.version": "0.9.0"})
    admin.create_topics([new])[name].result(60)

    async def fill_and_read() -> None:
        for magic, version in FORMATS.items():
            entry = ConfigEntry(
                "message.format.version", version, incremental_operation=AlterConfigOpType.SET
            )
            resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[entry])
            for altered in admin.incremental_alter_configs([resource]).values():
                altered.result(60)
            async with Producer(bootstrap_servers=bootstrap, enable_idempotence=False) as producer:
                for n in range(3):
                    await producer.send_and_wait(name, b"%d%d" % (magic, n), partition=0)
        async with Consumer(bootstrap_servers=bootstrap) as consumer:
            consumer.assign([(name, 0)])
            for offset in range(9):
                consumer.seek((name, 0), offset)
                found = [await asyncio.wait_for(consumer.getone(), 30) for _ in range(offset, 9)]
                assert [row.value for row in found] == [b"%d%d" % divmod(n, 3) for n in range(offset, 9)]

    asyncio.run(fill_and_read())


def test_metrics_have_the_names_of_the_java_client(ports: dict[str, int]) -> None:
    bootstrap, topic = f"127.0.0.1:{ports['Ottla']}", "measured"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])[topic].result(60)

    async def ours() -> set[tuple[str, str, str]]:
        async with Producer(bootstrap_servers=bootstrap) as producer:
            await producer.send_and_wait(topic, b"record")
            measured = producer.measurements()
        async with Consumer(
            bootstrap_servers=bootstrap, group_id="measured", auto_offset_reset="earliest"
        ) as consumer:
            consumer.subscribe([topic])
            await consumer.getone()
            await consumer.commit()
            measured += consumer.measurements()
        async with OurAdminClient(bootstrap_servers=bootstrap) as our_admin:
            await our_admin.describe_cluster()
            measured += our_admin.measurements()
        return {(m.group, m.name, ",".join(sorted(m.tags))) for m in measured}

    lines = run_program("MetricNames", bootstrap, topic).splitlines()
    theirs = {(group, name, tags) for group, name, tags in (line.split(" ") for line in lines)}
    own = asyncio.run(ours())
    assert {name for _, name, _ in own - theirs} == {"fetch-byte-rate", "fetch-byte-total"}
    assert {group.partition("-")[0] for group, _, _ in own} == {"producer", "consumer", "admin"}
    assert len(own) > 100
