"""Policies (KIP-108, KIP-133) of new topics and changed settings: the same ones, in Java in Apache Kafka
3.9.1 and in Python in Ottla, validate the same requests, and clients get the same responses.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.local.brokers import BrokerProcess
from ottla.local.processes import StartFailed, free_port
from ottla.local.zookeeper import EmbeddedZooKeeper
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import CreatePartitionsRequest, CreateTopicsRequest
from tests.interop.kafka.test_configs_like_kafka import (
    APPEND,
    BROKER,
    DELETE,
    SET,
    TOPIC,
    change,
    make_topics,
    replace,
)
from tests.judges.kafka_tools import compiled
from tests.judges.request_recorder import RequestRecorder, kafka_and_ottla, side_by_side
from tests.oracles import JUDGES, needs_kafka_jars

CREATE, ALTER = "create.topic.policy.class.name", "alter.config.policy.class.name"
SETTINGS = {"custom.refused": "refused", "offsets.topic.replication.factor": "1"}
pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    needs_kafka_jars()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(JUDGES))
        directory = tmp_path_factory.mktemp("policies")
        with kafka_and_ottla(
            directory,
            SETTINGS,
            of_kafka={CREATE: "Policies$Create", ALTER: "Policies$Alter"},
            of_ottla={CREATE: "policies_beside_kafka:Create", ALTER: "policies_beside_kafka:Alter"},
            classes=compiled("Policies"),
        ) as by_name:
            side_by_side(by_name, make_topics)
            yield by_name
        logs = [log.read_text() for log in (directory / "ottla").glob("*.log")]
        assert any("the policy is closed" in text for text in logs)


async def create(
    recorder: RequestRecorder, label: str, *topics: CreateTopicsRequest.CreatableTopic, validate: bool = False
) -> None:
    request = CreateTopicsRequest(topics=list(topics), timeout_ms=20_000, validate_only=validate)
    answer = await recorder.send("anna", request, 5)
    recorder.answers[label] = [(row.name, row.error_code, row.error_message) for row in answer.topics]


async def scenario(recorder: RequestRecorder) -> None:
    topic = CreateTopicsRequest.CreatableTopic
    config = CreateTopicsRequest.CreatableTopicConfig
    replicas = CreateTopicsRequest.CreatableReplicaAssignment
    settings = [config(name="retention.ms", value="1000"), config(name="cleanup.policy", value="compact")]
    by_hand = [replicas(partition_index=n, broker_ids=[0]) for n in (0, 1)]
    await create(
        recorder,
        "create",
        topic(name="refused-1", num_partitions=3, replication_factor=1, configs=settings),
        topic(name="refused-2", num_partitions=-1, replication_factor=-1),
        topic(name="refused-3", num_partitions=-1, replication_factor=-1, assignments=by_hand),
        topic(name="refused-4", num_partitions=1, replication_factor=5),
        topic(name="broken", num_partitions=1, replication_factor=1),
        topic(name="fine", num_partitions=1, replication_factor=1),
    )
    await create(
        recorder, "only", topic(name="refused-5", num_partitions=1, replication_factor=1), validate=True
    )
    more = [CreatePartitionsRequest.CreatePartitionsTopic(name="fine", count=2, assignments=None)]
    added = await recorder.send("anna", CreatePartitionsRequest(topics=more, timeout_ms=20_000), 2)
    recorder.answers["partitions"] = [(row.name, row.error_code) for row in added.results]
    asked = {
        "topic": change(TOPIC, "plain", ("retention.ms", SET, "5000"), ("cleanup.policy", APPEND, "compact")),
        "deleted": change(TOPIC, "plain", ("retention.ms", DELETE, None)),
        "topic only": change(TOPIC, "plain", ("retention.ms", SET, "5000"), validate_only=True),
        "topic replaced": replace(TOPIC, "plain", {"retention.ms": "1", "segment.bytes": "2000"}),
        "allowed": change(TOPIC, "plain", ("segment.bytes", SET, "3000")),
        "invalid before the policy": change(TOPIC, "plain", ("retention.ms", SET, "-5")),
        "unknown": change(TOPIC, "nothing", ("retention.ms", SET, "5000")),
        "broken": change(TOPIC, "plain", ("flush.ms", SET, "5000")),
        "broker": change(BROKER, "0", ("log.retention.ms", SET, "5000")),
        "all brokers": change(BROKER, "", ("log.retention.ms", SET, "5000")),
        "all brokers replaced": replace(BROKER, "", {"log.retention.ms": "5000"}),
        "broker allowed": change(BROKER, "", ("log.segment.bytes", SET, "100000")),
    }
    for label, request in asked.items():
        answer = await recorder.send("anna", request, 1)
        row = answer.responses[0]
        invalid = row.error_code == ErrorCode.INVALID_CONFIG  # said in each one's own words
        recorder.answers[label] = [(row.error_code, None if invalid else row.error_message)]


def test_policies_are_called_and_their_violations_returned_as_in_kafka(ports: dict[str, int]) -> None:
    message = side_by_side(ports, scenario)
    kafka, ours = message["Apache Kafka"], message["Ottla"]
    own_words = "refused-4"
    for label in kafka:
        theirs = [row if row[0] != own_words else row[:2] for row in kafka[label]]
        assert [row if row[0] != own_words else row[:2] for row in ours[label]] == theirs, label
    violated = ErrorCode.POLICY_VIOLATION
    assert ours["create"] == [
        ("refused-1", violated, "refused-1 3 1 null {cleanup.policy=compact, retention.ms=1000}"),
        ("refused-2", violated, "refused-2 1 1 null {}"),
        ("refused-3", violated, "refused-3 null null {0=[0], 1=[0]} {}"),
        ("refused-4", ErrorCode.INVALID_REPLICATION_FACTOR, ours["create"][3][2]),
        ("broken", ErrorCode.UNKNOWN_SERVER_ERROR, None),
        ("fine", ErrorCode.NONE, None),
    ]
    assert ours["topic"] == [(violated, "TOPIC 'plain' {cleanup.policy=compact, retention.ms=5000}")]


def test_a_broker_does_not_start_without_its_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(JUDGES))
    zookeeper = EmbeddedZooKeeper(tmp_path / "zookeeper")
    broker = BrokerProcess(0, tmp_path / "broker", free_port())
    try:
        zookeeper.start()
        broker.write_properties(zookeeper.connect, {ALTER: "policies_beside_kafka:Missing"})
        with pytest.raises(StartFailed) as failed:
            broker.start_and_wait()
        message = f"Invalid value policies_beside_kafka:Missing for {ALTER}: "
        assert message in str(failed.value)
        assert "Traceback" not in str(failed.value)
        assert broker.exit_code not in (None, 0)
    finally:
        broker.kill()
        zookeeper.stop()
