"""What the fault tests share: a cluster that notices faults in seconds, and where its leaders are."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

from kazoo.client import KazooClient

from ottla.client.admin import AdminClient
from ottla.client.admin_types import PartitionDescription, TopicPartition
from ottla.local.brokers import BrokerProcess
from ottla.local.cluster import LocalCluster, run_admin
from ottla.metadata import znodes
from ottla.metadata.unclean_restart import FILE_NAME

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
    """Three brokers; `_` in the names of more settings is `.`."""
    more = {name.replace("_", "."): value for name, value in settings.items()}
    with LocalCluster(directory, settings={**SETTINGS, **more}) as running:
        yield running


@contextlib.contextmanager
def znodes_of(zookeeper_connect: str) -> Iterator[KazooClient]:
    client = KazooClient(zookeeper_connect)
    client.start(timeout=60)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def wait_until_forgotten(cluster: LocalCluster, topic: str) -> None:
    """Wait until nothing of a deleted topic is in ZooKeeper: its nodes go when all brokers have told the
    controller that their replicas are gone, and until then the name is taken."""
    paths = znodes.delete_topic_path(topic), znodes.topic_path(topic)
    with znodes_of(cluster.zookeeper.connect) as tree:
        cluster.wait_until(lambda: not any(map(tree.exists, paths)), f"{topic} to be forgotten")


def close_session_of(cluster: LocalCluster, broker: BrokerProcess) -> None:
    """As another client with the same session would: take it over, and close it."""
    (file,) = broker.directory.glob(f"**/{FILE_NAME}")
    session_id, _, password = file.read_text().strip().partition(":")
    thief = KazooClient(cluster.zookeeper.connect, client_id=(int(session_id, 16), bytes.fromhex(password)))
    thief.start(timeout=60)
    thief.stop()
    thief.close()


def bring_back(cluster: LocalCluster) -> None:
    """Start what is down, and wait until every replica of every topic is in sync."""
    for broker in cluster.brokers.values():
        if not broker.running:
            broker.start()
    cluster.wait_until(lambda: all_in_sync(cluster), "every replica to be in sync")


def all_in_sync(cluster: LocalCluster) -> bool:
    """As every broker says: one that has just come back knows that it was away."""

    async def whole(client: AdminClient) -> bool:
        topics = await client.describe_topics()
        return len((await client.describe_cluster()).brokers) == len(cluster.brokers) and all(
            p.leader >= 0 and len(p.isr) == len(p.replicas) for t in topics.values() for p in t.partitions
        )

    return all(run_admin([(b.host, b.port)], whole) for b in cluster.brokers.values())


def partition_of(cluster: LocalCluster, topic: str, partition: int = 0) -> PartitionDescription:
    """Raises LookupError while the broker that was asked has not heard of it."""
    description = cluster.topic(topic)
    if description is None:
        raise LookupError(f"{topic} is not there")
    return description.partitions[partition]


def leader_of(cluster: LocalCluster, topic: str, partition: int = 0) -> int:
    """-1 while it has none, or the broker that was asked has not heard of the topic."""
    description = cluster.topic(topic)
    return -1 if description is None else description.partitions[partition].leader


def present_leader(cluster: LocalCluster, topic: str, partition: int = 0) -> int:
    """The leader, as soon as there is one."""
    found = -1

    def there() -> bool:
        nonlocal found
        found = leader_of(cluster, topic, partition)
        return found >= 0

    cluster.wait_until(there, f"{topic}-{partition} to have a leader")
    return found


def make_the_first_lead(cluster: LocalCluster, topic: str, partitions: int) -> None:
    """Wait until each partition is led by the first of its replicas: a broker that the machine kept from its
    ZooKeeper for a while has lost what it led."""
    places = [TopicPartition(topic, p) for p in range(partitions)]

    def led() -> bool:
        cluster.admin(lambda client: client.elect_preferred_leaders(places))
        return all(found.leader == found.replicas[0] for found in (partition_of(cluster, *p) for p in places))

    cluster.wait_until(led, "the first replicas to lead")


def wait_until_settings_applied(cluster: LocalCluster) -> None:
    """Wait until every broker has heard of all settings that were altered: it hears of them in order."""
    mark = str(random.randrange(80_000_000, 86_400_000))
    setting = "producer.id.expiration.ms"
    cluster.admin(lambda client: client.alter_broker_config(None, set_values={setting: mark}))

    async def is_applied(client: AdminClient) -> bool:
        marks = [(await client.describe_broker_configs(broker))[setting].value for broker in cluster.brokers]
        return set(marks) == {mark}

    cluster.wait_until(lambda: cluster.admin(is_applied), "every broker to hear of its settings")


def start_and_end(cluster: LocalCluster, topic: str, partition: int = 0) -> tuple[int, int]:
    """The log start offset and the high watermark, as the leader says."""
    place = TopicPartition(topic, partition)
    starts = cluster.admin(lambda client: client.start_offsets([place]))
    ends = cluster.admin(lambda client: client.end_offsets([place]))
    return starts[place], ends[place]
