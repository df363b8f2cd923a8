"""A broker's ZooKeeper session is closed by another client, with its id and password, under load.

The broker's process lives on: it resigns as controller, leads under its old epoch until the others have
elected leaders, registers again, and loses no record.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import close_session_of, cluster_for_faults
from kazoo.client import KazooClient
from oracles import needs_kafka_jars
from verify import VerifiableProducer, check_all_kept

from ottla.local.cluster import LocalCluster
from ottla.metadata import znodes

PARTITIONS = 3
pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    needs_kafka_jars()
    # None ends by itself.
    sessions = {"zookeeper_session_timeout_ms": "30000"}
    with cluster_for_faults(tmp_path_factory.mktemp("sessions"), **sessions) as running:
        yield running


@pytest.fixture(scope="module")
def tree(cluster: LocalCluster) -> Iterator[KazooClient]:
    client = KazooClient(cluster.zookeeper.connect)
    client.start(timeout=60)
    yield client
    client.stop()
    client.close()


def registered_in(tree: KazooClient, broker: int) -> int:
    """The broker's epoch; -1 while it is not registered."""
    stat = tree.exists(znodes.broker_path(broker))
    return -1 if stat is None else int(stat.czxid)


def check_it_comes_back(
    cluster: LocalCluster, tree: KazooClient, broker: int, topic: str, tmp_path: Path
) -> None:
    before, pid = registered_in(tree, broker), cluster.brokers[broker].pid
    with VerifiableProducer(cluster.bootstrap, topic, tmp_path) as producer:
        producer.wait_for(300)
        close_session_of(cluster, cluster.brokers[broker])
        cluster.wait_until(lambda: registered_in(tree, broker) > before, "it to register in a new epoch")
        producer.wait_for_more(300)
        cluster.wait_until(lambda: cluster.fully_replicated(topic), "it to be in every ISR again")
        producer.wait_for_more(300)
    assert cluster.brokers[broker].pid == pid, "its process is the same"
    check_all_kept(producer, PARTITIONS)


def test_a_leader_registers_again_after_its_session_is_closed(
    cluster: LocalCluster, tree: KazooClient, tmp_path: Path
) -> None:
    cluster.create_topic("led", partitions=PARTITIONS, replicas=3, min_insync_replicas="2")
    controller = cluster.controller()
    topic = cluster.topic("led")
    assert topic is not None
    leaders = {partition.leader for partition in topic.partitions}
    check_it_comes_back(cluster, tree, min(leaders - {controller}), "led", tmp_path)


def test_a_controller_resigns_and_registers_again_after_its_session_is_closed(
    cluster: LocalCluster, tree: KazooClient, tmp_path: Path
) -> None:
    cluster.create_topic("controlled", partitions=PARTITIONS, replicas=3, min_insync_replicas="2")
    epoch = int(tree.get(znodes.CONTROLLER_EPOCH)[0])
    controller = cluster.controller()
    check_it_comes_back(cluster, tree, controller, "controlled", tmp_path)
    cluster.wait_until(lambda: int(tree.get(znodes.CONTROLLER_EPOCH)[0]) > epoch, "an election")

    def is_a_brokers() -> bool:
        at = tree.exists(znodes.CONTROLLER)
        nodes = [tree.exists(znodes.broker_path(broker)) for broker in cluster.brokers]
        return at is not None and at.ephemeralOwner in {node.ephemeralOwner for node in nodes if node}

    cluster.wait_until(is_a_brokers, "the controller to be one of the registered brokers")
