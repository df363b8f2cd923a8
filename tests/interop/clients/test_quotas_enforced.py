"""Clients and replicas that would be faster than they may, on a cluster of ours: how fast they are.

The clients are librdkafka, kafka-python and fifty by hand, the moves those of Kafka's own reassignment tool.
tests/unit/test_brokers_quotas.py has narrower bounds, in simulated time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaProducer

from bench.apache_kafka import run_tool
from ottla.client.admin import AdminClient
from ottla.local.cluster import LocalCluster
from ottla.local.processes import wait_until
from ottla.protocol.messages import ProduceRequest, ProduceResponse
from ottla.protocol.records import Record, build_batch
from ottla.wire.connection import BrokerConnection
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(420)

LIMIT = 400_000
WINDOWS = 3
"""Three windows of a second: what may be sent in three seconds can all be sent in the first of them."""
TOTAL = 4 * WINDOWS * LIMIT
"""What each client sends or reads, in bytes. Three cycles are the shortest time for it; on a machine that has
other things to do it takes longer."""
MOST = 1 + 1 / (3 * WINDOWS)
"""Of the limit: cycles that a late client does not begin with hold a window's worth more, in Kafka too
(docs/adr/0015). What each answer says is compared with Kafka's own classes elsewhere."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {
        "quota.window.num": str(WINDOWS),
        "replica.fetch.max.bytes": "65536",
        "offsets.topic.replication.factor": "1",
    }
    with LocalCluster(tmp_path_factory.mktemp("enforced"), brokers=2, settings=settings) as running:
        yield running


def limit_clients(cluster: LocalCluster, **clients: dict[str, float | None]) -> None:
    """Set the quotas of clients, and wait until every broker has heard of them."""
    probe = f"probe-{uuid4().hex}"  # of whom they have not heard before
    for name, rates in {**clients, probe: {"producer_byte_rate": 1.0}}.items():
        cluster.admin(lambda admin, n=name, r=rates: admin.alter_client_quota({"client-id": n}, r))

    async def held(host: str, port: int) -> bool:
        connection = await BrokerConnection.open(host, port, client_id=probe, timeout_s=60)
        try:
            # Nobody has the topic; the request weighs what it weighs.
            row = ProduceRequest.PartitionProduceData(index=0, records=bytes(100))
            asked = ProduceRequest.TopicProduceData(name="none", partition_data=[row])
            answer: ProduceResponse = await connection.request(
                ProduceRequest(acks=1, timeout_ms=1000, topic_data=[asked]), version=9
            )
            return answer.throttle_time_ms > 0
        finally:
            connection.close()

    def all_hold() -> bool:
        return all(asyncio.run(held(b.host, b.port)) for b in cluster.brokers.values())

    cluster.wait_until(all_hold, "the quotas to hold")


class Meter:
    """What has come through since it was made."""

    def __init__(self) -> None:
        self.total = 0
        self._began = time.monotonic()

    def add(self, size: int) -> None:
        self.total += size

    @property
    def is_full(self) -> bool:
        return self.total >= TOTAL

    def rate(self) -> float:
        """Bytes per second, without those that a window full of silence allows at once."""
        assert self.is_full
        return (self.total - WINDOWS * LIMIT) / (time.monotonic() - self._began)


class Throttle:
    """The longest wait that librdkafka was told of, from its statistics."""

    def __init__(self) -> None:
        self.most_ms = 0

    def __call__(self, statistics: str) -> None:
        for broker in json.loads(statistics)["brokers"].values():
            self.most_ms = max(self.most_ms, broker["throttle"]["max"])


def ends(cluster: LocalCluster, topic: str) -> int:
    """How many records the topic's partition 0 holds."""
    asker = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "asker"})
    try:
        return asker.get_watermark_offsets(TopicPartition(topic, 0), timeout=60)[1]
    finally:
        asker.close()


