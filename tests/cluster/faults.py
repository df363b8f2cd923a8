"""What the fault tests share: a cluster that notices faults in seconds, and where its leaders are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ottla.client.admin_types import PartitionDescription, TopicPartition
from ottla.local.cluster import LocalCluster

SETTINGS = {
    "zookeeper.session.timeout.ms": "4000",
    "replica.lag.time.max.ms": "4000",
    "controlled.shutdown.retry.backoff.ms": "500",
    "offsets.topic.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
}


@contextlib.contextmanager
def cluster_for_faults(directory: Path, **settings: str) -> Iterator[LocalCluster]:
    """Three brokers; `_` in the names of more settings is `.`."""
    more = {name.replace("_", "."): value for name, value in settings.items()}
    with LocalCluster(directory, settings={**SETTINGS, **more}) as running:
        yield running


def bring_back(cluster: LocalCluster) -> None:
    """Start what is down, and wait until every replica of every topic is in sync."""
    for broker in cluster.brokers.values():
        if not broker.running:
            broker.start()
    cluster.wait_until(lambda: all_in_sync(cluster), "every replica to be in sync", timeout_s=90)


def all_in_sync(cluster: LocalCluster) -> bool:
    topics = cluster.admin(lambda client: client.describe_topics())
    return len(cluster.describe().brokers) == len(cluster.brokers) and all(
        p.leader >= 0 and len(p.isr) == len(p.replicas) for t in topics.values() for p in t.partitions
    )


def partition_of(cluster: LocalCluster, topic: str, partition: int = 0) -> PartitionDescription:
    description = cluster.topic(topic)
    assert description is not None, f"{topic} is not there"
    return description.partitions[partition]


def leader_of(cluster: LocalCluster, topic: str, partition: int = 0) -> int:
    return partition_of(cluster, topic, partition).leader


def start_and_end(cluster: LocalCluster, topic: str, partition: int = 0) -> tuple[int, int]:
    """The log start offset and the high watermark, as the leader says."""
    place = TopicPartition(topic, partition)
    starts = cluster.admin(lambda client: client.start_offsets([place]))
    ends = cluster.admin(lambda client: client.end_offsets([place]))
    return starts[place], ends[place]
