"""Links are cut, and packets lost, under Kafka's own verifiable producer; nothing acknowledged is lost.

Clients reach every broker all the time: what a broker that is cut off still says must not be believed, or not
be said.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.client.admin_types import PartitionDescription
from ottla.local.cluster import run_admin
from tests.judges.faults import SETTINGS, make_the_first_lead
from tests.judges.network import Network, NetworkCluster, needs_namespaces
from tests.judges.verify import VerifiableProducer, check_all_kept
from tests.oracles import needs_kafka_jars

PARTITIONS = 3
WAIT_S = 120
pytestmark = pytest.mark.timeout(480)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetworkCluster]:
    needs_kafka_jars()
    needs_namespaces()
    directory = tmp_path_factory.mktemp("network")
    with Network(directory) as network, NetworkCluster(network, directory, SETTINGS) as running:
        yield running


@pytest.fixture
def topic(cluster: NetworkCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.name.removeprefix("test_")[:200]
    cluster.create_topic(name, partitions=PARTITIONS, replicas=3, min_insync_replicas="2")
    make_the_first_lead(cluster, name, PARTITIONS)
    yield name
    cluster.network.heal()
    await_whole(cluster, name)


@pytest.fixture
def producer(cluster: NetworkCluster, topic: str, tmp_path: Path) -> Iterator[VerifiableProducer]:
    with VerifiableProducer(cluster.bootstrap, topic, tmp_path) as running:
        running.wait_for(200)
        yield running


def seen_by(cluster: NetworkCluster, broker: int, topic: str) -> list[PartitionDescription]:
    """The topic's partitions as this broker would tell clients."""
    asked = cluster.brokers[broker]
    topics = run_admin([(asked.host, asked.port)], lambda client: client.describe_topics([topic]))
    return list(topics[topic].partitions) if topic in topics else []


def leaders_seen_by(cluster: NetworkCluster, broker: int, topic: str) -> list[int]:
    return [partition.leader for partition in seen_by(cluster, broker, topic)]


def await_whole(cluster: NetworkCluster, topic: str) -> None:
    """Until every broker knows of three brokers, and of three replicas in sync."""

    def whole() -> bool:
        views = [seen_by(cluster, broker, topic) for broker in cluster.brokers]
        return all(view and all(len(p.isr) == 3 and p.leader >= 0 for p in view) for view in views)

    cluster.wait_until(whole, "every replica to be in sync", timeout_s=WAIT_S)


def heal_and_check(cluster: NetworkCluster, topic: str, producer: VerifiableProducer) -> None:
    cluster.network.heal()
    await_whole(cluster, topic)
    producer.wait_for_more(200, timeout_s=WAIT_S)
    check_all_kept(producer, PARTITIONS)


def test_a_controller_that_leads_partitions_is_isolated(
    cluster: NetworkCluster, topic: str, producer: VerifiableProducer
) -> None:
    make_the_first_lead(cluster, topic, PARTITIONS)  # while the producer started, others may have come to
    gone = cluster.controller()
    assert gone in leaders_seen_by(cluster, gone, topic)
    cluster.isolate(gone)
    for broker in set(cluster.brokers) - {gone}:
        await_other_leaders(cluster, broker, topic, gone)
    producer.wait_for_more(500, timeout_s=WAIT_S)
    heal_and_check(cluster, topic, producer)


def await_other_leaders(cluster: NetworkCluster, broker: int, topic: str, gone: int) -> None:
    """Until the broker knows of leaders that are not `gone`, for every partition."""

    def elected() -> bool:
        leaders = leaders_seen_by(cluster, broker, topic)
        return len(leaders) == PARTITIONS and not {gone, -1} & set(leaders)

    cluster.wait_until(elected, f"broker {broker} to know of other leaders", timeout_s=WAIT_S)


def test_every_link_loses_packets(cluster: NetworkCluster, topic: str, producer: VerifiableProducer) -> None:
    for host in (*cluster.hosts.values(), cluster.at_zookeeper):
        cluster.network.lose(host, 0.05)
    producer.wait_for_more(2000, timeout_s=WAIT_S)
    heal_and_check(cluster, topic, producer)
