"""A cluster of local processes: an embedded ZooKeeper and brokers on loopback.

Used by tests and benchmarks; `ottla up` runs the same processes by the operator's planning. A context manager
that ends all processes in any case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from ottla.client.admin import AdminClient
from ottla.client.admin_types import ClusterDescription, TopicDescription
from ottla.client.routing import ClusterUnreachable
from ottla.local.brokers import BrokerProcess
from ottla.local.processes import StartFailed, free_port, wait_until
from ottla.local.zookeeper import EmbeddedZooKeeper
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.wire.connection import ConnectionLost

T = TypeVar("T")


class LocalCluster:
    """ZooKeeper and brokers 0 to n-1, each with a folder under `directory`."""

    def __init__(
        self, directory: Path, *, brokers: int = 3, settings: Mapping[str, str] | None = None
    ) -> None:
        self.directory = directory
        self.settings = dict(settings or {})
        self.zookeeper = EmbeddedZooKeeper(directory / "zookeeper")
        self.brokers: dict[int, BrokerProcess] = {}
        self._size = brokers

    def __enter__(self) -> Self:
        try:
            self.zookeeper.start()
            for broker_id in range(self._size):
                self.add_broker(broker_id)
            self.wait_until(self._all_registered, "all brokers to register")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _all_registered(self) -> bool:
        for broker in self.brokers.values():
            if not broker.running:
                raise StartFailed(f"broker {broker.broker_id} did not come up:\n{broker.log_tail()}")
        return len(self.describe().brokers) == self._size

    def add_broker(self, broker_id: int, settings: Mapping[str, str] | None = None) -> BrokerProcess:
        """Start one more broker; returns at once."""
        broker = BrokerProcess(broker_id, self.directory / "brokers" / str(broker_id), free_port())
        broker.write_properties(self.zookeeper.connect, {**self.settings, **(settings or {})})
        self.brokers[broker_id] = broker
        broker.start()
        return broker

    def stop(self) -> None:
        """Stop all brokers concurrently, then ZooKeeper; SIGKILL after a time-out."""
        for broker in self.brokers.values():
            broker.terminate()
        for broker in self.brokers.values():
            broker.stop(timeout_s=15)
        self.zookeeper.stop()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{broker.host}:{broker.port}" for broker in self.brokers.values())

    def admin(self, use: Callable[[AdminClient], Coroutine[Any, Any, T]]) -> T:
        """Run one coroutine with an admin client: `cluster.admin(lambda a: a.describe_cluster())`."""

        return run_admin([(b.host, b.port) for b in self.brokers.values() if b.running], use)

    def describe(self) -> ClusterDescription:
        return self.admin(lambda client: client.describe_cluster())

    def controller(self) -> int:
        """Wait until all running brokers return the same controller, and return its id."""
        named: set[int] = set()

        def agreed() -> bool:
            named.clear()
            for broker in self.brokers.values():
                if broker.running:
                    described = run_admin(
                        [(broker.host, broker.port)], lambda client: client.describe_cluster()
                    )
                    named.add(described.controller_id)
            return len(named) == 1 and named != {-1}

        self.wait_until(agreed, "all brokers to return the same controller")
        return named.pop()

    def topic(self, name: str) -> TopicDescription | None:
        return self.admin(lambda client: client.describe_topics([name])).get(name)

    def views(self, topic: str) -> list[TopicDescription | None]:
        """The topic's description by each running broker: their metadata is updated one by one."""

        async def described(client: AdminClient) -> TopicDescription | None:
            return (await client.describe_topics([topic])).get(topic)

        return [run_admin([(b.host, b.port)], described) for b in self.brokers.values() if b.running]

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replicas: int = 3,
        assignment: Mapping[int, Sequence[int]] | None = None,
        **config: str,
    ) -> None:
        """Create a topic, and wait until all brokers have its leaders and full ISRs; `_` in names of settings
        is `.`.

        `assignment`: each partition's brokers, instead of both numbers.
        """
        settings = {key.replace("_", "."): value for key, value in config.items()}
        tried = False
        missed = (ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.INVALID_REPLICA_ASSIGNMENT)

        def created() -> bool:
            """Whether the topic is created; False while the controller lacks a broker that has lost its
            session."""
            nonlocal tried
            again, tried = tried, True
            try:
                self.admin(
                    lambda client: client.create_topic(
                        name,
                        partitions=-1 if assignment else partitions,
                        replication_factor=-1 if assignment else replicas,
                        assignment=assignment,
                        config=settings,
                    )
                )
            except KafkaError as error:
                if again and error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                    return True  # the answer to the first request was lost
                if error.code in missed and replicas <= len(self.brokers):
                    return False
                raise
            return True

        self.wait_until(created, f"{name} to be created")
        self.wait_until(lambda: self.fully_replicated(name, partitions), f"{name} to be fully replicated")

    def fully_replicated(self, name: str, partitions: int = 1) -> bool:
        """Whether all running brokers have the topic with at least `partitions` partitions, all fully
        replicated."""
        views = self.views(name)
        return bool(views) and all(
            topic is not None
            and len(topic.partitions) >= partitions
            and all(p.leader >= 0 and len(p.isr) == len(p.replicas) for p in topic.partitions)
            for topic in views
        )

    def gone(self, topic: str) -> bool:
        """Whether no running broker has the topic."""
        return not any(self.views(topic))

    def wait_until(self, condition: Callable[[], bool], what: str, timeout_s: float = 120) -> None:
        """Wait for a condition. Unreachable brokers, retriable errors and LookupError count as False.
        Raises StartFailed with the brokers' logs."""
        last: Exception | None = None

        def holds() -> bool:
            nonlocal last
            try:
                return condition()
            except (ClusterUnreachable, ConnectionLost, TimeoutError, OSError, LookupError) as error:
                last = error
            except KafkaError as error:
                if not error.code.retriable:
                    raise
                last = error
            return False

        if not wait_until(holds, timeout_s=timeout_s, poll_s=0.1):
            logs = "\n".join(f"--- broker {b.broker_id}\n{b.log_tail()}" for b in self.brokers.values())
            raise StartFailed(f"waited {timeout_s:g} s for {what} ({last!r})\n{logs}")


def run_admin(bootstrap: list[tuple[str, int]], use: Callable[[AdminClient], Coroutine[Any, Any, T]]) -> T:
    """Run one coroutine with an admin client of its own, on an event loop of its own."""

    async def run() -> T:
        client = AdminClient(bootstrap_servers=bootstrap, default_api_timeout_ms=30_000)
        try:
            return await use(client)
        finally:
            await client.close()

    return asyncio.run(run())