def librdkafka_produces(cluster: LocalCluster, name: str, acks: int) -> tuple[float, int]:
    """(speed, longest wait it was told of)."""
    topic = "t" if acks else "t0"
    meter, throttle = Meter(), Throttle()
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "client.id": name,
            "acks": acks,
            "statistics.interval.ms": 200,
            "stats_cb": throttle,
            "queue.buffering.max.kbytes": 64,
            "batch.size": 16_384,
            "max.in.flight": 1,
        }
    )
    value = b"v" * 1000
    while not meter.is_full:
        try:
            producer.produce(topic, value, on_delivery=lambda error, _: error or meter.add(1070))
            producer.poll(0)
        except BufferError:
            producer.poll(0.01)
    assert producer.flush(90) == 0
    if not acks:  # it is delivered to the kernel

        def has_come() -> bool:
            return ends(cluster, topic) * 1070 >= meter.total

        cluster.wait_until(has_come, "all to be in the log")
    return meter.rate(), throttle.most_ms


def kafka_python_produces(cluster: LocalCluster, name: str) -> float:
    meter = Meter()
    logging.getLogger("kafka.net.connection").setLevel(logging.ERROR)  # else it warns of every wait
    with KafkaProducer(
        bootstrap_servers=cluster.bootstrap,
        client_id=name,
        acks=1,
        enable_idempotence=False,
        batch_size=16_384,
        max_in_flight_requests_per_connection=1,
    ) as producer:
        while not meter.is_full:
            producer.send("t", b"v" * 8000, partition=0).get(timeout=90)
            meter.add(8100)
    return meter.rate()


def fifty_produce(cluster: LocalCluster, name: str) -> float:
    """Fifty connections under one name, whose limit they share, each with a request under way at a time."""
    meter = Meter()
    topic = cluster.topic("t")
    assert topic is not None
    leader = cluster.brokers[topic.partitions[0].leader]
    row = ProduceRequest.PartitionProduceData(
        index=0, records=build_batch([Record(0, 1_700_000_000_000, None, b"v" * 1000)])
    )
    asked = ProduceRequest(
        acks=1,
        timeout_ms=90_000,
        topic_data=[ProduceRequest.TopicProduceData(name="t", partition_data=[row])],
    )

    async def produce() -> None:
        connection = await BrokerConnection.open(leader.host, leader.port, client_id=name, timeout_s=60)
        try:
            while not meter.is_full:
                answer: ProduceResponse = await connection.request(asked, version=9, timeout_s=90)
                assert answer.responses[0].partition_responses[0].error_code == 0
                meter.add(1120)
        finally:
            connection.close()

    async def all_produce() -> None:
        await asyncio.gather(*(produce() for _ in range(50)))

    asyncio.run(all_produce())
    return meter.rate()


def librdkafka_consumes(cluster: LocalCluster, name: str) -> tuple[float, int]:
    meter, throttle = Meter(), Throttle()
    with Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "client.id": name,
            "group.id": name,
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 65_536,
            "fetch.queue.backoff.ms": 10,
            "queued.max.messages.kbytes": 64,
            "statistics.interval.ms": 200,
            "stats_cb": throttle,
        }
    ) as consumer:
        consumer.assign([TopicPartition("full", 0, 0)])
        while not meter.is_full:
            message = consumer.poll(0.05)
            if message is not None and message.error() is None:
                meter.add(len(message.value() or b"") + 10)
    return meter.rate(), throttle.most_ms


