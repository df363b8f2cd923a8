"""Producers with acks=1 and without idempotence append numbered records; two consumers read them all the
time.

With acks=1 the leader alone acknowledges a record: the record is lost if another replica becomes the leader
before it has fetched the record, and a retry may store it twice. What Kafka still promises, and what is
checked:

- *no invention*: a record that is read was sent, to this partition.
- *same records*: what a reader has read is below a high watermark. All readers see the same record at this
  offset, at every time, and it is there at the end.
- *order*, for producers with max.in.flight.requests.per.connection=1: of the records that are where they were
  acknowledged, the later ones have the higher offsets. A record whose delivery failed has no place: its
  request may still arrive after those that were sent later.
- *no duplicates*, for producers with retries=0: nothing is sent twice.
- *nothing acknowledged and committed is lost*: an acknowledged record that a reader has seen at its place
  stays there (a case of the second point).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final

from ottla.client import AdminClient, Consumer, Producer
from ottla.client.admin import NewTopic
from ottla.client.errors import ClientError
from ottla.simulation.cluster import Cluster, Violation
from ottla.simulation.workloads.clients import Clients, read_all

_KINDS: Final = ((1, 0), (1, 5), (5, 5))
"""max.in.flight.requests.per.connection and retries of the producers."""


@dataclass(frozen=True)
class _Sent:
    number: int
    """In the order of the calls of `send`, over all records."""
    producer: str
    partition: int


class AcksOne:
    """See the module."""

    def __init__(self, *, topic: str = "acks-one", partitions: int = 3, rate: float = 30.0) -> None:
        """`rate` is the number of records that each producer sends in a second."""
        self.topic = topic
        self._partitions = partitions
        self._interval_s = 1 / rate
        self._sent: dict[str, _Sent] = {}
        self._acknowledged: dict[str, tuple[int, int]] = {}
        self._seen: dict[tuple[int, int], str] = {}
        """(partition, offset) -> value, as read."""
        self._ordered: set[str] = set()
        self._sent_once: set[str] = set()
        self._stopping = False

    async def prepare(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._clients = Clients(cluster, self.topic)
        await cluster.admin(self._create)

    async def _create(self, admin: AdminClient) -> None:
        await admin.create_topics([NewTopic(self.topic, self._partitions, 3)])

    async def run(self) -> None:
        for number, (in_flight, retries) in enumerate(_KINDS):
            name = f"{self.topic}-producer-{number}"
            if in_flight == 1:
                self._ordered.add(name)
            if retries == 0:
                self._sent_once.add(name)
            self._clients.start(name, self._produce(name, in_flight, retries))
        for number in range(2):
            name = f"{self.topic}-consumer-{number}"
            self._clients.start(name, self._consume(name))

    async def _produce(self, name: str, in_flight: int, retries: int) -> None:
        source = self._cluster.random(name)
        async with Producer(
            bootstrap_servers=self._cluster.bootstrap,
            client_id=name,
            acks=1,
            enable_idempotence=False,
            max_in_flight_requests_per_connection=in_flight,
            retries=retries,
            linger_ms=source.choice((0, 5)),
            delivery_timeout_ms=source.choice((6_000, 60_000)),
            request_timeout_ms=source.choice((1_000, 5_000)),
        ) as producer:
            pending: set[asyncio.Future[Any]] = set()
            while not self._stopping:
                await self._send(producer, name, source, pending)
                await self._cluster.think(source, self._interval_s)
            if pending:
                await asyncio.wait(pending)

    async def _send(
        self, producer: Producer, name: str, source: Random, pending: set[asyncio.Future[Any]]
    ) -> None:
        number = len(self._sent)
        value = f"{name} {number}"
        sent = self._sent[value] = _Sent(number, name, source.randrange(self._partitions))
        try:
            delivery = await producer.send(self.topic, value.encode(), partition=sent.partition)
        except ClientError:
            await asyncio.sleep(0.5)
            return
        pending.add(delivery)
        delivery.add_done_callback(pending.discard)
        delivery.add_done_callback(partial(self._delivered, value))

    def _delivered(self, value: str, delivery: asyncio.Future[Any]) -> None:
        if not delivery.cancelled() and delivery.exception() is None:
            metadata = delivery.result()
            if metadata.offset < 0:
                raise Violation(f"acknowledgement: {value!r} has offset {metadata.offset}")
            self._acknowledged[value] = (metadata.partition, metadata.offset)

    def _observe(self, partition: int, offset: int, value: str, how: str) -> None:
        where = f"offset {offset} of {self.topic}-{partition}"
        sent = self._sent.get(value)
        if sent is None or sent.partition != partition:
            raise Violation(f"no invention: {where} has {value!r}, {how}; it was not sent there: {sent}")
        known = self._seen.setdefault((partition, offset), value)
        if known != value:
            raise Violation(f"same records: {where} held {known!r}, and now {value!r} is {how}")

    async def _consume(self, name: str) -> None:
        positions = dict.fromkeys(range(self._partitions), 0)
        while not self._stopping:
            try:
                async with Consumer(
                    bootstrap_servers=self._cluster.bootstrap, client_id=name, auto_offset_reset="none"
                ) as consumer:
                    await self._read(consumer, name, positions)
            except ClientError as problem:
                self._cluster.note(name, f"consumer failed: {problem!r}")
                await asyncio.sleep(0.5)

    async def _read(self, consumer: Consumer, name: str, positions: dict[int, int]) -> None:
        consumer.assign([(self.topic, partition) for partition in positions])
        for partition, offset in positions.items():
            consumer.seek((self.topic, partition), offset)
        while not self._stopping:
            for tp, records in (await consumer.poll(0.2)).items():
                for record in records:
                    # Without compaction and transactions there are no gaps.
                    if record.offset != positions[tp.partition]:
                        raise Violation(
                            f"no gaps: {name} read offset {record.offset} of {tp} after "
                            f"{positions[tp.partition] - 1}"
                        )
                    positions[tp.partition] = record.offset + 1
                    self._observe(tp.partition, record.offset, record.value.decode(), f"read by {name}")

    async def finish(self) -> None:
        self._stopping = True
        await self._clients.wait()
        partitions = [(self.topic, partition) for partition in range(self._partitions)]
        found = await read_all(self._cluster, f"{self.topic}-verifier", partitions)
        stored = {(tp.partition, at): value for tp, records in found.items() for at, value in records}
        for (partition, offset), value in stored.items():
            self._observe(partition, offset, value, "read at the end")
        self._verify_kept(stored)
        self._verify_order(stored)
        self._verify_single(stored)
        kept = sum(1 for value, place in self._acknowledged.items() if stored.get(place) == value)
        self._cluster.note(
            "simulation",
            f"{self.topic}: {kept} of {len(self._acknowledged)} acknowledged of {len(self._sent)} are kept, "
            f"{len(stored)} stored",
        )

    def _verify_kept(self, stored: dict[tuple[int, int], str]) -> None:
        for place, value in self._seen.items():
            if place not in stored:
                raise Violation(
                    f"nothing committed is lost: {value!r} was read at offset {place[1]} of {self.topic}-"
                    f"{place[0]}, and nothing is there at the end"
                )

    def _verify_order(self, stored: dict[tuple[int, int], str]) -> None:
        last: dict[tuple[str, int], str] = {}
        for place, value in sorted(stored.items()):
            sent = self._sent[value]
            if sent.producer not in self._ordered or self._acknowledged.get(value) != place:
                continue
            before = last.get((sent.producer, sent.partition))
            if before is not None and self._sent[before].number > sent.number:
                raise Violation(
                    f"order: {value!r} is at offset {place[1]} of {self.topic}-{place[0]}, after {before!r}, "
                    "which was sent later; both were acknowledged there, one request at a time"
                )
            last[sent.producer, sent.partition] = value

    def _verify_single(self, stored: dict[tuple[int, int], str]) -> None:
        places: dict[str, tuple[int, int]] = {}
        for place, value in stored.items():
            if self._sent[value].producer in self._sent_once and value in places:
                raise Violation(
                    f"no duplicates: {value!r} is at {places[value]} and at {place}, with retries=0"
                )
            places[value] = place
