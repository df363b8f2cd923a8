"""Consumers that read from a follower near them (KIP-392): Ottla and Apache Kafka 3.9.1 in one cluster.

Brokers 1 (Ottla) and 3 (Kafka) are in rack a, broker 2 (Ottla) in rack b. Leaders of both kinds are asked
the same, in the same words, and so are followers of both kinds; then Kafka's own consumer, librdkafka's and
ours read in rack b, and count the bytes that each broker sent them. At the end both kinds of broker lose
records by an unclean election, of which our consumer hears (KIP-320).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.apache_kafka import KafkaBroker
from ottla.client import Consumer as OurConsumer
from ottla.client import Producer as OurProducer
from ottla.client.errors import LogTruncationError
from ottla.local.brokers import BrokerProcess
from ottla.local.cluster import run_admin
from ottla.local.processes import free_port, wait_until
from ottla.local.zookeeper import EmbeddedZooKeeper
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import DeleteRecordsRequest, FetchRequest, FetchResponse, MetadataRequest
from ottla.wire.connection import BrokerConnection
from tests.judges.kafka_tools import run_program
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(420)

WAIT_S = 90.0
OURS, NEAR, THEIRS = 1, 2, 3
RACKS = {OURS: "a", NEAR: "b", THEIRS: "a"}
SETTINGS = {
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "auto.create.topics.enable": "false",
    "controlled.shutdown.enable": "false",
    "replica.fetch.wait.max.ms": "100",
}
TOPICS = {
    "ours": [OURS, NEAR],
    "theirs": [THEIRS, NEAR],
    "at-theirs": [NEAR, THEIRS],
    "at-ours": [NEAR, OURS],
}
RECORDS, START = 50, 10
EACH_BYTES = 4000

Answers: TypeAlias = dict[str, tuple[object, ...]]
T = TypeVar("T")


class Racks:
    """The cluster, with some records in each topic."""

    def __init__(self, directory: Path) -> None:
        self.zookeeper = EmbeddedZooKeeper(directory / "zookeeper")
        self.zookeeper.start()
        self.brokers = {n: BrokerProcess(n, directory / str(n), free_port()) for n in (OURS, NEAR)}
        for number, broker in self.brokers.items():
            broker.write_properties(self.zookeeper.connect, {**SETTINGS, "broker.rack": RACKS[number]})
        self.java = KafkaBroker(
            directory / "java",
            self.zookeeper.connect,
            broker_id=THEIRS,
            settings={**SETTINGS, "broker.rack": RACKS[THEIRS]},
        )

    def start(self) -> None:
        for broker in self.brokers.values():
            broker.start_and_wait()
        self.java.start()
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        assert wait_until(lambda: len(admin.list_topics(timeout=60).brokers) == 3, timeout_s=WAIT_S)
        new = [
            NewTopic(name, num_partitions=1, replica_assignment=[replicas])
            for name, replicas in TOPICS.items()
        ]
        for created in admin.create_topics(new).values():
            created.result(WAIT_S)

        def in_sync() -> bool:
            """As every broker says: it hears of what it leads before. One that does not lead yet would refuse
            a producer's first records, and take the next."""
            for number in RACKS:
                at = [("127.0.0.1", self.port(number))]
                topics = run_admin(at, lambda client: client.describe_topics(TOPICS))
                found = [p for name in TOPICS if name in topics for p in topics[name].partitions]
                if len(found) != len(TOPICS) or any(len(p.isr) != 2 for p in found):
                    return False
            return True

        assert wait_until(in_sync, timeout_s=WAIT_S)
        failures: list[object] = []
        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "batch.size": EACH_BYTES}
        )
        for topic in TOPICS:
            for _ in range(RECORDS):
                producer.produce(
                    topic,
                    b"x" * EACH_BYTES,
                    partition=0,
                    on_delivery=lambda error, _: failures.append(error) if error else None,
                )
        assert producer.flush(WAIT_S) == 0
        assert failures == []

    def stop(self) -> None:
        self.java.stop()
        for broker in self.brokers.values():
            broker.stop()
        self.zookeeper.stop()

    def port(self, broker: int) -> int:
        return self.java.port if broker == THEIRS else self.brokers[broker].port

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{self.port(number)}" for number in RACKS)

    def ask(self, broker: int, use: Callable[[BrokerConnection], Awaitable[T]]) -> T:
        async def recorder() -> T:
            connection = await BrokerConnection.open(
                "127.0.0.1", self.port(broker), client_id="oracle", timeout_s=60
            )
            try:
                return await use(connection)
            finally:
                connection.close()

        return asyncio.run(recorder())


