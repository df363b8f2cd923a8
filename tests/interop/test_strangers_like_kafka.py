"""What a stranger hears, of every API in every version: the same from Apache Kafka 3.9.1 and from Ottla.

One broker of each kind with an authorizer. The stranger comes from 127.0.0.2, and the ACLs know only who
comes from 127.0.0.1 (see `strangers`); later it is allowed this and that, and hears more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from group_talk import kafka_and_ottla
from judges import needs_kafka_jars
from strangers import (
    SECRET,
    Stranger,
    comparable,
    requests,
    served,
    write_acls,
)

from ottla.client.admin import AdminClient
from ottla.local.cluster import run_admin
from ottla.protocol.api import ApiKey

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

Ports = dict[str, int]


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    needs_kafka_jars()
    directory: Path = tmp_path_factory.mktemp("strangers")
    with kafka_and_ottla(directory, SETTINGS, write_acls) as by_name:
        for port in by_name.values():
            run_admin([("127.0.0.1", port)], make_topic)
        yield by_name


async def make_topic(client: AdminClient) -> None:
    await client.create_topic(SECRET, partitions=1, replication_factor=1)


def test_every_api_refuses_a_stranger_as_apache_kafka_does(ports: Ports) -> None:
    differences: list[str] = []
    asked = 0
    with ExitStack() as open_connections:
        kafka, ours = (
            open_connections.enter_context(Stranger(ports[name])) for name in ("Apache Kafka", "Ottla")
        )
        of_kafka = served(ports["Apache Kafka"])
        for key, versions in served(ports["Ottla"]).items():
            for version in versions:
                if key == ApiKey.API_VERSIONS or version not in of_kafka.get(key, ()):
                    continue
                for request in requests(key, version):
                    asked += 1
                    expected = comparable(kafka.ask(request, version))
                    answer = comparable(ours.ask(request, version))
                    if answer != expected:
                        differences.append(
                            f"{key.name} v{version}: {request}\n  Apache Kafka: {expected}\n  Ottla: {answer}"
                        )
    assert asked > 300
    assert not differences, "\n".join(differences)
