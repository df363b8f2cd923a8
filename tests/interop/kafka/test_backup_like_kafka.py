"""A cluster's metadata is backed up to an S3 server and restored into an empty cluster, in which Apache
Kafka's tools print the same."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from ottla.client.admin import AdminClient, NewTopic, TopicPartition
from ottla.client.admin_types import (
    ConfigChange,
    ConfigResource,
    ConfigType,
    OffsetToCommit,
    QuotaEntity,
    ScramUpsertion,
)
from ottla.security.acls import (
    AclBinding,
    Entry,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from ottla_operator.backup import command
from tests.judges.kafka_tools import Command, run_all
from tests.judges.s3_server import BUCKET, S3Server, s3_server
from tests.judges.up_session import UpSession
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(600)
SPEC = {
    "replicas": 1,
    "config": {"offsets.topic.num.partitions": 3, "auto.create.topics.enable": False},
    "authorization": {"type": "simple", "superUsers": ["ANONYMOUS"]},
}
TOPICS = [
    NewTopic("orders", 3, 1, {"retention.ms": "100000", "cleanup.policy": "compact,delete"}),
    NewTopic("Clicks_EU", 2, 1),
]
RECORDS = 10


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    needs_kafka_jars()
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


def acl(type_: ResourceType, name: str, pattern: PatternType, operation: Operation) -> AclBinding:
    permission = Permission.DENY if operation is Operation.DELETE else Permission.ALLOW
    return AclBinding(
        ResourcePattern(type_, name, pattern), Entry("User:anna", "10.0.0.1", operation, permission)
    )


async def fill(bootstrap: str) -> None:
    """Metadata of all kinds."""
    async with AdminClient(bootstrap_servers=bootstrap) as admin:
        (await admin.create_topics(TOPICS)).raise_first()
        settings = {
            ConfigResource(ConfigType.BROKER, ""): [ConfigChange("log.retention.ms", "7000000")],
            ConfigResource(ConfigType.BROKER, "0"): [ConfigChange("log.cleaner.backoff.ms", "20000")],
        }
        (await admin.incremental_alter_configs(settings)).raise_first()
        acls = [
            acl(ResourceType.TOPIC, "orders", PatternType.LITERAL, Operation.READ),
            acl(ResourceType.TOPIC, "cl", PatternType.PREFIXED, Operation.DELETE),
            acl(ResourceType.GROUP, "*", PatternType.LITERAL, Operation.READ),
            acl(ResourceType.CLUSTER, "kafka-cluster", PatternType.LITERAL, Operation.CREATE),
        ]
        (await admin.create_acls(acls)).raise_first()
        quotas = {
            QuotaEntity({"user": "anna"}): {"producer_byte_rate": 1000.0},
            QuotaEntity({"user": None, "client-id": "x"}): {"request_percentage": 50.0},
        }
        (await admin.alter_client_quotas(quotas)).raise_first()
        upsertion = ScramUpsertion("anna", "SCRAM-SHA-512", "secret", 4096)
        (await admin.alter_user_scram_credentials([upsertion])).raise_first()
        offsets = {TopicPartition("orders", 0): OffsetToCommit(7, "note"), TopicPartition("orders", 1): 0}
        (await admin.alter_group_offsets("shop", offsets)).raise_first()


def produce(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS):
        producer.produce("orders", b"%d" % number, key=b"k%d" % number, partition=0)
    assert producer.flush(60) == 0


def ottla(s3: S3Server, *arguments: str) -> str:
    """What `ottla backup` or `ottla restore` prints."""
    run = {"backup": command.backup, "restore": command.restore}[arguments[0]]
    given = [*arguments[1:], "--endpoint", s3.endpoint]
    done = CliRunner().invoke(run, given, env=s3.credentials)
    assert done.exit_code == 0, done.output
    return done.output


def shown(bootstrap: str, directory: Path) -> list[str]:
    """What Kafka's tools print of everything that is backed up, but ids of topics."""
    at = ["--bootstrap-server", bootstrap]
    configs, default_user = "kafka.admin.ConfigCommand", ("--entity-type", "users", "--entity-default")
    commands = [
        Command("org.apache.kafka.tools.TopicCommand", [*at, "--describe"]),
        Command("kafka.admin.AclCommand", [*at, "--list"]),
        Command(configs, [*at, "--describe", "--entity-type", "topics"]),
        Command(configs, [*at, "--describe", "--entity-type", "brokers", "--entity-default"]),
        Command(configs, [*at, "--describe", "--entity-type", "brokers", "--entity-name", "0"]),
        Command(configs, [*at, "--describe", "--entity-type", "users", "--entity-name", "anna"]),
        Command(
            configs,
            [*at, "--describe", *default_user, "--entity-type", "clients", "--entity-name", "x"],
        ),
    ]
    texts = []
    for printed in run_all(commands, directory):
        assert printed.status == 0, printed
        lines = re.sub(r"TopicId: \S+|SCRAM-SHA-512=\S+|Default SCRAM.*|SCRAM credential.*", "", printed.out)
        texts.append("\n".join(sorted(line.rstrip() for line in lines.splitlines() if line.strip())))
    return texts


def offsets_of(bootstrap: str, directory: Path) -> str:
    tool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    (printed,) = run_all(
        [Command(tool, ["--bootstrap-server", bootstrap, "--describe", "--group", "shop"])], directory
    )
    return "\n".join(sorted(" ".join(line.split()) for line in printed.out.splitlines()))


def test_a_restored_cluster_is_the_same_to_kafkas_tools(s3: S3Server, tmp_path: Path) -> None:
    source, target = UpSession(tmp_path / "source"), UpSession(tmp_path / "target")
    for session in (source, target):
        session.write("BrokerCluster", "demo", SPEC)
    url = f"s3://{BUCKET}/clusters/demo"
    with source, target:
        (old, _), (new, _) = source.wait_ready(), target.wait_ready()
        asyncio.run(fill(old))
        produce(old)
        backed_up = ottla(s3, "backup", "-b", old, "--to", url, "--name", "demo", "--keep", "3")
        assert "2 topics, 2 settings, 4 ACLs, 2 quotas, 2 offsets" in backed_up
        assert "left out: the password of user anna (SCRAM-SHA-512)" in backed_up
        assert len(list(s3.folder.rglob("demo-*.ndjson.gz"))) == 1

        before = shown(new, tmp_path)
        would = ottla(s3, "restore", "-b", new, "--from", url, "--dry-run")
        assert "would restore topic orders: 3 partitions of 1 replicas" in would
        assert shown(new, tmp_path) == before, "a dry run changes nothing"

        restored = ottla(s3, "restore", "-b", new, "--from", url)
        assert "left: group shop: the records of 1 offsets are not there" in restored
        assert "left: user anna has no password yet" in restored
        expected = shown(old, tmp_path)
        assert "PartitionCount: 3" in expected[0]
        assert "User:anna" in expected[1]
        assert shown(new, tmp_path) == expected

        produce(new)
        again = ottla(s3, "restore", "-b", new, "--from", url)
        assert "restore offset 7 of group shop in orders-0" in again
        assert offsets_of(new, tmp_path) == offsets_of(old, tmp_path)
        assert "orders 0 7 10 3" in offsets_of(new, tmp_path)
        assert "nothing to restore" in ottla(s3, "restore", "-b", new, "--from", url)
