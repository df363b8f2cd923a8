"""A cluster of one Ottla broker and one Apache Kafka broker, on a ZooKeeper of their own.

Called by the tests of mixed clusters, which start the brokers in the order that they need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from bench.apache_kafka import KafkaBroker
from ottla.local.brokers import BrokerProcess
from ottla.local.processes import free_port, wait_until
from ottla.local.zookeeper import EmbeddedZooKeeper
from ottla.metadata import znodes
from ottla.metadata.znodes import PartitionState

OURS, JAVA = 1, 2
WAIT_S = 90.0


def until(condition: Callable[[], object], what: str) -> None:
    assert wait_until(lambda: bool(condition()), timeout_s=WAIT_S), f"never came true: {what}"


class Pair:
    """ZooKeeper runs; the caller starts the brokers and connects `tree`."""

    def __init__(
        self, directory: Path, *, our_settings: Mapping[str, str], java_settings: Mapping[str, str]
    ) -> None:
        self.zookeeper = EmbeddedZooKeeper(directory / "zookeeper")
        self.zookeeper.start()
        connect = self.zookeeper.connect
        self.ours = BrokerProcess(OURS, directory / "ours", free_port())
        self.ours.write_properties(connect, our_settings)
        self.java = KafkaBroker(directory / "java", connect, broker_id=JAVA, settings=java_settings)
        self.tree = KazooClient(connect)

    def stop(self) -> None:
        self.java.stop()
        self.ours.stop()
        self.tree.stop()
        self.tree.close()
        self.zookeeper.stop()

    def node(self, path: str) -> bytes | None:
        try:
            data: bytes = self.tree.get(path)[0]
        except NoNodeError:
            return None
        return data

    def controller(self) -> int | None:
        data = self.node(znodes.CONTROLLER)
        return znodes.decode_controller(data) if data else None

    def state(self, topic: str, partition: int) -> PartitionState | None:
        data = self.node(znodes.state_path(topic, partition))
        return znodes.decode_partition_state(topic, partition, data) if data else None
