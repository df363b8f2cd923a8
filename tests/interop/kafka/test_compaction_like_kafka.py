"""The same log, cleaned by Apache Kafka 3.9.1 and by us: what is left in the files, and for consumers.

Kafka writes the topics, with Java's transactions; a copy of its folder is ours. Each cleans its own, and then
serves what the other has cleaned. DumpLogSegments reads the files of both.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from bench.apache_kafka import KafkaBroker, run_tool
from ottla.local.brokers import BrokerProcess
from ottla.local.processes import free_port, wait_until
from ottla.local.zookeeper import EmbeddedZooKeeper
from ottla.ports.files import OS_FILES
from ottla.protocol import messages as m
from ottla.protocol.compression import CODEC_BY_NAME
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records import Record, build_batch
from ottla.storage.checkpoints import MalformedCheckpoint, read_offsets
from ottla.wire.connection import BrokerConnection
from tests.judges.confluent_reader import read_to_end
from tests.judges.kafka_tools import run_program
from tests.oracles import needs_kafka_jars

WAIT_S = 120.0
pytestmark = pytest.mark.timeout(600)
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "log.cleaner.backoff.ms": "100",
    "zookeeper.session.timeout.ms": "30000",
    "log.segment.delete.delay.ms": "0",
    "group.initial.rebalance.delay.ms": "0",
}
SMALL = {
    "segment.bytes": "4000",
    "index.interval.bytes": "200",
    "min.cleanable.dirty.ratio": "0.001",
    "retention.ms": "-1",  # the records are of 2023
}
BRIEF = {**SMALL, "delete.retention.ms": "1"}
TOPICS = {"kept": SMALL, "kept-transactions": SMALL, "brief": BRIEF, "brief-transactions": BRIEF}
TRIMMED = {
    "by-time": {"retention.ms": "1000"},
    "by-size": {"retention.bytes": "9000"},
    "by-start": {},
}
"""Topics with each key once, of which retention is to let half go: that is the cleaner's task in Kafka."""
LEFT = {"by-time": 5, "by-size": 3, "by-start": 5}
"""Segments."""

Found = list[tuple[int, bytes | None, bytes | None]]


class Batch(NamedTuple):
    """What DumpLogSegments tells of a batch, but for its place, its size and its checksum."""

    base_offset: int
    last_offset: int
    base_sequence: int
    producer_id: int
    is_transactional: bool
    is_control: bool
    has_horizon: bool
    timestamp: int
    codec: str
    records: tuple[str, ...]


class Cleaned(NamedTuple):
    """A folder whose topics were cleaned, and what the broker that did it shows consumers."""

    data: Path
    uncommitted: dict[str, Found]
    committed: dict[str, Found]


class Both(NamedTuple):
    written: dict[str, Found]
    kafkas: Cleaned
    ours: Cleaned
    of_ours_kafka_shows: dict[str, Found]
    of_kafkas_we_show: dict[str, Found]
    trimmed: dict[str, dict[str, list[str]]]
    """Whose folder, which topic, and its segments after retention."""


def until(condition: Callable[[], Any], what: str) -> None:
    assert wait_until(condition, timeout_s=WAIT_S), f"never came true: {what}"


def produce(
    bootstrap: str,
    topic: str,
    pairs: list[tuple[str, str | None]],
    codec: str = "none",
    first_timestamp: int = 1_700_000_000_000,
) -> None:
    """In batches of ten, whatever the machine is busy with: no client that waits for more makes them."""
    host, _, port = bootstrap.partition(":")

    async def send() -> None:
        connection = await BrokerConnection.open(host, int(port), timeout_s=60)
        try:
            for start in range(0, len(pairs), 10):
                records = [
                    Record(at, first_timestamp + at, key.encode(), None if value is None else value.encode())
                    for at, (key, value) in enumerate(pairs[start : start + 10], start)
                ]
                batch = build_batch(records, codec=CODEC_BY_NAME[codec])
                partition = m.ProduceRequest.PartitionProduceData(index=0, records=batch)
                row = m.ProduceRequest.TopicProduceData(name=topic, partition_data=[partition])
                answer = await connection.request(
                    m.ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=[row]), timeout_s=WAIT_S
                )
                assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
        finally:
            connection.close()

    asyncio.run(send())


