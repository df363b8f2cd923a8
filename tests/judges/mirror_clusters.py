"""Helpers of the mirror's tests: two clusters, producers and a reader for comparisons."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from ottla.local.processes import wait_until
from ottla_pipeline.jobs import mirror
from ottla_pipeline.running import JobContext
from tests.judges.confluent_reader import read_to_end
from tests.judges.one_broker import one_broker


@contextmanager
def two_clusters(folder: Path) -> Iterator[tuple[str, str]]:
    """The bootstrap addresses of east and west: one broker each, without ZooKeeper."""
    for name in ("east", "west"):
        (folder / name).mkdir()
    with one_broker(folder / "east") as east, one_broker(folder / "west") as west:
        yield east.bootstrap, west.bootstrap


class ReadRecord(NamedTuple):
    """One record as a reader gets it, without its offset, which differs."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...]


def read(bootstrap: str, topic: str) -> dict[int, list[ReadRecord]]:
    """All committed records of a topic, by partition, in order."""
    partitions = (
        AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=30).topics[topic].partitions
    )
    found: dict[int, list[ReadRecord]] = {number: [] for number in partitions}
    settings = {"auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    for message in read_to_end(bootstrap, [TopicPartition(topic, p, 0) for p in partitions], settings):
        headers = tuple(message.headers() or ())
        found[message.partition()].append(
            ReadRecord(message.key(), message.value(), message.timestamp()[1], headers)
        )
    return found


def values(held: dict[int, list[ReadRecord]]) -> list[str]:
    return sorted((record.value or b"").decode() for records in held.values() for record in records)


def create(bootstrap: str, topic: str, partitions: int = 2, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    named = {name.replace("_", "."): value for name, value in configs.items()}
    for future in admin.create_topics([NewTopic(topic, partitions, 1, config=named)]).values():
        future.result(30)
    assert wait_until(lambda: topic in admin.list_topics(timeout=10).topics, timeout_s=30)


def delete(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_topics([topic]).values():
        future.result(30)
    assert wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, timeout_s=60)


def send(bootstrap: str, topic: str, texts: Sequence[str], partitions: int = 2) -> None:
    """Sends keyed records to the partitions in turn."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number, text in enumerate(texts):
        producer.produce(topic, text.encode(), f"k{number % 5}".encode(), partition=number % partitions)
    assert producer.flush(60) == 0


def send_transactions(bootstrap: str, topic: str, texts: Sequence[str], size: int) -> list[str]:
    """Sends records in transactions and aborts every third; returns the texts that were committed."""
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "transactional.id": f"test-{topic}"}
    producer = Producer(settings)
    producer.init_transactions(60)
    kept: list[str] = []
    for number, start in enumerate(range(0, len(texts), size)):
        chunk = texts[start : start + size]
        producer.begin_transaction()
        for place, text in enumerate(chunk):
            producer.produce(topic, text.encode(), partition=place % 2)
        if number % 3 == 2:
            producer.flush(60)
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
            kept += chunk
    return kept


def run_mirror(context: JobContext, config: mirror.MirrorConfig) -> None:
    """Mirror all there is, in this process."""
    with context.at_end:
        for query in mirror.start(context, config):
            query.awaitTermination()
        for thread in threading.enumerate():
            if thread.name == "mirror-groups":
                thread.join(60)
