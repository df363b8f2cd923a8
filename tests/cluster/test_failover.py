"""A leader is killed, or stopped and continued, under Kafka's own verifiable producer; no acknowledged record
is lost.

Real processes and signals: the simulation has all other cases (docs/explanation/simulation.md). One cluster
for all; each test leaves three brokers in sync.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ottla.client.admin_types import TopicPartition
from ottla.local.brokers import BrokerProcess
from ottla.local.cluster import LocalCluster, run_admin
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import ProduceRequest
from ottla.protocol.records import Record, build_batch
from ottla.protocol.types import Message
from ottla.wire.connection import BrokerConnection, ConnectionLost
from tests.judges.faults import bring_back, cluster_for_faults, leader_of, make_the_first_lead, present_leader
from tests.judges.verify import VerifiableProducer, check_all_kept, read_topic
from tests.oracles import needs_kafka_jars

PARTITIONS = 3
pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    needs_kafka_jars()
    with cluster_for_faults(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.name.removeprefix("test_")
    cluster.create_topic(name, partitions=PARTITIONS, replicas=3, min_insync_replicas="2")
    yield name
    bring_back(cluster)


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


def batch_request(topic: str, value: str, *, acks: int) -> ProduceRequest:
    """One record for the first partition."""
    batch = build_batch([Record(0, 1_700_000_000_000, None, value.encode(), [])])
    part = ProduceRequest.PartitionProduceData(index=0, records=batch)
    row = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
    return ProduceRequest(acks=acks, timeout_ms=15_000, topic_data=[row])


def send_to_stopped(
    broker: BrokerProcess, requests: Sequence[Message], *, meanwhile: Callable[[], None]
) -> list[Any]:
    """Stops the broker (SIGSTOP), writes the requests into its socket, and continues it after `meanwhile`.
    Returns the responses in order; None for a request on which the broker closed the connection."""

    async def ask(connection: BrokerConnection, request: Message) -> Any:
        try:
            return await connection.request(request, timeout_s=400)
        except (ConnectionLost, TimeoutError):
            return None

    async def scenario() -> list[Any]:
        connection = await BrokerConnection.open(broker.host, broker.port, timeout_s=60)
        broker.signal(signal.SIGSTOP)
        try:
            asking = [asyncio.create_task(ask(connection, request)) for request in requests]
            await asyncio.to_thread(meanwhile)
        finally:
            broker.signal(signal.SIGCONT)
        try:
            return list(await asyncio.gather(*asking))
        finally:
            connection.close()

    return asyncio.run(scenario())


def test_a_stopped_leader_loses_no_acknowledged_record(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    """It returns with outdated state. What it then acknowledges to acks=all must not be lost."""
    with VerifiableProducer(cluster.bootstrap, topic, tmp_path) as producer:
        producer.wait_for(300)
        make_the_first_lead(cluster, topic, PARTITIONS)
        zombie = cluster.brokers[present_leader(cluster, topic)]
        others = [(b.host, b.port) for b in cluster.brokers.values() if b is not zombie]
        values = [f"stubborn-{n}" for n in range(20)]
        # With acks=1 it may take them and lose them: they make its log diverge from the new leader's.
        requests = [batch_request(topic, value, acks=acks) for value in values for acks in (1, -1)]

        def leader_seen_by_others() -> int:
            found = run_admin(others, lambda client: client.describe_topics([topic]))
            return found[topic].partitions[0].leader

        def superseded() -> None:
            cluster.wait_until(
                lambda: leader_seen_by_others() not in (zombie.broker_id, -1), "another leader"
            )
            producer.wait_for_more(500)

        answers = send_to_stopped(zombie, requests, meanwhile=superseded)
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