def some(name: str, count: int = 60) -> list[tuple[str, str | None]]:
    """Every seventh record is a tombstone."""
    return [
        (
            f"{name} {at % 11}" if at % 2 else f"key {at % 11}",
            None if at % 7 == 3 else f"{name} {at} {'x' * (at % 40)}",
        )
        for at in range(count)
    ]


def transactions_by_java(bootstrap: str, *topics: str) -> None:
    """Half of them aborted, by overlapping producers."""
    with ThreadPoolExecutor() as pool:
        list(
            pool.map(
                lambda topic: run_program("Transactions", bootstrap, topic, topic, "8", "decided"), topics
            )
        )


def shown(bootstrap: str, isolation: str) -> dict[str, Found]:
    found: dict[str, Found] = {topic: [] for topic in TOPICS}
    settings = {"isolation.level": isolation, "auto.offset.reset": "error"}
    for message in read_to_end(bootstrap, [TopicPartition(topic, 0, 0) for topic in TOPICS], settings):
        found[message.topic()].append((message.offset(), message.key(), message.value()))
    return found


def led(bootstrap: str) -> str:
    """The address, once the broker there leads all."""
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def leads() -> bool:
        topics = admin.list_topics(timeout=60).topics
        return all(topic in topics and topics[topic].partitions[0].leader == 0 for topic in TOPICS)

    until(leads, "the broker leads what it has")
    return bootstrap


def wait_until_clean(data: Path) -> None:
    """All but the active segments."""

    def is_clean() -> bool:
        try:
            offsets = read_offsets(OS_FILES, data / "cleaner-offset-checkpoint")
        except MalformedCheckpoint:
            return False
        return all(
            offsets.get((topic, 0))
            == max(int(path.stem) for path in (data / f"{topic}-0").glob("*.log") if path.stem.isdigit())
            for topic in TOPICS
        )

    until(is_clean, "the topics are clean")


def fill_trimmed(bootstrap: str) -> None:
    """Five segments of old records and five of some that will not be old for as long as this runs."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = [NewTopic(topic, 1, 1, config=SMALL) for topic in TRIMMED]
    for created in admin.create_topics(new).values():
        created.result(WAIT_S)
    later = (int(time.time()) + 10_000) * 1000
    for topic in TRIMMED:
        for name, timestamp in (("old", 1_700_000_000_000), ("new", later)):
            pairs: list[tuple[str, str | None]] = [(f"{name} {at}", "x" * 330) for at in range(50)]
            produce(bootstrap, topic, pairs, first_timestamp=timestamp)


def trim(bootstrap: str, data: Path) -> dict[str, list[str]]:
    """Set the topics' policies; their segments once those are what is left."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    resources = [
        ConfigResource(
            "topic",
            topic,
            incremental_configs=[
                ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
                for name, value in {"cleanup.policy": "compact,delete", **config}.items()
            ],
        )
        for topic, config in TRIMMED.items()
    ]
    for altered in admin.incremental_alter_configs(resources).values():
        altered.result(WAIT_S)
    deleted = admin.delete_records([TopicPartition("by-start", 0, 55)])
    assert [each.result(WAIT_S).low_watermark for each in deleted.values()] == [55]

    def segments(topic: str) -> list[str]:
        return sorted(path.name for path in (data / f"{topic}-0").glob("*.log"))

    for topic in TRIMMED:
        until(lambda topic=topic: len(segments(topic)) <= LEFT[topic], f"half of {topic} has gone")  # type: ignore[misc]
    return {topic: segments(topic) for topic in TRIMMED}


