"""Authorization by Apache Kafka 3.9.1 and by Ottla has the same results.

One broker of each kind with an authorizer. A client on 127.0.0.2 sends every API in every version while the
ACLs allow only 127.0.0.1 (see `raw_client`). Then it gets single permissions (see `acl_scenarios`). The
responses of CreateAcls and DeleteAcls are compared as well. At the end Kafka's own tool and other clients
change ACLs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import confluent_kafka.admin as confluent
import kafka.admin as kafka_python
import pytest
from click.testing import CliRunner
from kafka import KafkaAdminClient

from ottla.cli.main import main
from ottla.client.admin import AdminClient
from ottla.local.brokers import BrokerProcess
from ottla.local.cluster import run_admin
from ottla.local.processes import free_port, wait_until
from ottla.protocol import messages as m
from ottla.protocol.records import Record, build_batch
from ottla.security.acls import (
    AclBinding,
    AclFilter,
    Entry,
    Operation,
    PatternFilter,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from tests.judges.acl_scenarios import NOWHERE, OTHER, SCENARIOS, Broker, offsets_to_commit
from tests.judges.kafka_tools import Command, run_all
from tests.judges.raw_client import (
    ADMIN_HOST,
    BATCH,
    CLIENT_HOST,
    CLOSED,
    SECRET,
    RawClient,
    allow,
    comparable,
    compared,
    creation,
    served,
    write_acls,
)
from tests.judges.request_recorder import kafka_and_ottla
from tests.oracles import needs_kafka_jars

SETTINGS = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}
pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Broker]]:
    needs_kafka_jars()
    directory: Path = tmp_path_factory.mktemp("acls")
    connects: list[str] = []

    def prepare(connect: str) -> None:
        write_acls(connect)
        connects.append(connect)

    with kafka_and_ottla(directory, SETTINGS, prepare) as ports:
        by_name: dict[str, Broker] = {}
        for name, port in ports.items():
            run_admin([("127.0.0.1", port)], make_topics)
            with RawClient(port, ADMIN_HOST) as home:
                assert wait_until(lambda home=home: coordinates(home), timeout_s=120)
                answer = home.ask(m.MetadataRequest(topics=None), 12)
                assert isinstance(answer, m.MetadataResponse)
                ids = {t.name: t.topic_id for t in answer.topics if t.name}
                chroot = "/kafka" if name == "Apache Kafka" else "/ottla"
                [connect] = [each for each in connects if each.endswith(chroot)]
                by_name[name] = Broker(port, ids, connect, directory / "ottla" / "broker.log")
        yield by_name


async def make_topics(client: AdminClient) -> None:
    for name in (SECRET, OTHER):
        await client.create_topic(name, partitions=1, replication_factor=1)


def coordinates(home: RawClient) -> bool:
    """Whether the group's offsets can be committed: some are, afterwards."""
    home.ask(m.FindCoordinatorRequest(key="g", key_type=0), 2)
    answer = home.ask(offsets_to_commit("g", SECRET, OTHER), 2)
    assert isinstance(answer, m.OffsetCommitResponse)
    return not any(p.error_code for topic in answer.topics for p in topic.partitions)


def test_every_api_refuses_an_unauthorized_client_as_kafka_does(brokers: dict[str, Broker]) -> None:
    asked, differences = compared(brokers["Apache Kafka"].port, brokers["Ottla"].port)
    assert asked > 300
    said = brokers["Ottla"].log.read_text()
    for operation, resource, api in (
        ("Write", f"Topic:LITERAL:{SECRET}", "Produce"),
        ("Alter", "Cluster:LITERAL:kafka-cluster", "CreateAcls"),
    ):
        assert (
            f"Principal = User:ANONYMOUS is Denied Operation = {operation} from host = {CLIENT_HOST} "
            f"on resource = {resource} for request = {api} with resourceRefCount = 1" in said
        ), said[-2000:]
    assert not differences, "\n".join(differences)


# --- the scenes ----------------------------------------------------------------------------------------


ANY, MATCH = 1, 2


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_requests_that_an_acl_allows(brokers: dict[str, Broker], scenario: str) -> None:
    granted, asked = SCENARIOS[scenario]
    of_ours = served(brokers["Ottla"].port)
    asked = [each for each in asked if each[1](NOWHERE).api_key in of_ours]
    by_broker: dict[str, list[object]] = {}
    for name, broker in brokers.items():
        answers = by_broker[name] = []
        with RawClient(broker.port, ADMIN_HOST) as home, RawClient(broker.port) as client:
            made = home.ask(creation(granted), 3)
            assert isinstance(made, m.CreateAclsResponse)
            assert [each.error_code for each in made.results] == [0] * len(granted)
            try:
                for version, request in asked:
                    answers.append(comparable(client.ask(request(broker), version)))
            finally:
                answers.append(comparable(home.ask(removal(None, ANY), 3)))
    kafka, ours = by_broker["Apache Kafka"], by_broker["Ottla"]
    assert len(kafka) == len(ours) == len(asked) + 1
    labels = [f"{request(NOWHERE)} v{version}" for version, request in asked] + ["DeleteAcls"]
    differing = [
        f"{label}\n  Apache Kafka: {expected}\n  Ottla:        {answer}"
        for label, expected, answer in zip(labels, kafka, ours, strict=True)
        if answer != expected
    ]
    assert not differing, "\n".join(differing)


