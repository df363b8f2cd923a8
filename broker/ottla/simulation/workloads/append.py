"""Idempotent producers with acks=all append numbered records; consumers read them all the time.

Checked: an acknowledged record is in its partition, at its offset, for ever; no record is there twice;
records of one producer are in order, without gaps among the acknowledged ones; every reader sees the same
record at the same offset, in order. Once the cluster is whole, it acknowledges and delivers records soon,
those of new clients and those of clients that went through the faults.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final

from ottla.client import AdminClient, Consumer, Producer
from ottla.client.admin import NewTopic
from ottla.client.errors import ClientError
from ottla.simulation.cluster import Cluster, Violation
from ottla.simulation.invariants import check_acknowledged
from ottla.simulation.loop import Process

PROBES: Final = 9
PROBE_S: Final = 5.0
"""A whole cluster acknowledges and delivers a record within this time."""
WORKS_AGAIN_S: Final = 30.0
"""Clients that went through the faults work again within this time."""


class Append:
    """See the module."""

    def __init__(
        self,
        *,
        topic: str = "append",
        partitions: int = 3,
        replication_factor: int = 3,
        producers: int = 2,
        consumers: int = 1,
        rate: float = 50.0,
        lingers_ms: tuple[int, ...] = (0, 5),
    ) -> None:
        """`rate` is the number of records that each producer sends in a second."""
        self.topic = topic
        self._partitions = partitions
        self._replication_factor = replication_factor
        self._producers = producers
        self._consumers = consumers
        self._interval_s = 1 / rate
        self._lingers_ms = lingers_ms
        self._seen: dict[tuple[int, int], str] = {}
        """(partition, offset) -> value, as acknowledged or read."""
        self._acknowledged: dict[str, tuple[int, int]] = {}
        self._last_sent_s: dict[str, float] = {}
        """When the last acknowledged record of each producer was sent."""
        self._positions: dict[str, dict[int, int]] = {}
        """Of each consumer: partition -> next offset."""
        self._sent = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    async def prepare(self, cluster: Cluster) -> None:
        self._cluster = cluster
        await cluster.admin(self._create)

    async def _create(self, admin: AdminClient) -> None:
        await admin.create_topics([NewTopic(self.topic, self._partitions, self._replication_factor)])

    async def run(self) -> None:
        cluster = self._cluster
        for number in range(self._producers):
            name = f"{self.topic}-producer-{number}"
            self._start(cluster.client(name), self._produce(name))
        for number in range(self._consumers):
            name = f"{self.topic}-consumer-{number}"
            self._start(cluster.client(name), self._consume(name))

    def _start(self, process: Process, work: Coroutine[Any, Any, None]) -> None:
        task = process.create_task(work)
        task.add_done_callback(self._cluster.watch)
        self._tasks.append(task)

    async def _produce(self, name: str) -> None:
        source = self._cluster.random(name)
        number = 0
        self._last_sent_s[name] = 0.0
        while not self._stopping:
            async with Producer(
                bootstrap_servers=self._cluster.bootstrap,
                client_id=name,
                linger_ms=source.choice(self._lingers_ms),
                delivery_timeout_ms=source.choice((6_000, 15_000, 120_000)),
                request_timeout_ms=5_000,
            ) as producer:
                pending: set[asyncio.Future[Any]] = set()
                while not self._stopping:
                    value = f"{name} {number}"
                    number += 1
                    partition = source.randrange(self._partitions)
                    # Some records are larger than a sector of a disk.
                    key = bytes(source.choice((0, 0, 0, 200, 2000))) or None
                    try:
                        delivery = await producer.send(self.topic, value.encode(), key, partition=partition)
                    except ClientError:
                        await asyncio.sleep(0.5)
                        continue
                    self._sent += 1
                    pending.add(delivery)
                    delivery.add_done_callback(pending.discard)
                    delivery.add_done_callback(partial(self._delivered, name, value, self._cluster.loop.now))
                    await self._cluster.think(source, self._interval_s)
                if pending:
                    await asyncio.wait(pending)

    def _delivered(self, name: str, value: str, sent_s: float, delivery: asyncio.Future[Any]) -> None:
        if delivery.cancelled():
            return
        problem = delivery.exception()
        if problem is not None:
            return  # the outcome is unknown
        metadata = delivery.result()
        place = (metadata.partition, metadata.offset)
        self._acknowledged[value] = place
        self._last_sent_s[name] = max(self._last_sent_s[name], sent_s)
        check_acknowledged(self._cluster, self.topic, *place, sent_s=sent_s)
        self._observe(place, value, "acknowledged to its producer")

    def _observe(self, place: tuple[int, int], value: str, how: str) -> None:
        known = self._seen.setdefault(place, value)
        if known != value:
            raise Violation(
                f"same records: offset {place[1]} of {self.topic}-{place[0]} held {known!r}, and now "
                f"{value!r} is {how}"
            )

    async def _consume(self, name: str) -> None:
        positions = self._positions[name] = dict.fromkeys(range(self._partitions), 0)
        while not self._stopping:
            consumer = Consumer(
                bootstrap_servers=self._cluster.bootstrap, client_id=name, auto_offset_reset="earliest"
            )
            await consumer.start()
            try:
                consumer.assign([(self.topic, partition) for partition in positions])
                for partition, offset in positions.items():
                    consumer.seek((self.topic, partition), offset)
                while not self._stopping:
                    for tp, records in (await consumer.poll(0.2)).items():
                        for record in records:
                            if record.offset < positions[tp.partition]:
                                raise Violation(
                                    f"order: {name} read offset {record.offset} of {tp} after "
                                    f"{positions[tp.partition] - 1}"
                                )
                            positions[tp.partition] = record.offset + 1
                            self._observe(
                                (tp.partition, record.offset), record.value.decode(), f"read by {name}"
                            )
            except ClientError as problem:
                self._cluster.note(name, f"consumer failed: {problem!r}")
                await asyncio.sleep(0.5)
            finally:
                await consumer.stop()

    async def finish(self) -> None:
        try:
            await self._cluster.in_process(f"{self.topic}-probe", self._probe())
        except ClientError as problem:
            raise Violation(
                f"liveness: without faults a client of {self.topic} fails: {problem!r}"
            ) from problem
        await self._until_all_work()
        self._stopping = True
        if self._tasks:
            done, pending = await asyncio.wait(self._tasks, timeout=180)
            if pending:
                raise Violation(f"liveness: clients of {self.topic} have not ended: {pending}")
            for task in done:
                task.result()
        records = await self._cluster.in_process(f"{self.topic}-verifier", self._read_all())
        self._verify(records)

    async def _until_all_work(self) -> None:
        """Clients that went through the faults write and read again soon. Raises Violation."""
        loop = self._cluster.loop
        began_s, ends = loop.now, dict.fromkeys(range(self._partitions), 0)
        for partition, offset in self._acknowledged.values():
            ends[partition] = max(ends[partition], offset + 1)

        def idle() -> list[str]:
            return [name for name, sent_s in self._last_sent_s.items() if sent_s < began_s] + [
                name
                for name, positions in self._positions.items()
                if any(position < ends[partition] for partition, position in positions.items())
            ]

        while names := idle():
            if loop.now - began_s > WORKS_AGAIN_S:
                raise Violation(
                    f"liveness: clients of {self.topic} do nothing for {WORKS_AGAIN_S:.0f} s without faults: "
                    f"{', '.join(names)}"
                )
            await asyncio.sleep(0.1)

    async def _probe(self) -> None:
        """A whole cluster acknowledges and delivers a record of each partition soon. Raises Violation."""
        bootstrap, loop = self._cluster.bootstrap, self._cluster.loop
        partitions = [(self.topic, partition) for partition in range(self._partitions)]
        async with (
            Producer(bootstrap_servers=bootstrap) as producer,
            Consumer(bootstrap_servers=bootstrap) as consumer,
        ):
            consumer.assign(partitions)
            for tp, end in (await consumer.end_offsets(partitions)).items():
                consumer.seek(tp, end)
            for number in range(PROBES):
                value = f"{self.topic}-probe {number}"
                partition = number % self._partitions
                began_s = loop.now
                sent = await producer.send(self.topic, value.encode(), partition=partition)
                metadata = await sent
                acknowledged_s = loop.now - began_s
                while (await consumer.position((self.topic, partition))) <= metadata.offset:
                    await consumer.poll(1.0)
                if loop.now - began_s > PROBE_S:
                    raise Violation(
                        f"liveness: without faults {value!r} was acknowledged after {acknowledged_s:.1f} s, "
                        f"and read after {loop.now - began_s:.1f} s"
                    )

    async def _read_all(self) -> dict[int, list[tuple[int, str]]]:
        found: dict[int, list[tuple[int, str]]] = {partition: [] for partition in range(self._partitions)}
        async with Consumer(
            bootstrap_servers=self._cluster.bootstrap, auto_offset_reset="earliest"
        ) as consumer:
            partitions = [(self.topic, partition) for partition in range(self._partitions)]
            consumer.assign(partitions)
            ends = await consumer.end_offsets(partitions)
            while True:
                left = [tp for tp, end in ends.items() if await consumer.position(tp) < end]
                if not left:
                    return found
                for tp, records in (await consumer.poll(1.0)).items():
                    found[tp.partition] += [(record.offset, record.value.decode()) for record in records]

    def _verify(self, found: dict[int, list[tuple[int, str]]]) -> None:
        values: dict[str, tuple[int, int]] = {}
        last: dict[tuple[int, str], int] = {}
        for partition, records in found.items():
            for offset, value in records:
                self._observe((partition, offset), value, "read at the end")
                if value in values:
                    raise Violation(
                        f"no duplicates: {value!r} is at {values[value]} and at {(partition, offset)}"
                    )
                values[value] = (partition, offset)
                name, _, number = value.rpartition(" ")
                before = last.get((partition, name), -1)
                if int(number) < before:
                    raise Violation(f"order: {self.topic}-{partition} has {value!r} after number {before}")
                last[partition, name] = int(number)
        for value, place in self._acknowledged.items():
            if values.get(value) != place:
                raise Violation(
                    f"nothing acknowledged is lost: {value!r} was acknowledged at {place}, and is at "
                    f"{values.get(value)}"
                )
        self._cluster.note(
            "simulation",
            f"{self.topic}: {len(self._acknowledged)} of {self._sent} acknowledged, {len(values)} stored",
        )
