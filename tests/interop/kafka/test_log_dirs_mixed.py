"""A broker of ours and one of Apache Kafka 3.9.1 in one cluster, with two log directories each.

Kafka's tool moves replicas between them; then a directory of each fails under the other's controller, which
has to hear of it, move the leaders, and say which replicas are offline. A directory fails by being put away:
what is open stays open, the next file that is to be written by name cannot be.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.exceptions import NoNodeError

from bench.apache_kafka import run_tool
from ottla.metadata import znodes
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import DescribeLogDirsRequest, MetadataRequest, MetadataResponse
from ottla.wire.connection import BrokerConnection
from tests.judges.mixed_pair import JAVA, OURS, WAIT_S, Pair, until
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(420)

SETTINGS = {
    "offsets.topic.replication.factor": "1",
    "auto.create.topics.enable": "false",
    "auto.leader.rebalance.enable": "false",
    "controlled.shutdown.retry.backoff.ms": "200",
    "log.segment.delete.delay.ms": "100",
    "replica.high.watermark.checkpoint.interval.ms": "300",
}


class Mixed(Pair):
    """The two brokers; `roots` are the folders of their log directories `a` and `b`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.roots = {OURS: directory / "ours", JAVA: directory / "java"}
        super().__init__(directory, our_settings=self._settings(OURS), java_settings=self._settings(JAVA))
        self.ports = {OURS: self.ours.port, JAVA: self.java.port}

    def _settings(self, broker: int) -> dict[str, str]:
        return {**SETTINGS, "log.dirs": ",".join(str(self.roots[broker] / name) for name in "ab")}

    def start(self) -> None:
        self.ours.start_and_wait()
        self.tree.start()
        self.java.start()
        for port in self.ports.values():
            until(lambda port=port: len(metadata(port).brokers) == 2, "both are in the metadata")  # type: ignore[misc]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def create(self, topic: str, assignment: list[list[int]]) -> None:
        new = NewTopic(topic, num_partitions=len(assignment), replica_assignment=assignment)
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([new])[topic].result(60)

        def known() -> bool:
            return all(len(partitions(port, topic)) == len(assignment) for port in self.ports.values())

        until(known, f"all brokers know of {topic}")

    def directory_of(self, broker: int, topic: str, partition: int) -> str | None:
        """The log directory that the broker has the replica in; None while it is in none, or moves."""
        names = [name for name in "ab" if (self.roots[broker] / name / f"{topic}-{partition}").is_dir()]
        return names[0] if len(names) == 1 else None

    def elect(self, broker: int) -> None:
        """Depose the controller until it is this one's turn, and all know it."""

        def elected() -> bool:
            try:
                controller = znodes.decode_controller(self.tree.get(znodes.CONTROLLER)[0])
                if controller != broker:
                    self.tree.delete(znodes.CONTROLLER)
            except NoNodeError:
                return False
            return controller == broker

        until(elected, f"broker {broker} is elected")
        until(
            lambda: all(metadata(port).controller_id == broker for port in self.ports.values()),
            "all know the controller",
        )


def metadata(port: int, topic: str | None = None) -> MetadataResponse:
    """What this broker, and none other, says."""

    async def ask() -> MetadataResponse:
        connection = await BrokerConnection.open("127.0.0.1", port, timeout_s=60)
        try:
            names = None if topic is None else [MetadataRequest.MetadataRequestTopic(name=topic)]
            return await connection.request(MetadataRequest(topics=names))
        finally:
            connection.close()

    return asyncio.run(ask())


