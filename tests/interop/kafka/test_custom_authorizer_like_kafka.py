"""A custom authorizer, the same one in Java for Apache Kafka 3.9.1 and in Python for Ottla: clients get the
same responses. Clients on 127.0.0.1 may do everything, those on 127.0.0.2 what is called `open…`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.client.admin import AdminClient
from ottla.local.cluster import run_admin
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode
from ottla.protocol.types import Message
from ottla.security.acls import Entry, Operation, Permission, ResourcePattern, ResourceType
from tests.judges.acl_scenarios import OTHER, SECRET
from tests.judges.kafka_tools import Command, compiled, run_all
from tests.judges.raw_client import (
    ADMIN_HOST,
    BATCH,
    CLIENT_HOST,
    RawClient,
    comparable,
    compared,
    creation,
)
from tests.judges.request_recorder import kafka_and_ottla
from tests.oracles import JUDGES, needs_kafka_jars

CLASS = "authorizer.class.name"
OURS = "authorizer_beside_kafka:CustomAuthorizer"
SETTINGS = {
    "authorizer.home": ADMIN_HOST,
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}
pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    needs_kafka_jars()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(JUDGES), prepend=os.pathsep)
        directory = tmp_path_factory.mktemp("authorizer")
        with kafka_and_ottla(
            directory,
            SETTINGS,
            of_kafka={CLASS: "CustomAuthorizer"},
            of_ottla={CLASS: OURS},
            classes=compiled("CustomAuthorizer"),
        ) as by_name:
            for port in by_name.values():
                run_admin([("127.0.0.1", port)], make_topics)
            yield by_name
        logs = [log.read_text() for log in (directory / "ottla").glob("*.log")]
        assert any("the authorizer is closed" in text for text in logs)


async def make_topics(client: AdminClient) -> None:
    for name in (SECRET, OTHER, "open"):
        await client.create_topic(name, partitions=1, replication_factor=1)


def test_every_api_refuses_a_client_that_the_authorizer_denies_as_kafka_does(ports: dict[str, int]) -> None:
    asked, differences = compared(ports["Apache Kafka"], ports["Ottla"])
    assert asked > 300
    assert not differences, "\n".join(differences)


def produce(*topics: str) -> m.ProduceRequest:
    data, row = m.ProduceRequest.PartitionProduceData, m.ProduceRequest.TopicProduceData
    rows = [row(name=name, partition_data=[data(index=0, records=BATCH)]) for name in topics]
    return m.ProduceRequest(transactional_id=None, acks=1, timeout_ms=5000, topic_data=rows)


def of_topics(*topics: str) -> m.MetadataRequest:
    row = m.MetadataRequest.MetadataRequestTopic
    return m.MetadataRequest(topics=[row(name=name) for name in topics], allow_auto_topic_creation=False)


READ = Entry("User:eve", "*", Operation.READ, Permission.ALLOW)
ON_TOPIC = ResourcePattern(ResourceType.TOPIC, SECRET)


def acl_requests() -> list[tuple[Message, int]]:
    described = m.DescribeAclsRequest(
        resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
    )
    one = m.DeleteAclsRequest.DeleteAclsFilter(
        resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
    )
    return [
        (described, 3),
        (creation([(ON_TOPIC, READ)]), 3),
        (m.DeleteAclsRequest(filters=[one, one]), 3),
    ]


def answers(port: int, host: str, asked: list[tuple[Message, int]]) -> list[Any]:
    with RawClient(port, host) as client:
        return [comparable(client.ask(request, version)) for request, version in asked]


@pytest.mark.parametrize("host", [ADMIN_HOST, CLIENT_HOST])
def test_what_is_allowed_denied_or_fails_is_answered_as_by_kafka(ports: dict[str, int], host: str) -> None:
    init = m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    asked: list[tuple[Message, int]] = [
        (produce("open", SECRET), 9),
        (produce("broken"), 9),
        (produce("open"), 9),
        (of_topics("open", SECRET), 12),
        (of_topics("open", "broken"), 12),
        (init, 4),
        *acl_requests(),
    ]
    asked[5:6] = [] if host == ADMIN_HOST else asked[5:6]  # The id is the broker's own.
    by_broker = {name: answers(port, host, asked) for name, port in ports.items()}
    for (request, version), kafka, ours in zip(asked, *by_broker.values(), strict=True):
        assert ours == kafka, f"{request} v{version}"
    told = str(by_broker["Ottla"])
    assert str(int(ErrorCode.UNKNOWN_SERVER_ERROR)) in told


def test_kafka_acls_says_that_the_authorizer_has_no_acls(ports: dict[str, int], tmp_path: Path) -> None:
    commands = [
        Command("kafka.admin.AclCommand", ("--bootstrap-server", f"127.0.0.1:{port}", *words))
        for port in ports.values()
        for words in (
            ("--list",),
            ("--add", "--allow-principal", "User:eve", "--operation", "Read", "--topic", SECRET),
            ("--remove", "--force", "--topic", SECRET),
        )
    ]
    shown = run_all(commands, tmp_path)
    printed = [
        (each.status, [line for line in each.out.splitlines() if "Exception:" in line]) for each in shown
    ]
    assert printed[3:] == printed[:3]
    told = f"SecurityDisabledException: The authorizer {OURS} has no ACLs."
    assert all(status == 1 and told in str(lines) for status, lines in printed)
