"""Disks: the same raw requests to Apache Kafka 3.9.1 and to Ottla, with three log directories each.

AlterReplicaLogDirs and DescribeLogDirs in every version: what cannot be, a move to its end, and one that a
throttle holds up, which is redirected and called off. Directories are compared by name, without their parent.

Then bits that flip in a log in use: both logs have the same batches in the same segments; for each case one
byte is changed in an old segment of each, the same requests are sent, and the byte is put back.

And where segments begin under which settings, and what ListOffsets finds across them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from bench.apache_kafka import KafkaBroker
from ottla.local.brokers import BrokerProcess
from ottla.local.processes import free_port
from ottla.local.zookeeper import EmbeddedZooKeeper
from ottla.protocol import messages as m
from ottla.protocol.records import LOG_OVERHEAD, Record, build_batch
from tests.judges.request_recorder import RequestRecorder, compare, ready, side_by_side, until
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(420)

DIRECTORIES = ("a", "b", "c")
SETTINGS = {
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "replica.fetch.max.bytes": "100000",
    "log.segment.delete.delay.ms": "100",
    "replica.high.watermark.checkpoint.interval.ms": "500",
    # Cleaned segments are put together, sooner or later; where they begin is compared.
    "log.cleaner.backoff.ms": "86400000",
    # Kafka fetches again only after this pause once a throttle has held it up.
    "replica.fetch.backoff.ms": "200",
}
RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
BROKER, INCREMENTALLY_SET, INCREMENTALLY_DELETE = 4, 0, 1
LARGE_RECORD_BYTES = 90_000
LARGE_RECORDS = 12
PARTITIONS = 4

TOPIC = "flipped"
BATCHES = 40
BATCHES_PER_SEGMENT = 10
FIRST_TIMESTAMP = 1_700_000_000_000
CORRUPT = "'error_code': 2,"


def batch(n: int) -> bytes:
    return build_batch([Record(0, FIRST_TIMESTAMP + n, b"k%02d" % n, b"v" * 100)])


BATCH_BYTES = len(batch(0))


Scenario = Callable[[RequestRecorder], Coroutine[Any, Any, None]]


class Pair:
    """A broker of each kind; `roots` are the folders in which their log directories lie, by port."""

    def __init__(self, directory: Path, running: ExitStack) -> None:
        zookeeper = EmbeddedZooKeeper(directory / "zookeeper")
        running.callback(zookeeper.stop)
        zookeeper.start()
        kafka_root, ottla_root = directory / "kafka-logs", directory / "ottla-logs"
        java = KafkaBroker(
            directory / "kafka",
            f"{zookeeper.connect}/kafka",
            settings={**SETTINGS, "log.dirs": log_dirs(kafka_root)},
        )
        ours = BrokerProcess(0, directory / "ottla", free_port())
        running.callback(java.stop)
        running.callback(ours.stop)
        ours.write_properties(f"{zookeeper.connect}/ottla", {**SETTINGS, "log.dirs": log_dirs(ottla_root)})
        ours.start_and_wait()
        java.start()
        self.ports = {"Apache Kafka": java.port, "Ottla": ours.port}
        self.roots = {java.port: kafka_root, ours.port: ottla_root}


def log_dirs(root: Path) -> str:
    return ",".join(str(root / name) for name in DIRECTORIES)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    needs_kafka_jars()
    with ExitStack() as running:
        brokers = Pair(tmp_path_factory.mktemp("log-dirs"), running)
        side_by_side(brokers.ports, ready)
        side_by_side(brokers.ports, lambda recorder: make_topics(LogDirRecorder(recorder, brokers)))
        side_by_side(brokers.ports, lambda recorder: fill_segments(LogDirRecorder(recorder, brokers)))
        for port in brokers.ports.values():
            fill(port)
        yield brokers


class LogDirRecorder:
    """Requests about log directories to one of the two brokers."""

    def __init__(self, recorder: RequestRecorder, pair: Pair) -> None:
        self.recorder = recorder
        self.root = pair.roots[recorder.port]

    def altering(self, wanted: Mapping[str, Mapping[str, list[int]]]) -> m.AlterReplicaLogDirsRequest:
        """Directory (a name in the root, or a path from /) -> topic -> partitions."""
        row, topic = m.AlterReplicaLogDirsRequest.AlterReplicaLogDir, m.AlterReplicaLogDirsRequest
        return m.AlterReplicaLogDirsRequest(
            dirs=[
                row(
                    path=str(self.root / name),
                    topics=[
                        topic.AlterReplicaLogDirTopic(name=name, partitions=indexes)
                        for name, indexes in topics.items()
                    ],
                )
                for name, topics in wanted.items()
            ]
        )

    async def alter(
        self, label: str, wanted: Mapping[str, Mapping[str, list[int]]], version: int = 2
    ) -> None:
        await self.recorder.ask(label, "anna", self.altering(wanted), version)

    async def describe(self, *topics: str, version: int = 4) -> m.DescribeLogDirsResponse:
        row = m.DescribeLogDirsRequest.DescribableLogDirTopic
        asked = [row(topic=name, partitions=list(range(PARTITIONS))) for name in topics]
        request = m.DescribeLogDirsRequest(topics=asked or None)
        answer: m.DescribeLogDirsResponse = await self.recorder.send("anna", request, version)
        for result in answer.results:
            assert Path(result.log_dir).parent == self.root
            result.log_dir = Path(result.log_dir).name
            if version >= 4:
                assert result.error_code or result.total_bytes >= result.usable_bytes > 0
        return answer

    async def note(self, label: str, *topics: str, version: int = 4, ignoring: tuple[str, ...] = ()) -> None:
        answer = await self.describe(*topics, version=version)
        self.recorder.note(label, answer, ignoring=("total_bytes", "usable_bytes", *ignoring))

    async def places(self, topic: str, partition: int = 0) -> dict[str, bool]:
        """The directories that hold the partition's log -> is it a future one?"""
        answer = await self.describe(topic)
        return {
            result.log_dir: row.is_future_key
            for result in answer.results
            for entry in result.topics
            for row in entry.partitions
            if row.partition_index == partition
        }

    async def until_in(self, directory: str, topic: str, *partitions: int) -> None:
        async def all_there() -> bool:
            return all([await self.places(topic, p) == {directory: False} for p in partitions])

        await until(all_there)

    async def throttle(self, rate: int | None) -> None:
        row = m.IncrementalAlterConfigsRequest.AlterableConfig
        operation = INCREMENTALLY_DELETE if rate is None else INCREMENTALLY_SET
        config = row(name=RATE, config_operation=operation, value=None if rate is None else str(rate))
        resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=BROKER, resource_name="0", configs=[config]
        )
        answer = await self.recorder.send("anna", m.IncrementalAlterConfigsRequest(resources=[resource]), 1)
        assert answer.responses[0].error_code == 0, answer

        async def in_force() -> bool:
            asked = m.DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=BROKER, resource_name="0", configuration_keys=[RATE]
            )
            found = await self.recorder.send("anna", m.DescribeConfigsRequest(resources=[asked]), 4)
            values = [config.value for config in found.results[0].configs]
            return values == ([] if rate is None else [str(rate)])

        await until(in_force)


