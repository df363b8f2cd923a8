"""Apache Kafka's own command line tools, of 3.9.1, against a cluster of ours."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.apache_kafka import run_tool
from ottla.local.cluster import LocalCluster
from ottla.local.processes import wait_until
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module", autouse=True)
def kafka_jars() -> None:
    needs_kafka_jars()


def tool(main_class: str, *arguments: str, stdin: str | None = None) -> str:
    ran = run_tool(main_class, arguments, timeout_s=200, stdin=stdin)
    assert ran.returncode == 0, f"{main_class} {arguments}:\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


def topics(cluster: LocalCluster, *arguments: str) -> str:
    return tool("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", cluster.bootstrap, *arguments)


def groups(cluster: LocalCluster, *arguments: str) -> str:
    command = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    # Five seconds, the tool's own limit, is short for a JVM that starts on a busy machine.
    return tool(command, "--bootstrap-server", cluster.bootstrap, "--timeout", "90000", *arguments)


def configs(cluster: LocalCluster, *arguments: str) -> str:
    return tool("kafka.admin.ConfigCommand", "--bootstrap-server", cluster.bootstrap, *arguments)


def produce(cluster: LocalCluster, topic: str, lines: list[str], *arguments: str) -> None:
    tool(
        "kafka.tools.ConsoleProducer",
        *("--bootstrap-server", cluster.bootstrap, "--topic", topic, *arguments),
        # A second and a half is what it gives a broker, and after three tries it goes on without the record.
        *("--request-timeout-ms", "60000"),
        stdin="".join(f"{line}\n" for line in lines),
    )


def consume(cluster: LocalCluster, topic: str, count: int, *arguments: str) -> list[str]:
    printed = tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", cluster.bootstrap, "--topic", topic, "--from-beginning"),
        *("--max-messages", str(count), "--timeout-ms", "90000", *arguments),
    )
    return printed.splitlines()


def until_printed(run: Callable[[], str], holds: Callable[[str], bool]) -> str:
    """What a tool tells in the end: the broker that it asks need not have heard of all at once."""
    output = ""

    def fits() -> bool:
        nonlocal output
        output = run()
        return holds(output)

    assert wait_until(fits, timeout_s=90), output
    return output


@pytest.fixture
def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    name = re.sub(r"[^a-z0-9-]", "-", request.node.name.removeprefix("test_"))
    cluster.create_topic(name, partitions=3, replicas=3)
    yield name
    cluster.admin(lambda client: client.delete_topic(name))
    cluster.wait_until(lambda: cluster.gone(name), f"{name} to be gone")  # or tools for all topics meet it


def test_topics_are_created_described_altered_and_deleted(cluster: LocalCluster) -> None:
    created = topics(
        cluster,
        *("--create", "--topic", "by-tool", "--partitions", "2", "--replication-factor", "3"),
        *("--config", "retention.ms=1234567"),
    )
    assert "Created topic by-tool." in created
    cluster.wait_until(lambda: cluster.fully_replicated("by-tool"), "all brokers to know it")
    assert "by-tool" in topics(cluster, "--list").split()
    described = topics(cluster, "--describe", "--topic", "by-tool")
    assert "PartitionCount: 2\tReplicationFactor: 3\tConfigs: retention.ms=1234567" in described
    topics(cluster, "--alter", "--topic", "by-tool", "--partitions", "5")
    cluster.wait_until(lambda: cluster.fully_replicated("by-tool", 5), "all brokers to know of five")
    assert "PartitionCount: 5" in topics(cluster, "--describe", "--topic", "by-tool")
    topics(cluster, "--delete", "--topic", "by-tool")
    cluster.wait_until(lambda: cluster.gone("by-tool"), "the topic to be gone")
    assert "by-tool" not in topics(cluster, "--list").split()


def test_creation_of_an_existing_topic_fails_with_kafkas_message(cluster: LocalCluster, topic: str) -> None:
    command = ["--bootstrap-server", cluster.bootstrap, "--create", "--topic", topic]
    ran = run_tool("org.apache.kafka.tools.TopicCommand", command)
    assert ran.returncode == 1
    assert f"Topic '{topic}' already exists." in ran.stdout + ran.stderr


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_console_producer_and_consumer(cluster: LocalCluster, topic: str, codec: str) -> None:
    lines = [f"line {n}" for n in range(200)]
    produce(cluster, topic, lines, "--producer-property", f"compression.type={codec}")
    assert sorted(consume(cluster, topic, 200)) == sorted(lines)


def test_a_group_is_described_and_its_offsets_reset(cluster: LocalCluster, topic: str) -> None:
    produce(cluster, topic, [f"{n}" for n in range(60)])
    consume(cluster, topic, 60, "--group", "tools")
    assert "tools" in groups(cluster, "--list").split()
    described = groups(cluster, "--describe", "--group", "tools")
    rows = [line.split() for line in described.splitlines() if line.startswith("tools")]
    assert sum(int(row[3]) for row in rows) == 60, described
    assert sum(int(row[5]) for row in rows) == 0, described
    assert "Empty" in groups(cluster, "--describe", "--group", "tools", "--state")
    groups(
        cluster,
        *("--reset-offsets", "--group", "tools", "--topic", topic, "--to-earliest", "--execute"),
    )
    assert len(consume(cluster, topic, 60, "--group", "tools")) == 60
    assert "was successful" in groups(cluster, "--delete", "--group", "tools")
    assert "tools" not in groups(cluster, "--list").split()


def test_topic_settings_are_altered_and_described(cluster: LocalCluster, topic: str) -> None:
    entity = ("--entity-type", "topics", "--entity-name", topic)
    configs(cluster, "--alter", *entity, "--add-config", "retention.ms=5000,cleanup.policy=[compact,delete]")
    described = configs(cluster, "--describe", *entity)
    assert "retention.ms=5000" in described
    assert "cleanup.policy=compact,delete" in described
    configs(cluster, "--alter", *entity, "--delete-config", "retention.ms")
    assert "retention.ms" not in configs(cluster, "--describe", *entity)
    refused = run_tool(
        "kafka.admin.ConfigCommand",
        ["--bootstrap-server", cluster.bootstrap, "--alter", *entity, "--add-config", "retention.ms=soon"],
    )
    assert refused.returncode == 1
    assert "InvalidConfigurationException" in refused.stdout + refused.stderr


def test_broker_settings_are_described(cluster: LocalCluster) -> None:
    described = configs(cluster, "--describe", "--entity-type", "brokers", "--entity-name", "0", "--all")
    assert "group.initial.rebalance.delay.ms=0" in described
    assert "log.segment.bytes=1073741824" in described


def test_replicas_are_moved_by_the_reassignment_tool(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    produce(cluster, topic, [f"{n}" for n in range(100)])
    wanted = {p: [(p + 1) % 3, p] for p in range(3)}
    plan = tmp_path / "plan.json"
    moves = [{"topic": topic, "partition": p, "replicas": replicas} for p, replicas in wanted.items()]
    plan.write_text(json.dumps({"version": 1, "partitions": moves}))
    command = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
    arguments = ("--bootstrap-server", cluster.bootstrap, "--reassignment-json-file", str(plan))
    assert "Successfully started partition reassignments" in tool(command, *arguments, "--execute")

    def moved() -> bool:
        described = cluster.topic(topic)
        return (
            described is not None and {p.partition: list(p.replicas) for p in described.partitions} == wanted
        )

    cluster.wait_until(moved, "the replicas to have moved")
    until_printed(
        lambda: tool(command, *arguments, "--verify", "--preserve-throttles"),
        lambda output: output.count("is completed") >= 3,
    )
    assert len(consume(cluster, topic, 100)) == 100


def test_preferred_leaders_are_elected(cluster: LocalCluster, topic: str) -> None:
    command = "org.apache.kafka.tools.LeaderElectionCommand"
    arguments = (
        "--bootstrap-server",
        cluster.bootstrap,
        "--election-type",
        "preferred",
        "--all-topic-partitions",
    )
    tool(command, *arguments)

    def led_by_the_first() -> bool:
        described = cluster.topic(topic)
        return described is not None and all(p.leader == p.replicas[0] for p in described.partitions)

    cluster.wait_until(led_by_the_first, "the first replica of each to lead")


def test_api_versions_are_those_of_the_table(cluster: LocalCluster) -> None:
    printed = ""

    def is_printed() -> bool:
        """It gives a broker five seconds, which a busy machine may take."""
        nonlocal printed
        ran = run_tool("kafka.admin.BrokerApiVersionsCommand", ["--bootstrap-server", cluster.bootstrap])
        printed = ran.stdout + ran.stderr
        return ran.returncode == 0 and "Produce(0)" in ran.stdout

    assert wait_until(is_printed, timeout_s=120), printed
    for line in ("Produce(0): 0 to 11", "Metadata(3): 0 to 12", "ApiVersions(18): 0 to 4"):
        assert line in printed
    assert "ReadShareGroupState(84): UNSUPPORTED" in printed, "what is not served is not advertised"


def test_the_log_is_measured_by_offsets(cluster: LocalCluster, topic: str) -> None:
    produce(cluster, topic, [f"{n}" for n in range(30)])
    printed = tool(
        "org.apache.kafka.tools.GetOffsetShell",
        *("--bootstrap-server", cluster.bootstrap, "--topic", topic),
    )
    ends = [int(line.rpartition(":")[2]) for line in printed.splitlines()]
    assert len(ends) == 3
    assert sum(ends) == 30


def test_the_verifiable_consumer_reads_what_was_written(cluster: LocalCluster, topic: str) -> None:
    produce(cluster, topic, [f"{n}" for n in range(500)])
    printed = tool(
        "org.apache.kafka.tools.VerifiableConsumer",
        *("--bootstrap-server", cluster.bootstrap, "--topic", topic, "--group-id", "verifiable"),
        *("--max-messages", "500", "--reset-policy", "earliest"),
    )
    events = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert sum(e["count"] for e in events if e["name"] == "records_consumed") == 500
    commits = [e for e in events if e["name"] == "offsets_committed"]
    assert commits
    assert all(e["success"] for e in commits)
