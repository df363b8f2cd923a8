"""Apache Kafka 3.9.1's broker as a member of our cluster: it obeys our controller, and we read its tree.

The oracle of LeaderAndIsr, UpdateMetadata, StopReplica, AlterPartition, ControlledShutdown and of every node
that we write is Kafka's own code.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.exceptions import NoNodeError

from bench.apache_kafka import KafkaBroker
from ottla.client.admin import AdminClient as OurAdmin
from ottla.client.admin_types import TopicPartition as GroupOffset
from ottla.client.routing import ClusterUnreachable
from ottla.coordinators.records import partition_for
from ottla.local.cluster import run_admin
from ottla.metadata import znodes
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    MetadataRequest,
    MetadataResponse,
)
from ottla.protocol.records import decode_records
from ottla.wire.connection import BrokerConnection
from tests.judges.mixed_pair import JAVA, OURS, WAIT_S, Pair, until
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(420)

SETTINGS = {
    "offsets.topic.replication.factor": "1",
    "controlled.shutdown.retry.backoff.ms": "200",
    # Nobody is killed here, and nobody shall seem so because the machine is busy.
    "zookeeper.session.timeout.ms": "30000",
    "log.segment.delete.delay.ms": "100",
    "file.delete.delay.ms": "100",
}


class Mixed(Pair):
    """One broker of ours, which is the controller, and one of Apache Kafka's."""

    def __init__(self, directory: Path) -> None:
        ours = {k: v for k, v in SETTINGS.items() if not k.startswith("file.")}
        super().__init__(directory, our_settings=ours, java_settings=SETTINGS)

    def start(self) -> None:
        self.ours.start_and_wait()
        self.tree.start()
        until(lambda: self.node(znodes.CONTROLLER) is not None, "our broker is elected")
        self.java.start()
        until(lambda: self.node(znodes.broker_path(JAVA)) is not None, "Kafka's broker is registered")
        until(lambda: len(self.admin().list_topics(timeout=60).brokers) == 2, "both are in the metadata")

    def isr(self, topic: str, partition: int) -> tuple[int, ...]:
        state = self.state(topic, partition)
        return () if state is None else state.isr

    def admin(self, bootstrap: str | None = None) -> AdminClient:
        return AdminClient({"bootstrap.servers": bootstrap or f"127.0.0.1:{self.ours.port}"})

    def create(self, topic: str, assignment: list[list[int]]) -> None:
        new = NewTopic(topic, num_partitions=len(assignment), replica_assignment=assignment)
        admin = self.admin()
        admin.create_topics([new])[topic].result(90)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    needs_kafka_jars()
    cluster = Mixed(tmp_path_factory.mktemp("mixed"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def produce(bootstrap: str, topic: str, partition: int, values: list[str]) -> None:
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "delivery.timeout.ms": 90_000})
    for value in values:
        producer.produce(
            topic,
            value.encode(),
            partition=partition,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(100) == 0
    assert failures == []


def consume(bootstrap: str, topic: str, partition: int, count: int) -> list[str]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0)])
    values: list[str] = []
    deadline = time.monotonic() + WAIT_S
    try:
        while len(values) < count:
            assert time.monotonic() < deadline, f"got {len(values)} of {count} records"
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                values.append(message.value().decode())
    finally:
        consumer.close()
    return values


def test_kafka_and_ottla_lead_and_follow_each_other(mixed: Mixed) -> None:
    mixed.create("both", [[OURS, JAVA], [JAVA, OURS]])
    for partition in (0, 1):
        values = [f"{partition}-{n}" for n in range(500)]
        produce(mixed.java.bootstrap, "both", partition, values)
        assert consume(mixed.java.bootstrap, "both", partition, 500) == values
        # Who was late may have left, and have come back.
        until(lambda p=partition: set(mixed.isr("both", p)) == {OURS, JAVA}, "both are in sync")  # type: ignore[misc]


def test_kafkas_metadata_is_that_of_our_controller(mixed: Mixed) -> None:
    mixed.create("seen", [[JAVA], [OURS]])
    until(lambda: topic_in(metadata_of(mixed.java), "seen"), "Kafka knows")
    metadata = metadata_of(mixed.java)
    topic = topic_in(metadata, "seen")
    assert topic is not None
    assert {p.partition_index: (p.leader_id, p.replica_nodes) for p in topic.partitions} == {
        0: (JAVA, [JAVA]),
        1: (OURS, [OURS]),
    }
    assert metadata.controller_id == OURS