async def make_topics(recorder: LogDirRecorder) -> None:
    """Each of the topics `small` and `large` has a log in a known directory: it was said before."""
    names = {"small": PARTITIONS, "large": 1}
    for name, count in names.items():
        await recorder.recorder.send("anna", recorder.altering({"a": {name: list(range(count))}}), 2)
    row = m.CreateTopicsRequest.CreatableTopic
    topics = [row(name=name, num_partitions=count, replication_factor=1) for name, count in names.items()]
    await recorder.recorder.send("anna", m.CreateTopicsRequest(topics=topics, timeout_ms=20_000), 5)
    for name, count in names.items():
        await recorder.until_in("a", name, *range(count))


def fill(port: int) -> None:
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{port}", "linger.ms": 0, "batch.num.messages": 1})
    for n in range(40):
        producer.produce("small", b"v%d" % n, partition=n % PARTITIONS)
    for _ in range(LARGE_RECORDS):
        producer.produce("large", b"x" * LARGE_RECORD_BYTES, partition=0)
    assert producer.flush(90) == 0


def same(pair: Pair, scenario: Callable[[LogDirRecorder], Coroutine[Any, Any, None]]) -> None:
    compare(side_by_side(pair.ports, lambda recorder: scenario(LogDirRecorder(recorder, pair))))


