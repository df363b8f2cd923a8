"""A simulated cluster for one exact claim: what a test does to its brokers, and what it sees of them.

Called by tests/unit/test_brokers_*.py. Everything runs in virtual time, and the monitor of the simulation
checks its invariants all the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Final

from ottla.client import Producer
from ottla.client.admin import AdminClient, NewTopic, TopicPartition
from ottla.metadata import znodes
from ottla.protocol.messages import ProduceRequest
from ottla.protocol.records import Record, build_batch
from ottla.protocol.types import Message
from ottla.replication.partition import Partition
from ottla.server.assembly.broker import Broker
from ottla.simulation.cluster import PORT, Cluster
from ottla.simulation.final_checks import check_files
from ottla.simulation.invariants import Monitor
from ottla.simulation.runner import separate_run, until_whole
from ottla.simulation.workloads.clients import read_all
from ottla.wire.connection import BrokerConnection

WAIT_S: Final = 60.0
"""Virtual time within which a condition must come true."""

Scenario = Callable[[Cluster], Coroutine[Any, Any, None]]


def run(
    scenario: Scenario,
    *,
    brokers: int = 3,
    settings: Mapping[str, str] | None = None,
    seed: int = 1,
    files_are_checked: bool = False,
) -> None:
    """Start a cluster and run the scenario in it. With `files_are_checked`, the brokers are stopped in order
    then, and their files are verified."""

    async def work(cluster: Cluster) -> None:
        await scenario(cluster)
        if files_are_checked:
            await until_whole(cluster)
            await check_files(cluster)

    async def main(cluster: Cluster) -> None:
        await cluster.start()
        monitor = Monitor(cluster)
        await monitor.during(work(cluster))
        monitor.check()

    def run_cluster() -> None:
        cluster = Cluster(seed, brokers=brokers, settings=settings)
        cluster.run(main(cluster))

    with separate_run():
        run_cluster()


async def until(condition: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
    """Wait until a condition is true."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not condition():
        assert loop.time() < deadline, f"never came true: {what}"
        await asyncio.sleep(0.02)


# --- topics ---


async def create(
    cluster: Cluster, topic: str, assignment: Mapping[int, Sequence[int]] | None = None, **config: str
) -> None:
    """One partition on brokers 0, 1 and 2, if no other assignment is given; `_` in the names of settings is
    `.`. Returns when all replicas are in sync and all brokers know it."""
    placed = {0: (0, 1, 2)} if assignment is None else assignment
    named = {name.replace("_", "."): value for name, value in config.items()}
    new = NewTopic(topic, config=named, assignment=placed)

    async def request(admin: AdminClient) -> None:
        (await admin.create_topics([new])).raise_first()

    await cluster.admin(request)
    await until(lambda: knows_all(cluster, topic, placed), f"{topic} to be there")


def knows_all(cluster: Cluster, topic: str, partitions: Collection[int]) -> bool:
    """Whether all running brokers know the partitions of a topic, with all replicas in sync."""
    states = dict(cluster.partition_states())
    replicas = cluster.topics()[topic].partitions
    for number in partitions:
        state = states.get((topic, number))
        if state is None or set(state.isr) != set(replicas[number]):
            return False
        leader = replica(cluster, state.leader, topic, number)
        if leader is None or not leader.is_leader:
            return False
    caches = [broker.replication.cache for broker in serving(cluster)]
    return all((cache.partitions(topic) or {}).keys() >= set(partitions) for cache in caches)


def serving(cluster: Cluster) -> list[Broker]:
    """The brokers that have started."""
    return [machine.broker for machine in cluster.machines.values() if machine.is_serving and machine.broker]


def replica(cluster: Cluster, broker: int, topic: str, partition: int = 0) -> Partition | None:
    machine = cluster.machines[broker]
    if not machine.is_serving or machine.broker is None:
        return None
    return machine.broker.replication.replicas.find(topic, partition)


def state_of(cluster: Cluster, topic: str, partition: int = 0) -> znodes.PartitionState:
    """What ZooKeeper has."""
    return dict(cluster.partition_states())[topic, partition]


def in_sync(cluster: Cluster, topic: str, partition: int = 0) -> set[int]:
    return set(state_of(cluster, topic, partition).isr)


def controller(cluster: Cluster) -> int:
    """The elected one; -1 while there is none."""
    node = cluster.ensemble.tree.find(znodes.CONTROLLER)
    return -1 if node is None else znodes.decode_controller(node.data)


def broker_epoch(cluster: Cluster, broker: int) -> int:
    """That of its registration; -1 while there is none."""
    node = cluster.ensemble.tree.find(znodes.broker_path(broker))
    return -1 if node is None else node.czxid


