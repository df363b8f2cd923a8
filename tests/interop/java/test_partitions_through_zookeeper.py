"""Tools of old write to ZooKeeper: kafka-topics of 0.8.2 adds partitions in the topic's node, and they come
at once; each deletion is a node.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer
from kazoo.client import KazooClient

from bench.apache_kafka import KafkaBroker
from ottla.client.admin_types import TopicDescription
from ottla.local.cluster import LocalCluster
from ottla.local.processes import wait_until
from ottla.local.zookeeper import EmbeddedZooKeeper
from ottla.metadata import znodes
from tests.judges.clients_082 import needs_jars_082, run_tool_082
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(300)


def node_of(cluster: LocalCluster, topic: str) -> znodes.TopicAssignment:
    client = KazooClient(cluster.zookeeper.connect)
    client.start(timeout=60)
    try:
        return znodes.decode_topic(topic, client.get(znodes.topic_path(topic))[0])
    finally:
        client.stop()
        client.close()


def described(cluster: LocalCluster, topic: str) -> TopicDescription:
    found = cluster.topic(topic)
    assert found is not None
    return found


def add_partitions(cluster: LocalCluster, topic: str, count: int) -> None:
    run_tool_082(
        "kafka.admin.TopicCommand",
        "--zookeeper",
        cluster.zookeeper.connect,
        "--alter",
        "--topic",
        topic,
        "--partitions",
        str(count),
    )


def write_to_all(cluster: LocalCluster, topic: str, partitions: int) -> None:
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for partition in range(partitions):
        producer.produce(topic, b"x", partition=partition, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(60) == 0
    assert errors == [None] * partitions


def test_the_zookeeper_tool_adds_partitions_before_and_after_a_failover(cluster: LocalCluster) -> None:
    needs_jars_082()
    cluster.create_topic("grows", partitions=1, replicas=2)
    topic_id = described(cluster, "grows").topic_id
    add_partitions(cluster, "grows", 3)
    cluster.wait_until(lambda: cluster.fully_replicated("grows", 3), "the new partitions", timeout_s=60)
    write_to_all(cluster, "grows", 3)
    cluster.wait_until(lambda: node_of(cluster, "grows").topic_id == topic_id, "the topic's id in its node")

    former = cluster.controller()
    cluster.brokers[former].kill()
    cluster.brokers[former].start_and_wait()
    cluster.wait_until(lambda: cluster.fully_replicated("grows", 3), "the broker to be back")
    add_partitions(cluster, "grows", 5)
    cluster.wait_until(lambda: cluster.fully_replicated("grows", 5), "the new partitions", timeout_s=60)
    write_to_all(cluster, "grows", 5)
    assert described(cluster, "grows").topic_id == topic_id
    assert sorted(node_of(cluster, "grows").partitions) == [0, 1, 2, 3, 4]


def test_apache_kafka_drops_a_deletion_of_no_topic(tmp_path: Path) -> None:
    """As Ottla does (tests/unit/test_brokers_topic_changes.py)."""
    needs_kafka_jars()
    zookeeper = EmbeddedZooKeeper(tmp_path / "zookeeper")
    zookeeper.start()
    broker = KafkaBroker(tmp_path / "kafka", zookeeper.connect)
    try:
        broker.start()
        client = KazooClient(zookeeper.connect)
        client.start(timeout=60)
        path = znodes.delete_topic_path("nobodys")
        try:
            client.create(path)
            assert wait_until(lambda: client.exists(path) is None, timeout_s=60)
        finally:
            client.stop()
            client.close()
    finally:
        broker.stop()
        zookeeper.stop()