def test_invalid_moves_are_refused(pair: Pair) -> None:
    async def scenario(recorder: LogDirRecorder) -> None:
        for version in range(3):
            await recorder.alter(f"no such directory, v{version}", {"nowhere": {"small": [0]}}, version)
            await recorder.alter(f"no such topic, v{version}", {"b": {"nope": [0]}}, version)
        await recorder.alter("no such partition", {"b": {"small": [9]}})
        await recorder.alter("a relative path", {"/b": {"small": [0]}})
        await recorder.alter("where it is", {"a": {"small": [0, 1]}})
        await recorder.alter("a name too long", {"b": {"x" * 249: [0]}})
        await recorder.alter("nothing", {})
        await recorder.alter("nothing of a topic", {"b": {"small": []}})
        await recorder.alter("twice", {"nowhere": {"small": [0]}, "a": {"small": [0]}})
        for version in range(5):
            await recorder.note(f"all, v{version}", version=version)
            await recorder.note(f"one topic, v{version}", "small", version=version)
        await recorder.note("no such topic's", "nope")

    same(pair, scenario)


def test_replicas_move(pair: Pair) -> None:
    async def scenario(recorder: LogDirRecorder) -> None:
        await recorder.alter("two of them", {"b": {"small": [0]}, "c": {"small": [1]}})
        await recorder.until_in("b", "small", 0)
        await recorder.until_in("c", "small", 1)
        await recorder.note("moved", "small")
        await recorder.alter("back", {"a": {"small": [0, 1]}})
        await recorder.until_in("a", "small", 0, 1)
        await recorder.note("back again", "small")

    same(pair, scenario)


def test_a_throttled_move_is_redirected_and_cancelled(pair: Pair) -> None:
    async def scenario(recorder: LogDirRecorder) -> None:
        await recorder.throttle(1)

        async def moved_bytes() -> int:
            answer = await recorder.describe("large")
            rows = [row for result in answer.results for topic in result.topics for row in topic.partitions]
            return sum(row.partition_size for row in rows if row.is_future_key)

        async def has_begun() -> bool:
            return await moved_bytes() > 0

        for attempt in range(5):
            before = dict(recorder.recorder.answers)
            await recorder.alter("on its way", {"b": {"large": [0]}})
            await until(has_begun)
            await recorder.note("one chunk there", "large")
            await recorder.alter("the same again", {"b": {"large": [0]}})
            await recorder.note("nothing changed", "large")
            if await moved_bytes() < 2 * LARGE_RECORD_BYTES or attempt == 4:
                break
            # Windows of the throttle went by on a busy machine, and a second chunk came: once more.
            recorder.recorder.answers = before
            await recorder.recorder.send("anna", recorder.altering({"a": {"large": [0]}}), 2)
            await until_places(recorder, {"a": False})
        await recorder.alter("redirected", {"c": {"large": [0]}})
        await until_places(recorder, {"a": False, "c": True})
        await recorder.alter("called off", {"a": {"large": [0]}})
        await until_places(recorder, {"a": False})
        await recorder.note("where it was", "large")
        await recorder.alter("on its way again", {"b": {"large": [0]}})
        await recorder.throttle(None)
        await recorder.until_in("b", "large", 0)
        await recorder.note("at last", "large")

    same(pair, scenario)


async def until_places(recorder: LogDirRecorder, wanted: dict[str, bool]) -> None:
    async def there() -> bool:
        return await recorder.places("large") == wanted

    await until(there)


# --- bits that flip -----------------------------------------------------------------------------------


