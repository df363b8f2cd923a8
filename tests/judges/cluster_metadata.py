"""Metadata of all kinds in a cluster, and what Apache Kafka's tools print of it.

Used by the tests of backups. On the node of a Kubernetes cluster, where its brokers have names, as a program:
`python -m tests.judges.cluster_metadata fill|produce|shown BOOTSTRAP [FOLDER]`.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Final

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
from tests.judges.kafka_tools import Command, run_all

TOPICS: Final = [
    NewTopic("orders", 3, 1, {"retention.ms": "100000", "cleanup.policy": "compact,delete"}),
    NewTopic("Clicks_EU", 2, 1),
]
RECORDS: Final = 10


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


def main(what: str, bootstrap: str, folder: str = "") -> None:
    if what == "fill":
        asyncio.run(fill(bootstrap))
    elif what == "produce":
        produce(bootstrap)
    else:
        found = [*shown(bootstrap, Path(folder)), offsets_of(bootstrap, Path(folder))]
        print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