def folders(cluster: Cluster, topic: str) -> set[tuple[int, str]]:
    """(broker, folder) of the logs of a topic that are in use."""
    return {
        (machine.id, folder)
        for machine in cluster.machines.values()
        for path in machine.disk.names
        for folder in [path.removeprefix(f"{machine.log_dir}/").partition("/")[0]]
        if folder.rpartition("-")[0] == topic and not folder.endswith("-delete")
    }


# --- brokers ---


async def restart(cluster: Cluster) -> None:
    """Start the brokers that are down, and wait until everything is in sync."""
    for machine in cluster.machines.values():
        if not machine.is_running:
            cluster.start_broker(machine.id)
    await until_whole(cluster)


def end_session(cluster: Cluster, broker: int) -> None:
    """End a broker's ZooKeeper session, as the time-out does."""
    found = cluster.machines[broker].broker
    assert found is not None
    session = cluster.ensemble.sessions.get(found.store.session_id)
    if session is not None:
        cluster.ensemble.expire(session)


# --- requests and records ---


async def call(cluster: Cluster, broker: int, request: Message) -> Any:
    """The response of one broker, whatever the metadata say."""

    async def ask() -> Any:
        connection = await BrokerConnection.open(cluster.machines[broker].host, PORT, timeout_s=30)
        try:
            return await connection.request(request)
        finally:
            connection.close()

    return await cluster.in_process("caller", ask())


def produce_request(
    topic: str, values: Sequence[str], *, acks: int = -1, partition: int = 0
) -> ProduceRequest:
    batch = build_batch([Record(n, 1_700_000_000_000, None, v.encode(), []) for n, v in enumerate(values)])
    part = ProduceRequest.PartitionProduceData(index=partition, records=batch)
    row = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
    return ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=[row])


async def produce(cluster: Cluster, topic: str, values: Sequence[str], *, partitions: int = 1) -> None:
    """With acks=all and idempotence, over the partitions in turn; until all is acknowledged."""

    async def send() -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, request_timeout_ms=5_000) as producer:
            futures = [
                await producer.send(topic, value.encode(), partition=number % partitions)
                for number, value in enumerate(values)
            ]
            for future in futures:
                await future

    await cluster.in_process("producer", send())


async def read(cluster: Cluster, topic: str, partitions: int = 1) -> list[list[str]]:
    """The values of each partition, to the high watermark."""
    places = [TopicPartition(topic, number) for number in range(partitions)]
    found = await read_all(cluster, "reader", places)
    return [[value for _, value in found[place]] for place in places]


class Load:
    """A producer with acks=all and idempotence that sends numbered records all the time."""

    def __init__(self, cluster: Cluster, topic: str, partitions: int = 1) -> None:
        self._cluster = cluster
        self._topic = topic
        self._partitions = partitions
        self._stopping = False
        self.sent: list[list[str]] = [[] for _ in range(partitions)]
        self.acknowledged = 0
        self.longest_s = 0.0
        """The longest time from a send to its acknowledgement."""
        self._task = cluster.client("load").create_task(self._send())

    async def _send(self) -> None:
        pending: set[asyncio.Future[Any]] = set()
        loop, number = self._cluster.loop, 0
        async with Producer(bootstrap_servers=self._cluster.bootstrap, request_timeout_ms=5_000) as producer:
            while not self._stopping:
                partition, value = number % self._partitions, str(number)
                sent_s = loop.now
                self.sent[partition].append(value)
                delivery = await producer.send(self._topic, value.encode(), partition=partition)
                delivery.add_done_callback(lambda done, at=sent_s: self._delivered(done, at))
                pending.add(delivery)
                number += 1
                await asyncio.sleep(0.02)
            for delivery in pending:
                await delivery

    def _delivered(self, delivery: asyncio.Future[Any], sent_s: float) -> None:
        if delivery.exception() is None:
            self.acknowledged += 1
            self.longest_s = max(self.longest_s, self._cluster.loop.now - sent_s)

    async def more(self, records: int = 50) -> None:
        """Wait until so many more are acknowledged."""
        goal = self.acknowledged + records
        await until(lambda: self._task.done() or self.acknowledged >= goal, "more records to be acknowledged")
        if self._task.done():
            self._task.result()

    def stop(self) -> None:
        self._stopping = True

    async def check(self) -> list[list[str]]:
        """Stop, and verify that every record is there once and in order. Returns the records by partition."""
        self.stop()
        await self._task
        stored = await read(self._cluster, self._topic, self._partitions)
        assert stored == self.sent
        return stored
