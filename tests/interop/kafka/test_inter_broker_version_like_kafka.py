"""inter.broker.protocol.version: what the versions mean is asked of Kafka's own table, and clusters of both
kinds of broker work with the oldest one, with both kinds of controller, through both rolls of an upgrade."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.metadata import znodes
from ottla.metadata.inter_broker import VERSIONS, InterBrokerVersion
from ottla.protocol.messages import FetchRequest, ListOffsetsRequest
from tests.judges.kafka_tools import run_program
from tests.judges.mixed_pair import JAVA, OURS, WAIT_S, Pair, until
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(420)

TEXTS = ("2.8", "2.8.1", "3.0", "3.5", "3.6.2", "3.7-IV2", "3.9", "3.9.1")
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "controlled.shutdown.retry.backoff.ms": "200",
    "zookeeper.session.timeout.ms": "30000",  # who is the controller is said, however busy the machine is
    "inter.broker.protocol.version": "2.8-IV0",
}


def test_the_versions_are_those_of_kafkas_table() -> None:
    needs_kafka_jars()
    lines = [line.split() for line in run_program("ProtocolVersions", *TEXTS).splitlines()]
    ours = [InterBrokerVersion(name) for name in VERSIONS]
    assert lines[: len(VERSIONS)] == [
        [
            version.name,
            str(version.highest_of(FetchRequest.api_key)),
            str(version.highest_of(ListOffsetsRequest.api_key)),
            str(version.has_leader_recovery).lower(),
        ]
        for version in ours
    ]
    assert lines[len(VERSIONS) :] == [[text, InterBrokerVersion.of(text).name] for text in TEXTS]


class Versions(Pair):
    """One broker of each kind, and what they agree on."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, our_settings=SETTINGS, java_settings=SETTINGS)

    def start(self) -> None:
        self.tree.start()
        self.start_ours(SETTINGS["inter.broker.protocol.version"])
        self.java.start()
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        until(lambda: len(admin.list_topics(timeout=60).brokers) == 2, "both are in the metadata")
        new = NewTopic("t", num_partitions=2, replica_assignment=[[OURS, JAVA], [JAVA, OURS]])
        admin.create_topics([new])["t"].result(WAIT_S)

    def start_ours(self, version: str) -> None:
        settings = {**SETTINGS, "inter.broker.protocol.version": version}
        self.ours.write_properties(self.zookeeper.connect, settings)
        self.ours.start_and_wait()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.ours.port},127.0.0.1:{self.java.port}"

    def in_sync(self) -> bool:
        for partition in (0, 1):
            state = self.state("t", partition)
            if state is None or set(state.isr) != {OURS, JAVA} or state.leader < 0:
                return False
        return True

    def feature_version(self) -> int:
        return int(json.loads(self.tree.get(znodes.FEATURE)[0])["version"])

    def write(self, value: str) -> None:
        """To both partitions, as one whose records both brokers have got."""
        failures: list[object] = []
        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "acks": "all", "message.timeout.ms": int(WAIT_S * 1000)}
        )
        for partition in (0, 1):
            producer.produce(
                "t",
                value.encode(),
                partition=partition,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
        assert producer.flush(WAIT_S + 10) == 0
        assert failures == []

    def read(self, partition: int, count: int) -> list[str]:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "none"})
        consumer.assign([TopicPartition("t", partition, 0)])
        values: list[str] = []
        deadline = time.monotonic() + WAIT_S
        try:
            while len(values) < count:
                assert time.monotonic() < deadline, values
                message = consumer.poll(0.5)
                if message is not None and message.error() is None:
                    values.append(message.value().decode())
        finally:
            consumer.close()
        return values


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Versions]:
    needs_kafka_jars()
    both = Versions(tmp_path_factory.mktemp("pair"))
    try:
        both.start()
        yield both
    finally:
        both.stop()


def test_a_mixed_cluster_uses_an_old_protocol_version_and_is_upgraded(pair: Versions) -> None:
    assert pair.controller() == OURS
    assert pair.feature_version() == 1
    until(pair.in_sync, "our controller has both follow each other in the old version")
    pair.write("old, ours")
    # The second roll begins with us: Kafka's broker is the controller meanwhile, and speaks the old version.
    pair.ours.stop()
    until(lambda: pair.controller() == JAVA, "Kafka's broker is elected")
    pair.start_ours("3.9")
    until(pair.in_sync, "Kafka's controller has both follow each other")
    pair.write("old, Kafka's")
    assert pair.feature_version() == 1
    # And back to our controller, which speaks the new one by now.
    pair.tree.delete(znodes.CONTROLLER)
    until(lambda: pair.controller() is not None, "somebody is elected")
    if pair.controller() != OURS:
        pair.java.stop()
        until(lambda: pair.controller() == OURS, "our broker is elected")
        pair.java.start()
    until(lambda: pair.feature_version() == 2, "our controller writes the new layout")
    until(pair.in_sync, "our controller has both follow each other in the new version")
    pair.write("new, ours")
    for partition in (0, 1):
        assert pair.read(partition, 3) == ["old, ours", "old, Kafka's", "new, ours"]
