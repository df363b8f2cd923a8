"""Processes that are stopped and continued: a leader, a controller, a follower; and ZooKeeper killed and
restarted.

A stopped process (SIGSTOP) returns with outdated state. Records that it then acknowledges to acks=all must
not be lost.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest
from faults import (
    bring_back,
    cluster_for_faults,
    leader_of,
    make_the_first_lead,
    partition_of,
    present_leader,
)
from oracles import needs_kafka_jars
from stubborn import batch_request, send_to, send_to_zombie
from verify import VerifiableProducer, check_all_kept, read_topic

from ottla.client.admin_types import TopicPartition
from ottla.local.brokers import BrokerProcess
from ottla.local.cluster import LocalCluster, run_admin
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import CreateTopicsRequest, ProduceResponse

PARTITIONS = 3
pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    needs_kafka_jars()
    # A stopped follower is out of the ISR for its lag, well before its session ends.
    timing = {"zookeeper_session_timeout_ms": "9000", "replica_lag_time_max_ms": "2000"}
    with cluster_for_faults(tmp_path_factory.mktemp("zombies"), **timing) as running:
        yield running


@pytest.fixture
def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.name.removeprefix("test_")
    cluster.create_topic(name, partitions=PARTITIONS, replicas=3, min_insync_replicas="2")
    yield name
    bring_back(cluster)


@contextlib.contextmanager
def stopped(broker: BrokerProcess) -> Iterator[None]:
    broker.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        broker.signal(signal.SIGCONT)


class View:
    """The cluster as the brokers other than a stopped one see it."""

    def __init__(self, cluster: LocalCluster, away: BrokerProcess) -> None:
        self._cluster = cluster
        self._others = [(b.host, b.port) for b in cluster.brokers.values() if b is not away]

    def leader(self, topic: str) -> int:
        found = run_admin(self._others, lambda client: client.describe_topics([topic]))
        return found[topic].partitions[0].leader

    def dropped(self, topic: str, broker_id: int) -> bool:
        """Whether some partition has put the broker out of its ISR.

        Not each: while nothing is appended to one, nobody lags behind its leader, as in Kafka.
        """
        found = run_admin(self._others, lambda client: client.describe_topics([topic]))
        return any(broker_id not in partition.isr for partition in found[topic].partitions)

    def controller(self) -> int:
        return run_admin(self._others, lambda client: client.describe_cluster()).controller_id

    def brokers(self) -> set[int]:
        described = run_admin(self._others, lambda client: client.describe_cluster())
        return {node.id for node in described.brokers}


def test_a_stopped_leader_loses_no_acknowledged_record(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    with VerifiableProducer(cluster.bootstrap, topic, tmp_path) as producer:
        producer.wait_for(300)
        make_the_first_lead(cluster, topic, PARTITIONS)
        zombie = cluster.brokers[present_leader(cluster, topic)]
        others = View(cluster, zombie)
        values = [f"stubborn-{n}" for n in range(20)]
        # With acks=1 it may take them and lose them: they make its log diverge from the new leader's.
        requests = [batch_request(topic, value, acks=acks) for value in values for acks in (1, -1)]

        def superseded() -> None:
            cluster.wait_until(lambda: others.leader(topic) not in (zombie.broker_id, -1), "another leader")
            producer.wait_for_more(500)

        answers = send_to_zombie(zombie, requests, meanwhile=superseded)
        producer.wait_for_more(300)
        cluster.wait_until(lambda: cluster.fully_replicated(topic), "the zombie to be in sync again")

    rows = [
        answer.responses[0].partition_responses[0]
        for request, answer in zip(requests, answers, strict=True)
        if answer is not None and request.acks == -1
    ]
    promised = {(0, row.base_offset) for row in rows if row.error_code == ErrorCode.NONE}
    stored = read_topic(
        cluster.bootstrap, topic, PARTITIONS, expected=promised | producer.acknowledged.keys()
    )
    for place in promised:
        assert stored.get(place, "").startswith("stubborn-"), f"acknowledged by a zombie, and lost: {place}"
    check_all_kept(producer, PARTITIONS)

    # Its own copy is the same: let it lead, and read again.
    everything = [TopicPartition(topic, p) for p in range(PARTITIONS)]

    def leads_again() -> bool:
        cluster.admin(lambda client: client.elect_preferred_leaders(everything))  # once it is in sync
        return leader_of(cluster, topic) == zombie.broker_id

    cluster.wait_until(leads_again, "it to lead again")
    assert read_topic(cluster.bootstrap, topic, PARTITIONS, expected=stored) == stored
    assert rows, "it never answered"


def test_a_stopped_controller_is_fenced(cluster: LocalCluster, topic: str, tmp_path: Path) -> None:
    with VerifiableProducer(cluster.bootstrap, topic, tmp_path) as producer:
        producer.wait_for(300)
        zombie = cluster.brokers[cluster.controller()]
        others = View(cluster, zombie)
        row = CreateTopicsRequest.CreatableTopic(name="by-a-zombie", num_partitions=1, replication_factor=3)
        request = CreateTopicsRequest(topics=[row], timeout_ms=20_000)

        def superseded() -> None:
            cluster.wait_until(
                lambda: others.controller() not in (zombie.broker_id, -1), "another controller"
            )

        (answer,) = send_to_zombie(zombie, [request], meanwhile=superseded)
        assert answer is None or answer.topics[0].error_code == ErrorCode.NOT_CONTROLLER, answer
        cluster.wait_until(lambda: cluster.fully_replicated(topic), "the zombie to be in sync again")

        assert cluster.controller() in cluster.brokers, "the zombie, too, knows whom to obey"
        assert cluster.topic("by-a-zombie") is None
        cluster.create_topic("by-its-successor", partitions=3, replicas=3)
        producer.wait_for_more(300)
    check_all_kept(producer, PARTITIONS)


def test_a_stopped_follower_lags_leaves_the_isr_and_rejoins(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    with VerifiableProducer(cluster.bootstrap, topic, tmp_path) as producer:
        producer.wait_for(300)
        described = partition_of(cluster, topic)
        # Not the controller: with that one stopped nobody can change the ISR, until its session ends.
        busy = {described.leader, cluster.controller()}
        follower = cluster.brokers[next(r for r in described.replicas if r not in busy)]
        others = View(cluster, follower)
        had_a_session = False
        for _ in range(6):  # on a slow machine, the session may end before we look
            with stopped(follower):
                cluster.wait_until(
                    lambda: others.dropped(topic, follower.broker_id), "the follower to leave an ISR"
                )
                had_a_session = follower.broker_id in others.brokers()
            cluster.wait_until(lambda: cluster.fully_replicated(topic), "the follower to be in sync again")
            if had_a_session:
                break
        assert had_a_session, "it left for the end of its session, and not for its lag"
        producer.wait_for_more(300)
    check_all_kept(producer, PARTITIONS)


def test_zookeeper_killed_under_load_and_started_on_the_same_data(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    pids = {broker.broker_id: broker.pid for broker in cluster.brokers.values()}
    with VerifiableProducer(cluster.bootstrap, topic, tmp_path) as producer:
        producer.wait_for(300)
        cluster.zookeeper.kill()
        producer.wait_for_more(2000)  # no decision is needed for these; 4 s
        cluster.zookeeper.start()
        producer.wait_for_more(300)
        cluster.create_topic("after-zookeeper", partitions=3, replicas=3)
        assert pids == {broker.broker_id: broker.pid for broker in cluster.brokers.values()}
        victim = present_leader(cluster, topic)
        cluster.brokers[victim].kill()
        cluster.wait_until(lambda: leader_of(cluster, topic) not in (victim, -1), "a new leader")
        producer.wait_for_more(300)
        bring_back(cluster)
    check_all_kept(producer, PARTITIONS)


def test_with_too_few_replicas_in_sync_acks_all_is_refused(cluster: LocalCluster, topic: str) -> None:
    make_the_first_lead(cluster, topic, PARTITIONS)
    described = partition_of(cluster, topic)
    leader = cluster.brokers[described.leader]

    def produce(value: str, acks: int) -> ErrorCode:
        answer: ProduceResponse = send_to(leader, batch_request(topic, value, acks=acks))
        return ErrorCode.of(answer.responses[0].partition_responses[0].error_code)

    def takes(value: str, acks: int) -> None:
        """Once its followers, whom the machine may have held up, are with it."""
        cluster.wait_until(lambda: produce(value, acks) == ErrorCode.NONE, f"{value} to be taken")

    takes("three", -1)
    for replica in described.replicas:
        if replica != described.leader:
            cluster.brokers[replica].kill()
    cluster.wait_until(lambda: partition_of(cluster, topic).isr == (described.leader,), "the ISR to shrink")
    assert produce("refused", -1) == ErrorCode.NOT_ENOUGH_REPLICAS
    takes("one", 1)
    bring_back(cluster)
    takes("three again", -1)
    stored = read_topic(cluster.bootstrap, topic, PARTITIONS, expected=[(0, offset) for offset in range(3)])
    # Once each, or more often: what was tried again may have been taken before.
    in_order = [value for value, _ in groupby(stored[place] for place in sorted(stored))]
    assert in_order == ["three", "one", "three again"]