def clean_again(bootstrap: str, data: Path) -> None:
    """Twice more, so that what was due to go after its time has gone."""
    for turn in ("second", "third"):
        for topic in TOPICS:
            produce(bootstrap, topic, [(f"{turn} {at}", "y" * 200) for at in range(20)])
        wait_until_clean(data)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    needs_kafka_jars()
    root = tmp_path_factory.mktemp("compaction")
    zookeeper = EmbeddedZooKeeper(root / "zookeeper")
    zookeeper.start()
    kafkas, ours = root / "kafka", root / "ours"
    broker: KafkaBroker | BrokerProcess | None = None

    def start_kafka(path: Path) -> str:
        nonlocal broker
        broker = KafkaBroker(path, zookeeper.connect, settings=SETTINGS)
        broker.start()
        return broker.bootstrap

    def start_ours(path: Path) -> str:
        nonlocal broker
        broker = BrokerProcess(0, path, free_port())
        broker.write_properties(zookeeper.connect, SETTINGS)
        broker.start_and_wait()
        return f"127.0.0.1:{broker.port}"

    def stop() -> None:
        assert broker is not None
        broker.stop()

    try:
        bootstrap = start_kafka(kafkas)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for created in admin.create_topics([NewTopic(t, 1, 1, config=c) for t, c in TOPICS.items()]).values():
            created.result(WAIT_S)
        for topic in ("kept", "brief"):
            for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
                produce(bootstrap, topic, some(codec), codec)
        transactional = ("kept-transactions", "brief-transactions")
        for topic in transactional:
            produce(bootstrap, topic, some("before", 20))
        transactions_by_java(bootstrap, *transactional)
        for topic in TOPICS:
            produce(bootstrap, topic, [(f"last {at}", "z" * 300) for at in range(20)])
        fill_trimmed(bootstrap)
        written = shown(bootstrap, "read_uncommitted")
        # Checkpoints are written beside their place, and renamed.
        shutil.copytree(kafkas / "data", ours / "data", ignore=shutil.ignore_patterns("*.tmp"))
        (ours / "data" / ".lock").unlink()
        compact = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
        resources = [ConfigResource("topic", t, incremental_configs=[compact]) for t in TOPICS]
        for altered in admin.incremental_alter_configs(resources).values():
            altered.result(WAIT_S)

        def cleaned(bootstrap: str, path: Path) -> Cleaned:
            wait_until_clean(path / "data")
            clean_again(bootstrap, path / "data")
            found = [shown(bootstrap, f"read_{level}") for level in ("uncommitted", "committed")]
            stop()
            return Cleaned(path / "data", *found)

        trimmed = {"Kafka": trim(bootstrap, kafkas / "data")}
        by_kafka = cleaned(bootstrap, kafkas)
        bootstrap = led(start_ours(ours))
        trimmed["ours"] = trim(bootstrap, ours / "data")
        by_us = cleaned(bootstrap, ours)
        shutil.copytree(kafkas / "data", root / "dump" / "kafka")
        shutil.copytree(ours / "data", root / "dump" / "ours")
        of_ours_kafka_shows = shown(led(start_kafka(ours)), "read_committed")
        stop()
        of_kafkas_we_show = shown(led(start_ours(kafkas)), "read_committed")
        stop()
    finally:
        if broker is not None:
            broker.stop()
        zookeeper.stop()
    return Both(
        written,
        by_kafka._replace(data=root / "dump" / "kafka"),
        by_us._replace(data=root / "dump" / "ours"),
        of_ours_kafka_shows,
        of_kafkas_we_show,
        trimmed,
    )