def partitions(port: int, topic: str) -> dict[int, MetadataResponse.MetadataResponsePartition]:
    return {p.partition_index: p for t in metadata(port, topic).topics for p in t.partitions}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    needs_kafka_jars()
    cluster = Mixed(tmp_path_factory.mktemp("mixed-dirs"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def produce(mixed: Mixed, topic: str, values: Mapping[int, list[str]]) -> None:
    failures: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": mixed.bootstrap,
            "enable.idempotence": True,
            "delivery.timeout.ms": int(WAIT_S * 1000),
        }
    )
    for partition, several in values.items():
        for value in several:
            producer.produce(
                topic,
                value.encode(),
                partition=partition,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
    assert producer.flush(WAIT_S + 10) == 0
    assert failures == []


def consume(mixed: Mixed, topic: str, counts: Mapping[int, int]) -> dict[int, list[str]]:
    """So many values of each partition, from its start on."""
    consumer = Consumer(
        {"bootstrap.servers": mixed.bootstrap, "group.id": "none", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in counts])
    values: dict[int, list[str]] = {partition: [] for partition in counts}
    deadline = time.monotonic() + WAIT_S
    try:
        while any(len(values[partition]) < count for partition, count in counts.items()):
            assert time.monotonic() < deadline, f"got {values} and not {counts} records"
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                values[message.partition()].append(message.value().decode())
    finally:
        consumer.close()
    return values


def reassign(mixed: Mixed, file: Path, action: str) -> str:
    # It waits for moves between directories to begin, and ten seconds are little on a busy machine.
    patient = ["--timeout", "90000"] if action == "--execute" else []
    files = ["--bootstrap-server", mixed.bootstrap, "--reassignment-json-file", str(file)]
    command = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
    ran = run_tool(command, [*files, action, *patient])
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_kafkas_tool_moves_replicas_of_kafka_and_ottla_between_log_directories(
    mixed: Mixed, tmp_path: Path
) -> None:
    mixed.create("moves", [[OURS], [JAVA], [OURS]])
    values = {partition: [f"{partition}-{n}" for n in range(200)] for partition in range(3)}
    produce(mixed, "moves", values)
    replicas = {0: [OURS], 1: [JAVA, OURS], 2: [JAVA]}
    target = {
        # Also where a replica is not yet: it is to be made there.
        (partition, broker): "a" if mixed.directory_of(broker, "moves", partition) == "b" else "b"
        for partition, brokers in replicas.items()
        for broker in brokers
    }
    plan = {
        "version": 1,
        "partitions": [
            {
                "topic": "moves",
                "partition": partition,
                "replicas": brokers,
                "log_dirs": [str(mixed.roots[broker] / target[partition, broker]) for broker in brokers],
            }
            for partition, brokers in replicas.items()
        ],
    }
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan))
    printed = reassign(mixed, file, "--execute")
    assert "Successfully started partition reassignments" in printed

    def all_there() -> bool:
        return all(
            mixed.directory_of(broker, "moves", partition) == wanted
            for (partition, broker), wanted in target.items()
        )

    until(all_there, f"all replicas are where they shall be: {target}")
    wanted = [f"Reassignment of partition moves-{partition} is completed." for partition in range(3)]
    wanted += [
        f"Reassignment of replica moves-{partition}-{broker} completed successfully"
        for partition, brokers in replicas.items()
        for broker in brokers
    ]
    verified: list[str] = []

    def tool_agrees() -> bool:
        """Once the broker that it asks has heard of the end, too."""
        verified[:] = [reassign(mixed, file, "--verify")]
        return all(line in verified[0] for line in wanted)

    until(tool_agrees, "Kafka's tool finds everything done")
    produce(mixed, "moves", {0: ["after"], 1: ["after"], 2: ["after"]})
    found = consume(mixed, "moves", dict.fromkeys(range(3), 201))
    assert found == {partition: [*several, "after"] for partition, several in values.items()}