def metadata_of(broker: KafkaBroker) -> MetadataResponse:
    """What this broker, and none other, says; a client would ask any broker that it has heard of."""

    async def ask() -> MetadataResponse:
        host, port = broker.bootstrap.rsplit(":", 1)
        connection = await BrokerConnection.open(host, int(port), timeout_s=60)
        try:
            return await connection.request(MetadataRequest(topics=None))
        finally:
            connection.close()

    return asyncio.run(ask())


def topic_in(metadata: MetadataResponse, name: str) -> MetadataResponse.MetadataResponseTopic | None:
    return next((topic for topic in metadata.topics if topic.name == name and not topic.error_code), None)


def test_topics_created_by_both_brokers_at_once_exist_once_and_the_controller_stays(mixed: Mixed) -> None:
    """Kafka's broker creates what a client names by itself, in ZooKeeper; ours is the controller."""
    names = [f"named-{number}" for number in range(30)]

    def epoch() -> int:
        return znodes.decode_controller_epoch(mixed.node(znodes.CONTROLLER_EPOCH) or b"")

    async def name_all() -> None:
        ports = (mixed.ours.port, mixed.java.port)
        connections = [await BrokerConnection.open("127.0.0.1", port, timeout_s=60) for port in ports]
        try:
            for name in names:
                request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)])
                await asyncio.gather(*(connection.request(request) for connection in connections))
        finally:
            for connection in connections:
                connection.close()

    before = epoch()
    asyncio.run(name_all())
    for name in names:
        until(lambda name=name: mixed.state(name, 0) is not None, f"{name} has a leader")  # type: ignore[misc]

    def known() -> dict[str, int]:
        topics = mixed.admin().list_topics(timeout=60).topics
        return {name: len(topics[name].partitions) for name in names if name in topics}

    until(lambda: known() == dict.fromkeys(names, 1), "our broker knows them all")
    assert epoch() == before
    assert mixed.controller() == OURS


def test_kafka_deletes_what_our_controller_deletes(mixed: Mixed) -> None:
    mixed.create("doomed", [[JAVA, OURS]])
    folder = mixed.java.directory / "data" / "doomed-0"
    until(folder.exists, "Kafka has made the log")
    admin = mixed.admin()
    admin.delete_topics(["doomed"])["doomed"].result(90)
    until(lambda: mixed.node(znodes.topic_path("doomed")) is None, "all replicas have confirmed")
    until(lambda: not folder.exists(), "Kafka has removed the log")
    until(lambda: mixed.node(znodes.topic_config_path("doomed")) is None, "its settings are gone")
    until(lambda: mixed.node(znodes.delete_topic_path("doomed")) is None, "so is the order to delete it")


def test_kafkas_broker_makes_a_controlled_shutdown_and_rejoins(mixed: Mixed) -> None:
    mixed.create("moves", [[JAVA, OURS]])
    produce(mixed.java.bootstrap, "moves", 0, ["before"])
    until(lambda: set(mixed.isr("moves", 0)) == {OURS, JAVA}, "both are in sync")
    mixed.java.stop()
    state = mixed.state("moves", 0)
    assert state is not None
    assert (state.leader, state.isr) == (OURS, (OURS,))
    ours = f"127.0.0.1:{mixed.ours.port}"
    produce(ours, "moves", 0, ["between"])
    mixed.java.start()

    until(
        lambda: set(mixed.isr("moves", 0)) == {OURS, JAVA},
        "Kafka has caught up from our leader, and we let it in",
    )
    assert consume(ours, "moves", 0, 2) == ["before", "between"]


def init_producer_id(port: int) -> InitProducerIdResponse:
    async def ask() -> InitProducerIdResponse:
        connection = await BrokerConnection.open("127.0.0.1", port, client_id="test", timeout_s=60)
        try:
            request = InitProducerIdRequest(transactional_id=None)
            answer: InitProducerIdResponse = await connection.request(request, version=4)
            return answer
        finally:
            connection.close()

    return asyncio.run(ask())


