"""The mirror job with real Spark between real clusters, judged record by record by confluent-kafka."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

from ottla.local.ports import wait_until
from ottla_pipeline.config.loading import validate
from ottla_pipeline.jobs import mirror
from ottla_pipeline.running import Context
from ottla_pipeline.spark import JavaMissing, build_session, check_java
from tests.interop.one_broker import one_broker

pytestmark = pytest.mark.timeout(600)
NUMBERS = count()


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    try:
        check_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    session = build_session("ottla-tests", extra=mirror.SESSION)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The bootstraps of east and west. One broker each, and no ZooKeeper: what counts is the way between."""
    settings = {"transaction.state.log.replication.factor": "1", "transaction.state.log.min.isr": "1"}
    with (
        one_broker(tmp_path_factory.mktemp("east"), settings) as east,
        one_broker(tmp_path_factory.mktemp("west"), settings) as west,
    ):
        yield east.bootstrap, west.bootstrap


class Held(NamedTuple):
    """One record, as a reader has it. Offsets are left out: they differ."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...]


def read(bootstrap: str, topic: str, *, committed: bool = True) -> dict[int, list[Held]]:
    """All records of a topic, by partition, in order."""
    level = "read_committed" if committed else "read_uncommitted"
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "judge",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": level,
        }
    )
    try:
        partitions = reader.list_topics(topic, timeout=30).topics[topic].partitions
        found: dict[int, list[Held]] = {number: [] for number in partitions}
        reader.assign([TopicPartition(topic, number, 0) for number in partitions])
        unread = set(partitions)
        while unread:
            message = reader.poll(30)
            assert message is not None, f"{topic}: nothing came for 30 s"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                unread.discard(message.partition())
                continue
            held = Held(
                message.key(), message.value(), message.timestamp()[1], tuple(message.headers() or ())
            )
            found[message.partition()].append(held)
        return found
    finally:
        reader.close()


def create(bootstrap: str, topic: str, partitions: int = 2, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    named = {name.replace("_", "."): value for name, value in configs.items()}
    for future in admin.create_topics([NewTopic(topic, partitions, 1, config=named)]).values():
        future.result(30)
    assert wait_until(lambda: topic in admin.list_topics(timeout=10).topics, timeout_s=30)


def send(bootstrap: str, topic: str, values: Sequence[str], partitions: int = 2, **settings: Any) -> None:
    """Keyed records in turns to the partitions."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **settings})
    for number, value in enumerate(values):
        producer.produce(topic, value.encode(), f"k{number % 5}".encode(), partition=number % partitions)
    assert producer.flush(60) == 0


@dataclass
class Bench:
    """One mirror with its folder and topic, between the module's clusters."""

    spark: SparkSession
    east: str
    west: str
    folder: Path
    topic: str
    said: list[str] = field(default_factory=list)

    def config(self, *, back: bool = False, **more: Any) -> mirror.MirrorConfig:
        clusters = [{"alias": "east", "bootstrap": self.east}, {"alias": "west", "bootstrap": self.west}]
        source, target = reversed(clusters) if back else clusters
        raw: dict[str, Any] = {
            "name": self.topic,
            "source": source,
            "target": target,
            "checkpoint": str(self.folder / f"checkpoint-{source['alias']}"),
            "trigger": {"availableNow": True},
            **({} if "topicPattern" in more else {"topics": [self.topic]}),
            **more,
        }
        return validate(raw, mirror.MirrorConfig, "test")

    def run(self, config: mirror.MirrorConfig | None = None) -> None:
        """Mirrors all there is."""
        context = Context(self.spark, self.said.append)
        for query in mirror.start(context, config or self.config()):
            query.awaitTermination()

    def same(self) -> None:
        """Source and target hold the same records."""
        assert read(self.west, f"east.{self.topic}") == read(self.east, self.topic)


@pytest.fixture
def bench(spark: SparkSession, clusters: tuple[str, str], tmp_path: Path) -> Bench:
    topic = f"t{next(NUMBERS)}"
    create(clusters[0], topic)
    return Bench(spark, *clusters, tmp_path, topic)


def test_everything_about_a_record_is_kept(bench: Bench) -> None:
    producer = Producer({"bootstrap.servers": bench.east})
    odd: list[dict[str, Any]] = [
        {"key": None, "value": None},
        {"key": b"", "value": b""},
        {
            "key": b"k",
            "value": None,
            "headers": [("a", b"1"), ("b", None), ("a", b"2"), ("a", b"1"), ("", b"")],
        },
        {"key": b"\xff\x00", "value": b"\x00" * 1000, "timestamp": 1},
        {"key": b"k", "value": b"v", "timestamp": 1_384_000_000_123, "headers": [("ä", b"\xff")]},
        {"key": b"k", "value": b"older", "timestamp": 1_000_000_000_000},
    ]
    for number, record in enumerate(odd * 2):
        producer.produce(bench.topic, partition=number // len(odd), **record)
    assert producer.flush(30) == 0
    bench.run()
    bench.same()
    assert sum(len(records) for records in read(bench.west, f"east.{bench.topic}").values()) == 2 * len(odd)