def fill(cluster: LocalCluster, topic: str, records: int) -> None:
    """Records of 1000 bytes in partition 0, in batches of about ten."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "batch.size": 10_000, "linger.ms": 5})
    for _ in range(records):
        producer.produce(topic, b"v" * 1000, partition=0)
        producer.poll(0)
    assert producer.flush(90) == 0


def test_clients_are_throttled_to_their_quotas(cluster: LocalCluster) -> None:
    cluster.create_topic("t", partitions=1, replicas=2)
    cluster.create_topic("t0", partitions=1, replicas=2)
    cluster.create_topic("full", partitions=1, replicas=1)
    fill(cluster, "full", TOTAL // 1000 + 1)
    runs: dict[str, Callable[[str], tuple[float, int]]] = {
        "acks0": lambda name: librdkafka_produces(cluster, name, 0),
        "acks1": lambda name: librdkafka_produces(cluster, name, 1),
        "all": lambda name: librdkafka_produces(cluster, name, -1),
        "python": lambda name: (kafka_python_produces(cluster, name), 0),
        "fifty": lambda name: (fifty_produce(cluster, name), 0),
        "reader": lambda name: librdkafka_consumes(cluster, name),
    }
    both: dict[str, float | None] = {"producer_byte_rate": float(LIMIT), "consumer_byte_rate": float(LIMIT)}
    limit_clients(cluster, **dict.fromkeys(runs, both))
    with ThreadPoolExecutor(len(runs)) as threads:
        ended = {kind: threads.submit(run, kind) for kind, run in runs.items()}
        figures = {kind: future.result() for kind, future in ended.items()}
    for kind, (rate, throttle_ms) in figures.items():
        assert rate < MOST * LIMIT, figures
        assert (throttle_ms > 0) == (kind in ("acks1", "all", "reader")), figures


def test_an_admin_client_sends_nothing_while_it_is_throttled(cluster: LocalCluster) -> None:
    """The broker would not read it. What was sent and answered when is seen on the way to the broker."""
    limit_clients(cluster, hurried={"request_percentage": 0.00001})
    broker = next(iter(cluster.brokers.values()))
    passed: list[tuple[str, float]] = []

    async def carry(direction: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            while data := await reader.read(65536):
                passed.append((direction, time.monotonic()))
                writer.write(data)

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, there = await asyncio.open_connection(broker.host, broker.port)
        await asyncio.gather(carry("request", reader, there), carry("response", behind, writer))

    async def ask() -> None:
        async with await asyncio.start_server(join, "127.0.0.1", 0) as proxy:
            port = proxy.sockets[0].getsockname()[1]
            async with AdminClient(bootstrap_servers=f"127.0.0.1:{port}", client_id="hurried") as admin:
                for _ in range(3):
                    await admin.describe_cluster()

    asyncio.run(ask())
    answered = [when for direction, when in passed if direction == "response"]
    asked = [when for direction, when in passed if direction == "request"]
    # ApiVersions and three times Metadata, of which each is too long: a second's wait, the longest there is.
    assert len(asked) == len(answered) == 4
    waits = [later - earlier for earlier, later in zip(answered[1:], asked[2:], strict=False)]
    assert min(waits) > 0.95, waits


def test_kafkas_tool_throttles_a_move_and_removes_the_throttle(cluster: LocalCluster, tmp_path: Path) -> None:
    needs_kafka_jars()
    cluster.create_topic("moving", partitions=1, replicas=1)
    fill(cluster, "moving", 100)
    topic = cluster.topic("moving")
    assert topic is not None
    source = topic.partitions[0].leader
    target = 1 - source
    plan = tmp_path / "plan.json"
    move = {"topic": "moving", "partition": 0, "replicas": [target], "log_dirs": ["any"]}
    plan.write_text(json.dumps({"version": 1, "partitions": [move]}))

    def reassign(*arguments: str) -> str:
        command = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
        files = ("--bootstrap-server", cluster.bootstrap, "--reassignment-json-file", str(plan))
        ran = run_tool(command, [*files, *arguments])
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def moving() -> bool:
        return bool(cluster.admin(lambda admin: admin.list_partition_reassignments()))

    reassign("--execute", "--throttle", "120000")
    configs = cluster.admin(lambda admin: admin.describe_topic_configs(["moving"]))["moving"]
    cluster.wait_until(lambda: not moving(), "the move to end")
    assert configs["leader.replication.throttled.replicas"].value == f"0:{source}"
    assert configs["follower.replication.throttled.replicas"].value == f"0:{target}"
    verified: list[str] = []

    def done() -> bool:
        """The broker that the tool asks has to hear of the end, too."""
        verified.append(reassign("--verify"))
        return "Clearing broker-level throttles" in verified[-1]

    assert wait_until(done, timeout_s=120), verified
    assert "Clearing topic-level throttles on topic moving" in verified[-1]
    configs = cluster.admin(lambda admin: admin.describe_topic_configs(["moving"]))["moving"]
    assert configs["leader.replication.throttled.replicas"].value == ""
