"""One ZooKeeper with Ottla and Apache Kafka 3.9.1, each under a chroot, and Kafka 0.8.2's own clients.

Called by the tests of old clients: Kafka's own, and ours with the same API.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from bench.apache_kafka import KafkaBroker
from ottla.client.admin import AdminClient
from ottla.client.admin_types import TopicPartition
from ottla.local.brokers import BrokerProcess
from ottla.local.cluster import run_admin
from ottla.local.processes import free_port, wait_until
from ottla.local.zookeeper import EmbeddedZooKeeper
from tests.judges.clients_082 import Clients

WAIT_S = 150
SETTINGS = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "3",
    "auto.create.topics.enable": "false",
}


class Side(NamedTuple):
    """A broker's port, and the ZooKeeper address that old clients use."""

    port: int
    zookeeper: str


class Brokers082:
    """Both brokers, their ZooKeeper, and a JVM with 0.8.2's clients."""

    def __init__(self, directory: Path, running: ExitStack) -> None:
        zookeeper = EmbeddedZooKeeper(directory / "zookeeper")
        running.callback(zookeeper.stop)
        zookeeper.start()
        self.directory = directory
        java = KafkaBroker(directory / "kafka", f"{zookeeper.connect}/kafka", settings=SETTINGS)
        self.broker = BrokerProcess(0, directory / "ottla", free_port())
        running.callback(java.stop)
        running.callback(self.broker.stop)
        self.http_port = free_port()
        settings = {**SETTINGS, "ottla.http.port": str(self.http_port), "ottla.http.host": "127.0.0.1"}
        self.broker.write_properties(f"{zookeeper.connect}/ottla", settings)
        self.broker.start_and_wait()
        java.start()
        self.ours = Side(self.broker.port, f"{zookeeper.connect}/ottla")
        self.sides = {"Ottla": self.ours, "Apache Kafka": Side(java.port, f"{zookeeper.connect}/kafka")}
        self.tree = KazooClient(f"{zookeeper.connect}/ottla")
        self.tree.start(timeout=60)
        running.callback(self.tree.close)
        running.callback(self.tree.stop)
        self.clients = running.enter_context(Clients(directory / "clients.log"))

    def make_topic(self, name: str, partitions: int, *, everywhere: bool = False) -> None:
        async def make(client: AdminClient) -> None:
            await client.create_topic(name, partitions=partitions, replication_factor=1)

        for side in self.sides.values() if everywhere else [self.ours]:
            run_admin([("127.0.0.1", side.port)], make)

    def node(self, path: str) -> str | None:
        try:
            data: bytes | None = self.tree.get(path)[0]
        except NoNodeError:
            return None
        return (data or b"").decode()

    def owners(self, group: str, topic: str, partitions: int) -> list[str | None]:
        """The consumer that owns each partition, without the number of its stream."""
        nodes = [self.node(f"/consumers/{group}/owners/{topic}/{p}") for p in range(partitions)]
        return [None if node is None else node.rpartition("-")[0] for node in nodes]

    def in_zookeeper(self, group: str, topic: str) -> int:
        return int(self.node(f"/consumers/{group}/offsets/{topic}/0") or -1)

    def in_kafka(self, group: str, topic: str) -> int:
        async def committed(client: AdminClient) -> int:
            return (await client.group_offsets(group)).get(TopicPartition(topic, 0), -1)

        return run_admin([("127.0.0.1", self.ours.port)], committed)

    def produce(self, topic: str, first: int, count: int, codec: str = "none", kind: str = "sync") -> None:
        self.clients.do("produce", self.ours.port, topic, first, count, codec, kind)


def wait_for(condition: Callable[[], bool], what: str, state: Callable[[], object] = str) -> None:
    assert wait_until(condition, timeout_s=WAIT_S), f"{what} did not come: {state()}"
