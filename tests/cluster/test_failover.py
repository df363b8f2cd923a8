"""Brokers stop or crash under Kafka's own verifiable producer; no acknowledged record is lost.

One cluster for all: each test restarts its brokers, so that the next one finds three.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import leader_of, present_leader
from oracles import needs_kafka_jars
from verify import VerifiableProducer, check_all_kept

from ottla.local.cluster import LocalCluster

PARTITIONS = 3
pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    needs_kafka_jars()
    settings = {
        "zookeeper.session.timeout.ms": "4000",
        "zookeeper.connection.timeout.ms": "60000",
        "replica.lag.time.max.ms": "5000",
        "controlled.shutdown.retry.backoff.ms": "500",
        "offsets.topic.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
    }
    with LocalCluster(tmp_path_factory.mktemp("cluster"), settings=settings) as running:
        yield running


@pytest.fixture
def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.name.removeprefix("test_")[:200]
    cluster.create_topic(name, partitions=PARTITIONS, replicas=3, min_insync_replicas="2")
    yield name
    for broker in cluster.brokers.values():
        if not broker.running:
            broker.start()
    cluster.wait_until(lambda: cluster.fully_replicated(name), f"{name} to be whole again")


def test_a_leader_killed_under_load(cluster: LocalCluster, topic: str, tmp_path: Path) -> None:
    with VerifiableProducer(cluster.bootstrap, topic, tmp_path) as producer:
        producer.wait_for(500)
        victim = present_leader(cluster, topic)
        cluster.brokers[victim].kill()
        cluster.wait_until(lambda: leader_of(cluster, topic) not in (victim, -1), "a new leader")
        producer.wait_for_more(1000)
        cluster.brokers[victim].start()
        cluster.wait_until(lambda: cluster.fully_replicated(topic), "the killed broker to be in sync again")
        producer.wait_for_more(500)
    check_all_kept(producer, PARTITIONS)


def test_the_controller_killed_under_load(cluster: LocalCluster, topic: str, tmp_path: Path) -> None:
    with VerifiableProducer(cluster.bootstrap, topic, tmp_path) as producer:
        producer.wait_for(500)
        victim = cluster.controller()
        cluster.brokers[victim].kill()
        cluster.wait_until(lambda: cluster.describe().controller_id not in (victim, -1), "a new controller")
        producer.wait_for_more(1000)
        cluster.brokers[victim].start()
        cluster.wait_until(lambda: cluster.fully_replicated(topic), "the killed broker to be in sync again")
    check_all_kept(producer, PARTITIONS)


def test_a_leader_restarted_at_once_waits_for_failover(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    """Its old session still lives; when that ends, the others lead before it may."""

    def epochs() -> dict[int, int]:
        description = cluster.topic(topic)
        if description is None:
            raise LookupError("the broker that was asked has not heard of it yet")
        return {p.partition: p.leader_epoch for p in description.partitions}

    with VerifiableProducer(cluster.bootstrap, topic, tmp_path) as producer:
        producer.wait_for(500)
        before = epochs()
        victim = cluster.controller()
        led = [partition for partition in before if leader_of(cluster, topic, partition) == victim]
        cluster.brokers[victim].kill()
        cluster.brokers[victim].start()
        cluster.wait_until(lambda: all(epochs()[p] > before[p] for p in led), "a new leader epoch")
        cluster.wait_until(lambda: cluster.fully_replicated(topic), "the killed broker to be in sync again")
        producer.wait_for_more(500)
    check_all_kept(producer, PARTITIONS)


def test_controlled_shutdown_of_each_broker_under_load(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    with VerifiableProducer(cluster.bootstrap, topic, tmp_path) as producer:
        producer.wait_for(500)
        for broker in cluster.brokers.values():
            assert broker.stop(timeout_s=90), (
                f"broker {broker.broker_id} did not shut down:\n{broker.log_tail()}"
            )
            assert broker.exit_code == 0
            producer.wait_for_more(200)
            broker.start()
            cluster.wait_until(lambda: cluster.fully_replicated(topic), "the broker to be in sync again")
    check_all_kept(producer, PARTITIONS)


def test_all_brokers_killed_at_once(cluster: LocalCluster, topic: str, tmp_path: Path) -> None:
    with VerifiableProducer(cluster.bootstrap, topic, tmp_path) as producer:
        producer.wait_for(1000)
        for broker in cluster.brokers.values():
            broker.kill()
        for broker in cluster.brokers.values():
            broker.start()
        cluster.wait_until(lambda: cluster.fully_replicated(topic), "everything to come back")
        producer.wait_for_more(500)
    check_all_kept(producer, PARTITIONS)


def test_a_stopped_follower_leaves_the_isr_and_rejoins(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    with VerifiableProducer(cluster.bootstrap, topic, tmp_path) as producer:
        producer.wait_for(200)
        description = cluster.topic(topic)
        assert description is not None
        away = description.partitions[0].replicas[-1]

        def in_sync() -> bool:
            described = cluster.topic(topic)
            if described is None:
                raise LookupError("the broker that was asked has not heard of it yet")
            return all(away in p.isr for p in described.partitions)

        cluster.brokers[away].stop(timeout_s=90)
        cluster.wait_until(lambda: not in_sync(), "the follower to leave the ISR")
        producer.wait_for_more(1000)
        cluster.brokers[away].start()
        cluster.wait_until(in_sync, "the follower to be back in the ISR")
    check_all_kept(producer, PARTITIONS)
