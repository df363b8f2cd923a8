"""The two sides of the bench: a cluster of Ottla's brokers, and one of Apache Kafka's.

Called by the runner. Each side has a ZooKeeper and a folder of its own. Brokers run on the broker's core from
their first instruction (so a JVM sizes itself for one core, as it would in a pod with one), ZooKeeper beside
the client. Brokers have their default settings but for what one machine needs: replicas of internal topics as
many as there are brokers, no wait for further members of a group, and files of deleted topics gone after a
second instead of a minute, lest a load pays for its predecessor's. Clients may come over TLS (`keys`).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from bench.apache_kafka import STOCK_BROKER_JVM, KafkaBroker
from bench.keys import Keys
from bench.tools import BROKER_CORE, CLIENT_CORE
from ottla.client.admin import AdminClient
from ottla.local.brokers import BrokerProcess
from ottla.local.cluster import run_admin
from ottla.local.ports import free_port, wait_until
from ottla.local.processes import StartFailed
from ottla.local.zookeeper import EmbeddedZooKeeper

T = TypeVar("T")
READY_TIMEOUT_S = 400


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """What is started inside runs on that core alone, with all its threads."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Side(ABC):
    """A cluster under measurement; a context manager that leaves no process behind."""

    name: str

    def __init__(
        self, directory: Path, brokers: int, settings: Mapping[str, str] | None = None, *, tls: bool = False
    ) -> None:
        """With `tls` the brokers have a second listener, and there are `keys`."""
        self.directory = directory
        self.size = brokers
        self.keys = Keys(directory / "keys") if tls else None
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
    def _start(self, zookeeper_connect: str) -> None: ...

    @abstractmethod
    def _stop(self) -> None: ...

    @abstractmethod
    def _start_again(self) -> None:
        """Start brokers that were stopped, where they were."""

    @property
    def ports(self) -> list[int]:
        return self._ports

    @property
    @abstractmethod
    def pids(self) -> list[int]: ...

    def stop_brokers(self) -> None:
        """In order, one after the other."""
        self._stop()

    def start_brokers(self) -> None:
        """Start them again; returns when they accept connections."""
        with on_core(BROKER_CORE):
            self._start_again()

    @abstractmethod
    def pid(self, broker: int) -> int:
        """That of a broker which runs."""

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
        return {**self.settings, **self.keys.settings(self._ports[broker], self._tls_ports[broker])}

    def kill_broker(self, broker: int) -> None:
        """SIGKILL, as a crash would."""
        self._members[broker].kill()

    def stop_broker(self, broker: int) -> None:
        self._members[broker].stop()

    @abstractmethod
    def start_broker(self, broker: int) -> None:
        """Start one that was stopped; returns when it accepts connections."""

    @property
    @abstractmethod
    def _members(self) -> Sequence[BrokerProcess | KafkaBroker]: ...

    def admin(self, use: Callable[[AdminClient], Coroutine[Any, Any, T]]) -> T:
        return run_admin([("127.0.0.1", port) for port in self.ports], use)

    def create_topic(self, topic: str) -> None:
        """One partition, replicated to every broker; returns once all of them are in sync."""
        self.admin(lambda c: c.create_topic(topic, partitions=1, replication_factor=self.size))

        def ready() -> bool:
            found = self.admin(lambda c: c.describe_topics([topic])).get(topic)
            return found is not None and all(
                p.leader >= 0 and len(p.isr) == self.size for p in found.partitions
            )

        self._wait(ready, f"{topic} to be in sync")

    def delete_topic(self, topic: str) -> None:
        """Returns once the files are gone, so that the next load does not pay for them."""
        self.admin(lambda c: c.delete_topic(topic))
        self._wait(lambda: not list(self._topic_folders(topic)), f"the files of {topic} to go")

    def segments(self, topic: str) -> list[Path]:
        """The log files of the topic, of all brokers."""
        return [file for folder in self._topic_folders(topic) for file in folder.glob("*.log")]

    def leader_port(self, topic: str) -> int:
        """Where partition 0 is led."""
        leader = self.admin(lambda c: c.describe_topics([topic]))[topic].partitions[0].leader
        return self.ports[leader]

    def _topic_folders(self, topic: str) -> Iterator[Path]:
        # `topic-0`, and `topic-0.<uuid>-delete` while it waits for its end
        return self.directory.glob(f"*/data/{topic}-0*")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        def holds() -> bool:
            try:
                return condition()
            except (OSError, TimeoutError):
                return False

        if not wait_until(holds, timeout_s=READY_TIMEOUT_S, poll_s=0.1):
            raise StartFailed(f"{self.name}: waited {READY_TIMEOUT_S} s for {what}")


class OttlaSide(Side):
    name = "Ottla"

    def _start(self, zookeeper_connect: str) -> None:
        self._brokers = [
            BrokerProcess(i, self.directory / str(i), port) for i, port in enumerate(self._ports)
        ]
        for broker in self._brokers:
            broker.write_properties(zookeeper_connect, self._settings_of(broker.broker_id))
            broker.start_and_wait()

    def _start_again(self) -> None:
        for broker in self._brokers:
            broker.start_and_wait(READY_TIMEOUT_S)

    def start_broker(self, broker: int) -> None:
        with on_core(BROKER_CORE):
            self._brokers[broker].start_and_wait(READY_TIMEOUT_S)

    @property
    def _members(self) -> Sequence[BrokerProcess]:
        return self._brokers

    def _stop(self) -> None:
        brokers = getattr(self, "_brokers", [])
        for broker in brokers:
            broker.terminate()
        for broker in brokers:
            broker.stop()

    @property
    def pids(self) -> list[int]:
        return [broker.pid for broker in self._brokers if broker.pid is not None]

    def pid(self, broker: int) -> int:
        pid = self._brokers[broker].pid
        assert pid is not None, f"broker {broker} does not run"
        return pid


class KafkaSide(Side):
    name = "Kafka"

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

    def _start_again(self) -> None:
        for broker in self._brokers:
            broker.start(timeout_s=READY_TIMEOUT_S)

    def start_broker(self, broker: int) -> None:
        with on_core(BROKER_CORE):
            self._brokers[broker].start(timeout_s=READY_TIMEOUT_S)

    @property
    def _members(self) -> Sequence[KafkaBroker]:
        return self._brokers

    def _stop(self) -> None:
        for broker in getattr(self, "_brokers", []):
            broker.stop()

    @property
    def pids(self) -> list[int]:
        return [broker.pid for broker in self._brokers if broker.pid is not None]

    def pid(self, broker: int) -> int:
        pid = self._brokers[broker].pid
        assert pid is not None, f"broker {broker} does not run"
        return pid


def _addresses(ports: Sequence[int]) -> str:
    return ",".join(f"127.0.0.1:{port}" for port in ports)


def python_path(checkout: Path) -> str:
    """PYTHONPATH for processes that run the code of another checkout of this repository, and its benchmarks.

    A checkout from before client/ was a folder of its own has everything in broker/.
    """
    return os.pathsep.join(str(checkout / folder) for folder in ("client", "broker", "."))
