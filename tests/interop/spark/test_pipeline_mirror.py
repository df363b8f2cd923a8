"""The mirror job with real Spark between real clusters, judged record by record by confluent-kafka."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ottla_pipeline.config.common import validate
from ottla_pipeline.errors import error_summary
from ottla_pipeline.jobs import mirror
from ottla_pipeline.mirroring.topics import describe_topics
from ottla_pipeline.running import JobContext
from tests.judges.mirror_clusters import (
    create,
    delete,
    read,
    run_mirror,
    send,
    send_transactions,
    two_clusters,
    values,
)

pytestmark = pytest.mark.timeout(600)
NUMBERS = count()
SPARK = (mirror.SESSION,)


@pytest.fixture(scope="module")
def clusters(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    with two_clusters(tmp_path_factory.mktemp("clusters")) as bootstraps:
        yield bootstraps


@dataclass
class Line:
    """A mirror with its folder and topic, between the module's clusters."""

    spark: SparkSession
    east: str
    west: str
    folder: Path
    topic: str
    said: list[str] = field(default_factory=list)

    @property
    def there(self) -> str:
        return f"east.{self.topic}"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint-east"

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

    def run(self, config: mirror.MirrorConfig | None = None) -> str:
        """Mirrors all there is; the last batch in a line."""
        self.said.clear()
        run_mirror(JobContext(self.spark, self.said.append), config or self.config())
        return next((line for line in reversed(self.said) if line.startswith("batch")), "")

    def same(self) -> None:
        """Source and target hold the same records."""
        assert read(self.west, self.there) == read(self.east, self.topic)


@pytest.fixture
def line(spark: SparkSession, clusters: tuple[str, str], tmp_path: Path) -> Line:
    topic = f"t{next(NUMBERS)}"
    create(clusters[0], topic)
    return Line(spark, *clusters, tmp_path, topic)


def test_all_parts_of_a_record_are_preserved(line: Line) -> None:
    producer = Producer({"bootstrap.servers": line.east})
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
        {"key": b"k", "value": b"large" * 180_000},
    ]
    for number, record in enumerate(odd * 2):
        producer.produce(line.topic, partition=number // len(odd), **record)
    assert producer.flush(30) == 0
    line.run()
    line.same()
    assert sum(len(records) for records in read(line.west, line.there).values()) == 2 * len(odd)


def test_only_committed_records_of_the_source_are_mirrored(line: Line) -> None:
    kept = send_transactions(line.east, line.topic, [f"r{n}" for n in range(60)], size=6)
    line.run(line.config(transaction={"maxRecords": 7}))
    assert values(read(line.west, line.there)) == sorted(kept)
    line.same()


def test_a_batch_that_is_run_again_writes_nothing_twice(line: Line) -> None:
    """As after a crash between the target's last commit and Spark's note of it."""
    send(line.east, line.topic, [f"a{n}" for n in range(100)])
    line.run(line.config(transaction={"maxRecords": 20}))
    (line.checkpoint / "commits" / "0").unlink()
    (line.checkpoint / "commits" / ".0.crc").unlink()
    send(line.east, line.topic, [f"b{n}" for n in range(10)])
    line.run()
    assert any(
        "0 records of 2 partitions in 0 transactions, 100 skipped" in reported for reported in line.said
    )
    line.same()


def test_without_checkpoint_and_without_committed_position_nothing_is_written_twice(line: Line) -> None:
    """Kafka forgets a group's offsets after a week; the syncs remember."""
    send(line.east, line.topic, [f"a{n}" for n in range(40)])
    config = line.config(transaction={"maxRecords": 15})
    line.run(config)
    shutil.rmtree(line.checkpoint)
    admin = AdminClient({"bootstrap.servers": line.west})
    for future in admin.delete_consumer_groups([config.mirror]).values():
        future.result(30)
    send(line.east, line.topic, [f"b{n}" for n in range(10)])
    assert "10 records of 2 partitions in 2 transactions, 40 skipped" in line.run(config)
    line.same()


def test_a_recreated_source_topic_stops_the_mirror(line: Line) -> None:
    send(line.east, line.topic, ["old"] * 4)
    line.run()
    delete(line.east, line.topic)
    create(line.east, line.topic)
    send(line.east, line.topic, ["new"] * 10)
    shutil.rmtree(line.checkpoint)
    with pytest.raises(PySparkException) as refused:
        line.run()
    assert "the source has another of that name now" in error_summary(refused.value)
    assert values(read(line.west, line.there)) == ["old"] * 4


def test_a_recreated_target_topic_is_filled_again(line: Line) -> None:
    send(line.east, line.topic, [f"a{n}" for n in range(10)])
    line.run()
    delete(line.west, line.there)
    shutil.rmtree(line.checkpoint)
    line.run()
    line.same()


def test_the_target_has_the_sources_partitions_and_settings_also_after_changes(line: Line) -> None:
    source = AdminClient({"bootstrap.servers": line.east})
    topic = f"{line.topic}.kept"
    create(line.east, topic, 1, cleanup_policy="compact", message_timestamp_type="LogAppendTime")
    config = line.config(topicPattern=f"{line.topic}.*")
    send(line.east, topic, ["x"], partitions=1)
    line.run(config)
    admin = AdminClient({"bootstrap.servers": line.west})
    found = describe_topics(admin, [f"east.{topic}", line.there])
    assert {name: t.partitions for name, t in found.items()} == {f"east.{topic}": 1, line.there: 2}
    assert found[f"east.{topic}"].configs == {
        "cleanup.policy": "compact",
        "message.timestamp.type": "CreateTime",
    }
    for future in source.create_partitions([NewPartitions(topic, 3)]).values():
        future.result(30)
    send(line.east, topic, ["y"] * 6, partitions=3)
    line.run(config)
    assert describe_topics(admin, [f"east.{topic}"])[f"east.{topic}"].partitions == 3
    assert read(line.west, f"east.{topic}") == read(line.east, topic), "the source's own append times, too"


def test_two_mirrors_in_opposite_directions_make_no_loop(line: Line) -> None:
    """By prefix, everything that there is under a pattern, both ways, again and again."""
    create(line.west, line.topic)
    send(line.east, line.topic, [f"e{n}" for n in range(10)])
    send(line.west, line.topic, [f"w{n}" for n in range(20)])
    pattern = rf"(.*\.)?{line.topic}"
    for _ in range(3):
        line.run(line.config(topicPattern=pattern))
        line.run(line.config(topicPattern=pattern, back=True))
    assert len(values(read(line.west, f"east.{line.topic}"))) == 10
    assert len(values(read(line.east, f"west.{line.topic}"))) == 20
    for bootstrap in (line.east, line.west):
        named = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30).topics
        mirrored = [n for n in named if n.endswith(f".{line.topic}")]
        assert len(mirrored) == 1, "nothing was mirrored back"