@pytest.mark.parametrize(
    ("failing", "controller"), [(OURS, JAVA), (JAVA, OURS)], ids=["ours under Kafka's", "Kafka's under ours"]
)
def test_a_log_directory_fails(mixed: Mixed, failing: int, controller: int) -> None:
    other = JAVA if failing == OURS else OURS
    topic = f"fails-on-{failing}"
    mixed.elect(controller)
    # Enough of each that both directories have some.
    mixed.create(topic, [[failing, other]] * 4 + [[other, failing]] * 4)
    alone = f"alone-on-{failing}"
    mixed.create(alone, [[failing]] * 4)
    until(
        lambda: None not in places(mixed, failing, topic, alone).values(),
        "all logs are made",
    )
    produce(mixed, topic, {partition: ["before"] for partition in range(8)})
    produce(mixed, alone, {partition: ["before"] for partition in range(4)})
    lost = {key for key, name in places(mixed, failing, topic, alone).items() if name == "a"}
    assert 0 < len(lost) < 12, "a part of them is in the directory that is going to fail"
    working = mixed.ports[other]
    broken = mixed.roots[failing] / "a"
    away = broken.with_name("away")
    broken.rename(away)
    broken.write_text("no directory")
    try:

        def moved() -> bool:
            rows = partitions(working, topic)
            return all(
                (
                    rows[partition].leader_id == other
                    and rows[partition].isr_nodes == [other]
                    and rows[partition].offline_replicas == [failing]
                )
                if (topic, partition) in lost
                else rows[partition].offline_replicas == []
                for partition in range(8)
            )

        until(moved, "the leaders have moved off the failed directory, and all know what is offline")

        def leaderless() -> bool:
            rows = partitions(working, alone)
            return all(
                (rows[partition].leader_id == -1) == ((alone, partition) in lost) for partition in range(4)
            )

        until(leaderless, "what only the failed directory has has no leader")
        if failing == OURS:
            without = {partition for name, partition in lost if name == alone}
            until(lambda: unavailable(mixed, alone) == without, "Kafka's tool says the same")
        # What is in the other directory is led and written as before, and what has moved is, too.
        produce(mixed, topic, {partition: ["meanwhile"] for partition in range(8)})
        produce(mixed, alone, {p: ["meanwhile"] for p in range(4) if (alone, p) not in lost})
        assert [r.error_code for r in log_dirs(mixed, failing)] in (
            [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE],
            [ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR],
        )
    finally:
        (mixed.ours if failing == OURS else mixed.java).stop()
        broken.unlink()
        away.rename(broken)
        if failing == OURS:
            mixed.ours.start_and_wait()
        else:
            mixed.java.start()

    def back() -> bool:
        rows = partitions(working, topic)
        return all(set(rows[partition].isr_nodes) == {failing, other} for partition in range(8)) and all(
            row.leader_id == failing for row in partitions(working, alone).values()
        )

    until(back, "a new start has brought everything back")
    found = consume(mixed, topic, dict.fromkeys(range(8), 2))
    assert found == {partition: ["before", "meanwhile"] for partition in range(8)}
    expected = {p: ["before"] if (alone, p) in lost else ["before", "meanwhile"] for p in range(4)}
    assert consume(mixed, alone, {p: len(several) for p, several in expected.items()}) == expected


def unavailable(mixed: Mixed, topic: str) -> set[int]:
    """The topic's partitions without a leader, by Kafka's tool."""
    described = run_tool(
        "org.apache.kafka.tools.TopicCommand",
        ["--bootstrap-server", mixed.bootstrap, "--describe", "--unavailable-partitions"],
    )
    assert described.returncode == 0, described.stderr
    lines = [line for line in described.stdout.splitlines() if f"Topic: {topic}\t" in line]
    return {int(line.split("Partition: ")[1].split("\t")[0]) for line in lines}


def places(mixed: Mixed, broker: int, topic: str, alone: str) -> dict[tuple[str, int], str | None]:
    keys = [(topic, partition) for partition in range(8)] + [(alone, partition) for partition in range(4)]
    return {key: mixed.directory_of(broker, *key) for key in keys}


def log_dirs(mixed: Mixed, broker: int) -> list[Any]:
    async def ask() -> Any:
        connection = await BrokerConnection.open("127.0.0.1", mixed.ports[broker], timeout_s=60)
        try:
            return await connection.request(DescribeLogDirsRequest(topics=None))
        finally:
            connection.close()

    return list(asyncio.run(ask()).results)