def dumped(data: Path, *options: str, suffixes: Sequence[str]) -> str:
    files = [
        path
        for topic in TOPICS
        for path in sorted((data / f"{topic}-0").iterdir())
        if path.suffix in suffixes
    ]
    assert len(files) > 4
    done = run_tool("kafka.tools.DumpLogSegments", [*options, "--files", ",".join(map(str, files))])
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def batches(data: Path) -> dict[str, list[Batch]]:
    found: dict[str, list[Batch]] = {topic: [] for topic in TOPICS}
    topic = ""
    for line in dumped(data, "--deep-iteration", "--print-data-log", suffixes=[".log"]).splitlines():
        if line.startswith("Dumping "):
            topic = Path(line.removeprefix("Dumping ")).parent.name.removesuffix("-0")
        elif line.startswith("baseOffset: "):
            fields = dict(re.findall(r"(\w+): (\S+)", line))
            assert fields["isvalid"] == "true"
            found[topic].append(
                Batch(
                    int(fields["baseOffset"]),
                    int(fields["lastOffset"]),
                    int(fields["baseSequence"]),
                    int(fields["producerId"]),
                    fields["isTransactional"] == "true",
                    fields["isControl"] == "true",
                    "deleteHorizonMs: OptionalLong[" in line,
                    int(fields["CreateTime"]),
                    fields["compresscodec"],
                    (),
                )
            )
        elif line.startswith("| offset: "):
            last = found[topic][-1]
            found[topic][-1] = last._replace(records=(*last.records, line))
    return found


def test_consumers_read_the_same_records(both: Both) -> None:
    for topic in TOPICS:
        assert both.ours.uncommitted[topic] == both.kafkas.uncommitted[topic], topic
        assert both.ours.committed[topic] == both.kafkas.committed[topic], topic
        assert len(both.ours.uncommitted[topic]) < len(both.written[topic]), "something was cleaned away"
    assert any(value is None for _, _, value in both.ours.committed["kept"])
    assert all(value is not None for _, _, value in both.ours.committed["brief"])
    assert len(both.written["kept"]) == len(both.written["brief"]) == 320


def test_the_files_have_the_same_batches(both: Both) -> None:
    """To the horizons, the sequences of producers, the empty batches and the markers."""
    kafkas, ours = batches(both.kafkas.data), batches(both.ours.data)
    for topic in TOPICS:
        assert ours[topic] == kafkas[topic], topic
    assert any(batch.has_horizon for batch in ours["kept"])
    for topic in ("kept-transactions", "brief-transactions"):
        assert any(batch.is_transactional and batch.records for batch in ours[topic])
    kept = [batch for batch in ours["kept-transactions"] if batch.is_control and batch.records]
    brief = [batch for batch in ours["brief-transactions"] if batch.is_control and batch.records]
    assert len(kept) > len(brief) > 0
    assert {batch.codec for batch in ours["kept"]} == {"none", "gzip", "snappy", "lz4", "zstd"}


def test_retention_leaves_the_same_segments_of_compacted_logs(both: Both) -> None:
    """Long before log.retention.check.interval.ms, which is not for these."""
    assert both.trimmed["ours"] == both.trimmed["Kafka"]
    assert {topic: len(left) for topic, left in both.trimmed["ours"].items()} == LEFT


def test_our_indexes_are_consistent_with_our_files(both: Both) -> None:
    output = dumped(both.ours.data, "--verify-index-only", suffixes=[".index", ".timeindex"])
    for complaint in (
        "Mismatches in",
        "Found timestamp mismatch",
        "are not found in the log",
        "out of order",
    ):
        assert complaint not in output, output


def test_kafka_and_ottla_serve_logs_that_the_other_has_cleaned(both: Both) -> None:
    """Whichever goes on cleaning meanwhile."""
    for served, cleaned in (
        (both.of_ours_kafka_shows, both.ours),
        (both.of_kafkas_we_show, both.kafkas),
    ):
        for topic in TOPICS:
            latest = {key: (offset, value) for offset, key, value in cleaned.committed[topic]}
            assert {key: (offset, value) for offset, key, value in served[topic]} == latest
            assert set(served[topic]) <= set(cleaned.committed[topic])
