"""Apache Kafka's own tools print the same about an Ottla broker as about Apache Kafka 3.9.1.

One scenario runs on one broker of each kind with every tool that sends requests: successful commands, and
refused ones. `STEPS` is the table from APIs to tools; APIs that no tool of Kafka's calls are named beside it.
"""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ottla.local.processes import free_port
from ottla.protocol.api import ApiKey
from tests.judges.kafka_tools import Command, Printed, run_all
from tests.judges.request_recorder import kafka_and_ottla
from tests.oracles import needs_kafka_jars

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
PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
ACLS = "kafka.admin.AclCommand"
TOKENS = "org.apache.kafka.tools.DelegationTokenCommand"
API_VERSIONS = "kafka.admin.BrokerApiVersionsCommand"

FILES = {
    "records.json": {"partitions": [{"topic": "t", "partition": 0, "offset": 1}], "version": 1},
    "beyond.json": {"partitions": [{"topic": "t", "partition": 0, "offset": 99}], "version": 1},
    "move.json": {"partitions": [{"topic": "t", "partition": 0, "replicas": [0]}], "version": 1},
    "nowhere.json": {"partitions": [{"topic": "t", "partition": 0, "replicas": [7]}], "version": 1},
    "topics.json": {"topics": [{"topic": "t"}], "version": 1},
    "elect.json": {"partitions": [{"topic": "t", "partition": 0}, {"topic": "none", "partition": 1}]},
    "none.properties": {},
}


class Step(NamedTuple):
    apis: tuple[ApiKey, ...]
    command: Command
    compared: bool
    """Not where it tells how fast it was."""


def step(
    main_class: str, words: str, *apis: ApiKey, stdin: str = "", until: str = "", compared: bool = True
) -> Step:
    """The words of its command line, but for the bootstrap server; `@name` is one of the files."""
    return Step(apis, Command(main_class, words.split(), stdin, until), compared)


A = ApiKey
SLOW = "--timeout 90000"
KEYED = "--request-timeout-ms 60000 --property parse.key=true --property key.separator=:"
CONFIG = "--command-config @none.properties"
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
    step(
        CONFIGS,
        "--alter --entity-type users --entity-name u --add-config "
        "SCRAM-SHA-256=[iterations=8192,password=p],SCRAM-SHA-512=[password=q]",
        A.ALTER_USER_SCRAM_CREDENTIALS,
    ),
    step(CONFIGS, "--describe --entity-type users --entity-name u", A.DESCRIBE_USER_SCRAM_CREDENTIALS),
    step(CONFIGS, "--alter --entity-type users --entity-name u --delete-config SCRAM-SHA-512"),
    step(CONFIGS, "--describe --entity-type users", A.DESCRIBE_USER_SCRAM_CREDENTIALS),
    step(
        PERFORMANCE,
        "--topic one --num-records 5 --record-size 10 --throughput -1 --transactional-id perf "
        "--transaction-duration-ms 1000",
        *(A.ADD_PARTITIONS_TO_TXN, A.END_TXN),
        compared=False,
    ),
    step(TRANSACTIONS, "list", A.LIST_TRANSACTIONS, until="CompleteCommit"),
    step(TRANSACTIONS, "describe --transactional-id perf", A.DESCRIBE_TRANSACTIONS),
    step(TRANSACTIONS, "describe --transactional-id nobody", A.DESCRIBE_TRANSACTIONS),
    step(TRANSACTIONS, "describe-producers --topic one --partition 0", A.DESCRIBE_PRODUCERS),
    step(TRANSACTIONS, "find-hanging --broker-id 0"),
    step(TRANSACTIONS, "abort --topic one --partition 0 --start-offset 0", A.DESCRIBE_PRODUCERS),
    step(
        TRANSACTIONS,
        "abort --topic one --partition 0 --producer-id 77 --producer-epoch 1 --coordinator-epoch 0",
        A.WRITE_TXN_MARKERS,
    ),
    step(ACLS, "--list", A.DESCRIBE_ACLS),
    step(ACLS, "--add --allow-principal User:u --operation Read --topic t", A.CREATE_ACLS),
    step(ACLS, "--remove --force --allow-principal User:u --operation Read --topic t", A.DELETE_ACLS),
    step(TOKENS, f"--create --max-life-time-period -1 {CONFIG}", A.CREATE_DELEGATION_TOKEN),
    step(TOKENS, f"--renew --renew-time-period -1 --hmac aG1hYw== {CONFIG}", A.RENEW_DELEGATION_TOKEN),
    step(TOKENS, f"--expire --expiry-time-period -1 --hmac aG1hYw== {CONFIG}", A.EXPIRE_DELEGATION_TOKEN),
    step(TOKENS, f"--describe {CONFIG}", A.DESCRIBE_DELEGATION_TOKEN),
    step(API_VERSIONS, "", A.API_VERSIONS),
    step(FEATURES, "describe"),
    step(FEATURES, "upgrade --feature metadata.version=20", A.UPDATE_FEATURES),
    step(FEATURES, "downgrade --feature metadata.version=2", A.UPDATE_FEATURES),
    step(FEATURES, "disable --feature metadata.version", A.UPDATE_FEATURES),
    step(CLUSTER, "cluster-id", A.DESCRIBE_CLUSTER),
    step(TOPICS, "--delete --topic set", A.DELETE_TOPICS),
    step(TOPICS, "--delete --topic none", A.DELETE_TOPICS),
    step(TOPICS, "--list", A.METADATA, until=r"^(?!.*\nset\n)"),
)