async def fill_segments(here: LogDirRecorder) -> None:
    recorder = here.recorder
    await recorder.send("anna", here.altering({"a": {TOPIC: [0]}}), 2)
    setting = m.CreateTopicsRequest.CreatableTopicConfig
    new = m.CreateTopicsRequest.CreatableTopic(
        name=TOPIC,
        num_partitions=1,
        replication_factor=1,
        configs=[
            setting(name="segment.bytes", value=str(BATCH_BYTES * BATCHES_PER_SEGMENT)),
            setting(name="index.interval.bytes", value="1"),
            setting(name="retention.ms", value="-1"),
        ],
    )
    await recorder.send("anna", m.CreateTopicsRequest(topics=[new], timeout_ms=20_000), 5)

    async def led() -> bool:
        return (await produce(recorder, batch(0))) == 0

    await until(led)
    for n in range(1, BATCHES):
        assert await produce(recorder, batch(n)) == 0


async def produce(recorder: RequestRecorder, records: bytes, topic: str = TOPIC) -> int:
    part = m.ProduceRequest.PartitionProduceData(index=0, records=records)
    request = m.ProduceRequest(
        acks=-1,
        timeout_ms=10_000,
        topic_data=[m.ProduceRequest.TopicProduceData(name=topic, partition_data=[part])],
    )
    answer = await recorder.send("anna", request, 9)
    return int(answer.responses[0].partition_responses[0].error_code)


async def fetch(recorder: RequestRecorder, label: str, offset: int, max_bytes: int) -> None:
    part = m.FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = m.FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=[m.FetchRequest.FetchTopic(topic=TOPIC, partitions=[part])],
    )
    answer: Any = await recorder.send("anna", request, 11)
    recorder.note(label, answer)


async def times(recorder: RequestRecorder, label: str, timestamp: int) -> None:
    part = m.ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    topic = m.ListOffsetsRequest.ListOffsetsTopic(name=TOPIC, partitions=[part])
    await recorder.ask(label, "anna", m.ListOffsetsRequest(topics=[topic]), 7)


# Of the fourth batch in the second segment: where the byte is, and what is done to it.
CASES = {
    "a value": (LOG_OVERHEAD + 90, 0x04),
    "the checksum": (17, 0x01),
    "the magic": (16, 0x40),
    "the offset, lower": (7, 0x08),
    "the offset, higher": (6, 0x01),
    "the offset, negative": (0, 0x80),
    "the length, a little more": (11, 0x08),
    "the length, a lot more": (9, 0x10),
    "the length, huge": (8, 0x40),
    "the length, negative": (8, 0x80),
    "the length, less": (11, 0x80),
    "the attributes": (22, 0x08),
    "the last offset delta": (26, 0x10),
    "the last offset delta, negative": (23, 0x80),
    "the timestamp": (40, 0x10),
    "the count of records": (60, 0x02),
}


@pytest.mark.parametrize("case", CASES)
def test_a_replica_with_a_flipped_bit_in_its_log(pair: Pair, case: str) -> None:
    at, mask = CASES[case]
    base = BATCHES_PER_SEGMENT
    flipped = base + 3

    async def scenario(recorder: RequestRecorder) -> None:
        for offset in (base, flipped - 1, flipped, flipped + 1, base + 9):
            for max_bytes in (10, BATCH_BYTES, 3 * BATCH_BYTES, 100_000):
                await fetch(recorder, f"from {offset}, {max_bytes} bytes", offset, max_bytes)
        for offset in (flipped - 1, flipped, flipped + 1):
            await times(recorder, f"time of {offset}", FIRST_TIMESTAMP + offset)

    for folder in folders(pair):
        flip(folder, base, 3 * BATCH_BYTES + at, mask)
    try:
        by_broker = side_by_side(pair.ports, scenario)
    finally:
        for folder in folders(pair):
            flip(folder, base, 3 * BATCH_BYTES + at, mask)
    kafka, ours = by_broker["Apache Kafka"], by_broker["Ottla"]
    differing = [label for label in kafka if ours.get(label) != kafka[label]]
    # Of the record itself: Kafka reads on as far as it understands, here anything that is wrong is an error.
    if differing == [f"time of {flipped}"] and CORRUPT in str(ours[differing[0]]):
        differing = []
    assert not differing, "\n".join(
        f"{label}:\n  Apache Kafka: {told_of(kafka[label])}\n  Ottla:        {told_of(ours.get(label))}"
        for label in differing
    )


def folders(pair: Pair) -> list[Path]:
    return [root / "a" / f"{TOPIC}-0" for root in pair.roots.values()]


