"""The journey of docs/migration/from-kafka.md: a running Apache Kafka cluster becomes Ottla's, and back.

Broker by broker, each on the folder, the id and the address of the one it follows, under a producer with
acks=all that Kafka's own tool verifies, and a group that commits what it reads. In between, brokers of both
kinds lead and follow the same partitions, each kind obeys the other's controller, and loads the offsets that
the other wrote.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from ottla.local.processes import wait_until
from ottla.local.zookeeper import EmbeddedZooKeeper
from ottla.metadata import znodes
from tests.judges.group_members import Member
from tests.judges.mixed import Kind, Seat
from tests.judges.verify import VerifiableProducer, check_all_kept
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(600)

BROKERS: Final = (0, 1, 2)
TOPIC, PARTITIONS, GROUP = "journey", 6, "readers"
SETTINGS: Final = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "zookeeper.session.timeout.ms": "18000",
    "replica.lag.time.max.ms": "10000",
    "controlled.shutdown.retry.backoff.ms": "500",
    "log.segment.bytes": str(256 << 10),
}


class Journey:
    def __init__(self, directory: Path) -> None:
        self.zookeeper = EmbeddedZooKeeper(directory / "zookeeper")
        self.zookeeper.start()
        self.seats = {
            broker: Seat(broker, directory / str(broker), self.zookeeper.connect, SETTINGS)
            for broker in BROKERS
        }
        self.bootstrap = ",".join(seat.address for seat in self.seats.values())
        self._tree = KazooClient(self.zookeeper.connect)

    def start(self) -> None:
        self._tree.start()
        for seat in self.seats.values():
            seat.start("kafka")
        self.await_whole(TOPIC, create=True)

    def stop(self) -> None:
        for seat in self.seats.values():
            seat.kill()
        self._tree.stop()
        self._tree.close()
        self.zookeeper.stop()

    @property
    def controller(self) -> int:
        """As soon as there is one."""
        found: list[bytes] = []

        def elected() -> bool:
            with contextlib.suppress(NoNodeError):
                found.append(self._tree.get(znodes.CONTROLLER)[0])
            return bool(found)

        assert wait_until(elected, timeout_s=120)
        return znodes.decode_controller(found[0])

    def replace(self, broker: int, kind: Kind) -> None:
        """Stop what sits there, start the other kind in its place, and wait until it has caught up."""
        seat = self.seats[broker]
        seat.stop()
        seat.start(kind)
        for topic in (TOPIC, "__consumer_offsets"):
            self.await_whole(topic)

    def order(self) -> list[int]:
        """The controller last, as in every rolling bounce."""
        last = self.controller
        return sorted(BROKERS, key=lambda broker: (broker == last, broker))

    def await_whole(self, topic: str, *, create: bool = False) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        if create:
            assert wait_until(
                lambda: len(admin.list_topics(timeout=60).brokers) == len(BROKERS), timeout_s=120
            )
            admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS, replication_factor=3)])[
                topic
            ].result(60)

        def whole() -> bool:
            try:
                found = admin.list_topics(topic, timeout=60).topics[topic]
            except KafkaException:
                return False
            return found.error is None and all(len(p.isrs) == 3 for p in found.partitions.values())

        assert wait_until(whole, timeout_s=120, poll_s=0.2), f"{topic} is not fully replicated again"


@pytest.fixture
def journey(tmp_path: Path) -> Iterator[Journey]:
    needs_kafka_jars()
    running = Journey(tmp_path)
    try:
        running.start()
        yield running
    finally:
        running.stop()


def await_more_read(member: Member) -> None:
    before = len(member.seen)
    assert wait_until(lambda: len(member.seen) > before, timeout_s=120), f"{before} read, and no more"


def test_a_running_kafka_cluster_moves_to_ottla_broker_by_broker_and_back(
    journey: Journey, tmp_path: Path
) -> None:
    controllers: list[tuple[int, Kind]] = []
    runs: dict[int, Kind] = dict.fromkeys(BROKERS, "kafka")
    with (
        VerifiableProducer(journey.bootstrap, TOPIC, tmp_path, per_second=300) as producer,
        Member(journey.bootstrap, TOPIC, GROUP, "a") as member,
    ):
        producer.wait_for(500)
        assert wait_until(lambda: bool(member.committed), timeout_s=120)
        journey.await_whole("__consumer_offsets")
        kinds: tuple[Kind, ...] = ("ottla", "kafka")
        for kind in kinds:
            for broker in journey.order():
                journey.replace(broker, kind)
                runs[broker] = kind
                controller = journey.controller
                controllers.append((controller, runs[controller]))
                producer.wait_for_more(200, timeout_s=120)
                await_more_read(member)
        stored = check_all_kept(producer, PARTITIONS)
        assert wait_until(lambda: member.seen >= set(stored), timeout_s=120)
        assert member.failures == []
        ends = {partition: max(o for p, o in stored if p == partition) + 1 for partition, _ in stored}
        assert wait_until(lambda: member.committed == ends, timeout_s=120)
    # Both kinds were in office, over brokers of the other kind.
    assert {kind for _, kind in controllers} == {"kafka", "ottla"}
    print(controllers)
