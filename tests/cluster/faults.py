"""What the fault tests share: a cluster that notices faults in seconds, and where its leaders are."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

from ottla.client.admin import AdminClient
from ottla.client.admin_types import PartitionDescription, TopicPartition
from ottla.local.cluster import LocalCluster

SETTINGS = {
    "zookeeper.session.timeout.ms": "4000",
    "replica.lag.time.max.ms": "4000",
    "controlled.shutdown.retry.backoff.ms": "500",
    "offsets.topic.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.check.interval.ms": "86400000",  # some tests write records of long ago
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
    cluster.wait_until(lambda: all_in_sync(cluster), "every replica to be in sync")


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
    """-1 while it has none, or the broker that was asked has not heard of the topic."""
    description = cluster.topic(topic)
    return -1 if description is None else description.partitions[partition].leader


def wait_until_heard(cluster: LocalCluster) -> None:
    """Wait until every broker has heard of all settings that were altered: it hears of them in order."""
    mark = str(random.randrange(80_000_000, 86_400_000))
    setting = "producer.id.expiration.ms"
    cluster.admin(lambda client: client.alter_broker_config(None, set_values={setting: mark}))

    async def heard(client: AdminClient) -> bool:
        marks = [(await client.describe_broker_configs(broker))[setting].value for broker in cluster.brokers]
        return set(marks) == {mark}

    cluster.wait_until(lambda: cluster.admin(heard), "every broker to hear of its settings")


def start_and_end(cluster: LocalCluster, topic: str, partition: int = 0) -> tuple[int, int]:
    """The log start offset and the high watermark, as the leader says."""
    place = TopicPartition(topic, partition)
    starts = cluster.admin(lambda client: client.start_offsets([place]))
    ends = cluster.admin(lambda client: client.end_offsets([place]))
    return starts[place], ends[place]