@pytest.fixture(scope="module")
def racks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Racks]:
    needs_kafka_jars()
    cluster = Racks(tmp_path_factory.mktemp("racks"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


class Asker:
    """Fetches one topic's partition in raw requests, at one broker."""

    def __init__(self, connection: BrokerConnection, topic: str) -> None:
        self.connection = connection
        self.topic = topic

    async def start(self) -> None:
        asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=self.topic)])
        [row] = (await self.connection.request(asked, version=12)).topics
        self.topic_id = row.topic_id
        self.leader_epoch = row.partitions[0].leader_epoch

    async def fetch(
        self,
        offset: int,
        rack: str = "",
        version: int = 16,
        *,
        epoch: int | None = None,
        last_epoch: int = -1,
        wait_ms: int = 0,
        max_bytes: int = 100_000,
        session: tuple[int, int] = (0, -1),
        committed: bool = False,
        wanted: bool = True,
    ) -> FetchResponse:
        partition = FetchRequest.FetchPartition(
            partition=0,
            fetch_offset=offset,
            current_leader_epoch=-1 if epoch is None else self.leader_epoch + epoch,
            last_fetched_epoch=last_epoch,
            partition_max_bytes=max_bytes,
        )
        topic = FetchRequest.FetchTopic(topic=self.topic, topic_id=self.topic_id, partitions=[partition])
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            isolation_level=int(committed),
            session_id=session[0],
            session_epoch=session[1],
            topics=[topic] if wanted else [],
            rack_id=rack,
        )
        answer: FetchResponse = await self.connection.request(request, version=version)
        return answer


def row_of(answer: FetchResponse) -> tuple[object, ...]:
    if not answer.responses:
        return ErrorCode(answer.error_code).name, "nothing"
    [topic] = answer.responses
    [row] = topic.partitions
    return (
        ErrorCode(answer.error_code).name,
        ErrorCode(row.error_code).name,
        ("hw", row.high_watermark, "lso", row.last_stable_offset, "start", row.log_start_offset),
        ("aborted", row.aborted_transactions, "replica", row.preferred_read_replica),
        ("diverging", row.diverging_epoch.epoch, row.diverging_epoch.end_offset),
        None if row.records is None else len(row.records),
    )


Scenario = Callable[[Asker, Answers], Coroutine[Any, Any, None]]


def answers_of(racks: Racks, broker: int, topic: str, scenario: Scenario) -> Answers:
    answers: Answers = {}

    async def run(connection: BrokerConnection) -> None:
        asker = Asker(connection, topic)
        await asker.start()
        await scenario(asker, answers)

    racks.ask(broker, run)
    return answers


def test_a_leader_sends_consumers_to_their_rack_as_kafka_does(racks: Racks) -> None:
    async def scenario(leader: Asker, answers: Answers) -> None:
        for rack in ("", "a", "b", "z"):
            for version in (4, 10, 11, 12, 13, 16, 17):
                answers[f"{rack or 'no rack'} v{version}"] = row_of(await leader.fetch(5, rack, version))
        for offset in (0, RECORDS - 1, RECORDS, RECORDS + 1, -1):
            answers[f"at {offset}"] = row_of(await leader.fetch(offset, "b"))
        for epoch in (-1, 0, 1):
            answers[f"epoch {epoch:+}"] = row_of(await leader.fetch(0, "b", epoch=epoch))
        answers["committed"] = row_of(await leader.fetch(0, "b", committed=True))
        answers["of an epoch to come"] = row_of(await leader.fetch(0, "b", last_epoch=99))
        # Longer than this test may take.
        answers["does not wait"] = row_of(await leader.fetch(RECORDS, "b", wait_ms=3_600_000))
        # In a session it is said each time, and to whom it concerns.
        first = await leader.fetch(5, "b", session=(0, 0))
        answers["first of a session"] = row_of(first)
        session = first.session_id
        again = await leader.fetch(5, "b", session=(session, 1), wanted=False)
        answers["again in the session"] = row_of(again)
        elsewhere = await leader.fetch(5, "z", session=(session, 2), wanted=False)
        answers["from another rack, the same session"] = row_of(elsewhere)
        await leader.fetch(5, session=(session, -1), wanted=False)

    kafka = answers_of(racks, THEIRS, "theirs", scenario)
    ottla = answers_of(racks, OURS, "ours", scenario)
    assert ottla == kafka
    sent = [answer for name, answer in kafka.items() if name.startswith("b v1")]
    assert any(("aborted", None, "replica", NEAR) in answer for answer in sent), "Kafka sends them, too"