def test_two_mirrors_with_identity_naming_send_no_record_back(line: Line) -> None:
    create(line.west, line.topic)
    send(line.east, line.topic, [f"e{n}" for n in range(10)])
    send(line.west, line.topic, [f"w{n}" for n in range(20)])
    identity = {"naming": {"policy": "identity"}}
    for _ in range(2):
        line.run(line.config(**identity))
        looped = line.run(line.config(back=True, **identity))
    assert "0 records" in looped or not looped
    everything = sorted([f"e{n}" for n in range(10)] + [f"w{n}" for n in range(20)])
    assert values(read(line.west, line.topic)) == everything
    assert values(read(line.east, line.topic)) == everything


def take(bootstrap: str, topic: str, group: str, wanted: int) -> list[str]:
    """What a member of the group gets, up to so many records; commits, and leaves."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
        }
    )
    got: list[str] = []
    try:
        consumer.subscribe([topic])
        while len(got) < wanted:
            message = consumer.poll(30)
            assert message is not None, f"{len(got)} of {wanted} came"
            assert message.error() is None, message.error()
            got.append((message.value() or b"").decode())
            consumer.store_offsets(message)
        consumer.commit(asynchronous=False)
        return got
    finally:
        consumer.close()


def commit_start(bootstrap: str, topic: str, group: str) -> None:
    with Consumer({"bootstrap.servers": bootstrap, "group.id": group}) as consumer:
        consumer.commit(offsets=[TopicPartition(topic, p, 0) for p in (0, 1)], asynchronous=False)


def test_a_consumer_that_moves_to_the_target_gets_every_record_once(line: Line) -> None:
    """From a source with transactions of its own; the group has read some of it, and the mirror all."""
    kept = send_transactions(line.east, line.topic, [f"r{n}" for n in range(120)], size=6)
    group = f"app-{line.topic}"
    commit_start(line.east, line.topic, group)
    before = take(line.east, line.topic, group, 33)
    line.run(line.config(transaction={"maxRecords": 7}, groups={"pattern": "app-.*"}))
    after = take(line.west, line.there, group, len(kept) - len(before))
    assert sorted(before + after) == sorted(kept)


def test_a_group_with_later_offsets_on_the_target_is_not_rewound(line: Line) -> None:
    send(line.east, line.topic, [f"r{n}" for n in range(40)])
    group = f"app-{line.topic}"
    commit_start(line.east, line.topic, group)
    config = line.config(groups={"pattern": "app-.*"})
    line.run(config)
    before = take(line.west, line.there, group, 40)
    take(line.east, line.topic, group, 10)
    line.run(config)
    send(line.east, line.topic, ["late"] * 2)
    line.run(config)
    assert sorted(before + take(line.west, line.there, group, 2)) == sorted(
        [f"r{n}" for n in range(40)] + ["late"] * 2
    )


def test_apache_kafka_can_be_the_target(line: Line, apache_kafka: str) -> None:
    line.west = apache_kafka
    kept = send_transactions(line.east, line.topic, [f"r{n}" for n in range(60)], size=6)
    group = f"app-{line.topic}"
    commit_start(line.east, line.topic, group)
    before = take(line.east, line.topic, group, 15)
    config = line.config(transaction={"maxRecords": 7}, groups={"pattern": "app-.*"})
    line.run(config)
    line.same()
    shutil.rmtree(line.checkpoint)
    assert f"0 records of 2 partitions in 0 transactions, {len(kept)} skipped" in line.run(config)
    line.same()
    assert sorted(before + take(line.west, line.there, group, len(kept) - len(before))) == sorted(kept)