def producer_id(port: int) -> int:
    """An id from the broker; while Kafka's asks for a block, it says to come again."""
    found: list[InitProducerIdResponse] = []

    def given() -> bool:
        found[:] = [init_producer_id(port)]
        assert found[0].error_code in (ErrorCode.NONE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return not found[0].error_code

    until(given, "the controller gives a block of producer ids")
    return found[0].producer_id


def elect(mixed: Mixed, broker: int) -> None:
    """Depose the controller until it is this one's turn."""

    def elected() -> bool:
        data = mixed.node(znodes.CONTROLLER)
        if data is not None and znodes.decode_controller(data) != broker:
            with contextlib.suppress(NoNodeError):
                mixed.tree.delete(znodes.CONTROLLER)
        return data is not None and znodes.decode_controller(data) == broker

    until(elected, f"broker {broker} is elected")


def block_owner(mixed: Mixed) -> int:
    data = mixed.node(znodes.PRODUCER_ID_BLOCK)
    assert data is not None
    return znodes.decode_producer_id_block(data)[0]


def test_our_controller_gives_kafkas_broker_its_producer_ids(mixed: Mixed) -> None:
    first = producer_id(mixed.java.port)
    assert block_owner(mixed) == JAVA
    assert producer_id(mixed.java.port) == first + 1
    mixed.create("idempotent", [[JAVA]])
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": mixed.java.bootstrap, "enable.idempotence": True})
    for n in range(100):
        producer.produce("idempotent", b"%d" % n, on_delivery=lambda e, _: failures.append(e) if e else None)
    assert producer.flush(100) == 0
    assert failures == []


def test_kafkas_controller_gives_our_broker_its_producer_ids(mixed: Mixed) -> None:
    before = {producer_id(mixed.java.port)}
    elect(mixed, JAVA)
    try:
        assert producer_id(mixed.ours.port) not in before
        assert block_owner(mixed) == OURS
    finally:
        elect(mixed, OURS)
    until(lambda: mixed.admin().list_topics(timeout=60).controller_id == OURS, "all know the controller")


def test_groups_move_between_brokers_that_compact_what_the_other_wrote(mixed: Mixed) -> None:
    """The offsets' partition moves back and forth; each broker loads what the other wrote and compacted."""
    mixed.create("read", [[OURS]])
    group, rounds = "moving", 60
    internal, index = "__consumer_offsets", partition_for("moving", 50)
    keys = [GroupOffset("read", 0)]
    run = partial(run_admin, [("127.0.0.1", mixed.ours.port)])
    settings = {"segment.bytes": "2000", "min.cleanable.dirty.ratio": "0.01"}
    until_done(lambda: run(lambda c: c.group_offsets(group)), "there is a topic of offsets")
    run(lambda c: c.alter_topic_config(internal, set_values=settings))
    run(lambda c: c.alter_broker_config(None, set_values={"log.cleaner.backoff.ms": "100"}))

    async def go_on(client: OurAdmin, first: int) -> None:
        for offset in range(first, first + rounds):
            (await client.alter_group_offsets(group, dict.fromkeys(keys, offset))).raise_first()

    def committed() -> int | None:
        try:
            return run(lambda c: c.group_offsets(group)).get(keys[0])
        except (ClusterUnreachable, KafkaError, OSError):  # while it moves
            return None

    def is_clean(folder: Path) -> bool:
        """Whether all segments but the last have each key once."""
        logs = sorted(folder.glob("*.log"))[:-1]
        try:
            found = Counter(r.key for log in logs for r in decode_records(log.read_bytes()))
        except FileNotFoundError:  # The cleaner has just replaced it.
            return False
        return bool(found) and max(found.values()) == 1

    try:
        last = None
        for station, broker in enumerate((JAVA, OURS, JAVA)):
            moved = {GroupOffset(internal, index): [broker]}
            run(lambda c, to=moved: c.alter_partition_reassignments(to)).raise_first()  # type: ignore[misc]
            until(lambda b=broker: mixed.isr(internal, index) == (b,), f"broker {broker} has it")  # type: ignore[misc]
            until(lambda last=last: committed() == last, f"broker {broker} has loaded {last}")  # type: ignore[misc]
            until_done(lambda at=station * rounds: run(lambda c: go_on(c, at)), "commits go on")  # type: ignore[misc]
            last = (station + 1) * rounds - 1
            directory = mixed.java.directory if broker == JAVA else mixed.ours.directory
            folder = directory / "data" / f"{internal}-{index}"
            until(lambda folder=folder: is_clean(folder), f"broker {broker} has compacted")  # type: ignore[misc]
            until(lambda last=last: committed() == last, f"broker {broker} still knows it")  # type: ignore[misc]
    finally:
        run(lambda c: c.alter_broker_config(None, delete=["log.cleaner.backoff.ms"]))
        run(lambda c: c.alter_topic_config(internal, delete=list(settings)))


def until_done(attempt: Callable[[], object], what: str) -> None:
    """Again, when the broker that was asked had not heard yet who coordinates."""

    def done() -> bool:
        try:
            attempt()
        except (ClusterUnreachable, KafkaError, OSError):
            return False
        return True

    until(done, what)