# --- what is asked of ACLs themselves ------------------------------------------------------------------

ODD = Entry("User:eve", CLIENT_HOST, Operation.READ, Permission.ALLOW)
CREATIONS = {
    "the cluster by another name": AclBinding(ResourcePattern(ResourceType.CLUSTER, "mine"), ODD),
    "no name": AclBinding(ResourcePattern(ResourceType.TOPIC, ""), ODD),
    "a slash in the name": AclBinding(ResourcePattern(ResourceType.TOPIC, "a/b"), ODD),
    "a name that is no node's": AclBinding(ResourcePattern(ResourceType.TOPIC, ".."), ODD),
    "a control character": AclBinding(ResourcePattern(ResourceType.TOPIC, "a\x01b"), ODD),
    "no principal": AclBinding(ResourcePattern(ResourceType.TOPIC, "t"), ODD._replace(principal="eve")),
    "any topic": AclBinding(ResourcePattern(ResourceType.ANY, "t"), ODD),
    "whatever would match": AclBinding(ResourcePattern(ResourceType.TOPIC, "t", PatternType.MATCH), ODD),
    "any operation": AclBinding(
        ResourcePattern(ResourceType.TOPIC, "t"), ODD._replace(operation=Operation.ANY)
    ),
    "an unknown operation": AclBinding(
        ResourcePattern(ResourceType.TOPIC, "t"), ODD._replace(operation=Operation.UNKNOWN)
    ),
    "the same once more": AclBinding(ResourcePattern(ResourceType.TOPIC, SECRET), ODD),
}
GOOD = AclBinding(ResourcePattern(ResourceType.TOPIC, SECRET), ODD)


@pytest.mark.parametrize("oddity", CREATIONS)
def test_invalid_acls_are_refused(brokers: dict[str, Broker], oddity: str) -> None:
    by_broker: dict[str, list[object]] = {}
    asked = creation([GOOD, CREATIONS[oddity]])
    unknown_code = creation([GOOD])
    unknown_code.creations[0].operation = 77
    for name, broker in brokers.items():
        with RawClient(broker.port, ADMIN_HOST) as home:
            answers = [home.ask(asked, 3), home.ask(unknown_code, 1), home.ask(description(SECRET), 2)]
            answers += [home.ask(removal(SECRET, pattern), 3) for pattern in (ANY, MATCH)]
        by_broker[name] = list(map(comparable, answers))
    assert by_broker["Ottla"] == by_broker["Apache Kafka"]


def description(name: str | None) -> m.DescribeAclsRequest:
    return m.DescribeAclsRequest(
        resource_type_filter=ANY,
        resource_name_filter=name,
        pattern_type_filter=MATCH,
        principal_filter=None,
        host_filter=CLIENT_HOST,
        operation=ANY,
        permission_type=ANY,
    )


def removal(name: str | None, pattern: int) -> m.DeleteAclsRequest:
    """A DeleteAcls request for the client's ACLs."""
    one = m.DeleteAclsRequest.DeleteAclsFilter
    found = {
        "resource_type_filter": ANY,
        "resource_name_filter": name,
        "pattern_type_filter": pattern,
        "principal_filter": None,
        "host_filter": CLIENT_HOST,
        "operation": ANY,
        "permission_type": ANY,
    }
    return m.DeleteAclsRequest(filters=[one(**found), one(**{**found, "host_filter": "1.2.3.4"})])


