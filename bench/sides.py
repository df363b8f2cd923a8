"""The two sides of a benchmark: a cluster of Ottla brokers and a cluster of Apache Kafka brokers.

Called by the runner and by most benchmarks. Each side has a ZooKeeper and a folder of its own. Brokers run on
the broker's core from their first instruction, so that a JVM sizes itself for one core; ZooKeeper runs on the
client's core. Brokers have their default settings, with three exceptions: internal topics have as many
replicas as there are brokers, a group does not wait for further members, and files of deleted topics are
removed after a second instead of a minute, so that they do not affect the next load. Clients can use TLS
(`keys`).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import click

from bench.apache_kafka import STOCK_BROKER_JVM, KafkaBroker
from bench.tools import BROKER_CORE, CLIENT_CORE
from ottla.client.admin import AdminClient
from ottla.local.brokers import BrokerProcess
from ottla.local.cluster import run_admin
from ottla.local.processes import StartFailed, free_port, wait_until
from ottla.local.zookeeper import EmbeddedZooKeeper
from tests.certificates import Authority

T = TypeVar("T")
READY_TIMEOUT_S = 400


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Processes that are started in the block run on that core only, with all threads."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class TlsKeys:
    """An authority of one run, one key for all brokers of a side, and the clients' settings (PEM files).

    The brokers among themselves use the plaintext listener; clients have no certificate.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        authority = Authority()
        trusted = authority.write(directory / "authority.pem")
        self._key_store = authority.sign("broker").write_pem(directory / "broker.pem")
        self.client_settings = (
            "security.protocol=SSL",
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={trusted}",
        )
        self.client_properties = directory / "client.properties"
        self.client_properties.write_text("\n".join(self.client_settings) + "\n")

    def broker_settings(self, port: int, tls_port: int) -> dict[str, str]:
        """The settings of a broker that listens on these ports."""
        return {
            "listeners": f"PLAINTEXT://127.0.0.1:{port},SSL://127.0.0.1:{tls_port}",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._key_store),
        }


class Side(ABC):
    """A cluster under measurement; a context manager that stops all its processes."""

    name: str
    _brokers: Sequence[BrokerProcess | KafkaBroker] = ()

    def __init__(
        self, directory: Path, brokers: int, settings: Mapping[str, str] | None = None, *, tls: bool = False
    ) -> None:
        """With `tls` the brokers have a second listener, and `keys` is set."""
        self.directory = directory
        self.size = brokers
        self.keys = TlsKeys(directory / "keys") if tls else None
        self._ports = [free_port() for _ in range(brokers)]
        self._tls_ports = [free_port() for _ in range(brokers)] if tls else []
        self.settings = {
            "offsets.topic.replication.factor": str(brokers),
            "transaction.state.log.replication.factor": str(brokers),
            "transaction.state.log.min.isr": str(min(2, brokers)),
            "group.initial.rebalance.delay.ms": "0",
            "log.segment.delete.delay.ms": "1000",
            **(settings or {}),
        }
        self._zookeeper = EmbeddedZooKeeper(directory / "zookeeper")

    def __enter__(self) -> Self:
        try:
            with on_core(CLIENT_CORE):
                self._zookeeper.start()
            with on_core(BROKER_CORE):
                self._start(self._zookeeper.connect)
            self._wait(
                lambda: len(self.admin(lambda c: c.describe_cluster()).brokers) == self.size, "brokers"
            )
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop()
        self._zookeeper.stop()

    @abstractmethod
    def _start(self, zookeeper_connect: str) -> None:
        """Make `_brokers` and start them."""

    @abstractmethod
    def _stop(self) -> None:
        """Stop the brokers that run."""

    @abstractmethod
    def _restart(self, broker: int) -> None:
        """Start a broker that was stopped."""

    @property
    def ports(self) -> list[int]:
        return self._ports

    @property
    def pids(self) -> list[int]:
        """The process ids of the brokers that run."""
        return [broker.pid for broker in self._brokers if broker.pid is not None]

    def stop_brokers(self) -> None:
        """Stop all brokers."""
        self._stop()

    def start_brokers(self) -> None:
        """Start all brokers again; returns when they accept connections."""
        for broker in range(self.size):
            self.start_broker(broker)

    def pid(self, broker: int) -> int:
        """The process id of a broker that runs."""
        pid = self._brokers[broker].pid
        assert pid is not None, f"broker {broker} does not run"
        return pid

    @property
    def zookeeper_connect(self) -> str:
        return self._zookeeper.connect

    @property
    def bootstrap(self) -> str:
        return _addresses(self.ports)

    @property
    def tls_bootstrap(self) -> str:
        return _addresses(self._tls_ports)

    def _settings_of(self, broker: int) -> Mapping[str, str]:
        if self.keys is None:
            return self.settings
        return {**self.settings, **self.keys.broker_settings(self._ports[broker], self._tls_ports[broker])}

    def kill_broker(self, broker: int) -> None:
        """Kill a broker with SIGKILL."""
        self._brokers[broker].kill()

    def stop_broker(self, broker: int) -> None:
        self._brokers[broker].stop()

    def start_broker(self, broker: int) -> None:
        """Start a broker that was stopped; returns when it accepts connections."""
        with on_core(BROKER_CORE):
            self._restart(broker)

    def admin(self, use: Callable[[AdminClient], Coroutine[Any, Any, T]]) -> T:
        return run_admin([("127.0.0.1", port) for port in self.ports], use)

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        """A topic with a replica of each partition on every broker; returns when all are in sync."""
        self.admin(lambda c: c.create_topic(topic, partitions=partitions, replication_factor=self.size))

        def ready() -> bool:
            found = self.admin(lambda c: c.describe_topics([topic])).get(topic)
            return found is not None and all(
                p.leader >= 0 and len(p.isr) == self.size for p in found.partitions
            )

        self._wait(ready, f"{topic} to be in sync")

    def delete_topic(self, topic: str) -> None:
        """Delete a topic; returns when its files are removed, so that they do not affect the next load."""
        self.admin(lambda c: c.delete_topic(topic))
        self._wait(lambda: not list(self._topic_folders(topic)), f"the files of {topic} to go")

    def segments(self, topic: str) -> list[Path]:
        """The log files of the topic on all brokers."""
        return [file for folder in self._topic_folders(topic) for file in folder.glob("*.log")]

    def leader_port(self, topic: str) -> int:
        """The port of the leader of partition 0."""
        leader = self.admin(lambda c: c.describe_topics([topic]))[topic].partitions[0].leader
        return self.ports[leader]

    def _topic_folders(self, topic: str) -> Iterator[Path]:
        # `topic-0`, and `topic-0.<uuid>-delete` until its deletion
        return self.directory.glob(f"*/data/{topic}-[0-9]*")

    def _wait(self, condition: Callable[[], bool], description: str) -> None:
        def holds() -> bool:
            try:
                return condition()
            except (OSError, TimeoutError):
                return False

        if not wait_until(holds, timeout_s=READY_TIMEOUT_S, poll_s=0.1):
            raise StartFailed(f"{self.name}: waited {READY_TIMEOUT_S} s for {description}")


