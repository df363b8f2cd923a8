"""What workloads have in common: clients that are started, killed and waited for, and reading whole
partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from ottla.client import AdminClient, Consumer
from ottla.client.core.types import TopicPartition
from ottla.protocol.topics import OFFSETS_TOPIC
from ottla.simulation.cluster import Cluster, Violation
from ottla.simulation.loop import Process

END_S: Final = 180.0
"""Within this time a client must end once the cluster is whole and it was asked to."""


class Clients:
    """The running clients of a workload, each in a process of its own."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self._tasks: dict[asyncio.Task[None], Process] = {}

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> Process:
        process = self._cluster.client(name)
        self._tasks[process.create_task(work, name=name)] = process
        return process

    def kill(self, process: Process) -> None:
        """SIGKILL: the process ends, and the kernel closes its sockets."""
        process.kill()
        self._cluster.network.process_died(process)

    async def wait(self, *processes: Process, timeout_s: float = END_S) -> None:
        """Wait until every client that was not killed has ended, or each of the given ones. Raises what they
        raise, or Violation."""
        tasks = [task for task, process in self._tasks.items() if not processes or process in processes]
        deadline = self._cluster.loop.now + timeout_s
        while True:
            working = [task for task in tasks if self._tasks[task].alive]
            for task in working:
                if task.done():
                    task.result()
            pending = [task for task in working if not task.done()]
            if not pending:
                return
            if self._cluster.loop.now > deadline:
                names = ", ".join(task.get_name() for task in pending)
                raise Violation(f"liveness: clients of {self._name} have not ended: {names}")
            await asyncio.wait(pending, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)

    def check(self) -> None:
        """Raise what a client has raised so far."""
        for task, process in self._tasks.items():
            if process.alive and task.done():
                task.result()

    async def until(
        self, timeout_s: float, what: str, lacking: Callable[[AdminClient], Coroutine[Any, Any, str]]
    ) -> None:
        """Wait until nothing is lacking, according to administrative requests. Raises Violation."""
        deadline = self._cluster.loop.now + timeout_s
        while text := await self._cluster.admin(lacking):
            self.check()
            if self._cluster.loop.now > deadline:
                raise Violation(f"liveness: {self._name}: after {timeout_s:.0f} s not: {what}: {text}")
            await asyncio.sleep(0.5)


class FlippedBits:
    """Whether a request that begins now may find a flipped bit. Consumers of the library raise an error
    then."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._before = any(machine.has_flipped_bit for machine in cluster.machines.values())
        self._count = cluster.bit_flips

    def may_show(self) -> bool:
        return self._before or self._cluster.bit_flips != self._count


def has_former_coordinator(cluster: Cluster) -> bool:
    """Whether a broker believes that it coordinates groups, and others have elected another one. It returns
    the offsets that it has, as Kafka's does."""
    states = dict(cluster.partition_states())
    for machine in cluster.machines.values():
        replicas = machine.replicas
        for partition in replicas.partitions() if replicas is not None else ():
            state = states.get((partition.topic, partition.partition))
            if (
                partition.topic == OFFSETS_TOPIC
                and partition.is_leader
                and state is not None
                and partition.leader_epoch < state.leader_epoch
            ):
                return True
    return False


def retrieve(delivery: asyncio.Future[Any]) -> None:
    """For a delivery that is not awaited: the transaction fails with the same error."""
    if not delivery.cancelled():
        delivery.exception()


async def read_all(
    cluster: Cluster,
    name: str,
    partitions: Sequence[tuple[str, int]],
    isolation_level: str = "read_uncommitted",
) -> dict[TopicPartition, list[tuple[int, str]]]:
    """The offsets and values of all records from the first one to the present end, in a process of its
    own."""

    async def read() -> dict[TopicPartition, list[tuple[int, str]]]:
        found: dict[TopicPartition, list[tuple[int, str]]] = {TopicPartition(*tp): [] for tp in partitions}
        async with Consumer(
            bootstrap_servers=cluster.bootstrap,
            client_id=name,
            auto_offset_reset="earliest",
            isolation_level=isolation_level,
        ) as consumer:
            consumer.assign(partitions)
            ends = await consumer.end_offsets(partitions)
            while [tp for tp, end in ends.items() if await consumer.position(tp) < end]:
                for tp, records in (await consumer.poll(1.0)).items():
                    found[tp] += [(record.offset, record.value.decode()) for record in records]
        return found

    return await cluster.in_process(name, read())
