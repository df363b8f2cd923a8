"""The schema registry when the broker dies that leads its topic: it goes on, and nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path

from confluent_kafka.schema_registry import Schema

from ottla.local.cluster import LocalCluster
from tests.judges.registries import Registry

CLUSTER = {
    "zookeeper.session.timeout.ms": "6000",  # so long does a killed broker lead
    "zookeeper.connection.timeout.ms": "60000",
}


def schema(name: str) -> Schema:
    return Schema(json.dumps({"type": "record", "name": name, "fields": []}))


def test_the_registry_continues_when_the_leader_of_its_topic_is_killed(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    with Registry(cluster.bootstrap, tmp_path) as registry, Registry(cluster.bootstrap, tmp_path) as other:
        client = registry.client()
        ids = {name: client.register_schema(name, schema(name)) for name in ("A", "B", "C")}
        topic = cluster.topic("_schemas")
        assert topic is not None
        (partition,) = topic.partitions
        assert len(partition.replicas) == 3
        cluster.brokers[partition.leader].kill()
        assert registry.ask("GET", f"/schemas/ids/{ids['A']}")[0] == 200, "reads need no broker"
        for name in ("D", "E"):  # what is asked for waits for the next leader
            ids[name] = client.register_schema(name, schema(name))
        ids["F"] = other.client().register_schema("F", schema("F"))
        assert sorted(ids.values()) == [1, 2, 3, 4, 5, 6]
        for reader in (registry.client(), other.client()):
            assert {name: reader.get_latest_version(name).schema_id for name in ids} == ids