def test_an_unauthorized_produce_with_acks_0_closes_the_connection(brokers: dict[str, Broker]) -> None:
    """Produce with acks=0 has nothing else to say it by. Transactional batches are refused first."""
    data = m.ProduceRequest.PartitionProduceData
    row = m.ProduceRequest.TopicProduceData
    transactional = build_batch(
        [Record(0, 1_700_000_000_000, None, b"v", [])],
        producer_id=1,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    for records, transactional_id in ((BATCH, None), (transactional, "tx"), (transactional, None)):
        for acks in (0, 1):
            request = m.ProduceRequest(
                transactional_id=transactional_id,
                acks=acks,
                timeout_ms=1000,
                topic_data=[row(name=SECRET, partition_data=[data(index=0, records=records)])],
            )
            by_broker = []
            for broker in brokers.values():
                with RawClient(broker.port) as client:
                    by_broker.append(comparable(client.ask(request, 9)))
            assert by_broker[0] == by_broker[1]
            assert (by_broker[0] == CLOSED) is (acks == 0)


# --- tools and clients of others -----------------------------------------------------------------------

TOOL = "kafka.admin.AclCommand"
ALICE, BOB = "User:alice", "User:CN=bob,O=x"
ADD_ALICE, ADD_BOB = ("--add", "--allow-principal", ALICE), ("--add", "--allow-principal", BOB)
READ, ON_T = ("--operation", "Read"), ("--topic", "t")
MATCHING = ("--resource-pattern-type", "match")
PREFIXED = ("--resource-pattern-type", "prefixed")
REMOVE = ("--remove", "--force")
BY_THE_BROKER: Final = (
    (*ADD_ALICE, *READ, "--operation", "Write", *ON_T),
    ("--add", "--deny-principal", BOB, "--deny-host", "10.0.0.1", *READ, "--group", "g-", *PREFIXED),
    (*ADD_ALICE, "--producer", "--topic", "p", "--transactional-id", "x", "--idempotent"),
    (*ADD_BOB, "--consumer", "--topic", "c", "--group", "c"),
    (*ADD_ALICE, *READ, "--cluster"),
    ("--list",),
    ("--list", *ON_T, *MATCHING),
    ("--list", "--principal", BOB, "--group", "g-1", *MATCHING),
    (*REMOVE, "--allow-principal", ALICE, *READ, *ON_T),
    (*REMOVE, "--topic", "p"),
    ("--list",),
)
BY_ZOOKEEPER: Final = (
    ("--list",),
    (*REMOVE, "--group", "c"),
    (*ADD_ALICE, *READ, "--topic", "heard"),
)


def test_the_tool_prints_the_same(brokers: dict[str, Broker], tmp_path: Path) -> None:
    commands = [
        Command(TOOL, (*where, *words))
        for broker in brokers.values()
        for where, asked in (
            (("--bootstrap-server", f"127.0.0.1:{broker.port}"), BY_THE_BROKER),
            (("--authorizer-properties", f"zookeeper.connect={broker.connect}"), BY_ZOOKEEPER),
        )
        for words in asked
    ]
    shown = [
        (each.status, by_resource(each.out), without_times(each.err)) for each in run_all(commands, tmp_path)
    ]
    half = len(shown) // 2
    differing = [
        f"{command.arguments}\n  Apache Kafka: {expected}\n  Ottla:        {answer}"
        for command, expected, answer in zip(commands[:half], shown[:half], shown[half:], strict=True)
        if expected != answer
    ]
    assert not differing, "\n".join(differing)
    assert any("CREATE" in line for _, lines in shown[5][1] for line in lines), "nothing was listed"

    # What it wrote to ZooKeeper itself, the broker has heard of.
    def known(kind: ResourceType, name: str) -> int:
        wanted = AclFilter(PatternFilter(kind, name, PatternType.LITERAL))
        port = brokers["Ottla"].port
        return len(run_admin([("127.0.0.1", port)], lambda admin: admin.describe_acls(wanted)))

    assert wait_until(
        lambda: known(ResourceType.TOPIC, "heard") == 1 and known(ResourceType.GROUP, "c") == 0,
        timeout_s=120,
    )


def by_resource(printed: str) -> list[tuple[str, list[str]]]:
    """Blocks of lines that begin with a resource; a hash map gives them and the lines their order."""
    blocks: list[tuple[str, list[str]]] = []
    for line in filter(None, map(str.strip, printed.splitlines())):
        if line.startswith("(") and blocks:
            blocks[-1][1].append(line)
        else:
            blocks.append((line, []))
    return sorted((head, sorted(lines)) for head, lines in blocks)


def without_times(text: str) -> list[str]:
    return [re.sub(r"^\[[^\]]*\] ", "", line) for line in text.splitlines()]


def test_confluents_client_changes_acls(brokers: dict[str, Broker]) -> None:
    client = confluent.AdminClient({"bootstrap.servers": f"127.0.0.1:{brokers['Ottla'].port}"})
    acl = confluent.AclBinding(
        confluent.ResourceType.GROUP,
        "of-confluent-",
        confluent.ResourcePatternType.PREFIXED,
        ALICE,
        "*",
        confluent.AclOperation.READ,
        confluent.AclPermissionType.ALLOW,
    )
    wanted = confluent.AclBindingFilter(
        confluent.ResourceType.GROUP,
        "of-confluent-1",
        confluent.ResourcePatternType.MATCH,
        ALICE,
        None,
        confluent.AclOperation.ANY,
        confluent.AclPermissionType.ANY,
    )
    client.create_acls([acl], request_timeout=60)[acl].result(timeout=90)
    assert client.describe_acls(wanted, request_timeout=60).result(timeout=90) == [acl]
    assert client.delete_acls([wanted], request_timeout=60)[wanted].result(timeout=90) == [acl]
    assert client.describe_acls(wanted, request_timeout=60).result(timeout=90) == []


def test_kafka_pythons_client_changes_acls(brokers: dict[str, Broker]) -> None:
    client = KafkaAdminClient(
        bootstrap_servers=f"127.0.0.1:{brokers['Ottla'].port}", request_timeout_ms=60_000
    )
    try:
        pattern = kafka_python.ResourcePattern(kafka_python.ResourceType.TOPIC, "of-kafka-python")
        acl = kafka_python.ACL(
            ALICE, "*", kafka_python.ACLOperation.WRITE, kafka_python.ACLPermissionType.DENY, pattern
        )
        assert client.create_acls([acl])["succeeded"] == [acl]
        wanted = kafka_python.ACLFilter(
            ALICE,
            "*",
            kafka_python.ACLOperation.ANY,
            kafka_python.ACLPermissionType.ANY,
            kafka_python.ResourcePatternFilter(
                kafka_python.ResourceType.TOPIC, "of-kafka-python", kafka_python.ACLResourcePatternType.ANY
            ),
        )
        found, _ = client.describe_acls(wanted)
        assert found == [acl]
        [(_, removed, _)] = client.delete_acls([wanted])
        assert removed == [acl]
        assert client.describe_acls(wanted)[0] == []
    finally:
        client.close()


def test_the_command_line_changes_acls(brokers: dict[str, Broker]) -> None:
    def acls_command(*arguments: str) -> object:
        bootstrap = f"127.0.0.1:{brokers['Ottla'].port}"
        result = CliRunner().invoke(
            main, ["acls", *arguments, "-b", bootstrap, "-o", "json", "--timeout", "60"]
        )
        assert result.exit_code == 0, result.output
        return json.loads(result.output)

    row = {
        "resource": "topic",
        "name": "cli-",
        "pattern": "prefixed",
        "principal": ALICE,
        "host": "*",
        "operation": "read",
        "permission": "allow",
    }
    rows = [row, {**row, "operation": "alter-configs"}]
    both = ("--operation", "read", "--operation", "alter-configs")
    assert acls_command("add", "--topic", "cli-", "--prefixed", "--allow", ALICE, *both) == {"added": rows}
    assert acls_command("list", "--topic", "cli-", "--prefixed") == rows
    assert acls_command("list", "--principal", "User:nobody") == []
    assert acls_command("remove", "--topic", "cli-", "--prefixed", "--operation", "read") == {
        "removed": rows[:1]
    }
    assert acls_command("remove", "--topic", "cli-", "--prefixed") == {"removed": rows[1:]}
    assert acls_command("list", "--topic", "cli-", "--prefixed") == []


# --- one cluster ---------------------------------------------------------------------------------------


def test_kafka_and_ottla_apply_each_others_acls(brokers: dict[str, Broker], tmp_path: Path) -> None:
    """An Ottla broker joins Apache Kafka's cluster; each applies ACLs that are created at the other."""
    joined = BrokerProcess(1, tmp_path / "joined", free_port())
    joined.write_properties(brokers["Apache Kafka"].connect, SETTINGS)
    joined.start_and_wait()
    try:
        ports = [brokers["Apache Kafka"].port, joined.port]
        by_name = allow(ResourceType.TOPIC, SECRET, Operation.READ)
        by_prefix = allow(ResourceType.TOPIC, "oth", Operation.WRITE, pattern=PatternType.PREFIXED)
        for port, other in (ports, ports[::-1]):
            with RawClient(port, ADMIN_HOST) as home, RawClient(other) as client:
                for granted, topic in ((by_name, SECRET), (by_prefix, OTHER)):
                    assert wait_until(lambda: not sees(client, topic), timeout_s=120)  # noqa: B023
                    made = home.ask(creation(granted), 3)
                    assert isinstance(made, m.CreateAclsResponse)
                    assert [each.error_code for each in made.results] == [0]
                    assert wait_until(lambda: sees(client, topic), timeout_s=120)  # noqa: B023
                home.ask(removal(None, ANY), 3)
                assert wait_until(
                    lambda: not sees(client, SECRET) and not sees(client, OTHER),
                    timeout_s=120,
                )
    finally:
        assert joined.stop(timeout_s=120)


def sees(client: RawClient, topic: str) -> bool:
    row = m.MetadataRequest.MetadataRequestTopic
    answer = client.ask(m.MetadataRequest(topics=[row(name=topic)], allow_auto_topic_creation=False), 4)
    assert isinstance(answer, m.MetadataResponse)
    [found] = answer.topics
    return found.error_code == 0
