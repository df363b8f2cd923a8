"""What Apache Kafka's own tools print about a broker of ours is what they print about Apache Kafka 3.9.1.

One story, told to one broker of each kind by every tool that asks a broker: commands that succeed, and some
that are refused. `STEPS` is the table from APIs to tools; what no tool of Kafka's calls is named beside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from group_talk import kafka_and_ottla
from judges import needs_kafka_jars
from kafka_tools import Command, Printed, run_all

from ottla.protocol.api import ApiKey

SETTINGS = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "3",
    "auto.create.topics.enable": "false",
}
pytestmark = pytest.mark.timeout(600)

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
PRODUCER = "kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"

FILES = {
    "records.json": {"partitions": [{"topic": "t", "partition": 0, "offset": 1}], "version": 1},
    "beyond.json": {"partitions": [{"topic": "t", "partition": 0, "offset": 99}], "version": 1},
    "move.json": {"partitions": [{"topic": "t", "partition": 0, "replicas": [0]}], "version": 1},
    "nowhere.json": {"partitions": [{"topic": "t", "partition": 0, "replicas": [7]}], "version": 1},
    "topics.json": {"topics": [{"topic": "t"}], "version": 1},
    "elect.json": {"partitions": [{"topic": "t", "partition": 0}, {"topic": "none", "partition": 1}]},
}


class Step(NamedTuple):
    apis: tuple[ApiKey, ...]
    command: Command


def step(main_class: str, words: str, *apis: ApiKey, stdin: str = "", until: str = "") -> Step:
    """The words of its command line, but for the bootstrap server; `@name` is one of the files."""
    return Step(apis, Command(main_class, words.split(), stdin, until))


A = ApiKey
SLOW = "--timeout 90000"
KEYED = "--request-timeout-ms 60000 --property parse.key=true --property key.separator=:"
LIMITS = "producer_byte_rate=1000,request_percentage=50"
STEPS = (
    step(TOPICS, "--create --topic t --partitions 2", A.CREATE_TOPICS),
    step(TOPICS, "--create --topic t --partitions 2", A.CREATE_TOPICS),
    step(TOPICS, "--create --topic bad/name", A.CREATE_TOPICS),
    step(TOPICS, "--create --topic ..", A.CREATE_TOPICS),
    step(TOPICS, f"--create --topic {'long' * 70}", A.CREATE_TOPICS),
    step(TOPICS, "--create --topic many --replication-factor 3", A.CREATE_TOPICS),
    step(TOPICS, "--create --topic wrong --config retention.ms=-7", A.CREATE_TOPICS),
    step(TOPICS, "--create --topic set --config cleanup.policy=compact --config segment.bytes=20000"),
    step(TOPICS, "--create --topic placed --replica-assignment 0,0", A.CREATE_TOPICS),
    step(TOPICS, "--create --topic one --partitions 1", A.CREATE_TOPICS),
    step(TOPICS, "--list", A.METADATA, until=r"one\nplaced\nset\nt\n"),
    step(TOPICS, "--describe", A.METADATA, A.DESCRIBE_CONFIGS, A.LIST_PARTITION_REASSIGNMENTS),
    step(TOPICS, "--describe --topics-with-overrides", A.METADATA),
    step(TOPICS, "--describe --topic none", A.METADATA),
    step(TOPICS, "--describe --under-min-isr-partitions", A.METADATA, A.DESCRIBE_CLUSTER),
    step(TOPICS, "--alter --topic t --partitions 3", A.CREATE_PARTITIONS),
    step(TOPICS, "--alter --topic t --partitions 1", A.CREATE_PARTITIONS),
    step(TOPICS, "--describe --topic t", A.METADATA, until="PartitionCount: 3"),
    step(PRODUCER, f"--topic t {KEYED}", A.PRODUCE, A.INIT_PRODUCER_ID, stdin="k:a\nl:b\nm:c\nn:d\n"),
    step(PRODUCER, f"--topic one {KEYED}", A.PRODUCE, stdin="k:v\nl:w\nk:x\n"),
    step(
        CONSUMER,
        "--topic one --group g --from-beginning --max-messages 3 --timeout-ms 90000 "
        "--property print.key=true --property print.offset=true --property print.partition=true",
        *(A.FETCH, A.FIND_COORDINATOR, A.JOIN_GROUP, A.SYNC_GROUP, A.LEAVE_GROUP, A.OFFSET_COMMIT),
    ),
    step(CONSUMER, "--topic one --partition 0 --offset 1 --max-messages 1 --timeout-ms 90000", A.FETCH),
    step(OFFSETS, "", A.LIST_OFFSETS, until="t:2:"),
    step(OFFSETS, "--topic-partitions one:0 --time -2", A.LIST_OFFSETS),
    step(OFFSETS, "--topic-partitions one:0 --time earliest-local", A.LIST_OFFSETS),
    step(OFFSETS, "--topic-partitions one:0 --time 99999999999999", A.LIST_OFFSETS),
    step(GROUPS, f"--list {SLOW}", A.LIST_GROUPS, until="g"),
    step(GROUPS, f"--list --state {SLOW}", A.LIST_GROUPS, until="Empty"),
    step(GROUPS, f"--list --type {SLOW}", A.LIST_GROUPS),
    step(GROUPS, f"--describe --group g {SLOW}", A.DESCRIBE_GROUPS, A.OFFSET_FETCH),
    step(GROUPS, f"--describe --group g --state {SLOW}", A.DESCRIBE_GROUPS),
    step(GROUPS, f"--describe --group g --members --verbose {SLOW}", A.DESCRIBE_GROUPS),
    step(GROUPS, f"--describe --group nobody {SLOW}", A.DESCRIBE_GROUPS),
    step(GROUPS, f"--describe --all-groups {SLOW}", A.DESCRIBE_GROUPS),
    step(GROUPS, f"--reset-offsets --group g --topic one --to-offset 1 --dry-run {SLOW}", A.OFFSET_FETCH),
    step(GROUPS, f"--reset-offsets --group g --topic one --to-offset 1 --export --dry-run {SLOW}"),
    step(GROUPS, f"--reset-offsets --group g --topic one --to-earliest --execute {SLOW}", A.OFFSET_COMMIT),
    step(GROUPS, f"--reset-offsets --group g --topic one --shift-by 2 --execute {SLOW}", A.OFFSET_COMMIT),
    step(GROUPS, f"--reset-offsets --group g --topic one:0 --shift-by 9 --execute {SLOW}", A.OFFSET_COMMIT),
    step(GROUPS, f"--reset-offsets --group g --all-topics --by-duration P1D --execute {SLOW}"),
    step(GROUPS, f"--reset-offsets --group new --topic t --to-latest --execute {SLOW}", A.OFFSET_COMMIT),
    step(GROUPS, f"--describe --group new --offsets {SLOW}", A.OFFSET_FETCH),
    step(GROUPS, f"--delete-offsets --group g --topic one {SLOW}", A.OFFSET_DELETE),
    step(GROUPS, f"--delete-offsets --group nobody --topic one {SLOW}", A.OFFSET_DELETE),
    step(GROUPS, f"--delete --group g --group nobody {SLOW}", A.DELETE_GROUPS),
    step(GROUPS, f"--list {SLOW}", A.LIST_GROUPS),
    step(
        CONFIGS,
        "--alter --entity-type topics --entity-name t --add-config retention.ms=1000000,flush.messages=7",
        A.INCREMENTAL_ALTER_CONFIGS,
    ),
    step(CONFIGS, "--alter --entity-type topics --entity-name t --add-config no.such=1"),
    step(CONFIGS, "--alter --entity-type topics --entity-name t --add-config retention.ms=soon"),
    step(
        CONFIGS,
        "--describe --entity-type topics --entity-name t",
        A.DESCRIBE_CONFIGS,
        until="retention.ms=1000000",
    ),
    step(CONFIGS, "--describe --entity-type topics --entity-name t --all", A.DESCRIBE_CONFIGS),
    step(CONFIGS, "--alter --entity-type topics --entity-name t --delete-config flush.messages"),
    step(CONFIGS, "--describe --entity-type topics", A.DESCRIBE_CONFIGS, until="^(?!.*flush.messages)"),
    step(CONFIGS, "--describe --entity-type topics --entity-name none", A.DESCRIBE_CONFIGS),
    step(CONFIGS, "--alter --entity-type brokers --entity-default --add-config log.retention.ms=86400000"),
    step(CONFIGS, "--alter --entity-type brokers --entity-name 0 --add-config log.cleaner.threads=2"),
    step(CONFIGS, "--alter --entity-type brokers --entity-name 0 --add-config broker.id=2"),
    step(CONFIGS, "--describe --entity-type brokers --entity-default", until="log.retention.ms=86400000"),
    step(CONFIGS, "--describe --entity-type brokers --entity-name 0", until="threads=2"),
    step(CONFIGS, "--alter --entity-type brokers --entity-default --delete-config log.retention.ms"),
    step(
        CONFIGS,
        f"--alter --entity-type clients --entity-name c --add-config {LIMITS}",
        A.ALTER_CLIENT_QUOTAS,
    ),
    step(CONFIGS, "--alter --entity-type users --entity-default --add-config consumer_byte_rate=2000"),
    step(
        CONFIGS,
        "--alter --entity-type users --entity-name u --entity-type clients --entity-default "
        "--add-config controller_mutation_rate=5",
    ),
    step(CONFIGS, "--alter --entity-type clients --entity-name c --add-config no_such_rate=5"),
    step(CONFIGS, "--alter --entity-type ips --entity-name 10.0.0.7 --add-config connection_creation_rate=5"),
    step(CONFIGS, "--describe --entity-type ips", A.DESCRIBE_CLIENT_QUOTAS),
    step(CONFIGS, "--describe --entity-type clients", A.DESCRIBE_CLIENT_QUOTAS),
    step(CONFIGS, "--describe --entity-type users --entity-type clients", A.DESCRIBE_CLIENT_QUOTAS),
    step(CONFIGS, "--alter --entity-type clients --entity-name c --delete-config request_percentage"),
    step(CONFIGS, "--describe --entity-type clients --entity-name c", A.DESCRIBE_CLIENT_QUOTAS),
    step(DELETE_RECORDS, "--offset-json-file @records.json", A.DELETE_RECORDS),
    step(DELETE_RECORDS, "--offset-json-file @beyond.json", A.DELETE_RECORDS),
    step(LOG_DIRS, "--describe --topic-list one", A.DESCRIBE_LOG_DIRS),
    step(REASSIGN, "--generate --topics-to-move-json-file @topics.json --broker-list 0"),
    step(REASSIGN, "--execute --reassignment-json-file @nowhere.json", A.ALTER_PARTITION_REASSIGNMENTS),
    step(REASSIGN, "--execute --reassignment-json-file @move.json", A.ALTER_PARTITION_REASSIGNMENTS),
    step(REASSIGN, "--verify --reassignment-json-file @move.json", until="is completed"),
    step(REASSIGN, "--cancel --reassignment-json-file @move.json", A.ALTER_PARTITION_REASSIGNMENTS),
    step(REASSIGN, "--list", A.LIST_PARTITION_REASSIGNMENTS),
    step(ELECTION, "--election-type preferred --topic t --partition 0", A.ELECT_LEADERS),
    step(ELECTION, "--election-type unclean --topic t --partition 0", A.ELECT_LEADERS),
    step(ELECTION, "--election-type preferred --path-to-json-file @elect.json", A.ELECT_LEADERS),
    step(FEATURES, "describe"),
    step(FEATURES, "upgrade --feature metadata.version=20", A.UPDATE_FEATURES),
    step(FEATURES, "downgrade --feature metadata.version=2", A.UPDATE_FEATURES),
    step(FEATURES, "disable --feature metadata.version", A.UPDATE_FEATURES),
    step(CLUSTER, "cluster-id", A.DESCRIBE_CLUSTER),
    step(TOPICS, "--delete --topic set", A.DELETE_TOPICS),
    step(TOPICS, "--delete --topic none", A.DELETE_TOPICS),
    step(TOPICS, "--list", A.METADATA, until=r"^(?!.*\nset\n)"),
)

SAID_OTHERWISE = (
    (re.compile(r"TopicId: [\w-]{22}"), "TopicId: ID"),
    (re.compile(r"Cluster ID: [\w-]{22}"), "Cluster ID: ID"),
    (re.compile(r"127\.0\.0\.1:\d+"), "BROKER"),
    (re.compile(r"adminclient-\d+"), "adminclient"),
    (re.compile(r"/(kafka|ottla)/data"), "/data"),
    (re.compile(r"20\d\d-\d\d-\d\d [\d:,]+ "), ""),
    (re.compile(r"\t(at .*|\.\.\. \d+ more)\n"), ""),
)
"""What brokers make up, the clock, and where in a tool it was."""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[Printed]]]:
    """By kind of broker, what each step printed."""
    needs_kafka_jars()
    directory = tmp_path_factory.mktemp("tools")
    for name, content in FILES.items():
        (directory / name).write_text(json.dumps(content))
    with kafka_and_ottla(directory, SETTINGS) as ports:
        commands = [told(each, port, directory) for port in ports.values() for each in STEPS]
        everything = run_all(commands, directory)
        yield {kind: everything[at * len(STEPS) : (at + 1) * len(STEPS)] for at, kind in enumerate(ports)}


def told(each: Step, port: int, directory: Path) -> Command:
    words = [str(directory / word[1:]) if word.startswith("@") else word for word in each.command.arguments]
    server = ["--bootstrap-server", f"127.0.0.1:{port}"]
    # Its sub-commands come first.
    arguments = [*words, *server] if each.command.main_class == CLUSTER else [*server, *words]
    return each.command._replace(arguments=arguments)


def comparable(shown: Printed) -> Printed:
    texts = []
    for text in (shown.out, shown.err):
        for pattern, word in SAID_OTHERWISE:
            text = pattern.sub(word, text)
        texts.append(text)
    return Printed(shown.status, *texts)


def test_the_tools_print_the_same(printed: dict[str, list[Printed]]) -> None:
    differing = []
    for each, kafkas, ours in zip(STEPS, printed["Apache Kafka"], printed["Ottla"], strict=True):
        if comparable(kafkas) != comparable(ours):
            command = f"{each.command.main_class.rpartition('.')[2]} {' '.join(each.command.arguments)}"
            differing.append(
                f"{command}\n  Apache Kafka: {comparable(kafkas)}\n  Ottla:        {comparable(ours)}"
            )
    assert not differing, "\n".join(differing)