NO_TOOL = {
    A.LEADER_AND_ISR: "between brokers",
    A.STOP_REPLICA: "between brokers",
    A.UPDATE_METADATA: "between brokers",
    A.CONTROLLED_SHUTDOWN: "between brokers",
    A.ALTER_PARTITION: "between brokers",
    A.ALLOCATE_PRODUCER_IDS: "between brokers",
    A.ENVELOPE: "between brokers",
    A.OFFSET_FOR_LEADER_EPOCH: "by clients when a leader is new",
    A.HEARTBEAT: "by clients that live for seconds",
    A.ADD_OFFSETS_TO_TXN: "by TransactionalMessageCopier, in tests/cluster",
    A.TXN_OFFSET_COMMIT: "by TransactionalMessageCopier, in tests/cluster",
    A.SASL_HANDSHAKE: "by every tool with a client configuration, in test_security_like_kafka",
    A.SASL_AUTHENTICATE: "by every tool with a client configuration, in test_security_like_kafka",
    A.ALTER_CONFIGS: "by no tool since 3.9's use IncrementalAlterConfigs",
    A.ALTER_REPLICA_LOG_DIRS: "by ReassignPartitionsCommand where there are several, in test_log_dirs_mixed",
    A.CONSUMER_GROUP_HEARTBEAT: "by consumers of group.protocol=consumer",
    A.CONSUMER_GROUP_DESCRIBE: "by an admin client that knows such a group",
}
"""Who calls what no tool does, or not in this story."""

SAID_OTHERWISE = (
    (re.compile(r"TopicId: [\w-]{22}"), "TopicId: ID"),
    (re.compile(r"Cluster ID: [\w-]{22}"), "Cluster ID: ID"),
    (re.compile(r"127\.0\.0\.1:\d+"), "BROKER"),
    (re.compile(r"adminclient-\d+"), "adminclient"),
    (re.compile(r"\b1\d{12}\b(\s+\d+ *)?"), "TIME"),
    (re.compile(r"/(kafka|ottla)/data"), "/data"),
    (re.compile(r"20\d\d-\d\d-\d\d [\d:,]+ "), ""),
    (re.compile(r"\t(at .*|\.\.\. \d+ more)\n"), ""),
    (re.compile(r"^  ottla\..*\n", re.M), ""),
)
"""Values that brokers choose, times, stack traces, and the topic settings that only Ottla has."""


class ToolOutputs(NamedTuple):
    printed: dict[str, list[Printed]]
    """By kind of broker, what each step printed."""
    metrics: str
    """Of our broker, afterwards."""


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolOutputs]:
    needs_kafka_jars()
    directory = tmp_path_factory.mktemp("tools")
    for name, content in FILES.items():
        (directory / name).write_text(json.dumps(content))
    http_port = free_port()
    # Apache Kafka leaves what it does not know alone.
    with kafka_and_ottla(directory, {**SETTINGS, "ottla.http.port": str(http_port)}) as ports:
        commands = [command_at(each, port, directory) for port in ports.values() for each in STEPS]
        everything = run_all(commands, directory)
        shown = {kind: everything[at * len(STEPS) : (at + 1) * len(STEPS)] for at, kind in enumerate(ports)}
        with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/metrics", timeout=60) as answer:
            yield ToolOutputs(shown, answer.read().decode())


def command_at(each: Step, port: int, directory: Path) -> Command:
    address, tool = f"127.0.0.1:{port}", each.command.main_class
    words = [str(directory / word[1:]) if word.startswith("@") else word for word in each.command.arguments]
    if tool == CLUSTER:  # its sub-commands come first
        words += ["--bootstrap-server", address]
    elif tool == PERFORMANCE:
        words += ["--producer-props", f"bootstrap.servers={address}"]
    else:
        words = ["--bootstrap-server", address, *words]
    return each.command._replace(arguments=words)


def comparable(shown: Printed) -> Printed:
    texts = []
    for text in (shown.out, shown.err):
        for pattern, word in SAID_OTHERWISE:
            text = pattern.sub(word, text)
        texts.append(text)
    return Printed(shown.status, *texts)


def test_every_api_has_its_tool_or_none_calls_it(scenario: ToolOutputs) -> None:
    claimed = {api for each in STEPS for api in each.apis}
    assert claimed.isdisjoint(NO_TOOL)
    assert claimed | set(NO_TOOL) == set(ApiKey)
    counted = re.findall(
        r'^kafka_network_requestmetrics_requests_total\{[^}]*request="(\w+)"[^}]*\} ([\d.]+)',
        scenario.metrics,
        re.M,
    )
    asked = {name for name, count in counted if float(count)}
    names = {api: "".join(word.capitalize() for word in api.name.split("_")) for api in claimed}
    assert {name for name in names.values() if name not in asked} == set(), "the broker was never asked that"


def test_the_tools_print_the_same(scenario: ToolOutputs) -> None:
    printed, differing = scenario.printed, []
    for each, kafkas, ours in zip(STEPS, printed["Apache Kafka"], printed["Ottla"], strict=True):
        if each.compared and comparable(kafkas) != comparable(ours):
            command = f"{each.command.main_class.rpartition('.')[2]} {' '.join(each.command.arguments)}"
            differing.append(
                f"{command}\n  Apache Kafka: {comparable(kafkas)}\n  Ottla:        {comparable(ours)}"
            )
    assert not differing, "\n".join(differing)