class OttlaSide(Side):
    """A cluster of Ottla brokers."""

    name = "Ottla"
    _brokers: Sequence[BrokerProcess] = ()

    def _start(self, zookeeper_connect: str) -> None:
        self._brokers = [
            BrokerProcess(i, self.directory / str(i), port) for i, port in enumerate(self._ports)
        ]
        for broker in self._brokers:
            broker.write_properties(zookeeper_connect, self._settings_of(broker.broker_id))
            broker.start_and_wait()

    def _restart(self, broker: int) -> None:
        self._brokers[broker].start_and_wait(READY_TIMEOUT_S)

    def _stop(self) -> None:
        for broker in self._brokers:
            broker.terminate()
        for broker in self._brokers:
            broker.stop()


class KafkaSide(Side):
    """A cluster of Apache Kafka brokers, with the JVM options of kafka-server-start.sh."""

    name = "Kafka"
    _brokers: Sequence[KafkaBroker] = ()

    def _start(self, zookeeper_connect: str) -> None:
        self._brokers = [
            KafkaBroker(
                self.directory / str(i),
                zookeeper_connect,
                broker_id=i,
                port=port,
                settings=self._settings_of(i),
                jvm=STOCK_BROKER_JVM,
            )
            for i, port in enumerate(self._ports)
        ]
        for broker in self._brokers:
            broker.start()

    def _restart(self, broker: int) -> None:
        self._brokers[broker].start(timeout_s=READY_TIMEOUT_S)

    def _stop(self) -> None:
        for broker in self._brokers:
            broker.stop()


SIDES: Final[Mapping[str, type[Side]]] = {"ottla": OttlaSide, "kafka": KafkaSide}
only_option = click.option("--only", type=click.Choice(list(SIDES)), help="One side alone.")


def chosen_sides(only: str | None) -> list[type[Side]]:
    """The sides to measure: both, or the one of `only_option`."""
    return [side for name, side in SIDES.items() if only in (None, name)]


def _addresses(ports: Sequence[int]) -> str:
    return ",".join(f"127.0.0.1:{port}" for port in ports)


def python_path(checkout: Path) -> str:
    """PYTHONPATH for processes that run the code of another checkout of this repository, and its benchmarks.

    A checkout without the folder client/ has the whole package in broker/.
    """
    return os.pathsep.join(str(checkout / folder) for folder in ("client", "broker", "."))