def test_a_follower_serves_consumers_as_kafka_does(racks: Racks) -> None:
    async def known_as_committed(follower: Asker) -> None:
        deadline = time.monotonic() + WAIT_S
        while True:
            answer = await follower.fetch(0, wait_ms=100)
            row = answer.responses[0].partitions[0]
            if not row.error_code and row.high_watermark == RECORDS:
                return
            assert time.monotonic() < deadline, row

    async def scenario(follower: Asker, answers: Answers) -> None:
        await known_as_committed(follower)
        for version in (4, 10, 11, 12, 13, 16, 17):
            answers[f"v{version}"] = row_of(await follower.fetch(5, "b", version))
        for offset in (0, 1, RECORDS - 1, RECORDS, RECORDS + 1, -1):
            answers[f"at {offset}"] = row_of(await follower.fetch(offset, "a"))
        for epoch in (-1, 0, 1):
            answers[f"epoch {epoch:+}"] = row_of(await follower.fetch(0, "a", epoch=epoch))
        answers["committed"] = row_of(await follower.fetch(0, "a", committed=True))
        answers["of an epoch to come"] = row_of(await follower.fetch(0, "a", last_epoch=99))
        answers["of an epoch that it has"] = row_of(await follower.fetch(0, "a", last_epoch=0))

    assert answers_of(racks, OURS, "at-ours", scenario) == answers_of(racks, THEIRS, "at-theirs", scenario)


def test_deleted_records_are_deleted_on_followers_of_kafka_and_ottla(racks: Racks) -> None:
    """And while a follower has it still, the leader sends nobody there who asks for what comes before."""

    async def delete(connection: BrokerConnection, topic: str) -> None:
        row = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=START)
        asked = DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[row])
        answer = await connection.request(DeleteRecordsRequest(topics=[asked], timeout_ms=30_000), version=2)
        assert answer.topics[0].partitions[0].error_code == 0, answer

    async def scenario(follower: Asker, answers: Answers) -> None:
        for offset in (START - 1, START, RECORDS):
            answers[f"at {offset}"] = row_of(await follower.fetch(offset, "a"))

    # DeleteRecords is answered when the followers have told that they did it, too.
    for topic in ("at-ours", "at-theirs"):
        racks.ask(NEAR, lambda connection, topic=topic: delete(connection, topic))  # type: ignore[misc]
    ottla, kafka = (
        answers_of(racks, OURS, "at-ours", scenario),
        answers_of(racks, THEIRS, "at-theirs", scenario),
    )
    assert ottla == kafka
    assert "OFFSET_OUT_OF_RANGE" in str(kafka[f"at {START - 1}"])


def test_kafkas_consumer_reads_in_its_rack(racks: Racks) -> None:
    topic = "ours"
    printed = run_program("NearestReplica", racks.bootstrap, topic, "b", str(RECORDS))
    said = dict(line.split() for line in printed.splitlines())
    assert int(said["records"]) == RECORDS, printed
    in_bytes = {n: int(said.get(f"node-{n}", 0)) for n in RACKS}
    assert in_bytes[NEAR] > RECORDS * EACH_BYTES
    assert in_bytes[TOPICS[topic][0]] < RECORDS * EACH_BYTES / 2, "the leader only told where to read"


@pytest.mark.parametrize("topic", ["ours", "theirs"])
def test_librdkafka_reads_in_its_rack(racks: Racks, topic: str) -> None:
    stats: list[dict[str, Any]] = []
    consumer = Consumer(
        {
            "bootstrap.servers": racks.bootstrap,
            "group.id": "none",
            "client.rack": "b",
            "enable.auto.commit": False,
            "statistics.interval.ms": 100,
            "stats_cb": lambda text: stats.append(json.loads(text)),
        }
    )

    def received(broker: int) -> int:
        by_id = {row["nodeid"]: row["rxbytes"] for row in stats[-1]["brokers"].values()}
        return int(by_id.get(broker, 0))

    count = 0
    deadline = time.monotonic() + WAIT_S
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while count < RECORDS or not stats or received(NEAR) <= RECORDS * EACH_BYTES:
            message = consumer.poll(0.2)
            assert time.monotonic() < deadline, f"{count} records, {stats[-1:]}"
            if message is not None:
                assert message.error() is None
                count += 1
        assert count == RECORDS
        assert received(TOPICS[topic][0]) < RECORDS * EACH_BYTES / 2, "the leader only told where to read"
    finally:
        consumer.close()


