"""Kafka Streams and Kafka Connect 3.9.1 on Ottla brokers that are killed meanwhile.

Streams counts words exactly once: with kills of brokers and of Streams, no word is lost or counted twice.
Connect copies a file through a topic into another file: at least once, and in order.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from bench.apache_kafka import LEAN_JVM, kafka_classpath
from bench.maven import JarsUnavailable
from ottla.local.cluster import LocalCluster
from ottla.local.processes import ChildProcess, free_port, wait_until
from tests.judges.faults import bring_back, cluster_for_faults, present_leader
from tests.oracles import JAVA, java, needs_kafka_jars, streams_and_connect

WAIT_S = 240
WORDS = ("water", "wheel", "mill", "stone", "grain", "flour")
LINES, ROUNDS = 1500, 2
SOURCE = JAVA / "WordCount.java"
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def classpath() -> str:
    needs_kafka_jars()
    try:
        return f"{streams_and_connect()}/*"
    except JarsUnavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, classpath: str) -> Iterator[LocalCluster]:
    settings = {"transaction_state_log_num_partitions": "4", "min_insync_replicas": "2"}
    with cluster_for_faults(tmp_path_factory.mktemp("cluster"), **settings) as running:
        yield running


@contextmanager
def process(name: str, directory: Path, classpath: str, *command: str) -> Iterator[ChildProcess]:
    logging = Path(kafka_classpath()).parent / "log4j.properties"
    options = [*LEAN_JVM, f"-Dlog4j.configuration=file:{logging}", "-cp", classpath]
    running = ChildProcess(name, [java(), *options, *command], log=directory / f"{name}.log")
    running.start()
    try:
        yield running
    finally:
        running.kill()


def until(condition: Callable[[], bool], what: str, *processes: ChildProcess) -> None:
    assert wait_until(condition, timeout_s=WAIT_S, poll_s=0.5), "\n".join(
        [f"never came true: {what}", *(running.log_tail() for running in processes)]
    )


def kill_a_leader(cluster: LocalCluster, topic: str) -> None:
    """The leader of its first partition; the others have to do for a moment."""
    cluster.brokers[present_leader(cluster, topic)].kill()


class Counts:
    """What a consumer of committed records has seen of the counts, each word's in order."""

    def __init__(self, cluster: LocalCluster, topic: str, partitions: int) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": "oracle",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        self.seen: dict[str, list[int]] = {}

    def read(self) -> dict[str, int]:
        """The last count of each word, by now."""
        while (message := self._consumer.poll(1)) is not None:
            if message.error() is None:
                word, count = message.key().decode(), int.from_bytes(message.value(), "big")
                self.seen.setdefault(word, []).append(count)
            elif message.error().code() != KafkaError._PARTITION_EOF and not message.error().retriable():
                raise AssertionError(message.error())
        return {word: counts[-1] for word, counts in self.seen.items()}

    def close(self) -> None:
        self._consumer.close()


def write_lines(cluster: LocalCluster, topic: str, lines: Sequence[str]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    failures: list[object] = []
    for line in lines:
        producer.produce(topic, line, on_delivery=lambda error, _: failures.append(error) if error else None)
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0
    assert failures == []


def test_streams_counts_every_word_once(cluster: LocalCluster, classpath: str, tmp_path: Path) -> None:
    partitions = 2
    for topic in ("lines", "counts"):
        cluster.create_topic(topic, partitions=partitions, replicas=3)
    chance = random.Random(7)
    lines = [" ".join(chance.choices(WORDS, k=chance.randrange(1, 6))) for _ in range(LINES * ROUNDS)]
    arguments = (str(SOURCE), cluster.bootstrap, "lines", "counts", str(tmp_path / "state"))
    counts = Counts(cluster, "counts", partitions)
    expected: Counter[str] = Counter()
    try:
        for number in range(ROUNDS):
            part = lines[number * LINES : (number + 1) * LINES]
            with process(f"streams-{number}", tmp_path, classpath, *arguments) as app:
                write_lines(cluster, "lines", part[: LINES // 2])
                expected.update(" ".join(part).split())
                until(lambda: bool(counts.read()), "the first counts", app)
                kill_a_leader(cluster, "counts")
                write_lines(cluster, "lines", part[LINES // 2 :])
                bring_back(cluster)
                if number == ROUNDS - 1:
                    until(lambda: counts.read() == expected, f"the counts {expected}", app)
        # All of the rounds but the last ended with a SIGKILL of the application, wherever it was.
        for word, seen in counts.seen.items():
            assert all(after > before for before, after in pairwise(seen)), word
    finally:
        counts.close()


def test_connect_copies_a_file_through_a_topic(cluster: LocalCluster, classpath: str, tmp_path: Path) -> None:
    cluster.create_topic("copied", partitions=1, replicas=3)
    source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"
    source.touch()
    sink.touch()
    files = write_settings(cluster, tmp_path, source, sink)
    copied: list[str] = []

    def first_of_each() -> list[str]:
        return list(dict.fromkeys(sink.read_text().splitlines()))

    main_class = "org.apache.kafka.connect.cli.ConnectStandalone"
    with process("connect", tmp_path, classpath, main_class, *files) as connect:
        for number in range(4):
            with source.open("a") as file:
                file.writelines(f"line {number}.{n}\n" for n in range(200))
            if number % 2 == 0:
                until(lambda: len(first_of_each()) > len(copied), "more lines", connect)
                kill_a_leader(cluster, "copied")
            else:
                copied[:] = source.read_text().splitlines()
                until(lambda: first_of_each() == copied, "every line, in order", connect)
                bring_back(cluster)


def write_settings(cluster: LocalCluster, directory: Path, source: Path, sink: Path) -> list[str]:
    string = "org.apache.kafka.connect.storage.StringConverter"
    files = {
        "worker": {
            "bootstrap.servers": cluster.bootstrap,
            "key.converter": string,
            "value.converter": string,
            "offset.storage.file.filename": str(directory / "offsets"),
            "offset.flush.interval.ms": "1000",
            "listeners": f"http://127.0.0.1:{free_port()}",
            "plugin.discovery": "service_load",
        },
        "source": {
            "name": "source",
            "connector.class": "FileStreamSource",
            "file": str(source),
            "topic": "copied",
        },
        "sink": {
            "name": "sink",
            "connector.class": "FileStreamSink",
            "file": str(sink),
            "topics": "copied",
        },
    }
    written = []
    for name, settings in files.items():
        path = directory / f"{name}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        written.append(str(path))
    return written
