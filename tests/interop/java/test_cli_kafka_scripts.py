"""No script and no option of Apache Kafka 3.9.1's tools is missing on docs/guides/kafka-tools.md."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bench.apache_kafka import kafka_classpath, run_tool
from tests.judges.kafka_tools import Command, run_all
from tests.kafka_page import COMMON, OTHERS, rows, scripts
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(420)

TOOLS = "org.apache.kafka.tools."
CLASSES = {
    "kafka-acls.sh": "kafka.admin.AclCommand",
    "kafka-broker-api-versions.sh": "kafka.admin.BrokerApiVersionsCommand",
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-console-consumer.sh": f"{TOOLS}consumer.ConsoleConsumer",
    "kafka-console-producer.sh": "kafka.tools.ConsoleProducer",
    "kafka-consumer-groups.sh": f"{TOOLS}consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test.sh": f"{TOOLS}ConsumerPerformance",
    "kafka-delegation-tokens.sh": f"{TOOLS}DelegationTokenCommand",
    "kafka-delete-records.sh": f"{TOOLS}DeleteRecordsCommand",
    "kafka-dump-log.sh": "kafka.tools.DumpLogSegments",
    "kafka-get-offsets.sh": f"{TOOLS}GetOffsetShell",
    "kafka-leader-election.sh": f"{TOOLS}LeaderElectionCommand",
    "kafka-log-dirs.sh": f"{TOOLS}LogDirsCommand",
    "kafka-reassign-partitions.sh": f"{TOOLS}reassign.ReassignPartitionsCommand",
    "kafka-topics.sh": f"{TOOLS}TopicCommand",
}
"""They print their options and leave the virtual machine to the caller."""
ENDING_CLASSES = {
    "kafka-cluster.sh": f"{TOOLS}ClusterTool",
    "kafka-features.sh": f"{TOOLS}FeatureCommand",
    "kafka-producer-perf-test.sh": f"{TOOLS}ProducerPerformance",
    "kafka-transactions.sh": f"{TOOLS}TransactionsCommand",
}
"""They have subcommands or none, and end the virtual machine."""
NOT_COMPARED = {
    "kafka-client-metrics.sh": f"{TOOLS}ClientMetricsCommand",
    "kafka-e2e-latency.sh": f"{TOOLS}EndToEndLatency",
    "kafka-jmx.sh": f"{TOOLS}JmxTool",
    "kafka-metadata-quorum.sh": f"{TOOLS}MetadataQuorumCommand",
    "kafka-mirror-maker.sh": "kafka.tools.MirrorMaker",
    "kafka-replica-verification.sh": f"{TOOLS}ReplicaVerificationTool",
    "kafka-server-start.sh": "kafka.Kafka",
    "kafka-storage.sh": "kafka.tools.StorageTool",
    "kafka-streams-application-reset.sh": f"{TOOLS}StreamsResetter",
    "kafka-verifiable-consumer.sh": f"{TOOLS}VerifiableConsumer",
    "kafka-verifiable-producer.sh": f"{TOOLS}VerifiableProducer",
    "connect-plugin-path.sh": f"{TOOLS}ConnectPluginPath",
    "zookeeper-shell.sh": "org.apache.zookeeper.ZooKeeperMainWithTlsSupportForKafka",
    "zookeeper-security-migration.sh": "kafka.admin.ZkSecurityMigrator",
}
"""Scripts without options, or that are not offered as a whole."""
NO_SCRIPT = {
    f"{TOOLS}ClientCompatibilityTest": "of Kafka's system tests",
    f"{TOOLS}OAuthCompatibilityTool": "of Kafka's system tests",
    f"{TOOLS}TransactionalMessageCopier": "of Kafka's system tests",
    f"{TOOLS}VerifiableLog4jAppender": "of Kafka's system tests",
    "kafka.admin.FeatureCommand": "the former name of another",
    "kafka.tools.ClusterTool": "the former name of another",
    "kafka.tools.EndToEndLatency": "the former name of another",
    "kafka.tools.JmxTool": "the former name of another",
    "kafka.tools.StreamsResetter": "the former name of another",
    "kafka.docker.KafkaDockerWrapper": "of the container image",
    "kafka.server.KafkaConfig": "prints the documentation of settings",
    "kafka.tools.StateChangeLogMerger": "reads the log files of Java brokers",
    "kafka.tools.TestRaftServer": "KRaft",
    "kafka.utils.VersionInfo": "prints the version",
}


@pytest.fixture(scope="module", autouse=True)
def kafka_jars() -> None:
    needs_kafka_jars()


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """By script, the options and subcommands of its help texts."""
    asked = [Command(each, ["--help"]) for each in CLASSES.values()]
    printed = run_all(asked, tmp_path_factory.mktemp("help"))
    found = {
        script: set(_options(shown.out + shown.err)) for script, shown in zip(CLASSES, printed, strict=True)
    }
    with ThreadPoolExecutor(2) as pool:
        found.update(zip(ENDING_CLASSES, pool.map(_with_subcommands, ENDING_CLASSES.values()), strict=True))
    return found


def _with_subcommands(main_class: str) -> set[str]:
    text = _help(main_class)
    commands = set(re.findall(r"^    ([a-z][a-z-]+)(?: {2,}|$)", text, re.M))
    return {
        *commands,
        *_options(text),
        *(o for command in commands for o in _options(_help(main_class, command))),
    }


def _help(main_class: str, *command: str) -> str:
    ran = run_tool(main_class, [*command, "--help"])
    return ran.stdout + ran.stderr


def _options(text: str) -> Iterator[str]:
    """The options that begin a line; the descriptions beside them name others."""
    for found in re.finditer(r"^ {0,2}(?:-\w(?: \w+)?, )?(--[a-z][\w.-]*?)(?=[\s,]|$)(.*)$", text, re.M):
        yield found[1]
        yield from re.findall(r"^, (--[a-z][\w.-]+)", found[2])


def test_no_option_of_kafkas_tools_is_missing_on_the_page(options: dict[str, set[str]]) -> None:
    common = {name for row in rows() if row.section == COMMON for name in row.kafka}
    for script, real in options.items():
        assert "--help" in real, (script, real)
        reported = {name for row in rows() if row.section == script for name in row.kafka}
        assert real - reported - common == set(), f"{script}: not on the page"
        assert reported - real == set(), f"{script}: on the page, and no option of the script"
    assert common - set().union(*options.values()) <= {"--bootstrap-servers", "--config-file"}
    assert sum(map(len, options.values())) > 250, "the help texts were read"


def test_no_program_of_kafkas_jars_is_missing_on_the_page() -> None:
    folder = Path(kafka_classpath()).parent
    programs = {
        name.removesuffix(".class").replace("/", ".")
        for jar in ("kafka-tools-3.9.1.jar", "kafka_2.13-3.9.1.jar")
        for name in _programs(folder / jar)
    }
    known = {**CLASSES, **ENDING_CLASSES, **NOT_COMPARED}
    assert programs - set(known.values()) - set(NO_SCRIPT) == set()
    assert set(known) <= scripts()
    other = {name for row in rows() if row.section == OTHERS for name in row.kafka}
    assert set(CLASSES) | set(ENDING_CLASSES) == scripts() - other - {"kafka-e2e-latency.sh"}


def _programs(jar: Path) -> Iterator[str]:
    """The classes with a static main method that are not nested."""
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            if (
                name.endswith(".class")
                and "$" not in name
                and b"([Ljava/lang/String;)V" in (data := archive.read(name))
                and b"\x01\x00\x04main\x01" in data
            ):
                yield name
