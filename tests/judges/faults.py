"""Helpers of the fault tests: a cluster that detects faults within seconds, leaders and ISRs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil
from kazoo.client import KazooClient

from ottla.client.admin import AdminClient
from ottla.client.admin_types import PartitionDescription, TopicPartition
from ottla.local.cluster import LocalCluster, run_admin

SETTINGS = {
    "zookeeper.session.timeout.ms": "4000",
    "zookeeper.connection.timeout.ms": "60000",  # else as short: who starts on a busy machine would give up
    "replica.lag.time.max.ms": "4000",
    "controlled.shutdown.retry.backoff.ms": "500",
    "offsets.topic.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.check.interval.ms": "86400000",  # some tests write records of long ago
}


@contextlib.contextmanager
def cluster_for_faults(directory: Path, **settings: str) -> Iterator[LocalCluster]:
    """Three brokers; `_` in the names of further settings is `.`."""
    more = {name.replace("_", "."): value for name, value in settings.items()}
    with LocalCluster(directory, settings={**SETTINGS, **more}) as running:
        yield running


def has_ended(pid: int) -> bool:
    """A zombie has: the init process of a container may not wait for it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@contextlib.contextmanager
def znodes_of(zookeeper_connect: str) -> Iterator[KazooClient]:
    client = KazooClient(zookeeper_connect)
    client.start(timeout=60)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def bring_back(cluster: LocalCluster) -> None:
    """Starts the brokers that are down, and waits until every replica of every topic is in sync."""
    for broker in cluster.brokers.values():
        if not broker.running:
            broker.start()
    cluster.wait_until(lambda: all_in_sync(cluster), "every replica to be in sync")


def all_in_sync(cluster: LocalCluster) -> bool:
    """Whether every broker reports full ISRs. A broker that has just restarted knows that it was out of
    sync."""

    async def whole(client: AdminClient) -> bool:
        topics = await client.describe_topics()
        return len((await client.describe_cluster()).brokers) == len(cluster.brokers) and all(
            p.leader >= 0 and len(p.isr) == len(p.replicas) for t in topics.values() for p in t.partitions
        )

    return all(run_admin([(b.host, b.port)], whole) for b in cluster.brokers.values())


def partition_of(cluster: LocalCluster, topic: str, partition: int = 0) -> PartitionDescription:
    """The partition as one broker reports it. Raises LookupError while that broker does not know the
    topic."""
    description = cluster.topic(topic)
    if description is None:
        raise LookupError(f"{topic} is not there")
    return description.partitions[partition]


def leader_of(cluster: LocalCluster, topic: str, partition: int = 0) -> int:
    """The leader's id; -1 while there is no leader or the broker does not know the topic."""
    description = cluster.topic(topic)
    return -1 if description is None else description.partitions[partition].leader


def present_leader(cluster: LocalCluster, topic: str, partition: int = 0) -> int:
    """Waits for a leader, and returns its id."""
    found = -1

    def there() -> bool:
        nonlocal found
        found = leader_of(cluster, topic, partition)
        return found >= 0

    cluster.wait_until(there, f"{topic}-{partition} to have a leader")
    return found


def make_the_first_lead(cluster: LocalCluster, topic: str, partitions: int) -> None:
    """Waits until the first replica of each partition leads it: a broker that lost its ZooKeeper session on a
    busy machine has lost its leaderships."""
    places = [TopicPartition(topic, p) for p in range(partitions)]

    def led() -> bool:
        cluster.admin(lambda client: client.elect_preferred_leaders(places))
        return all(found.leader == found.replicas[0] for found in (partition_of(cluster, *p) for p in places))

    cluster.wait_until(led, "the first replicas to lead")
