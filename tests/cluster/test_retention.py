"""Retention on a running cluster: old segments are deleted, on followers too, and readers below the log start
get an error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from faults import (
    bring_back,
    cluster_for_faults,
    leader_of,
    present_leader,
    start_and_end,
    wait_until_settings_applied,
)

from ottla.local.cluster import LocalCluster
from ottla.local.processes import wait_until

RECORDS = 2000
VALUE_BYTES = 200
SEGMENT_BYTES = 32 * 1024
pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {"log_retention_check_interval_ms": "500", "log_segment_delete_delay_ms": "200"}
    with cluster_for_faults(tmp_path_factory.mktemp("retention"), **settings) as running:
        yield running


@pytest.fixture
def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    name: str = request.node.name.removeprefix("test_")
    cluster.create_topic(name, partitions=1, replicas=3, segment_bytes=str(SEGMENT_BYTES))
    fill(cluster, name)
    assert all(segments(cluster, broker, name)[0] == 0 for broker in cluster.brokers)
    return name


def fill(cluster: LocalCluster, topic: str, records: int = RECORDS) -> None:
    """About twelve segments."""
    errors: list[KafkaError] = []
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "batch.size": 4096}
    )
    for n in range(records):
        producer.produce(
            topic,
            b"%d" % n + b" " * VALUE_BYTES,
            on_delivery=lambda error, _: errors.append(error) if error else None,
        )
    assert producer.flush(90) == 0
    assert errors == []


def folder(cluster: LocalCluster, broker: int, topic: str) -> Path:
    return cluster.brokers[broker].data_dir / f"{topic}-0"


def segments(cluster: LocalCluster, broker: int, topic: str) -> list[int]:
    """The base offsets of a replica's segments."""
    return sorted(int(path.stem) for path in folder(cluster, broker, topic).glob("*.log"))


def leftovers(cluster: LocalCluster, topic: str) -> list[Path]:
    return [path for broker in cluster.brokers for path in folder(cluster, broker, topic).glob("*.deleted")]


def alter(cluster: LocalCluster, topic: str, **settings: str) -> None:
    changes = {name.replace("_", "."): value for name, value in settings.items()}
    cluster.admin(lambda client: client.alter_topic_config(topic, set_values=changes))


def test_segments_over_the_size_limit_are_deleted_on_all_replicas(cluster: LocalCluster, topic: str) -> None:
    alter(cluster, topic, retention_bytes=str(3 * SEGMENT_BYTES))

    def kept(broker: int) -> int:
        return sum(path.stat().st_size for path in folder(cluster, broker, topic).glob("*.log"))

    def all_keep_as_much() -> bool:
        """The oldest went, on each broker, and no more than those: a segment over, at most."""
        start, _ = start_and_end(cluster, topic)
        return start > 0 and all(
            segments(cluster, broker, topic)[0] == start
            and 2 * SEGMENT_BYTES < kept(broker) <= 4 * SEGMENT_BYTES
            for broker in cluster.brokers
        )

    cluster.wait_until(all_keep_as_much, "the followers' logs to start where the leader's does")
    _, end = start_and_end(cluster, topic)
    assert end == RECORDS
    cluster.wait_until(lambda: leftovers(cluster, topic) == [], "the deleted files to be gone")

    # A follower that was away meanwhile takes over the new start; so does a leader that starts again.
    leader = present_leader(cluster, topic)
    away = next(broker for broker in cluster.brokers if broker != leader)
    assert cluster.brokers[away].stop(timeout_s=90)
    fill(cluster, topic)
    cluster.wait_until(lambda: start_and_end(cluster, topic)[0] > end, "the log start to move on")
    bring_back(cluster)
    cluster.wait_until(
        lambda: segments(cluster, away, topic)[0] >= end, "the follower to leave its old segments behind"
    )
    cluster.wait_until(all_keep_as_much, "all logs to start where the leader's does, again")
    now = start_and_end(cluster, topic)
    assert now[1] == 2 * RECORDS
    cluster.brokers[leader].kill()
    cluster.wait_until(lambda: leader_of(cluster, topic) not in (leader, -1), "a new leader")
    cluster.wait_until(lambda: start_and_end(cluster, topic) == now, "it to begin and end as the old one did")
    bring_back(cluster)


def test_expired_segments_are_deleted_even_if_none_remain(cluster: LocalCluster, topic: str) -> None:
    alter(cluster, topic, retention_ms="1")
    cluster.wait_until(lambda: start_and_end(cluster, topic) == (RECORDS, RECORDS), "the log to be empty")
    cluster.wait_until(
        lambda: all(segments(cluster, broker, topic) == [RECORDS] for broker in cluster.brokers),
        "one empty segment to be left on each broker",
    )
    alter(cluster, topic, retention_ms="100000000")
    wait_until_settings_applied(cluster)
    fill(cluster, topic, 10)
    assert start_and_end(cluster, topic) == (RECORDS, RECORDS + 10)


def test_a_reader_below_the_log_start_gets_out_of_range_and_may_reset(
    cluster: LocalCluster, topic: str
) -> None:
    alter(cluster, topic, retention_bytes=str(3 * SEGMENT_BYTES))
    cluster.wait_until(lambda: start_and_end(cluster, topic)[0] > 10, "the log start to move")
    alter(cluster, topic, retention_bytes="-1")
    wait_until_settings_applied(cluster)
    start, _ = start_and_end(cluster, topic)

    def first(reset: str) -> tuple[int | None, int | None]:
        """The error code and the offset of the first message, read from offset 5."""
        settings = {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "none",
            "auto.offset.reset": reset,
        }
        consumer = Consumer(settings)
        try:
            consumer.assign([TopicPartition(topic, 0, 5)])
            found: list[tuple[int | None, int | None]] = []

            def came() -> bool:
                message = consumer.poll(0.5)
                if message is not None:
                    error = message.error()
                    found.append((error.code() if error else None, message.offset()))
                return bool(found)

            assert wait_until(came, timeout_s=90, poll_s=0)
            return found[0]
        finally:
            consumer.close()

    assert first("error")[0] == KafkaError._AUTO_OFFSET_RESET
    code, offset = first("earliest")
    assert code is None
    assert offset == start_and_end(cluster, topic)[0] >= start