@pytest.mark.parametrize("topic", ["ours", "theirs"])
def test_our_consumer_reads_in_its_rack(racks: Racks, topic: str) -> None:
    async def run() -> None:
        async with OurConsumer(
            bootstrap_servers=racks.bootstrap, client_rack="b", auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([(topic, 0)])
            count = 0
            async with asyncio.timeout(WAIT_S):
                while count < RECORDS:
                    count += sum(map(len, (await consumer.poll(1)).values()))
            assert count == RECORDS
            found = {(m.name, m.tags.get("node-id", "")): m.value for m in consumer.measurements() if m.tags}
            assert found["preferred-read-replica", ""] == NEAR
            assert found["fetch-byte-total", f"node-{NEAR}"] > RECORDS * EACH_BYTES
            assert ("fetch-byte-total", f"node-{TOPICS[topic][0]}") not in found

    asyncio.run(run())


def test_our_consumer_detects_log_truncation(racks: Racks) -> None:
    """Broker 1 has records that the others have not; it goes, and they lead without them."""
    topics = {"cut-by-ottla": [OURS, NEAR], "cut-by-kafka": [OURS, THEIRS]}
    admin = AdminClient({"bootstrap.servers": racks.bootstrap})
    config = {"unclean.leader.election.enable": "true"}
    new = [NewTopic(t, num_partitions=1, replica_assignment=[r], config=config) for t, r in topics.items()]
    for created in admin.create_topics(new).values():
        created.result(WAIT_S)

    def leaders(*wanted: int) -> None:
        def led() -> bool:
            described = admin.list_topics(timeout=60).topics  # none at a broker that has just come up
            seen = [described[topic].partitions for topic in topics if topic in described]
            return [p.leader for partitions in seen for p in partitions.values()] == list(wanted)

        assert wait_until(led, timeout_s=WAIT_S)

    async def write(acks: str, *values: bytes) -> None:
        async with OurProducer(bootstrap_servers=racks.bootstrap, acks=acks, linger_ms=50) as producer:
            for topic in topics:
                for future in [await producer.send(topic, value, partition=0) for value in values]:
                    await future

    async def read(consumer: OurConsumer, count: int) -> dict[str, list[bytes]]:
        found: dict[str, list[bytes]] = {topic: [] for topic in topics}
        async with asyncio.timeout(WAIT_S):
            while any(len(values) < count for values in found.values()):
                for tp, rows in (await consumer.poll(1)).items():
                    found[tp.topic] += [row.value for row in rows]
        return found

    async def errors_of(consumer: OurConsumer) -> set[tuple[str, int, int, int]]:
        found = set()
        async with asyncio.timeout(WAIT_S):
            while len(found) < len(topics):
                try:
                    assert await consumer.poll(1) == {}
                except LogTruncationError as error:
                    found.add((error.topic, error.partition, error.offset, error.end_offset))
        return found

    async def run() -> None:
        settings = {
            "bootstrap.servers": racks.bootstrap,
            "metadata.max.age.ms": "1000",
            "metadata.recovery.strategy": "rebootstrap",  # for a while they know of nobody but broker 1
        }
        places = [(topic, 0) for topic in topics]
        async with (
            OurConsumer({**settings, "auto.offset.reset": "earliest"}) as going_back,
            OurConsumer({**settings, "auto.offset.reset": "none"}) as strict,
        ):
            leaders(OURS, OURS)
            await write("all", *[b"%d" % n for n in range(10)])
            racks.brokers[NEAR].stop()
            racks.java.stop()
            await write("1", b"lost", b"lost, too")
            for consumer in (going_back, strict):
                consumer.assign(places)
                for place in places:
                    consumer.seek(place, 0)
                assert {len(values) for values in (await read(consumer, 12)).values()} == {12}
            racks.brokers[OURS].stop()
            racks.brokers[NEAR].start_and_wait()
            racks.java.start()
            leaders(NEAR, THEIRS)
            await write("1", b"new", b"newer", b"newest")
            assert await read(going_back, 3) == {topic: [b"new", b"newer", b"newest"] for topic in topics}
            assert await errors_of(strict) == {(topic, 0, 12, 10) for topic in topics}

    asyncio.run(run())
