"""Apache Kafka's tools for operators, of 3.9.1, on a cluster of ours: brokers' settings, records to delete,
log directories."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer

from bench.apache_kafka import run_tool
from ottla.client.admin_types import TopicPartition
from ottla.local.cluster import LocalCluster
from ottla.local.processes import wait_until
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(420)
WAIT_S = 90.0


@pytest.fixture(scope="module", autouse=True)
def kafka_jars() -> None:
    needs_kafka_jars()


def tool(cluster: LocalCluster, main_class: str, *arguments: str) -> str:
    ran = run_tool(main_class, ["--bootstrap-server", cluster.bootstrap, *arguments], timeout_s=200)
    assert ran.returncode == 0, f"{main_class} {arguments}:\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


def configs(cluster: LocalCluster, action: str, *arguments: str) -> str:
    return tool(cluster, "kafka.admin.ConfigCommand", action, "--entity-type", "brokers", *arguments)


@pytest.fixture(scope="module")
def topic(cluster: LocalCluster) -> Iterator[str]:
    """Of two partitions with three replicas, and 50 records in each."""
    cluster.create_topic("operated", partitions=2, replicas=3)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    for n in range(100):
        producer.produce("operated", b"record %d" % n, partition=n % 2)
    assert producer.flush(90) == 0
    del producer  # it would outlive its cluster
    yield "operated"
    cluster.admin(lambda client: client.delete_topic("operated"))


def send(cluster: LocalCluster, topic: str, size: int) -> int | None:
    """The error that a record of that size meets."""
    errors: list[int | None] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce(
        topic, b"x" * size, partition=0, on_delivery=lambda e, _: errors.append(e.code() if e else None)
    )
    assert producer.flush(90) == 0
    return errors[0]


def test_settings_of_all_brokers_and_of_one(cluster: LocalCluster) -> None:
    cluster.admin(lambda client: client.create_topic("limited", assignment={0: [0]}))
    assert send(cluster, "limited", 3000) is None
    configs(cluster, "--alter", "--entity-default", "--add-config", "message.max.bytes=2000")
    refused = KafkaError.MSG_SIZE_TOO_LARGE
    assert wait_until(lambda: send(cluster, "limited", 3000) == refused, timeout_s=WAIT_S), (
        "the limit is in force without a restart"
    )
    configs(cluster, "--alter", "--entity-name", "0", "--add-config", "message.max.bytes=5000")
    assert wait_until(lambda: send(cluster, "limited", 3000) is None, timeout_s=WAIT_S)
    described = configs(cluster, "--describe", "--entity-name", "0")
    assert (
        "message.max.bytes=5000 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG:message.max.bytes=5000, "
        "DYNAMIC_DEFAULT_BROKER_CONFIG:message.max.bytes=2000, DEFAULT_CONFIG:message.max.bytes=1048588}"
    ) in described
    cluster.admin(lambda client: client.alter_broker_config(0, delete=["message.max.bytes"]))
    cluster.admin(lambda client: client.alter_broker_config(None, delete=["message.max.bytes"]))
    assert wait_until(lambda: send(cluster, "limited", 6000) is None, timeout_s=WAIT_S)
    cluster.admin(lambda client: client.delete_topic("limited"))


def test_a_static_broker_setting_is_rejected_with_kafkas_message(cluster: LocalCluster) -> None:
    command = [
        "--alter",
        "--entity-type",
        "brokers",
        "--entity-name",
        "0",
        "--add-config",
        "num.partitions=2",
    ]
    ran = run_tool("kafka.admin.ConfigCommand", ["--bootstrap-server", cluster.bootstrap, *command])
    assert ran.returncode == 1
    assert "Cannot update these configs dynamically: Set(num.partitions)" in ran.stdout + ran.stderr


def test_records_are_deleted_on_all_replicas(cluster: LocalCluster, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "offsets.json"
    wanted = [{"topic": topic, "partition": 0, "offset": 20}, {"topic": topic, "partition": 1, "offset": -1}]
    file.write_text(json.dumps({"version": 1, "partitions": wanted}))
    printed = tool(cluster, "org.apache.kafka.tools.DeleteRecordsCommand", "--offset-json-file", str(file))
    assert f"partition: {topic}-0\tlow_watermark: 20" in printed
    assert f"partition: {topic}-1\tlow_watermark: 50" in printed
    partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    starts = cluster.admin(lambda client: client.start_offsets(partitions))
    assert starts == dict(zip(partitions, [20, 50], strict=True))


def test_a_topic_is_described_by_its_id(cluster: LocalCluster, topic: str) -> None:
    described = cluster.admin(lambda client: client.describe_topics([topic]))[topic]
    # Kafka's Uuid: base64 for URLs without padding.
    topic_id = base64.urlsafe_b64encode(described.topic_id.bytes).decode().rstrip("=")
    printed = tool(cluster, "org.apache.kafka.tools.TopicCommand", "--describe", "--topic-id", topic_id)
    assert f"Topic: {topic}\tTopicId: {topic_id}\tPartitionCount: 2" in printed


def test_log_directories_of_all_brokers(cluster: LocalCluster, topic: str) -> None:
    printed = tool(cluster, "org.apache.kafka.tools.LogDirsCommand", "--describe", "--topic-list", topic)
    described = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
    assert [broker["broker"] for broker in described["brokers"]] == sorted(cluster.brokers)
    for broker in described["brokers"]:
        (directory,) = broker["logDirs"]
        assert directory["error"] is None
        assert {p["partition"] for p in directory["partitions"]} == {f"{topic}-0", f"{topic}-1"}
        for partition in directory["partitions"]:
            folder = Path(directory["logDir"]) / partition["partition"]
            assert partition["size"] == sum(file.stat().st_size for file in folder.glob("*.log"))
            assert partition["offsetLag"] == 0
            assert partition["isFuture"] is False
