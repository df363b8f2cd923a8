"""Brokers are killed by their role, again and again, under one producer; nothing acknowledged is lost.

The kills of one test follow each other as soon as every replica is in sync again: what the last one left
behind (a truncated tail, an epoch, a snapshot) is what the next one begins with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from faults import bring_back, cluster_for_faults, partition_of, present_leader
from oracles import needs_kafka_jars
from verify import VerifiableProducer, check_all_kept

from ottla.local.cluster import LocalCluster

PARTITIONS, TIMES = 3, 3
pytestmark = pytest.mark.timeout(600)

Victims = Callable[[LocalCluster, str], Sequence[int]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    needs_kafka_jars()
    # Small segments and few snapshots' worth of state: much to recover.
    with cluster_for_faults(tmp_path_factory.mktemp("cluster"), log_segment_bytes="65536") as running:
        yield running


def the_leader(cluster: LocalCluster, topic: str) -> list[int]:
    return [present_leader(cluster, topic)]


def a_follower(cluster: LocalCluster, topic: str) -> list[int]:
    partition = partition_of(cluster, topic)
    return [next(broker for broker in partition.replicas if broker != partition.leader)]


def the_controller(cluster: LocalCluster, _: str) -> list[int]:
    return [cluster.controller()]


def all_but_one_follower(cluster: LocalCluster, topic: str) -> list[int]:
    (kept,) = a_follower(cluster, topic)
    return [broker for broker in cluster.brokers if broker != kept]


def all_of_them(cluster: LocalCluster, _: str) -> list[int]:
    return list(cluster.brokers)


@pytest.mark.parametrize(
    "victims", [the_leader, a_follower, the_controller, all_but_one_follower, all_of_them]
)
def test_killed_again_and_again(cluster: LocalCluster, tmp_path: Path, victims: Victims) -> None:
    topic = victims.__name__
    cluster.create_topic(topic, partitions=PARTITIONS, replicas=3, min_insync_replicas="2")
    with VerifiableProducer(cluster.bootstrap, topic, tmp_path) as producer:
        for _ in range(TIMES):
            producer.wait_for_more(300, timeout_s=120)
            for broker in victims(cluster, topic):
                cluster.brokers[broker].kill()
            bring_back(cluster)
        producer.wait_for_more(300, timeout_s=120)
    check_all_kept(producer, PARTITIONS)