def told_of(answer: Any) -> str:
    return str(answer)[:1000]


def flip(folder: Path, base: int, position: int, mask: int) -> None:
    with (folder / f"{base:020d}.log").open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ mask]))


# --- segments -----------------------------------------------------------------------------------------

SEGMENTED: Mapping[str, Mapping[str, str]] = {
    "by-size": {"segment.bytes": str(3 * BATCH_BYTES + 10)},
    "by-index": {"segment.index.bytes": "24", "index.interval.bytes": "1"},
    "by-time-index": {"segment.index.bytes": "36", "index.interval.bytes": "1"},
    "by-time": {"segment.ms": "2000"},
    "by-time-exactly": {"segment.ms": "1000"},
    "compacted-by-lag": {
        "segment.ms": "100000",
        "cleanup.policy": "compact",
        "max.compaction.lag.ms": "2500",
    },
    "preallocated": {"segment.bytes": str(4 * BATCH_BYTES), "preallocate": "true"},
    "bounded": {"message.timestamp.difference.max.ms": "100000"},
    "bounded-before": {
        "message.timestamp.difference.max.ms": "100000",
        "message.timestamp.before.max.ms": "9000000000000",
    },
}


def test_segments_begin_at_the_same_offsets(pair: Pair) -> None:
    async def scenario(recorder: LogDirRecorder) -> None:
        setting, row = m.CreateTopicsRequest.CreatableTopicConfig, m.CreateTopicsRequest.CreatableTopic
        topics = []
        for name, settings in SEGMENTED.items():
            await recorder.recorder.send("anna", recorder.altering({"a": {name: [0]}}), 2)
            configs = {"retention.ms": "-1", **settings}
            topics.append(
                row(
                    name=name,
                    num_partitions=1,
                    replication_factor=1,
                    configs=[setting(name=n, value=v) for n, v in configs.items()],
                )
            )
        await recorder.recorder.send("anna", m.CreateTopicsRequest(topics=topics, timeout_ms=20_000), 5)
        for name in SEGMENTED:
            await recorder.until_in("a", name, 0)
            for n in range(14):
                record = Record(0, FIRST_TIMESTAMP + 1000 * n, b"k%02d" % n, b"v" * 100)
                error = await produce(recorder.recorder, build_batch([record]), name)
                recorder.recorder.answers[f"{name}: error of {n}"] = error
            begin = sorted(path.name for path in (recorder.root / "a" / f"{name}-0").glob("*.log"))
            recorder.recorder.answers[f"{name}: segments"] = begin

    same(pair, scenario)


def test_offsets_are_found_across_segments(pair: Pair) -> None:
    async def scenario(recorder: LogDirRecorder) -> None:
        row, topic = m.ListOffsetsRequest.ListOffsetsPartition, m.ListOffsetsRequest.ListOffsetsTopic

        async def ask_all(when: str, places: range, records: range) -> None:
            for version in range(1, 10):
                for timestamp in places:
                    part = row(partition_index=0, timestamp=timestamp)
                    request = m.ListOffsetsRequest(topics=[topic(name=TOPIC, partitions=[part])])
                    await recorder.recorder.ask(f"{when}: {timestamp}, v{version}", "anna", request, version)
            for n in records:
                part = row(partition_index=0, timestamp=FIRST_TIMESTAMP + n)
                request = m.ListOffsetsRequest(topics=[topic(name=TOPIC, partitions=[part])])
                await recorder.recorder.ask(f"{when}: record {n}", "anna", request, 7)

        await ask_all("whole", range(-6, 1), range(-1, BATCHES + 1))
        rows = [m.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=13)]
        deleting = m.DeleteRecordsRequest.DeleteRecordsTopic(name=TOPIC, partitions=rows)
        request = m.DeleteRecordsRequest(topics=[deleting], timeout_ms=20_000)
        await recorder.recorder.ask("deleted", "anna", request, 2)
        # Not before what is in the segment that the log begins in: there Kafka finds nothing for as long as
        # an earlier segment waits for its deletion, and we find the log's first record.
        await ask_all("beginning later", range(-6, 0), range(10, BATCHES + 1))

    same(pair, scenario)
